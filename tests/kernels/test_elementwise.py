"""The small operations of a block: the reference against formulas, the kernels against the reference."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from functools import partial

import pytest
import torch
import torch.nn.functional as F

from asynclane.kernels.common.types import FeedForwardNorms, Fp8Heads, QkNorm
from asynclane.kernels.elementwise import reference

from ..support.kernel_cases import DEVICE, NARROW, assert_near, drawn, kernels_of
from ..support.scale import crossed, part

device = kernels_of("elementwise")
PLACES = [9, -1, 0, 5, -1]  # of which two are padding


def test_rope_writes_keys_and_values_to_their_places_only() -> None:
    torch.manual_seed(3)
    heads, kv_heads, dim = 2, 1, 4
    qkv = torch.randn(3, heads + 2 * kv_heads, dim)
    angle = torch.rand(3, dim // 2).repeat(1, 2)
    keys = torch.full((2, 4, kv_heads, dim), math.nan)
    values = torch.full_like(keys, math.nan)
    places = torch.tensor([6, 0, 3])
    queries = reference.rope_write_kv(qkv, angle.cos(), angle.sin(), keys, values, places)
    turn = torch.polar(torch.ones(3, dim // 2), angle[:, : dim // 2])[:, None]
    pairs = torch.view_as_complex(torch.stack(qkv[:, :3].chunk(2, -1), -1).contiguous()) * turn
    want = torch.cat((pairs.real, pairs.imag), -1)
    torch.testing.assert_close(queries, want[:, :2])
    torch.testing.assert_close(keys.flatten(0, 1)[places], want[:, 2:])
    assert torch.equal(values.flatten(0, 1)[places], qkv[:, 3:])
    assert keys.flatten(0, 1)[[1, 2, 4, 5, 7]].isnan().all()


def test_norm_and_gate_match_their_formulas() -> None:
    torch.manual_seed(5)
    x, residual, weight = torch.randn(3, 8), torch.randn(3, 8), torch.randn(8)
    normed, total = reference.add_rms_norm(x, residual, weight, 1e-5)
    torch.testing.assert_close(total, x + residual)
    torch.testing.assert_close(normed, F.rms_norm(x + residual, (8,), weight, 1e-5))
    torch.testing.assert_close(reference.swiglu(x), F.silu(x[:, :4]) * x[:, 4:])
    torch.testing.assert_close(reference.geglu(x), F.gelu(x[:, :4], approximate="tanh") * x[:, 4:])


@pytest.mark.parametrize(("sizes", "dtype"), crossed([(3, 40), (1, 64)], [torch.float32, *NARROW]), ids=str)
def test_norms_and_gate(sizes: tuple[int, int], dtype: torch.dtype) -> None:
    tokens, dim = sizes
    torch.manual_seed(0)
    x, residual = (torch.randn(tokens, dim, device=DEVICE).to(dtype) for _ in range(2))
    weight = torch.randn(dim, device=DEVICE).to(dtype)
    assert_near(device.rms_norm(x, weight, 1e-5), reference.rms_norm(x, weight, 1e-5))
    got, want = (ops.add_rms_norm(x, residual, weight, 1e-5) for ops in (device, reference))
    assert_near(got[0], want[0])
    assert torch.equal(got[1], want[1])
    assert_near(device.swiglu(x), reference.swiglu(x))
    assert_near(device.geglu(x), reference.geglu(x))


@pytest.mark.parametrize(("sizes", "dtype"), crossed([(3, 40), (1, 64)], [torch.float32, *NARROW]), ids=str)
def test_the_parts_of_a_layer_are_normed_and_added_as_one_after_the_other(
    sizes: tuple[int, int], dtype: torch.dtype
) -> None:
    tokens, dim = sizes
    x, residual = (3 * drawn(tokens, dim, dtype=dtype, seed=seed) for seed in range(2))
    parts, weights = 3 * drawn(tokens, 3, dim, dtype=dtype, seed=2), drawn(tokens, 3, seed=7).abs()
    found = (parts.float() * weights[..., None]).sum(1).to(dtype)
    post_norm, *norms = (1 + drawn(dim, dtype=dtype, seed=seed) / 4 for seed in range(3, 7))
    norm = partial(reference.rms_norm, eps=1e-6)
    total = residual + norm(x, post_norm)
    dense, experts, router = (norm(total, each) for each in norms)
    want = dense, experts, router.float() * dim**-0.5, total
    for ops in (reference, device):
        got = ops.add_attention(x, residual, post_norm, *norms, 1e-6)
        assert got[2].dtype == torch.float32
        for each, wanted in zip(got, want, strict=True):
            torch.testing.assert_close(each, wanted, **near(dtype))

    post_norms, factors = FeedForwardNorms(*norms), torch.tensor([0.9, 1.1], device=DEVICE).to(dtype)
    both = norm(norm(x, norms[0]) + norm(found, norms[1]), norms[2])
    for kinds, chosen in ((None, [0] * tokens), ([0, 2, 1][:tokens], [0, 1, 1][:tokens])):
        given = None if kinds is None else torch.tensor(kinds, dtype=torch.int32, device=DEVICE)
        total = (residual + both) * factors[chosen][:, None]
        for ops in (reference, device):
            got = ops.add_feed_forward(x, parts, weights, residual, post_norms, factors, given, post_norm, 1e-6)
            for each, wanted in zip(got, (norm(total, post_norm), total), strict=True):
                torch.testing.assert_close(each, wanted, **near(dtype))


def near(dtype: torch.dtype) -> dict[str, float]:
    """A few roundings of numbers of about 3."""
    eps = torch.finfo(dtype).eps
    return {"rtol": 4 * eps, "atol": 4 * eps}


def test_embed() -> None:
    canvases = torch.arange(12, device=DEVICE).view(3, 4)
    slots, positions = torch.tensor([2, 0, 2], device=DEVICE), torch.tensor([1, 3, 0], device=DEVICE)
    table = torch.randn(12, 40, device=DEVICE)
    assert torch.equal(
        device.embed(canvases, slots, positions, table), reference.embed(canvases, slots, positions, table)
    )


def test_a_position_has_its_place_in_its_page_and_padding_has_none() -> None:
    table = torch.tensor([[4, 1, 0], [2, 3, 5]], dtype=torch.int32, device=DEVICE)
    slots, positions = torch.tensor([1, 0, 0, 1], device=DEVICE), torch.tensor([17, 0, -1, 47], device=DEVICE)
    for ops in (reference, device):
        assert ops.kv_places(table, slots, positions, 16).tolist() == [3 * 16 + 1, 4 * 16, -1, 5 * 16 + 15]


def drawn_qk_norm(heads: int, kv_heads: int, dim: int, bias: bool, norms: bool, dtype: torch.dtype) -> QkNorm:
    both = (drawn(dim, dtype=dtype, seed=2), drawn(dim, dtype=dtype, seed=3)) if norms else (None, None)
    return QkNorm(drawn((heads + 2 * kv_heads) * dim, dtype=dtype, seed=1) if bias else None, *both)


HEADS = [(4, 4, 64, 64), (7, 1, 16, 8), (3, 1, 12, 6)]
CHANGES = [(False, False, False), (True, False, False), (False, True, False), (False, True, True)]


@pytest.mark.parametrize(
    ("sizes", "changes", "dtype"),
    part(itertools.product(HEADS, CHANGES, [torch.float32, *NARROW]), 4, seed="heads"),
    ids=str,
)
def test_heads_are_biased_normed_and_rotated_as_in_torch(
    sizes: tuple[int, int, int, int], changes: tuple[bool, bool, bool], dtype: torch.dtype
) -> None:
    (heads, kv_heads, dim, rotary), (bias, norms, values) = sizes, changes
    places = torch.tensor(PLACES, device=DEVICE)
    qkv = drawn(len(places), heads + 2 * kv_heads, dim, dtype=dtype)
    cos, sin = drawn(2, len(places), rotary)
    given = replace(drawn_qk_norm(heads, kv_heads, dim, bias, norms, dtype), norms_values=values)
    done = []
    for ops in (reference, device):
        keys = torch.full((3, 4, kv_heads, dim), 7.0, dtype=dtype, device=DEVICE)
        kept = keys.clone()
        done.append((ops.rope_write_kv(qkv, cos, sin, keys, kept, places, given), keys, kept))
    for want, got in zip(*done, strict=True):
        assert_near(got, want)
    untouched = [place for place in range(12) if place not in PLACES]
    assert all((kv.flatten(0, 1)[untouched] == 7).all() for kv in done[1][1:])


@pytest.mark.filterwarnings("ignore:invalid value")  # of the interpreter
@pytest.mark.parametrize(
    ("heads", "kv_heads", "dim", "rotary", "dtype"),
    [(7, 2, 16, 16, torch.float32), (3, 1, 12, 6, torch.float16)],
)
def test_keys_and_values_are_written_in_fp8_with_a_scale_for_each_position_and_head(
    heads: int, kv_heads: int, dim: int, rotary: int, dtype: torch.dtype
) -> None:
    """Padding writes nothing; zeros, infinities and NaN stay what they are."""
    places = torch.tensor(PLACES, device=DEVICE)
    qkv = drawn(len(places), heads + 2 * kv_heads, dim, dtype=dtype)
    qkv[2, heads:] = 0
    cos, sin = drawn(2, len(places), rotary)
    given = drawn_qk_norm(heads, kv_heads, dim, False, False, dtype)
    plain = [torch.zeros((3, 4, kv_heads, dim), dtype=dtype, device=DEVICE) for _ in range(2)]
    queries = reference.rope_write_kv(qkv, cos, sin, *plain, places, given)
    untouched = [place for place in range(12) if place not in PLACES]
    for ops in (reference, device):
        kept = [Fp8Heads.zeros((3, 4, kv_heads, dim), torch.device(DEVICE)) for _ in range(2)]
        for kv in kept:
            kv.scales.fill_(7)
        assert_near(ops.rope_write_kv(qkv, cos, sin, *kept, places, given), queries)
        for kv, exact in zip(kept, plain, strict=True):
            numbers, scales = kv.numbers.float().flatten(0, 1), kv.scales.transpose(1, 2).flatten(0, 1)
            assert (scales[untouched] == 7).all()
            assert (numbers[[*untouched, 0]] == 0).all()
            wide, largest = exact.float().flatten(0, 1)[[9, 5]], exact.float().flatten(0, 1)[[9, 5]].abs().amax(-1)
            torch.testing.assert_close(scales[[9, 5]], largest / 448, rtol=1e-3, atol=0)
            error = (numbers[[9, 5]] * scales[[9, 5], :, None] - wide).abs()
            # The interpreter loses the carry of a number that is rounded up to a power of two.
            counted = torch.frexp(wide / scales[[9, 5], :, None])[0].abs() < (31 / 32 if DEVICE == "cpu" else 1)
            assert (error <= wide.abs() / 16 + largest[..., None] * 2**-18)[counted].all(), "half a step of FP8"
    for bad in (math.inf, math.nan):
        spoilt = qkv.clone()
        spoilt[0, -1, -1] = bad
        for ops in (reference, device):
            kept = [Fp8Heads.zeros((3, 4, kv_heads, dim), torch.device(DEVICE)) for _ in range(2)]
            ops.rope_write_kv(spoilt, cos, sin, *kept, places, given)
            written = kept[1].numbers.float().flatten(0, 1)[9, -1] * kept[1].scales[2, -1, 1]
            assert not written.isfinite().all()
            assert kept[1].scales[1, -1, 1].isfinite()


def test_values_that_are_normed_have_a_root_mean_square_of_one() -> None:
    qkv, norms = torch.randn(1, 3, 8), torch.ones(8)
    keys, values = torch.zeros(2, 1, 2, 1, 8)
    angle = torch.zeros(1, 8)
    given = QkNorm(None, norms, norms, norms_values=True)
    reference.rope_write_kv(qkv, angle.cos(), angle.sin(), keys, values, torch.tensor([1]), given)
    torch.testing.assert_close(values[0, 1, 0], qkv[0, 2] / qkv[0, 2].square().mean().sqrt())


def test_numbers_after_the_rotated_ones_stay_as_they_are() -> None:
    qkv = torch.randn(1, 3, 8)
    keys, values = torch.zeros(2, 1, 2, 1, 8)
    angle = torch.tensor([[1.0, 1.0]])
    queries = reference.rope_write_kv(qkv, angle.cos(), angle.sin(), keys, values, torch.tensor([1]))
    assert torch.equal(queries[0, 0, 2:], qkv[0, 0, 2:])
    assert torch.equal(keys[0, 1, 0, 2:], qkv[0, 1, 2:])
    assert not torch.equal(queries[0, 0, :2], qkv[0, 0, :2])
    torch.testing.assert_close(queries[0, 0].norm(), qkv[0, 0].norm())


def test_what_does_not_fit_the_heads_is_refused_by_name() -> None:
    places = torch.tensor([0], device=DEVICE)
    qkv, keys = torch.zeros(1, 4, 16, device=DEVICE), torch.zeros(1, 1, 1, 16, device=DEVICE)
    cos = torch.zeros(1, 16, device=DEVICE)
    with pytest.raises(ValueError, match=r"bias must be \[64\]"):
        device.rope_write_kv(qkv, cos, cos, keys, keys, places, QkNorm(torch.zeros(16, device=DEVICE)))
    wrong = QkNorm(None, cos[0, :8].contiguous(), cos[0, :8].contiguous())
    with pytest.raises(ValueError, match=r"query_norm must be \[16\]"):
        device.rope_write_kv(qkv, cos, cos, keys, keys, places, wrong)
