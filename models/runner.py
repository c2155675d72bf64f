"""Executes a plan on a device: canvases live there, a step is one copy in, the network, the commit, one copy out."""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch
from torch import Tensor

from ..kernels import reference as ops
from ..scheduler.contract import GREEDY, Row, Span, StepPlan, StepResult, Transfer
from .kv_pages import KvPages
from .llada import Llada
from .pack import Batch, pack

ROW = 64  # positions of a row when step time is measured: a block and its look-ahead
NOTHING = Transfer(sure=0, threshold=2.0)  # no confidence reaches it


class Runner:
    """An `Executor`. Not safe for use from two threads at once."""

    def __init__(
        self, network: Llada, pages: KvPages, slots: int, banned: Sequence[int], end_ids: Sequence[int]
    ) -> None:
        """`slots` canvases of the network's longest input; ids in `banned` are never proposed, those in `end_ids` not
        where a span may not end."""
        config = network.config
        self._network = network
        self._pages = pages
        self._device = pages.table.device
        self._canvases = torch.full((slots, config.max_model_len), config.mask_id, device=self._device)
        self._banned = torch.tensor(banned, device=self._device)
        self._end_ids = torch.tensor(end_ids, device=self._device)

    @torch.inference_mode()
    def execute(self, plan: StepPlan) -> StepResult:
        started = time.perf_counter()
        batch = self._place(plan)
        tokens, proposals, confidence = self._commit(batch, self._logits(batch))
        return StepResult(
            tokens=tokens.int().cpu().numpy(),
            proposals=proposals.int().cpu().numpy(),
            confidence=confidence.float().cpu().numpy(),
            device_s=time.perf_counter() - started,
        )

    def step_seconds(self, tokens: int) -> float:
        """How long a step of about so many positions takes: the better of two, in rows of up to `ROW` positions.

        Only while no request is running: it writes to the pages and canvases of no one.
        """
        sizes = [min(ROW, tokens - start) for start in range(0, tokens, ROW)]
        rows = tuple(
            Row(number % len(self._canvases), 0, size, size, (Span(0, size, NOTHING),), GREEDY, step=0)
            for number, size in enumerate(sizes)
        )
        return min(self.execute(StepPlan((), rows)).device_s for _ in range(2))

    @torch.inference_mode()
    def logits(self, plan: StepPlan) -> Tensor:
        """The raw logits [N, V] of a plan's spans; commits nothing."""
        return self._logits(self._place(plan))

    def _place(self, plan: StepPlan) -> Batch:
        for placement in plan.placements:
            canvas = self._canvases[placement.slot]
            canvas.fill_(self._network.config.mask_id)
            canvas[: len(placement.prompt)] = torch.from_numpy(placement.prompt)
            self._pages.assign(placement.slot, placement.pages)
        return pack(plan, self._device)

    def _logits(self, batch: Batch) -> Tensor:
        tokens = self._canvases[batch.slots, batch.positions]
        return self._network.logits(self._network.hidden(tokens, batch, self._pages))

    def _commit(self, batch: Batch, logits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Writes what commits into the canvases; returns, over all spans, the canvas, what the network proposes and
        with which confidence."""
        slots, positions = batch.slots[batch.projected], batch.positions[batch.projected]
        held = self._canvases[slots, positions]
        proposals, confidence = ops.propose(logits, self._banned)
        if not len(held):
            return held, proposals, confidence
        if len(batch.drawn):
            proposals[batch.drawn], confidence[batch.drawn] = ops.sample(
                logits[batch.drawn],
                batch.temperature,
                batch.top_p,
                batch.seeds,
                positions[batch.drawn],
                batch.steps,
            )
        tokens, chances = ops.replace_ends(logits, proposals, confidence, batch.endless, self._end_ids)
        commit = ops.transfer(
            chances,
            held == self._network.config.mask_id,
            batch.span_starts,
            batch.sure,
            batch.threshold,
            batch.factor,
            batch.last_free,
        )
        held = torch.where(commit, tokens, held)
        self._canvases[slots, positions] = held
        return held, proposals, confidence
