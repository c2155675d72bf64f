"""What comes before the rotation, bias and norms of heads, and heads that are rotated in part: kernel against twin."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton", minversion="3.5" if torch.cuda.is_available() else "3.9")

from asynclane.kernels import reference
from asynclane.kernels.heads import HeadWeights
from asynclane.kernels.triton import elementwise

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
TOLERANCE = {torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}
NARROW = [torch.float16, torch.bfloat16] if DEVICE == "cuda" else [torch.float16]
PLACES = [9, -1, 0, 5, -1]  # of which two are padding


def extras(heads: int, kv_heads: int, dim: int, bias: bool, norms: bool, dtype: torch.dtype) -> HeadWeights:
    generator = torch.Generator(DEVICE).manual_seed(1)

    def drawn(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, device=DEVICE).to(dtype)

    return HeadWeights(
        drawn((heads + 2 * kv_heads) * dim) if bias else None, *((drawn(dim), drawn(dim)) if norms else (None, None))
    )


@pytest.mark.parametrize("dtype", [torch.float32, *NARROW])
@pytest.mark.parametrize(("bias", "norms"), [(True, False), (False, True), (True, True)])
@pytest.mark.parametrize(
    ("heads", "kv_heads", "dim", "rotary"), [(4, 4, 64, 64), (7, 1, 16, 8), (3, 1, 12, 6), (2, 1, 24, 4)]
)
def test_heads_are_biased_normed_and_rotated_as_in_torch(
    heads: int, kv_heads: int, dim: int, rotary: int, bias: bool, norms: bool, dtype: torch.dtype
) -> None:
    generator = torch.Generator(DEVICE).manual_seed(0)
    places = torch.tensor(PLACES, device=DEVICE)
    qkv = torch.randn((len(places), heads + 2 * kv_heads, dim), generator=generator, device=DEVICE).to(dtype)
    cos, sin = torch.randn((2, len(places), rotary), generator=generator, device=DEVICE)
    given = extras(heads, kv_heads, dim, bias, norms, dtype)
    done = []
    for ops in (reference, elementwise):
        keys = torch.full((3, 4, kv_heads, dim), 7.0, dtype=dtype, device=DEVICE)
        values = keys.clone()
        done.append((ops.rope_write_kv(qkv, cos, sin, keys, values, places, given), keys, values))
    for want, got in zip(*done, strict=True):
        torch.testing.assert_close(got.float(), want.float(), atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])
    untouched = [place for place in range(12) if place not in PLACES]
    assert all((kv.flatten(0, 1)[untouched] == 7).all() for kv in done[1][1:])


def test_numbers_behind_the_rotated_ones_stay_as_they_are() -> None:
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
        elementwise.rope_write_kv(qkv, cos, cos, keys, keys, places, HeadWeights(torch.zeros(16, device=DEVICE)))
    wrong = HeadWeights(None, cos[0, :8].contiguous(), cos[0, :8].contiguous())
    with pytest.raises(ValueError, match=r"query_norm must be \[16\]"):
        elementwise.rope_write_kv(qkv, cos, cos, keys, keys, places, wrong)
