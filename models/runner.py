"""Executes a plan on a device: canvases live there, a step is one copy in, the network, the commit, one copy out."""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch
from torch import Tensor

from ..kernels import reference as ops
from ..scheduler.contract import StepPlan, StepResult
from .kv_pages import KvPages
from .llada import Llada
from .pack import Batch, pack


class Runner:
    """An `Executor`. Not safe for use from two threads at once."""

    def __init__(self, network: Llada, pages: KvPages, slots: int, banned: Sequence[int]) -> None:
        """`slots` canvases of the network's longest input; ids in `banned` are never proposed."""
        config = network.config
        self._network = network
        self._pages = pages
        self._device = pages.table.device
        self._canvases = torch.full((slots, config.max_model_len), config.mask_id, device=self._device)
        self._banned = torch.tensor(banned, device=self._device)

    @torch.inference_mode()
    def execute(self, plan: StepPlan) -> StepResult:
        started = time.perf_counter()
        batch = self._place(plan)
        tokens, confidence = self._commit(batch, self._logits(batch))
        return StepResult(
            tokens=tokens.int().cpu().numpy(),
            confidence=confidence.float().cpu().numpy(),
            device_s=time.perf_counter() - started,
        )

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

    def _commit(self, batch: Batch, logits: Tensor) -> tuple[Tensor, Tensor]:
        """Writes what commits into the canvases; returns the canvas and the confidence over all spans."""
        proposed, confidence = ops.propose(logits, self._banned)
        slots, positions = batch.slots[batch.projected], batch.positions[batch.projected]
        if len(batch.drawn):
            proposed[batch.drawn], confidence[batch.drawn] = ops.sample(
                logits[batch.drawn],
                batch.temperature,
                batch.top_p,
                batch.seeds,
                positions[batch.drawn],
                batch.steps,
            )
        held = self._canvases[slots, positions]
        commit = ops.transfer(
            confidence,
            held == self._network.config.mask_id,
            batch.span_starts,
            batch.sure,
            batch.threshold,
            batch.factor,
            batch.last_free,
        )
        held = torch.where(commit, proposed, held)
        self._canvases[slots, positions] = held
        return held, confidence
