"""Host rules that draft in one step and check the draft in the next, by a causal row."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import NamedTuple, Self

import numpy as np

from ....contract import Floats, Ints
from ...lane_tree import Layout
from ...params import Params
from ..base import CommitDecision, HostCommitRule, StepView
from ..segments import Longs

NO_CANVAS: Ints = np.zeros(0, np.int32)


class Verified(NamedTuple):
    """The results of a step that checks drafts, besides its view: the log-probability `logprobs` [n] of each token of
    the spans, given all tokens before it, and the `seeds` [r] of the requests."""

    logprobs: Floats
    seeds: Longs


class Verifier(HostCommitRule):
    """A rule that may have its proposals checked from left to right. After `choose` has set a `span`, canvas positions
    that are all open, the next step computes the `draft`, a canvas in which it is filled, causally, and beside it a
    mask for each position of the span, which sees the draft before it. `accept` decides what of the span commits."""

    layout = Layout.VERIFIED
    scored = False  # the probabilities of a check are not those of a proposal

    causal_cache: bool  # keys of finished blocks and of the prompt are those of a causal network
    causal_drafts: bool  # so are those of a block's tokens before its first mask

    def __init__(self, params: Params, length: int) -> None:
        self.span: tuple[int, int] | None = None
        self.draft = NO_CANVAS

    @classmethod
    @abstractmethod
    def accept(cls, rules: Sequence[Self], view: StepView, verified: Verified) -> CommitDecision:
        """The decisions of `rules` [r] after their spans, which are the positions of the view, have been checked: what
        the network proposes is what it would say after the draft before. State changes last, as in `choose`."""
