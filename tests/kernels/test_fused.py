"""Products of few rows: the streamed kernel against torch, and what follows it against the reference."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import Tensor

from asynclane.kernels.common.types import QkNorm
from asynclane.kernels.elementwise import reference as small
from asynclane.kernels.fused import linear_add_rms_norm, linear_rope_write_kv, linear_swiglu, reference
from asynclane.kernels.linear.reference import fixed_linear

from ..support.kernel_cases import assert_near, drawn, kernels_of

device, elementwise, norms = kernels_of("fused"), kernels_of("elementwise"), kernels_of("elementwise", "triton_norms")


def streamed(x: Tensor, weight: Tensor, gated: bool = False, **sizes: int) -> Tensor:
    kernels = kernels_of("linear", "triton_streamed")
    return kernels.streamed(x, weight, gated, kernels.Stream(**{"n": 64, "k": 64, "warps": 4, "stages": 2, **sizes}))


@pytest.mark.parametrize(("tokens", "inner", "columns"), [(1, 256, 64), (17, 512, 100), (32, 448, 72), (64, 256, 200)])
@pytest.mark.parametrize("splits", [1, 2, 4])
def test_parts_of_a_product_add_up_to_it(tokens: int, inner: int, columns: int, splits: int) -> None:
    x, weight = drawn(tokens, inner, dtype=torch.float16), drawn(columns, inner, dtype=torch.float16, seed=1) / 16
    parts = streamed(x, weight, splits=splits)
    assert parts.shape == (splits, tokens, columns)
    assert parts.dtype == (torch.float16 if splits == 1 else torch.float32)
    assert_near(parts.float().sum(0).half(), fixed_linear(x, weight))


@pytest.mark.parametrize(("tokens", "inner", "width"), [(3, 128, 64), (33, 64, 100)])
def test_a_gated_product_is_swiglu_of_the_product(tokens: int, inner: int, width: int) -> None:
    x, weight = drawn(tokens, inner, dtype=torch.float16), drawn(2 * width, inner, dtype=torch.float16, seed=1) / 8
    assert_near(streamed(x, weight, gated=True)[0], small.swiglu(fixed_linear(x, weight)))


def test_parts_are_added_up_before_the_norm_and_the_rotation() -> None:
    parts, residual, weight = drawn(3, 5, 64), drawn(5, 64, seed=1).half(), drawn(64, seed=2).half()
    total = parts.sum(0).half()
    got, want = (
        norms.add_rms_norm_of(parts, residual, weight, 1e-5),
        small.add_rms_norm(total, residual, weight, 1e-5),
    )
    assert_near(got[0], want[0])
    assert_near(got[1], want[1])

    heads = drawn(2, 3, 4, 16)
    cos, sin = drawn(2, 3, 16)
    places = torch.tensor([4, -1, 1], device=heads.device)
    norm = QkNorm(None, drawn(16, seed=3).half(), drawn(16, seed=4).half())
    done = []
    rotate_parts = partial(elementwise.rope_write_kv_of, dtype=torch.float16)
    for rotate, given in ((rotate_parts, heads), (small.rope_write_kv, heads.sum(0).half())):
        keys, values = torch.zeros(2, 3, 2, 1, 16, dtype=torch.float16, device=heads.device)
        done.append((rotate(given, cos, sin, keys, values, places, norm), keys, values))
    for got_one, want_one in zip(*done, strict=True):
        assert_near(got_one, want_one)


@pytest.mark.parametrize("fixed", [False, True])
def test_each_operation_is_a_product_and_the_operation_after_it(fixed: bool) -> None:
    """On whichever device this runs, through the functions that networks call."""
    x, residual, norm = drawn(5, 64), drawn(5, 96, seed=1), drawn(96, seed=2)
    out, gate_up, qkv = drawn(96, 64, seed=3), drawn(96, 64, seed=4), drawn(4 * 16, 64, seed=5)
    assert_near(linear_swiglu(x, gate_up, fixed), reference.linear_swiglu(x, gate_up))
    for got, want in zip(
        linear_add_rms_norm(x, out, residual, norm, 1e-5, fixed),
        reference.linear_add_rms_norm(x, out, residual, norm, 1e-5),
        strict=True,
    ):
        assert_near(got, want)
    cos, sin = drawn(2, 5, 16)
    done = []
    for operation in (linear_rope_write_kv, reference.linear_rope_write_kv):
        keys, values = torch.zeros(2, 3, 2, 1, 16, device=x.device)
        places = torch.arange(5, device=x.device)
        done.append((operation(x, qkv, cos, sin, keys, values, places, QkNorm(), fixed), keys, values))
    for got, want in zip(*done, strict=True):
        assert_near(got, want)


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("columns", [32, 2048, 4096, 6144, 12288, 126464])
@pytest.mark.parametrize("inner", [8, 64, 192, 640, 4096])
def test_every_size_has_a_stream(inner: int, columns: int, gated: bool) -> None:
    kernels = kernels_of("linear", "triton_streamed")
    for rows in (1, 32, 64):
        stream = kernels.stream_config(rows, columns, inner, gated)
        assert not gated or stream.splits == 1
        blocks = -(-inner // stream.k)
        assert -(-blocks // stream.splits) * (stream.splits - 1) < blocks, "each split has some"


@pytest.mark.parametrize(
    ("sizes", "gated", "message"),
    [
        ({"splits": 2}, True, "splits must be 1, not 2"),
        ({"splits": 5}, False, "5 programs cannot share 256 numbers, 64 at a time"),
    ],
)
def test_work_that_cannot_be_shared_is_refused(sizes: dict[str, int], gated: bool, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        streamed(drawn(2, 256), drawn(128, 256), gated, **sizes)
