"""Executes a plan on a device: canvases live there, a step is one copy in, the network, the commit, one copy out."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Hashable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ...kernels.commit import commit, write_tokens
from ...kernels.common.compile_ahead import collected
from ...kernels.common.types import Prediction
from ...kernels.logits import adjust, rank, restrict
from ...kernels.measure import measure
from ...kernels.predict import predict
from ...scheduler.contract import (
    GREEDY,
    MOST_RANKS,
    DeviceCommitRule,
    DeviceLost,
    Ints,
    Placement,
    Row,
    Scores,
    Span,
    StepPlan,
    StepResult,
)
from ..gemma import Gemma
from ..kv_cache import KvPages
from ..network import Transformer, Unfinished
from .followers import Followers
from .graphs import Launched, Report, StepGraph, StepGraphs
from .pack import Batch, OptionalInputs, Unpadded, logit_parts, pack, pack_words, projected
from .shapes import ROW, PaddingKey, ShapeSet, rounded

Waiter = Callable[[], StepResult]
LONG_S = 0.04  # a step of a CPU that takes longer is measured once
SPARSE = 3  # one of so many sizes is looked through for kernels to compile


@dataclass(frozen=True, slots=True)
class GraphCounts:
    """Graphs captured, and steps of which a part ran without one though a GPU computed them."""

    captures: int = 0
    eager_steps: int = 0


class Runner:
    """An `Executor`. Not safe for use from two threads at once. `followers` get what it executes, and do the same."""

    def __init__(
        self, network: Transformer, pages: KvPages, slots: int, banned: Sequence[int], end_ids: Sequence[int]
    ) -> None:
        """`slots` canvases of the network's longest input; ids in `banned` are never proposed, those in `end_ids` not
        where a span may not end."""
        self.followers: Followers | None = None
        self._sent = 0  # steps, to other ranks
        config = network.config
        self._network = network
        self._pages = pages
        self._device = pages.table.device
        self._canvases = torch.full((slots, config.max_model_len), config.mask_id, device=self._device)
        self._banned = torch.tensor(banned, dtype=torch.int64, device=self._device)
        self._end_ids = torch.tensor(end_ids, device=self._device)
        if isinstance(network, Gemma):
            network.reserve(slots)
        self._graphs = self._graphs_of(()) if self._device.type == "cuda" else None

    @property
    def on_gpu(self) -> bool:
        return self._graphs is not None

    @property
    def graph_counts(self) -> GraphCounts:
        graphs = self._graphs
        return GraphCounts() if graphs is None else GraphCounts(graphs.captures, graphs.eager_steps)

    def _graphs_of(self, sizes: Sequence[int]) -> StepGraphs:
        config, numerics = self._network.config, self._network.numerics
        return StepGraphs(self, ShapeSet(config, numerics, len(self._canvases), sizes), self._send)

    @torch.inference_mode()
    def compile_kernels(self, sizes: Sequence[int], report: Report) -> None:
        """Compile the kernels of steps of these `sizes` together, on a GPU whose steps have not begun."""
        some = sorted({*sizes[::SPARSE], sizes[-1]})  # sizes side by side use the same kernels, nearly all
        with collected() as missing, self._alone():
            self._graphs_of(some).run_all(lambda done, total: None, dry=True)
        missing.compile(report)

    def _alone(self) -> AbstractContextManager[None]:
        """No other rank takes part in what is computed."""
        group = self._network.group
        return nullcontext() if group is None else group.silent()

    @torch.inference_mode()
    def run_all(self, sizes: Sequence[int], report: Report) -> None:
        """Run all steps of these `sizes` without graphs, on padding, on a GPU: libraries load their kernels, and torch
        takes the memory of the largest step."""
        self._graphs_of(sizes).run_all(report)

    @torch.inference_mode()
    def capture(self, sizes: Sequence[int], report: Report) -> None:
        """Capture the graphs of all steps of these `sizes`, on a GPU. Steps that have none run without."""
        graphs = self._graphs_of(sizes)
        graphs.reserve()
        graphs.capture_all(report)
        self._graphs = graphs

    def execute(self, plan: StepPlan) -> StepResult:
        return self.launch(plan)()

    def launch(self, plan: StepPlan) -> Waiter:
        """Start a plan on a GPU, where `graphs.IN_FLIGHT` may be under way; what is returned waits for its end. On a
        CPU nothing begins before that is called. A plan without rows has a result without positions."""
        if self._graphs is None:
            return partial(self._compute_now, plan)
        sent = self._sent
        try:
            if plan.placements:
                self._place(plan)
            if not plan.rows:
                return _no_positions
            launched = self._graphs.launch(plan)
            return StepUnderWay(launched, projected(plan))
        except Exception as error:
            self._check_ranks(error, sent)
            _check_device(error)
            raise

    @torch.inference_mode()
    def _compute_now(self, plan: StepPlan) -> StepResult:
        started, sent = time.perf_counter(), self._sent
        try:
            if plan.placements:
                self._place(plan)
            if not plan.rows:
                return _no_positions()
            unpadded, words = pack_words(plan, self._network.config.logit_shift)
            self._send(unpadded, words)
            out = self._compute(unpadded.batch(words, self._device)).numpy()
        except Exception as error:
            self._check_ranks(error, sent)
            raise
        needed = unpadded.inputs
        return _result(projected(plan), needed, needed, out, time.perf_counter() - started)

    def _compute(self, batch: Batch) -> Tensor:
        return self.finish(self.begin(batch), batch)

    def _send(self, key: Hashable, words: Ints) -> None:
        if self.followers is not None:
            self._sent += 1
            self.followers.step(key, words)

    def _check_ranks(self, error: Exception, sent: int) -> None:
        """Raise `DeviceLost` if other ranks may have begun a step that has failed here, after so many that they were
        `sent`: they would wait for ever."""
        if self._sent != sent:
            raise DeviceLost(f"the ranks are no longer at the same step: {error}") from error

    def follow(self, key: Hashable, words: Ints) -> None:
        """Do a step that the first rank has packed."""
        if self._graphs is not None:
            self._graphs.follow(cast(PaddingKey, key), words)
        elif isinstance(key, Unpadded):
            with torch.inference_mode():
                self._compute(key.batch(words, self._device))

    @property
    def context(self) -> int:
        """Positions of the longest request."""
        return self._network.config.max_model_len

    def step_seconds(self, tokens: int, keys: int = 0) -> float:
        """Seconds of a step of about `tokens` positions in rows of about `ROW`, or of two blocks, which a request of a
        network with blocks computes, or with `keys` in one row after so many: the better of two measurements, if the
        first was short or has compiled kernels. The tokens are random: equal ones would all go to the same few experts
        of a mixture, and take too little time.

        Only while no request is running: it writes to pages and canvases.
        """
        slots, longest = self._canvases.shape
        shift, pattern = self._network.config.logit_shift, self._network.config.pattern
        tokens = max(1 + shift, min(tokens, slots * longest))
        usual = min(ROW, 2 * pattern.block_size) if pattern.bounded else ROW
        count = 1 if keys else min(slots, max(-(-tokens // usual), -(-tokens // longest)))
        keys = pattern.floor(keys)
        sizes = [tokens // count + (number < tokens % count) for number in range(count)]
        nothing = DeviceCommitRule(sure=0, threshold=math.inf)  # no confidence reaches it
        rows = tuple(
            Row(slot, keys, keys + size, keys + size, (Span(keys + shift, keys + size, nothing),), GREEDY, step=0)
            for slot, size in enumerate(sizes)
        )
        draws = np.random.default_rng(0)
        canvases = (draws.integers(0, self._network.config.vocab_size, size, np.int32) for size in sizes)
        self._place(StepPlan(tuple(Placement(slot, canvas, ()) for slot, canvas in enumerate(canvases)), ()))
        plan = StepPlan((), rows)
        first_s = self.execute(plan).device_s
        return first_s if first_s > LONG_S and not self.on_gpu else min(first_s, self.execute(plan).device_s)

    @torch.inference_mode()
    def graph_for(self, plan: StepPlan) -> StepGraph:
        """The graphs that `execute` replays for a plan, after one execution: for measurements. Other graphs are given
        up. Raises `ValueError` without a GPU."""
        if self._graphs is None:
            raise ValueError("only a GPU's steps are graphs")
        self._graphs = self._graphs_of(sorted({rounded(plan.tokens), rounded(max(1, projected(plan)))}))
        graph = self._graphs.capture_for(plan)
        self.execute(plan)
        return graph

    @torch.inference_mode()
    def logits(self, plan: StepPlan) -> Tensor:
        """The raw logits [N, V] of a plan's spans, of those positions that are predicted; commits nothing."""
        self.place(plan.placements)
        return self._logits(pack(plan, self._device, self._network.config.logit_shift))

    def _place(self, plan: StepPlan) -> None:
        if self.followers is not None:
            self.followers.place(plan.placements)
        self.place(plan.placements)

    @torch.inference_mode()
    def place(self, placements: Sequence[Placement]) -> None:
        for placement in placements:
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
        unfinished = self.begin(batch)
        predicted = unfinished.predicted(batch)
        batch = batch if predicted is None else predicted.batch
        return self._network.logits(self._network.conclude(unfinished, batch, self._pages))

    def begin(self, batch: Batch) -> Unfinished:
        """The first part of a step."""
        if batch.host_tokens is not None:
            write_tokens(self._canvases, batch.slots, batch.positions, batch.host_tokens)
        return self._network.begin(self._canvases, batch, self._pages)

    def finish(self, unfinished: Unfinished, batch: Batch) -> Tensor:
        """The other part. int32 [4, N] over all spans: the tokens of the canvases after it, the network's proposals,
        and both halves of their float64 confidence.

        More lines follow. With `measures`, one: the float32 bits of the number that each position's rule goes by. With
        `ranks` and `scored`, one: the rank of each scored token. With `ranks`, 1 + 2 * ranks: the bits of the
        log-probability of the token that may commit, the ids of the likeliest tokens, and the bits of their
        log-probabilities.
        """
        if not len(batch.projected):
            return torch.empty((4, 0), dtype=torch.int32, device=self._device)
        whole, predicted = batch, unfinished.predicted(batch)
        if predicted is not None:
            batch = predicted.batch
        hidden = self._network.conclude(unfinished, batch, self._pages)
        parts = [self._read_logits(hidden[start:end], part) for start, end, part in logit_parts(batch)]
        found, by_rule, likeliest, ranked = parts[0] if len(parts) == 1 else Readings.joined(parts)
        mask_id, slots = self._network.config.mask_id, batch.target_slots
        if likeliest is None:
            tokens = commit(self._canvases, slots, batch.targets, found.tokens, by_rule, mask_id, batch.rules)
        else:  # the host decides what a canvas of random tokens holds
            tokens = likeliest
        lines = [tokens.int(), found.proposals.int(), *found.confidence.view(torch.int32).view(-1, 2).unbind(1)]
        if batch.measures is not None:
            lines.append(by_rule.float().view(torch.int32))
        if ranked is None:
            found_lines = torch.stack(lines)
        else:
            if ranked.places is not None:
                lines.append(ranked.places.int())
            others = ranked.ids.int().T, ranked.logprobs.T.contiguous().view(torch.int32)
            found_lines = torch.cat((torch.stack((*lines, ranked.chosen.view(torch.int32))), *others))
        if predicted is None:
            return found_lines
        return predicted.spread(found_lines, self._canvases[whole.target_slots, whole.targets], mask_id)

    def _read_logits(self, hidden: Tensor, batch: Batch) -> Readings:
        """All that is read off the logits of hidden states [N, dim], which are those of the batch's N positions."""
        logits = self._network.logits(hidden)
        if batch.biases is not None:
            adjust(logits, *batch.biases)
        if batch.restrictions is not None:
            restrict(logits, *batch.restrictions)
        likeliest = None
        if batch.denoised is not None and isinstance(self._network, Gemma):
            likeliest = self._network.condition(logits, batch)
        fixed = self._network.numerics.fixed
        found = predict(logits, self._banned, self._end_ids, batch.endless, batch.draws, batch.narrowed, fixed)
        by_rule = found.commit_probability
        if batch.measures is not None:
            by_rule = measure(logits, found, *batch.measures)
        if batch.ranks is None:
            return Readings(found, by_rule, likeliest, None)
        most = min(batch.ranks, logits.shape[1])
        few = min(most, MOST_RANKS)
        chosen, ids, scores, places = rank(logits, self._banned, found, few, batch.scored)
        if most > few:  # the first ones stay as they are: of equal tokens, more might have others first
            wide = rank(logits, self._banned, found, most)
            ids, scores = (
                torch.cat((own, more[:, few:]), 1) for own, more in zip((ids, scores), wide[1:3], strict=True)
            )
        return Readings(found, by_rule, likeliest, Ranked(chosen, ids, scores, places))


