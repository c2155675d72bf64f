"""Stand-ins that drive the real scheduler and engine without a network."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np

from asynclane.scheduler.contract import StepPlan, StepResult
from asynclane.scheduler.vocabulary import Vocabulary

MASK, END = 0, 1
PIECES = ["", "", ".", "\n", "1", "2", "word", " other", "x", "y"]


def vocabulary() -> Vocabulary:
    return Vocabulary(PIECES, mask_id=MASK, end_ids=[END])


class ScriptedExecutor:
    """Keeps canvases as the device does, and commits what `propose` says, under each span's own rule.

    `propose(slot, position)` gives a token and its confidence. Like a device, it complains when a plan contradicts
    what it knows: an unknown slot, a span outside its row, two rows of one slot, pages used twice.
    """

    def __init__(self, propose: Callable[[int, int], tuple[int, float]], length: int = 512) -> None:
        self.propose = propose
        self.length = length
        self.mask = MASK
        self.canvases: dict[int, np.ndarray] = {}
        self.plans: list[StepPlan] = []

    def execute(self, plan: StepPlan) -> StepResult:
        self.plans.append(plan)
        for placement in plan.placements:
            canvas = np.full(self.length, self.mask, np.int32)
            canvas[: len(placement.prompt)] = placement.prompt
            self.canvases[placement.slot] = canvas
        slots = [row.slot for row in plan.rows]
        assert len(slots) == len(set(slots)), "two rows of one slot"
        tokens: list[np.ndarray] = []
        for row in plan.rows:
            assert row.visible >= row.end > row.start >= 0
            for span in row.spans:
                assert row.start <= span.start < span.end <= row.end, (row, span)
                self._commit(row.slot, span.start, span.end, span.transfer.sure, span.transfer.threshold)
                tokens.append(self.canvases[row.slot][span.start : span.end].copy())
        packed = np.concatenate(tokens)
        return StepResult(packed, np.ones(len(packed), np.float32), device_s=0.0)

    def _commit(self, slot: int, start: int, end: int, sure: int, threshold: float) -> None:
        canvas = self.canvases[slot]
        scored = [(*self.propose(slot, p), p) for p in range(start, end) if canvas[p] == self.mask]
        scored.sort(key=lambda item: -item[1])
        for rank, (token, confidence, position) in enumerate(scored):
            if rank < sure or confidence >= threshold:
                canvas[position] = token


def random_executor(seed: int, end_share: float = 0.02) -> ScriptedExecutor:
    """Proposes random tokens with random confidence, now and then an end token."""
    rng = random.Random(seed)

    def propose(slot: int, position: int) -> tuple[int, float]:
        token = END if rng.random() < end_share else rng.randrange(2, len(PIECES))
        return token, rng.random()

    return ScriptedExecutor(propose)
