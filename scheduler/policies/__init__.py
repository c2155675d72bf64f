"""First axis of a decoder: when a lane is born, forked, finished and cancelled."""

from .asynclane import AsyncLane
from .base import LaneFacts, LanePolicy
from .blockwise import Blockwise

__all__ = ["AsyncLane", "Blockwise", "LaneFacts", "LanePolicy"]
