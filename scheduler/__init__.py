"""Decides what every step computes: requests, lanes, pages, budget. Pure Python and numpy, no torch, no clock.

All that other packages use is here; `scheduler.contract` is for those who compute the steps.
"""

from .contract import MOST_RANKS, DeviceLost, Executor, Sampling, StepPlan, StepResult
from .decoding.attention_pattern import PLAIN, AttentionPattern
from .decoding.boundaries import Boundary
from .decoding.commit import HOST_RULES
from .decoding.compatibility import VocabularyFacts, refuse
from .decoding.params import Choice, ParamError, Range, Values, plain
from .decoding.registry import DECODERS
from .decoding.resolve import ALL_PARAMS, defaults_of, resolve, suits
from .decoding.vocabulary import Vocabulary
from .grammar_guide import Constraint
from .lane_events import LaneEvents
from .likelihood import Scoring
from .logit_bias import NEUTRAL, Preferences
from .logprobs import Scored
from .memory.pages import Limits
from .request import Ended, Failure, Load, Outcome, Request, RequestStats, State, Update
from .scheduler import QueueFull, Scheduler
from .scored_sequence import scoring_decoder, scoring_room, with_rows
from .step_cost import Budget, Halving, StepCost

__all__ = [
    "ALL_PARAMS",
    "DECODERS",
    "HOST_RULES",
    "MOST_RANKS",
    "NEUTRAL",
    "PLAIN",
    "AttentionPattern",
    "Boundary",
    "Budget",
    "Choice",
    "Constraint",
    "DeviceLost",
    "Ended",
    "Executor",
    "Failure",
    "Halving",
    "LaneEvents",
    "Limits",
    "Load",
    "Outcome",
    "ParamError",
    "Preferences",
    "QueueFull",
    "Range",
    "Request",
    "RequestStats",
    "Sampling",
    "Scheduler",
    "Scored",
    "Scoring",
    "State",
    "StepCost",
    "StepPlan",
    "StepResult",
    "Update",
    "Values",
    "Vocabulary",
    "VocabularyFacts",
    "defaults_of",
    "plain",
    "refuse",
    "resolve",
    "scoring_decoder",
    "scoring_room",
    "suits",
    "with_rows",
]