class Ranked(NamedTuple):
    """Log-probabilities of N positions: of a token each, of the likeliest ones [N, any] `ids`, and the rank of each
    scored token."""

    chosen: Tensor
    ids: Tensor
    logprobs: Tensor
    places: Tensor | None


class Readings(NamedTuple):
    """The proposals of N positions, the numbers that their rules go by, and more that only some steps need."""

    found: Prediction
    by_rule: Tensor
    likeliest: Tensor | None
    ranked: Ranked | None

    @classmethod
    def joined(cls, parts: Sequence[Readings]) -> Readings:
        """Those of several parts of a step, one after the other."""
        found, by_rule, likeliest, ranked = zip(*parts, strict=True)
        return cls(
            Prediction(*map(torch.cat, zip(*found, strict=True))),
            torch.cat(by_rule),
            None if likeliest[0] is None else torch.cat(likeliest),
            None if ranked[0] is None else Ranked(*map(_joined, zip(*ranked, strict=True))),
        )


def _joined(parts: tuple[Any, ...]) -> Any:
    return None if parts[0] is None else torch.cat(parts)


@dataclass(frozen=True, slots=True)
class StepUnderWay:
    """A step that a GPU computes."""

    launched: Launched
    projected: int  # its positions with logits: the result has room for more

    def done(self) -> bool:
        """True if its result is there, or cannot be."""
        try:
            return self.launched.done()
        except RuntimeError:  # the call for the result says which
            return True

    def __call__(self) -> StepResult:
        """Wait for its result."""
        fit = self.launched.fit
        try:
            return _result(self.projected, fit.needed, fit.padding.shape.inputs, *self.launched.collect())
        except Exception as error:
            _check_device(error)
            raise


