"""The cache `focus`: later layers compute few positions of a block, those that a plain loop over positions finds."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from asynclane.kernels.commit.reference import commit
from asynclane.kernels.common.types import SpanRules
from asynclane.kernels.elementwise.reference import rms_norm, swiglu
from asynclane.kernels.fused.reference import linear_rope_write_kv
from asynclane.models.exec.pack import pack, pack_into, unpack
from asynclane.models.exec.runner import Runner
from asynclane.models.exec.shapes import ShapeSet
from asynclane.models.network import Transformer
from asynclane.scheduler import AttentionPattern, ParamError, Sampling, resolve
from asynclane.scheduler.contract import (
    GREEDY,
    Bias,
    DeviceCommitRule,
    Measure,
    Placement,
    Restriction,
    Row,
    Selection,
    Span,
    StepPlan,
)

from ..support.cases import CHATS, network
from ..support.driver import Spec
from ..support.fakes import MASK
from ..support.grammars import Verses
from ..support.scale import part
from ..support.small_network import small_runner

SDAR = network("tiny-sdar")
BLOCK = 16
BEST = DeviceCommitRule(1, 0.9)


class Plain:
    """SDAR's network position by position, and FOCUS on it: keys and values of all layers, and the text so far."""

    def __init__(self, network: Transformer, prompt: list[int], length: int, alpha: float) -> None:
        self.net, self.config, self.alpha = network, network.config, alpha
        self.begin, end = len(prompt), len(prompt) + length
        self.x = torch.tensor([*prompt, *[self.config.mask_id] * (-(-end // BLOCK) * BLOCK - len(prompt))])
        self.end = end
        shape = self.config.layers, 1, len(self.x), self.config.kv_heads, self.config.head_dim
        self.keys, self.values = torch.zeros(shape), torch.zeros(shape)
        self.committed: list[int] = []  # of each step that committed any
        self.steps = self.computed = 0

    def hidden(self, positions: list[int], candidates: list[int], cached: list[int], keep: int) -> dict[int, Tensor]:
        """The last states of the positions that pass all layers."""
        config, states, attention = self.config, {}, []
        for at in positions:
            states[at] = self.net.weights.embedding[self.x[at]]
        for layer, block in enumerate(self.net.weights.blocks):
            queries = {at: self._query(layer, at, states[at]) for at in states}
            if layer < 2 and candidates:
                attention.append(self._importance(layer, queries, candidates))
            if layer == 1:
                rises = {at: attention[1][at] - attention[0][at] for at in candidates}
                best = sorted(candidates, key=lambda at: (-rises[at], at))[:keep]
                dropped = {*candidates, *cached} - {*best}
                states = {at: state for at, state in states.items() if at not in dropped}
            for at in states:
                x = self._attend(layer, at, queries[at])
                state = states[at] + block.attn_out @ x
                inner = block.mlp.gate_up @ rms_norm(state, block.ff_norm, config.norm_eps)
                states[at] = state + block.mlp.ff_out @ swiglu(inner)
        return {at: rms_norm(state, self.net.weights.norm, config.norm_eps) for at, state in states.items()}

    def _query(self, layer: int, at: int, state: Tensor) -> Tensor:
        """The query [H, D] of a position, whose key and value are written."""
        block, net = self.net.weights.blocks[layer], self.net
        x = rms_norm(state, block.attn_norm, self.config.norm_eps)[None]
        place = torch.tensor([at])
        turn = net._cos[place], net._sin[place]
        return linear_rope_write_kv(x, block.qkv, *turn, self.keys[layer], self.values[layer], place, block.qk_norm)[0]

    def _importance(self, layer: int, queries: dict[int, Tensor], candidates: list[int]) -> dict[int, float]:
        found, group = dict.fromkeys(candidates, 0.0), self.config.heads // self.config.kv_heads
        for head in range(self.config.heads):
            for query in candidates:
                keys = self.keys[layer, 0, candidates, head // group]
                scores = (keys @ queries[query][head] / math.sqrt(self.config.head_dim)).tolist()
                pooled = [max(scores[max(0, n - 1) : n + 2]) for n in range(len(scores))]
                for key, share in zip(candidates, torch.tensor(pooled).softmax(0).tolist(), strict=True):
                    found[key] += share
        return found

    def _attend(self, layer: int, at: int, query: Tensor) -> Tensor:
        """The output of attention [H * D]: a position sees its block and all before."""
        seen, group = (at // BLOCK + 1) * BLOCK, self.config.heads // self.config.kv_heads
        parts = []
        for head in range(self.config.heads):
            keys, values = (kept[layer, 0, :seen, head // group] for kept in (self.keys, self.values))
            parts.append((keys @ query[head] / math.sqrt(self.config.head_dim)).softmax(0) @ values)
        return torch.cat(parts)

    def answer(self, threshold: float) -> list[int]:
        first = self.begin // BLOCK * BLOCK
        self.hidden([*range(first)], [], [], 0)
        exact = first
        for start in range(first, len(self.x), BLOCK):
            block, computed = [*range(start, start + BLOCK)], dict[int, int]()
            while self._open(block):
                open_ = self._open(block)
                average = sum(self.committed) / len(self.committed) if self.committed else 1.0
                keep = min(len(open_), math.ceil(self.alpha * max(1.0, average)))
                if computed:
                    cached = [at for at in block if at not in open_ and computed[at] == self.x[at]]
                    states = self.hidden(block, open_, cached, keep)
                else:  # the block before, once more with its last tokens, and all of this one
                    states, cached, exact = self.hidden([*range(exact, start + BLOCK)], [], [], 0), [], start
                computed = {at: int(self.x[at]) for at in block}
                self.computed += len(states)
                self._commit({at: states[at] for at in open_ if at in states}, threshold)
                self.steps += 1
        return self.x[self.begin : self.end].tolist()

    def _open(self, block: list[int]) -> list[int]:
        return [at for at in block if at < self.end and self.x[at] == self.config.mask_id]

    def _commit(self, states: dict[int, Tensor], threshold: float) -> None:
        best: dict[int, tuple[float, int]] = {}
        for at, state in states.items():
            logits = (self.net.weights.head @ state).double()
            logits[self.config.mask_id] = -math.inf
            chance, token = logits.softmax(0).max(0)
            best[at] = float(chance), int(token)
        chosen = [at for at in best if best[at][0] >= threshold] or [max(best, key=lambda at: best[at][0])]
        for at in chosen:
            self.x[at] = best[at][1]
        self.committed.append(len(chosen))


@pytest.mark.parametrize(("alpha", "threshold"), part([(1.5, 1.0), (3.0, 0.999), (4096.0, 1.0)], 3))
def test_answers_are_those_of_a_plain_loop(alpha: float, threshold: float) -> None:
    plain = Plain(SDAR.runner._network, CHATS[1][:21], 22, alpha)
    want = plain.answer(threshold)
    params = {"cache": "focus", "focus_alpha": alpha, "threshold": threshold, "early_stop": False}
    (ours,) = SDAR.run([Spec(CHATS[1][:21], 22, "fast-dllm", params)])
    assert ours.canvas.tolist() == want
    assert ours.steps == plain.steps
    assert ours.computed_tokens - 16 == plain.computed, "less the whole blocks of the prompt"


def test_fewer_positions_pass_all_layers() -> None:
    """At a token a forward, of 16 to compute: the fewest that can commit, and what did."""
    whole, focused = (
        SDAR.run([Spec(CHATS[1], 32, "fast-dllm", {"threshold": 1.0, "early_stop": False, "cache": cache})])[0]
        for cache in ("prefix", "focus")
    )
    assert whole.steps == focused.steps == 32
    assert focused.computed_tokens < whole.computed_tokens / 2


def deeper() -> Runner:
    """The layers after the second are those that leave out positions."""
    return small_runner(AttentionPattern(block_size=8), layers=4)


@pytest.fixture(scope="module")
def small() -> Runner:
    return deeper()


def placed(runner: Runner, slots: int = 3) -> list[np.ndarray]:
    """Canvases of 24 positions whose keys are written in all layers, the last block of which has masks."""
    canvases = []
    for slot in range(slots):
        tokens = np.random.default_rng(slot).integers(2, 19, 24).astype(np.int32)
        tokens[[17, 18, 20, 21 + slot]] = MASK
        pages = tuple(range(4 * slot, 4 * slot + 4))
        runner.execute(StepPlan((Placement(slot, tokens, pages),), (Row(slot, 0, 24, 24, (), GREEDY, 0),)))
        canvases.append(tokens)
    return canvases


def focused(canvas: np.ndarray, slot: int, keep: int, **fields: object) -> Row:
    """The last block's step: the position 16 has just committed."""
    candidates = 16 + np.flatnonzero(canvas[16:] == MASK).astype(np.int32)
    cached = np.setdiff1d(np.arange(17, 24), candidates).astype(np.int32)
    row = Row(slot, 16, 24, 24, (Span(16, 24, BEST),), GREEDY, 3, selection=Selection(keep, candidates, cached))
    return row._replace(**fields)


def test_where_nothing_is_predicted_a_result_says_so(small: Runner) -> None:
    (canvas,) = placed(small, 1)
    result = small.execute(StepPlan((), (focused(canvas, 0, keep=2),)))
    predicted = result.proposals != MASK
    assert predicted.sum() == 2
    assert set(16 + np.flatnonzero(predicted)) < {17, 18, 20, 21}
    assert (result.confidence[~predicted] == 0).all()
    assert (result.confidence[predicted] > 0).all()
    new = result.tokens != canvas[16:]
    assert 1 <= new.sum() <= 2, "at least the best of them commits"
    assert (result.tokens[new] == result.proposals[new]).all()
    assert (predicted | ~new).all()


@pytest.mark.parametrize("together", [False, True])
def test_all_that_a_request_may_have_is_found_for_kept_positions(together: bool) -> None:
    """Biases, scores, noise and measures belong to positions, of which some are left out; other rows keep theirs."""
    bias = Bias(18, 23, np.array([5, 6], np.int32), np.array([-math.inf, 2.0], np.float32))
    rule = DeviceCommitRule(1, 0.2, measure=Measure.MARGIN)
    hot = Sampling(0.9, 0.95, seed=7, top_k=9)

    def rows(canvases: list[np.ndarray], keeps: bool) -> list[Row]:
        spans = (Span(16, 24, rule),)
        first = focused(canvases[0], 0, 4, biases=(bias,), ranks=2, sampling=hot, spans=spans)
        other = Row(1, 8, 24, 24, (Span(9, 20, BEST), Span(20, 24, BEST, False)), GREEDY, 1, biases=(bias,), ranks=1)
        third = focused(canvases[2], 2, 4)
        words = np.full(1, 0b11111000, np.int32)
        found = [first, other._replace(restriction=Restriction(10, words)), third]
        return found if keeps else [row._replace(selection=None) for row in found]

    results = []
    for keeps in (True, False):  # all candidates are kept: the numbers must be those of a step that leaves out nothing
        runner = deeper()
        plan = rows(placed(runner), keeps)
        results.append([runner.execute(StepPlan((), tuple(plan)))] if together else [
            runner.execute(StepPlan((), (row,))) for row in plan
        ])  # fmt: skip
    for kept, whole in zip(*results, strict=True):
        assert kept.tokens.tolist() == whole.tokens.tolist()
        at = kept.proposals != MASK
        assert (kept.proposals[at] == whole.proposals[at]).all()
        np.testing.assert_allclose(kept.confidence[at], whole.confidence[at], rtol=1e-4)
        if kept.scores is not None and whole.scores is not None:
            np.testing.assert_allclose(kept.scores.chosen[at], whole.scores.chosen[at], rtol=1e-4, atol=1e-5)
            assert (kept.scores.ranked[at] == whole.scores.ranked[at]).all()
        if kept.measured is not None and whole.measured is not None:
            np.testing.assert_allclose(kept.measured[at], whole.measured[at], rtol=1e-4, atol=1e-5)


def commit_without_padding(
    canvases: Tensor,
    slots: Tensor,
    positions: Tensor,
    tokens: Tensor,
    confidence: Tensor,
    mask_id: int,
    rules: SpanRules,
) -> Tensor:
    """On a CPU `commit` takes none; on a GPU the result of padding is undefined."""
    count = int(rules.starts[-1])
    real = slots[:count], positions[:count], tokens[:count], confidence[:count]
    return torch.cat((commit(canvases, *real, mask_id, rules), torch.full_like(tokens[count:], 99)))


@pytest.mark.parametrize("sizes", [(), (16, 128)])
def test_a_padded_step_has_the_result_of_its_plan(sizes: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU all sizes are rounded up, those of what goes on, too."""
    monkeypatch.setattr("asynclane.models.exec.runner.commit", commit_without_padding)
    found = []
    for padded in (False, True):
        runner = deeper()
        canvases = placed(runner)
        whole = Row(1, 8, 24, 24, (Span(9, 24, BEST),), GREEDY, 1)
        plan = StepPlan((), (focused(canvases[0], 0, 2), whole, focused(canvases[2], 2, 3)))
        if padded:
            shape = ShapeSet(runner._network.config, runner._network.numerics, 8, sizes).fit(plan).padding.shape
            assert shape.inputs.kept > plan.tokens - sum(row.selection.dropped for row in plan.rows if row.selection)
            words = np.empty(shape.words, np.int32)
            pack_into(words, plan, shape)
            batch = unpack(torch.from_numpy(words), shape)
        else:
            batch = pack(plan, torch.device("cpu"))
        out = runner._compute(batch)[:, : plan.projected]
        found.append((out[:2].tolist(), out[2:4].tolist(), [keys[:, :].clone() for keys in runner._pages.keys]))
    (plain, confidence, keys), (wide, wide_confidence, wide_keys) = found
    assert plain == wide
    assert confidence == wide_confidence
    assert all(torch.equal(one, other) for one, other in zip(keys, wide_keys, strict=True)), "padding writes no keys"


def test_what_cannot_be_is_refused_by_name() -> None:
    def refused(decoder: str = "fast-dllm", pattern: AttentionPattern = SDAR.pattern, **params: object) -> str:
        with pytest.raises(ParamError) as error:
            resolve(decoder, {"cache": "focus", **params}, 64, pattern)
        return f"{error.value.param}: {error.value}"

    assert refused(pattern=AttentionPattern()).startswith("cache: cache 'focus' needs a block-causal model")
    assert refused(pattern=replace(SDAR.pattern, selects=False)).startswith("cache: cache 'focus' needs a block-causal")
    assert refused("asynclane").startswith("cache: cache 'focus' predicts some positions")
    assert refused(rule="klass").startswith("cache: cache 'focus' predicts some positions")
    assert refused("llada", steps=8).startswith("cache: cache 'focus' predicts some positions")
    assert refused(block_length=32).startswith(
        "block_length: cache 'focus' goes with block_length 16, this model's block, not 32"
    )
    assert refused(focus_alpha=0.5).startswith("focus_alpha: focus_alpha must be")
    with pytest.raises(ParamError, match="has no parameter 'focus_alpha'; it goes with cache 'focus'"):
        resolve("fast-dllm", {"focus_alpha": 2.0}, 64, SDAR.pattern)


def test_a_grammar_is_refused_since_it_needs_each_step_s_first_open_position() -> None:
    net = network("block-causal")
    spec = Spec(net.prompts[4], 16, "fast-dllm", {"cache": "focus"}, constraint=Verses)
    with pytest.raises(ParamError, match=r"cache 'focus' and .* exclude each other") as refused:
        net.run([spec])
    assert refused.value.param == "cache"
