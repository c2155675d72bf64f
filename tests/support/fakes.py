"""Stand-ins that drive the real scheduler and engine without a network."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby, pairwise
from threading import Event
from typing import NoReturn

import numpy as np

from asynclane.scheduler import Request, Scheduler
from asynclane.scheduler.contract import Row, Scores, Span, StepPlan, StepResult
from asynclane.scheduler.decoding.vocabulary import Vocabulary
from asynclane.scheduler.sequence import Sequence as Running

MASK, END, INSTEAD = 0, 1, 6
PIECES = ["", "", ".", "\n", "1", "2", "word", " other", "x", "y", ",", "```", "(", ")", '"', ":", " =", "'", ":\n"]
LETTERS = "_E./12woxy,`()\":='N"  # one for each piece, for canvases written by hand
IDS = {letter: number for number, letter in enumerate(LETTERS)}


def add(scheduler: Scheduler, request: Request) -> Running:
    """Queue `request`. The scheduler's own record of it, for tests that look inside."""
    scheduler.add(request)
    return (scheduler.waiting | scheduler.running)[request.id]


def vocabulary() -> Vocabulary:
    return Vocabulary(PIECES, mask_id=MASK, end_ids=[END], counts=range(len(PIECES)))


class ScriptedExecutor:
    """Keeps canvases as the device does, and commits what `propose` says, under each span's own rule.

    `propose(slot, position)` gives a token and its confidence. Like a device, it complains when a plan contradicts
    what it knows: an unknown slot, a span outside its row, or without what predicts it, two rows of one slot that are
    not in order, or share a position.
    """

    def __init__(self, propose: Callable[[int, int], tuple[int, float]], length: int = 512, shift: int = 0) -> None:
        self.propose = propose
        self.shift = shift
        self.length = length
        self.mask = MASK
        self.canvases: dict[int, np.ndarray] = {}
        self.plans: list[StepPlan] = []

    def place(self, plan: StepPlan) -> None:
        for placement in plan.placements:
            canvas = np.full(self.length, self.mask, np.int32)
            canvas[: len(placement.prompt)] = placement.prompt
            self.canvases[placement.slot] = canvas
        for row in plan.rows:
            if row.host_tokens is not None:
                self.canvases[row.slot][row.start : row.end] = row.host_tokens

    def execute(self, plan: StepPlan) -> StepResult:
        self.plans.append(plan)
        self.place(plan)
        for before, row in pairwise(plan.rows):
            assert before.slot != row.slot or before.end <= row.start, "rows of one slot overlap"
        runs = [slot for slot, _ in groupby(row.slot for row in plan.rows)]
        assert len(runs) == len(set(runs)), "rows of one slot are apart"
        for row in plan.rows:
            assert row.visible >= row.end > row.start >= 0
            for span in row.spans:
                assert row.start <= span.start - self.shift < span.end - self.shift <= row.end, (row, span)
        tokens: list[np.ndarray] = []
        proposals: list[int] = []
        confidence: list[float] = []
        for slot, spans in parts(plan):
            at = np.concatenate([np.arange(span.start, span.end) for span in spans])
            proposed = [self.propose(slot, position) for position in at.tolist()]
            found = self.canvases[slot][at]
            self._commit(found, proposed, spans[0])
            self.canvases[slot][at] = found
            tokens.append(found)
            proposals += [token for token, _ in proposed]
            confidence += [chance for _, chance in proposed]
        packed = np.concatenate(tokens) if tokens else np.zeros(0, np.int32)
        proposed, chances = np.array(proposals, np.int32), np.array(confidence, np.float64)
        return StepResult(packed, proposed, chances, 0.0, self._scores(plan, proposed, chances))

    def _scores(self, plan: StepPlan, proposals: np.ndarray, chances: np.ndarray) -> Scores | None:
        """A token that is scored has the confidence of the proposal, or what that leaves."""
        if all(row.scored is None for row in plan.rows):
            return None
        nothing = np.zeros((len(proposals), max(row.ranks or 0 for row in plan.rows)), np.int32)
        sizes = [sum(span.end - span.start for span in row.spans) for row in plan.rows]
        given = [
            np.full(size, -1, np.int32) if row.scored is None else row.scored
            for row, size in zip(plan.rows, sizes, strict=True)
        ]
        same = np.concatenate(given) == proposals
        chosen = np.log(np.where(same, chances, 1 - chances).clip(1e-9)).astype(np.float32)
        return Scores(chosen, nothing, nothing.astype(np.float32))

    def _commit(self, found: np.ndarray, proposed: list[tuple[int, float]], span: Span) -> None:
        """Where a span may not end, the word that stands in for an end token has no confidence."""
        scored = [
            (INSTEAD, 0.0, at) if token == END and not span.may_end else (token, chance, at)
            for at, (token, chance) in enumerate(proposed)
            if found[at] == self.mask
        ]
        scored.sort(key=lambda item: -item[1])
        for rank, (token, chance, at) in enumerate(scored):
            if rank < span.rule.sure or chance >= span.rule.threshold:
                found[at] = token


