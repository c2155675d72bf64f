"""Executes plans with rows of two networks on one device: the one that is served, and a drafter."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from ...scheduler.contract import Bools, DeviceLost, Ints, Row, Scores, StepPlan, StepResult
from .runner import Waiter

T = TypeVar("T")


class Half(Protocol):
    """A network with canvases, keys and values of its own. A plan of it may be placements alone."""

    def launch(self, plan: StepPlan) -> Waiter: ...


class Ids(NamedTuple):
    """The id that open positions have in a plan, the one that they have on the drafter's canvases, and the number of
    ids that the drafter has: it reads others as masks."""

    mask_id: int
    drafter_mask_id: int
    drafter_vocab_size: int

    def for_drafter(self, tokens: Ints) -> Ints:
        read = np.where(tokens < self.drafter_vocab_size, tokens, self.drafter_mask_id)
        return np.where(tokens == self.mask_id, self.drafter_mask_id, read).astype(np.int32)

    def from_drafter(self, result: StepResult) -> StepResult:
        """A result of the drafter, with the plan's id where its canvas is open."""
        tokens = np.where(result.tokens == self.drafter_mask_id, self.mask_id, result.tokens).astype(np.int32)
        return replace(result, tokens=tokens)


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
        if not self._on_gpu:
            return lambda: _joined(plan, self._served.launch(own)(), self._drafter.launch(draft)(), self._ids)
        served, errors = self._served.launch(own), list[Exception]()
        drafter = _tried(partial(self._drafter.launch, draft), errors)
        if drafter is None:
            _tried(served, errors)  # nobody else would wait for it, and a later launch would write over its numbers
            raise _gravest(errors)
        return PairUnderWay(plan, served, drafter, self._ids)

    def _for_drafter(self, row: Row) -> Row:
        if row.host_tokens is None:
            raise ValueError("a row of the drafter has no tokens")
        return row._replace(host_tokens=self._ids.for_drafter(row.host_tokens), drafter=False)


@dataclass(frozen=True, slots=True)
class PairUnderWay:
    """A step of two networks that a GPU computes."""

    plan: StepPlan
    served: Waiter
    drafter: Waiter
    ids: Ids

    def done(self) -> bool:
        """True if both results are there, or cannot be."""
        return all(getattr(part, "done", lambda: True)() for part in (self.served, self.drafter))

    def __call__(self) -> StepResult:
        """Wait for both results, also for the second one if the first has failed. Raises `DeviceLost` if one of them
        does, whatever the other one raises."""
        errors = list[Exception]()
        served, drafter = _tried(self.served, errors), _tried(self.drafter, errors)
        if served is None or drafter is None:
            raise _gravest(errors)
        return _joined(self.plan, served, drafter, self.ids)


def _tried(call: Callable[[], T], errors: list[Exception]) -> T | None:
    """The result of a call. If it raises, there is none, and the error is added to `errors`."""
    try:
        return call()
    except Exception as error:  # noqa: BLE001 - callers raise the gravest of all
        errors.append(error)
        return None


def _gravest(errors: list[Exception]) -> Exception:
    """The error of a step of which several parts have failed: the one after which the engine ends, or the first."""
    return next((error for error in errors if isinstance(error, DeviceLost)), errors[0])


def _joined(plan: StepPlan, served: StepResult, drafter: StepResult, ids: Ids) -> StepResult:
    """The result of a plan, of those of its parts."""
    if not any(row.drafter for row in plan.rows):
        return served
    drafter = ids.from_drafter(drafter)
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
