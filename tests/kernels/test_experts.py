"""Experts: each token passes those that it chose, in the kernels as in torch, whatever else is in the batch."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from torch import Tensor

from asynclane.kernels.common.types import Fp8Matrix, GroupedMatrix, Matrix, Routing
from asynclane.kernels.experts import experts_mlp, reference
from asynclane.kernels.linear import quantize_groups, quantize_rows

from ..support.kernel_cases import DEVICE, NARROW, assert_near, drawn, kernels_of
from ..support.scale import crossed, part

device = kernels_of("experts")
ROUTINGS = [
    (Routing(2), 8, False),
    (Routing(1, normed=True), 6, False),
    (Routing(3, normed=True), 5, True),
    (Routing(3, sigmoid=True, normed=True, scale=2.5, groups=4, live_groups=2), 12, True),
    (Routing(8, sigmoid=True, normed=True, groups=8, live_groups=4), 64, True),
    (Routing(7), 7, False),
]
SHAPES = [(1, 16, 16, 2, 1), (5, 40, 24, 4, 2), (37, 48, 80, 7, 3)]


@pytest.mark.parametrize(("routing", "experts", "biased"), ROUTINGS, ids=str)
def test_each_token_chooses_as_in_torch(routing: Routing, experts: int, biased: bool) -> None:
    logits = 2 * drawn(9, experts)
    logits[0] = 1.0  # all alike: the first ones are taken
    bias = drawn(experts, seed=1) if biased else None
    if bias is not None:
        bias[:] = bias.round() / 4
    want, got = reference.route(logits, bias, routing), device.route(logits, bias, routing)
    assert torch.equal(got[0], want[0])
    torch.testing.assert_close(got[1], want[1])
    scales = drawn(experts, seed=2)
    for ops in (reference, device):
        chosen, weights = ops.route(logits, bias, routing, scales)
        assert torch.equal(chosen, want[0])
        torch.testing.assert_close(weights, want[1] * scales[want[0].long()])


def test_the_bias_helps_to_choose_and_has_no_weight() -> None:
    logits = torch.tensor([[0.0, 1.0, -1.0]])
    chosen, weights = reference.route(logits, torch.tensor([0.0, 0.0, 9.0]), Routing(2, sigmoid=True))
    assert chosen.tolist() == [[2, 1]]
    torch.testing.assert_close(weights, logits.sigmoid()[:, [2, 1]])


def test_experts_of_a_weaker_group_are_not_chosen_however_good() -> None:
    scores = torch.tensor([[0.9, 0.1, 0.6, 0.5]])
    chosen, _ = reference.route(torch.logit(scores), None, Routing(1, sigmoid=True, groups=2, live_groups=1))
    assert chosen.tolist() == [[2]]


@pytest.fixture(autouse=True)
def quantized_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    """The interpreter loses the carry of an FP8 number that is rounded up to a power of two."""
    if DEVICE == "cpu":
        monkeypatch.setattr(device, "quantize_rows", quantize_rows)


class Case:
    """Inputs of `experts_mlp`: in every batch, the second expert is chosen by nobody."""

    def __init__(self, tokens: int, dim: int, inner: int, experts: int, choices: int, dtype: torch.dtype) -> None:
        self.x = drawn(tokens, dim, dtype=dtype)
        self.gate_up: Matrix = (drawn(experts * 2 * inner, dim, seed=1) * dim**-0.5).to(dtype)
        self.down: Matrix = (drawn(experts * dim, inner, seed=2) * inner**-0.5).to(dtype)
        scores = drawn(tokens, experts, seed=3)
        scores[:, 1] = -math.inf
        self.chosen = scores.topk(choices, dim=-1).indices.int()
        self.weights = drawn(tokens, choices, seed=4)

    def quantized(self) -> Case:
        assert isinstance(self.gate_up, Tensor)
        assert isinstance(self.down, Tensor)
        self.gate_up = Fp8Matrix(*quantize_rows(self.gate_up))
        self.down = Fp8Matrix(*quantize_rows(self.down))
        return self

    def both(self, fixed: bool = False, gelu: bool = False) -> tuple[Tensor, Tensor]:
        given = self.x, self.gate_up, self.down, self.chosen, self.weights, fixed, gelu
        return device.experts_mlp(*given), reference.experts_mlp(*given)


def assert_near_in_fp8(got: Tensor, want: Tensor) -> None:
    """A last bit between two products moves some numbers to the next one of FP8, which is a sixteenth away."""
    assert (got.float() - want.float()).norm() < 0.02 * want.float().norm()


@pytest.mark.parametrize(
    ("shape", "dtype", "fixed"),
    part(itertools.product(SHAPES, [torch.float32, *NARROW], (False, True)), 4, seed="experts"),
    ids=str,
)
def test_experts_compute_what_torch_does(
    shape: tuple[int, int, int, int, int], dtype: torch.dtype, fixed: bool
) -> None:
    got, want = Case(*shape, dtype).both(fixed)
    assert_near(got, want)


@pytest.mark.parametrize(("dtype", "gelu"), crossed(NARROW, [False, True]))
def test_experts_in_fp8_compute_what_torch_does(dtype: torch.dtype, gelu: bool) -> None:
    got, want = Case(37, 48, 80, 7, 3, dtype).quantized().both(gelu=gelu)
    assert_near_in_fp8(got, want)


@pytest.mark.parametrize(("int4", "fixed"), [(False, False), (True, True)], ids=["fp8", "int4"])
def test_experts_with_scales_of_groups_compute_what_torch_does(int4: bool, fixed: bool) -> None:
    case = Case(5, 160, 32, 3, 2, NARROW[0])
    case.gate_up, case.down = (in_groups(weight, int4) for weight in (case.gate_up, case.down))
    for gelu in (False, True):
        (assert_near if int4 else assert_near_in_fp8)(*case.both(fixed, gelu))


def in_groups(weight: Matrix, int4: bool) -> GroupedMatrix:
    assert isinstance(weight, Tensor)
    if int4:
        return quantize_groups(weight, 32)
    scales = torch.linspace(0.5, 2, weight.numel() // 32, device=weight.device).view(len(weight), -1)
    values = (weight.float() / scales.repeat_interleave(32, 1)).to(torch.float8_e4m3fn)
    return GroupedMatrix(values, scales, 32)


@pytest.mark.parametrize("dtype", part([torch.float32, *NARROW], 3))
def test_experts_with_gelu_compute_what_torch_does(dtype: torch.dtype) -> None:
    got, want = Case(37, 48, 80, 7, 3, dtype).both(gelu=True)
    assert_near(got, want)
    assert not torch.allclose(want, Case(37, 48, 80, 7, 3, dtype).both()[1])


@pytest.mark.parametrize("number", part(range(3), 2))
def test_every_tile_gives_the_same(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    tile = device._TILES[number][1]
    monkeypatch.setattr(device, "_tile", lambda *given: tile)
    got, want = Case(37, 48, 80, 7, 3, NARROW[0]).both()
    assert_near(got, want)


@pytest.mark.parametrize("fixed", [False, True])
@pytest.mark.parametrize("tokens", [1, 20])
def test_a_token_has_the_same_bits_alone_and_among_others(tokens: int, fixed: bool) -> None:
    """In float32 on a CPU always; of fixed order everywhere."""
    if DEVICE == "cuda" and not fixed:
        pytest.skip("on a GPU only sums of fixed order promise it")
    case = Case(70, 64, 32, 5, 3, torch.float32 if DEVICE == "cpu" else torch.bfloat16)
    whole = experts_mlp(case.x, case.gate_up, case.down, case.chosen, case.weights, fixed)
    few = experts_mlp(case.x[:tokens], case.gate_up, case.down, case.chosen[:tokens], case.weights[:tokens], fixed)
    assert torch.equal(whole[:tokens], few)


def test_pairs_are_sorted_by_expert_with_whole_tiles_for_each() -> None:
    chosen = torch.tensor([[3, 0], [0, 1], [3, 0], [0, 3]], dtype=torch.int32, device=DEVICE)
    order, ends = device._sorted(chosen, experts=5, tiles=7, size=2)
    assert ends.tolist() == [2, 3, 3, 5, 5]
    assert order[:10].tolist() == [1, 2, 5, 6, 3, -1, 0, 4, 7, -1]


def test_what_does_not_fit_the_experts_is_refused_by_name() -> None:
    case = Case(3, 16, 16, 4, 2, torch.float32)
    assert isinstance(case.gate_up, Tensor)
    with pytest.raises(ValueError, match="gate_up has 64 rows, 4 experts of 16 have two for each"):
        device.experts_mlp(case.x, case.gate_up[:64].contiguous(), case.down, case.chosen, case.weights)
    with pytest.raises(ValueError, match=r"chosen must be \[3, K\] int32"):
        device.experts_mlp(case.x, case.gate_up, case.down, case.chosen.long(), case.weights)
    with pytest.raises(ValueError, match="3 of 4 experts in 2 groups cannot be chosen"):
        device.route(drawn(2, 4), None, Routing(3, groups=2, live_groups=1))