def _check_device(error: Exception) -> None:
    """Raise `DeviceLost` if `error` is one after which all calls of the GPU fail."""
    try:
        torch.cuda.synchronize()
    except RuntimeError:
        raise DeviceLost(str(error)) from error


def _no_positions() -> StepResult:
    """The result of a plan of placements alone, for which no step is computed."""
    tokens = np.empty(0, np.int32)
    return StepResult(tokens, tokens, np.empty(0), device_s=0.0)


def _result(count: int, needed: OptionalInputs, given: OptionalInputs, out: Ints, device_s: float) -> StepResult:
    """The result of the first `count` positions of lines that were made with the inputs `given`, of which the plan
    `needed` some."""
    tokens, proposals = out[:2, :count].copy()
    # Both halves of each number side by side, in new memory: that of `out` is written to again.
    confidence = np.array(out[2:4, :count].T, order="C").view(np.float64)[:, 0]
    more = [*out[4:, :count].copy()] if len(out) > 4 else []
    by_rule = more.pop(0).view(np.float32) if given.measured and more else None
    token_ranks = more.pop(0) if given.scored and given.ranks is not None and more else None
    return StepResult(
        tokens,
        proposals,
        confidence,
        device_s,
        None if needed.ranks is None else _scores(more, token_ranks),
        by_rule if needed.measured else None,
    )


def _scores(words: list[np.ndarray], token_ranks: Ints | None) -> Scores | None:
    """Scores of the lines that `_compute` adds with `ranks`: [1 + 2 * ranks], and the ranks of tokens that a row
    scores."""
    if not words:
        return None
    ranks = len(words) // 2
    ids, bits = np.array(words[1 : 1 + ranks], np.int32), np.array(words[1 + ranks :], np.int32)
    shape = ranks, len(words[0])
    scores = bits.reshape(shape).view(np.float32)
    return Scores(words[0].view(np.float32), ids.reshape(shape).T, scores.T, token_ranks)
