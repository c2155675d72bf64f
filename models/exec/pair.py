"""Executes plans with rows of two networks on one device: the one that is served, and a drafter."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from ...scheduler.contract import Bools, Ints, Placement, Row, Scores, StepPlan, StepResult
from .runner import Waiter


class Half(Protocol):
    """A network with canvases, keys and values of its own."""

    def launch(self, plan: StepPlan) -> Waiter: ...

    def place(self, placements: Sequence[Placement]) -> None: ...


class Ids(NamedTuple):
    """The id that open positions have in a plan, the one that they have on the drafter's canvases, and the number of
    ids that the drafter has: it reads others as masks."""

    mask_id: int
    drafter_mask_id: int
    drafter_vocab_size: int

    def for_drafter(self, tokens: Ints) -> Ints:
        read = np.where(tokens < self.drafter_vocab_size, tokens, self.drafter_mask_id)
        return np.where(tokens == self.mask_id, self.drafter_mask_id, read).astype(np.int32)


class Pair:
    """An `Executor` of two networks. A slot is a canvas of each, a page has keys and values of each."""

    def __init__(self, served: Half, drafter: Half, ids: Ids, on_gpu: bool = False) -> None:
        self._served, self._drafter, self._ids, self._on_gpu = served, drafter, ids, on_gpu

    def execute(self, plan: StepPlan) -> StepResult:
        return self.launch(plan)()

    def launch(self, plan: StepPlan) -> Waiter:
        """Start both parts of a plan on a GPU; what is returned waits for their ends. On a CPU nothing begins before
        that is called."""
        rows = tuple([row for row in plan.rows if not row.drafter])
        drafts = tuple([self._for_drafter(row) for row in plan.rows if row.drafter])
        placements = tuple([replace(one, prompt=self._ids.for_drafter(one.prompt)) for one in plan.placements])
        own, draft = StepPlan(plan.placements, rows), StepPlan(placements, drafts)
        if self._on_gpu:
            served = _launched(self._served, own)
            try:
                return PairUnderWay(plan, served, _launched(self._drafter, draft))
            except Exception:
                served()  # nobody else would wait for it, and a later launch would write over its numbers
                raise
        return lambda: _joined(plan, _launched(self._served, own)(), _launched(self._drafter, draft)())

    def _for_drafter(self, row: Row) -> Row:
        if row.host_tokens is None:
            raise ValueError("a row of the drafter has no tokens")
        return row._replace(host_tokens=self._ids.for_drafter(row.host_tokens), drafter=False)


@dataclass(frozen=True, slots=True)
class PairUnderWay:
    """A step of two networks that a GPU computes."""

    plan: StepPlan
    served: Callable[[], StepResult | None]
    drafter: Callable[[], StepResult | None]

    def done(self) -> bool:
        """True if both results are there, or cannot be."""
        return all(getattr(part, "done", lambda: True)() for part in (self.served, self.drafter))

    def __call__(self) -> StepResult:
        """Wait for both results: also for the second one if the first has failed."""
        try:
            served = self.served()
        finally:
            drafter = self.drafter()
        return _joined(self.plan, served, drafter)


def _launched(half: Half, plan: StepPlan) -> Callable[[], StepResult | None]:
    """Start a network's part of a plan, which may be placements alone."""
    if plan.rows:
        return half.launch(plan)
    half.place(plan.placements)
    return lambda: None


def _joined(plan: StepPlan, served: StepResult | None, drafter: StepResult | None) -> StepResult:
    """The result of a plan, of those of its parts."""
    if served is None or drafter is None:
        only = served or drafter
        if only is None:
            raise ValueError("a plan has a row at least")
        return only
    sizes = [sum([span.end - span.start for span in row.spans]) for row in plan.rows]
    drafted: Bools = np.repeat([row.drafter for row in plan.rows], sizes)
    spread = partial(_spread, drafted)
    tokens, proposals, confidence = (
        spread(own, draft)
        for own, draft in (
            (served.tokens, drafter.tokens),
            (served.proposals, drafter.proposals),
            (served.confidence, drafter.confidence),
        )
    )
    scores = served.scores
    if scores is not None:  # rows of the drafter have no alternatives
        ranks = None if scores.token_ranks is None else spread(scores.token_ranks)
        scores = Scores(spread(scores.chosen), spread(scores.ranked), spread(scores.logprobs), ranks)
    measured = None if served.measured is None else spread(served.measured)
    return replace(
        served,
        tokens=tokens,
        proposals=proposals,
        confidence=confidence,
        device_s=served.device_s + drafter.device_s,
        scores=scores,
        measured=measured,
    )


def _spread(drafted: Bools, own: npt.NDArray[np.generic], draft: npt.NDArray[np.generic] | None = None) -> np.ndarray:
    """[n, ...] with `own` where not `drafted` [n], and `draft` or zeros elsewhere."""
    found = np.zeros((len(drafted), *own.shape[1:]), own.dtype)
    found[~drafted] = own
    if draft is not None:
        found[drafted] = draft
    return found
