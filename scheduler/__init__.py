"""Decides what every step computes: requests, lanes, pages, budget. Pure Python and numpy, no torch, no clock.

All that other packages use is here; `scheduler.contract` is for those who compute the steps.
"""

from .contract import MOST_RANKS, DeviceLost, Executor, Measure, Sampling, StepPlan, StepResult
from .decoding.attention_pattern import MOST_DRAFTED, PLAIN, AttentionPattern, Drafter
from .decoding.boundaries import Boundary
from .decoding.commit import LEARNT_RULES
from .decoding.commit.base import CommitDecision, HostCommitRule, StepView
from .decoding.commit.segments import NONE
from .decoding.commit.shared.weights import LearntRule, Weights
from .decoding.compatibility import VocabularyFacts, refuse
from .decoding.params import Choice, ParamError, Params, Range, Values, in_range, nearest
from .decoding.plugins import ALL_DECODERS, ALL_PARAMS, ALL_RULES, plugins
from .decoding.registry import DecoderSpec
from .decoding.resolve import AS_LISTED, RULES, RuleMaker, defaults_of, resolve, suits, unknown_decoder
from .decoding.summaries import SUMMARIES
from .decoding.vocabulary import Vocabulary
from .decoding.words import all_words, words_of
from .grammar_guide import Constraint
from .lane_events import LaneEvents
from .likelihood import Scoring
from .logit_bias import NEUTRAL, Preferences
from .logprobs import Scored
from .memory.pages import Limits
from .request import Ended, Failure, Load, Outcome, Request, RequestStats, State, Update
from .scheduler import QueueFull, Scheduler
from .scored_sequence import scoring_decoder, scoring_room, with_rows
from .step_cost import Budget, Halving, Pacing, StepCost

__all__ = [
    "ALL_DECODERS",
    "ALL_PARAMS",
    "ALL_RULES",
    "AS_LISTED",
    "LEARNT_RULES",
    "MOST_DRAFTED",
    "MOST_RANKS",
    "NEUTRAL",
    "NONE",
    "PLAIN",
    "RULES",
    "SUMMARIES",
    "AttentionPattern",
    "Boundary",
    "Budget",
    "Choice",
    "CommitDecision",
    "Constraint",
    "DecoderSpec",
    "DeviceLost",
    "Drafter",
    "Ended",
    "Executor",
    "Failure",
    "Halving",
    "HostCommitRule",
    "LaneEvents",
    "LearntRule",
    "Limits",
    "Load",
    "Measure",
    "Outcome",
    "Pacing",
    "ParamError",
    "Params",
    "Preferences",
    "QueueFull",
    "Range",
    "Request",
    "RequestStats",
    "RuleMaker",
    "Sampling",
    "Scheduler",
    "Scored",
    "Scoring",
    "State",
    "StepCost",
    "StepPlan",
    "StepResult",
    "StepView",
    "Update",
    "Values",
    "Vocabulary",
    "VocabularyFacts",
    "Weights",
    "all_words",
    "defaults_of",
    "in_range",
    "nearest",
    "plugins",
    "refuse",
    "resolve",
    "scoring_decoder",
    "scoring_room",
    "suits",
    "unknown_decoder",
    "with_rows",
    "words_of",
]
