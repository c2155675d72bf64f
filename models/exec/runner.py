"""Executes a plan on a device: canvases live there, a step is one copy in, the network, the commit, one copy out."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ...kernels.commit import commit, write_tokens
from ...kernels.logits import adjust, rank, restrict
from ...kernels.measure import measure
from ...kernels.predict import predict
from ...scheduler.contract import GREEDY, DeviceCommitRule, DeviceLost, Ints, Row, Scores, Span, StepPlan, StepResult
from ..kv_cache import KvPages
from ..network import Transformer
from .graphs import ROW, StepGraphs
from .pack import Batch, measured, pack, projected


class Runner:
    """An `Executor`. Not safe for use from two threads at once."""

    def __init__(
        self, network: Transformer, pages: KvPages, slots: int, banned: Sequence[int], end_ids: Sequence[int]
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
        on_gpu = self._device.type == "cuda"
        self._graphs = StepGraphs(self._compute, config, network.numerics, slots) if on_gpu else None

    @property
    def on_gpu(self) -> bool:
        return self._graphs is not None

    def execute(self, plan: StepPlan) -> StepResult:
        return self.launch(plan)()

    @torch.inference_mode()
    def launch(self, plan: StepPlan) -> Callable[[], StepResult]:
        """Start a plan on a GPU, where `graphs.IN_FLIGHT` may be under way; the function returned waits for its end. On
        a CPU nothing begins before that is called."""
        if self._graphs is None:
            return partial(self._compute_now, plan)
        with self._losses():
            self._place(plan)
            return partial(self._collect, plan, self._graphs.launch(plan))

    def captured(self, plan: StepPlan) -> bool:
        """False if the first `launch` of a plan takes seconds. It may then run in another thread, in its turn."""
        return self._graphs is None or self._graphs.captured(plan)

    def _collect(self, plan: StepPlan, collect: Callable[[], tuple[np.ndarray, float]]) -> StepResult:
        with self._losses():
            return _result(plan, *collect())

    @contextmanager
    def _losses(self) -> Iterator[None]:
        """Raise `DeviceLost` for an error after which all calls of the GPU fail."""
        try:
            yield
        except Exception as error:
            try:
                torch.cuda.synchronize()
            except RuntimeError:
                raise DeviceLost(str(error)) from error
            raise

    @torch.inference_mode()
    def _compute_now(self, plan: StepPlan) -> StepResult:
        started = time.perf_counter()
        self._place(plan)
        out = self._compute(self._packed(plan)).numpy()
        return _result(plan, out, time.perf_counter() - started)

    def step_seconds(self, tokens: int) -> float:
        """Seconds of a step of about `tokens` positions in rows of about `ROW`: the better of two measurements.

        Only while no request is running: it writes to pages and canvases.
        """
        slots, longest = self._canvases.shape
        shift = self._network.config.logit_shift
        tokens = max(1 + shift, min(tokens, slots * longest))
        count = min(slots, max(-(-tokens // ROW), -(-tokens // longest)))
        sizes = [tokens // count + (number < tokens % count) for number in range(count)]
        nothing = DeviceCommitRule(sure=0, threshold=math.inf)  # no confidence reaches it
        rows = tuple(
            Row(slot, 0, size, size, (Span(shift, size, nothing),), GREEDY, step=0) for slot, size in enumerate(sizes)
        )
        return min(self.execute(StepPlan((), rows)).device_s for _ in range(2))

    def graph_for(self, plan: StepPlan) -> torch.cuda.CUDAGraph:
        """The graph that `execute` replays for a plan, after one execution: for measurements. Raises `ValueError`
        without a GPU."""
        if self._graphs is None:
            raise ValueError("only a GPU's steps are graphs")
        self.execute(plan)
        return self._graphs.graph(plan)

    @torch.inference_mode()
    def logits(self, plan: StepPlan) -> Tensor:
        """The raw logits [N, V] of a plan's spans; commits nothing."""
        self._place(plan)
        return self._logits(self._packed(plan))

    def _packed(self, plan: StepPlan) -> Batch:
        return pack(plan, self._device, self._network.config.logit_shift)

    def _place(self, plan: StepPlan) -> None:
        for placement in plan.placements:
            canvas = self._canvases[placement.slot]
            canvas.fill_(self._network.config.mask_id)
            canvas[: len(placement.prompt)].copy_(self._staged(placement.prompt), non_blocking=True)
            self._pages.assign(placement.slot, self._staged(np.array(placement.pages, np.int32)))
            if placement.copied:
                pairs = self._staged(np.array(placement.copied, np.int64).T.copy()).to(self._device, non_blocking=True)
                self._pages.copy(pairs[0], pairs[1])

    def _staged(self, numbers: npt.NDArray[np.integer[Any]]) -> Tensor:
        """Numbers in memory from which a copy to the device need not wait for the steps in flight."""
        staged = torch.from_numpy(numbers)
        return staged.pin_memory() if self.on_gpu else staged

    def _logits(self, batch: Batch) -> Tensor:
        return self._network.logits(self._network.hidden(self._canvases, batch, self._pages))

    def _compute(self, batch: Batch) -> Tensor:
        """The whole step. int32 [4, N] over all spans: the tokens of the canvases after it, the network's proposals,
        and both halves of their float64 confidence.

        More lines follow. With `measures`, one: the float32 bits of the number that each position's rule goes by. With
        `ranks`, 1 + 2 * ranks: the bits of the log-probability of the token that may commit, the ids of the likeliest
        tokens, and the bits of their log-probabilities.
        """
        if batch.host_tokens is not None:
            write_tokens(self._canvases, batch.slots, batch.positions, batch.host_tokens)
        logits = self._logits(batch)
        if not len(batch.projected):
            return torch.empty((4, 0), dtype=torch.int32, device=self._device)
        if batch.biases is not None:
            adjust(logits, *batch.biases)
        if batch.restrictions is not None:
            restrict(logits, *batch.restrictions)
        fixed = self._network.numerics.fixed
        found = predict(logits, self._banned, self._end_ids, batch.endless, batch.draws, batch.narrowed, fixed)
        by_rule = found.commit_probability
        if batch.measures is not None:
            by_rule = measure(logits, found, *batch.measures)
        mask_id, slots = self._network.config.mask_id, batch.slots[batch.projected]
        tokens = commit(self._canvases, slots, batch.targets, found.tokens, by_rule, mask_id, batch.rules)
        lines = [tokens.int(), found.proposals.int(), *found.confidence.view(torch.int32).view(-1, 2).unbind(1)]
        if batch.measures is not None:
            lines.append(by_rule.float().view(torch.int32))
        if batch.ranks is None:
            return torch.stack(lines)
        chosen, ids, scores = rank(logits, self._banned, found, min(batch.ranks, logits.shape[1]))
        ranked = ids.int().T, scores.T.contiguous().view(torch.int32)
        return torch.cat((torch.stack((*lines, chosen.view(torch.int32))), *ranked))


def _result(plan: StepPlan, out: Ints, device_s: float) -> StepResult:
    tokens, proposals, low, high, *more = out[:, : projected(plan)].copy()
    confidence = np.stack((low, high), axis=1).view(np.float64)[:, 0]
    by_rule = more.pop(0).view(np.float32) if more and measured(plan) else None
    return StepResult(tokens, proposals, confidence, device_s, _scores(more), by_rule)


def _scores(words: list[np.ndarray]) -> Scores | None:
    """Scores of the lines that `_compute` adds with `ranks`: [1 + 2 * ranks]."""
    if not words:
        return None
    ranks = len(words) // 2
    ids, bits = np.array(words[1 : 1 + ranks]), np.array(words[1 + ranks :])
    shape = ranks, len(words[0])
    return Scores(words[0].view(np.float32), ids.reshape(shape).T, bits.reshape(shape).view(np.float32).T)
