"""First axis of a decoder: when a lane is born, forked, cut, finished and cancelled."""

from .adablock import DELIMITERS, AdaBlock
from .asynclane import AsyncLane
from .base import LanePolicy, LaneStatus
from .blockwise import Blockwise
from .growing import Growing
from .multiblock import MultiBlock
from .slowfast import SlowFast
from .tccf import TURNS, CoarseFine

__all__ = [
    "DELIMITERS",
    "TURNS",
    "AdaBlock",
    "AsyncLane",
    "Blockwise",
    "CoarseFine",
    "Growing",
    "LanePolicy",
    "LaneStatus",
    "MultiBlock",
    "SlowFast",
]