def parts(plan: StepPlan) -> list[tuple[int, list[Span]]]:
    """Each span with those that join it, and their slot."""
    found: list[tuple[int, list[Span]]] = []
    for row in plan.rows:
        for span in row.spans:
            if span.joined:
                slot, spans = found[-1]
                assert slot == row.slot
                assert (spans[0].rule, spans[0].may_end) == (span.rule, span.may_end)
                assert spans[-1].end < span.start
                spans.append(span)
            else:
                found.append((row.slot, [span]))
    return found


class Panic(BaseException):
    """As a library in Rust raises it: no `Exception`."""


def raising(error: BaseException) -> Callable[..., NoReturn]:
    """A function that raises, whatever it is called with."""

    def fail(*args: object) -> NoReturn:
        raise error

    return fail


class FaultyExecutor:
    """Raises or waits for what `faults` have for its next steps, and else computes as `inner` does."""

    def __init__(self, inner: ScriptedExecutor, faults: Sequence[BaseException | Event | None] = ()) -> None:
        self.inner = inner
        self._faults = iter(faults)

    def execute(self, plan: StepPlan) -> StepResult:
        fault = next(self._faults, None)
        if isinstance(fault, Event):
            fault.wait()
        elif fault is not None:
            raise fault
        return self.inner.execute(plan)


class BlockCausalExecutor(ScriptedExecutor):
    """Keeps on its pages what a block-causal network's keys depend on, and complains when a row sees keys that are not
    those of the tokens before it as they are now."""

    def __init__(
        self, propose: Callable[[int, int], tuple[int, float]], block: int, page_size: int, shift: int = 0
    ) -> None:
        super().__init__(propose, shift=shift)
        self._block = block
        self._page_size = page_size
        self._tables: dict[int, tuple[int, ...]] = {}
        self._keys: dict[tuple[int, int], int] = {}  # by page and offset within it

    def place(self, plan: StepPlan) -> None:
        super().place(plan)
        self._tables.update((placement.slot, placement.pages) for placement in plan.placements)
        for placement in plan.placements:
            copied = dict(placement.copied)
            found = [((copied[page], at), content) for (page, at), content in self._keys.items() if page in copied]
            self._keys.update(found)
        for row in plan.rows:  # all keys of a step are written before any are seen
            for start, place, content in self._contents(row):
                if start >= row.start:
                    self._keys[place] = content
        for row in plan.rows:
            assert row.start % self._block == row.end % self._block == 0, "part of a block"
            assert row.visible == row.end
            for start, place, content in self._contents(row):
                assert self._keys[place] == content, (row.slot, start, "stale keys")

    def _contents(self, row: Row) -> Iterator[tuple[int, tuple[int, int], int]]:
        """For each block before the row's end: where it starts, where its keys are, and what they depend on."""
        content = 0
        for start in range(0, row.end, self._block):
            tokens = self.canvases[row.slot][start : start + self._block]
            content = hash((content, tuple(tokens.tolist())))
            page = self._tables[row.slot][start // self._page_size]
            yield start, (page, start % self._page_size), content


def random_executor(seed: int, end_share: float = 0.02, shift: int = 0) -> ScriptedExecutor:
    """Proposes random tokens with random confidence, now and then an end token."""
    return ScriptedExecutor(random_proposals(seed, end_share), shift=shift)


def random_proposals(seed: int, end_share: float = 0.02) -> Callable[[int, int], tuple[int, float]]:
    rng = random.Random(seed)

    def propose(slot: int, position: int) -> tuple[int, float]:
        token = END if rng.random() < end_share else rng.randrange(2, len(PIECES))
        return token, rng.random()

    return propose
