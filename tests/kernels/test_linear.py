"""Matrix products: fixed ones give a row the same bits in any batch, FP8 ones come near, both as their references."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from asynclane.kernels.common.types import Fp8Matrix, GroupedMatrix
from asynclane.kernels.linear import linear, reference

from ..support.kernel_cases import DEVICE, NARROW, TOLERANCE, drawn, kernels_of

device = kernels_of("linear")
device_groups = kernels_of("linear", "triton_grouped")


@pytest.mark.parametrize("tokens", [1, 15, 33])
def test_a_row_of_a_product_has_the_same_bits_alone_and_among_others(tokens: int) -> None:
    torch.manual_seed(4)
    x, weight = torch.randn(500, 256), torch.randn(768, 256)
    assert torch.equal(linear(x[7 : 7 + tokens], weight), linear(x, weight)[7 : 7 + tokens])


def fp8(weight: Tensor) -> Fp8Matrix:
    return Fp8Matrix(*reference.quantize_rows(weight))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=["float32", "float16"])
@pytest.mark.parametrize(
    ("tokens", "inner", "columns"), [(3, 40, 17), (70, 72, 130), (65, 8, 1), (0, 16, 24), (3, 16, 0)]
)
def test_fixed_products_equal_their_twin_at_odd_sizes(
    tokens: int, inner: int, columns: int, dtype: torch.dtype
) -> None:
    x, weight = drawn(tokens, inner, dtype=dtype), drawn(columns, inner, dtype=dtype, seed=1)
    got, want = device.fixed_linear(x, weight), reference.fixed_linear(x, weight)
    limit = 1e-4 if dtype is torch.float32 else 2e-2
    torch.testing.assert_close(got, want, atol=limit, rtol=limit)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
def test_a_row_alone_has_the_bits_it_has_among_others(dtype: torch.dtype) -> None:
    """On whichever device this runs, through the function that networks call."""
    x, weight = drawn(300, 64, dtype=dtype), drawn(48, 64, dtype=dtype, seed=1)
    whole = linear(x, weight, fixed=True)
    for tokens in (1, 15, 64, 257):
        assert torch.equal(linear(x[:tokens].contiguous(), weight, fixed=True), whole[:tokens])


@pytest.mark.parametrize(("tokens", "width"), [(5, 33), (3, 1500)])
def test_rows_are_quantized_as_by_the_twin(tokens: int, width: int) -> None:
    x = drawn(tokens, width) * torch.logspace(-4, 4, tokens, device=DEVICE)[:, None]
    x[-1] = 0.0
    got, want = device.quantize_rows(x), reference.quantize_rows(x)
    torch.testing.assert_close(got[1], want[1], rtol=1e-6, atol=0)
    ours, theirs = got[0].float(), want[0].float()
    # The interpreter loses the carry of a number that is rounded up to a power of two.
    counted = torch.frexp(theirs)[0].abs() != 0.5 if DEVICE == "cpu" else torch.ones_like(theirs, dtype=torch.bool)
    assert ((ours - theirs).abs() <= theirs.abs() / 8)[counted].all(), "more than one step of FP8 apart"
    assert got[0].float().abs().max() <= reference.FP8_MAX
    assert got[0][-1].float().abs().max() == 0


@pytest.mark.parametrize("ops", [device, reference], ids=["triton", "torch"])
def test_a_row_with_nan_does_not_become_numbers(ops: Any) -> None:
    x = drawn(3, 16)
    x[1, 5] = float("nan")
    values, scales = ops.quantize_rows(x)
    dequantized = values.float() * scales[:, None]
    assert dequantized[1].isnan().all()
    assert dequantized[[0, 2]].isfinite().all()


def test_an_fp8_product_comes_within_its_numbers_precision() -> None:
    x, weight = drawn(20, 256, dtype=torch.bfloat16), drawn(64, 256, dtype=torch.bfloat16, seed=1)
    got, want = linear(x, fp8(weight)).float(), x.float() @ weight.float().T
    # Both factors are rounded to 3 bits after the first: an error of 2^-4 at most each, mostly smaller, independent.
    assert ((got - want).norm() / want.norm()).item() < 0.05


@pytest.mark.parametrize(
    ("x", "weight", "message"),
    [
        (drawn(2, 16), drawn(4, 24), r"weight must be \[out, 16\] float32, not \[4, 24\] float32"),
        (drawn(2, 16), drawn(4, 16).half(), r"weight must be \[out, 16\] float32, not \[4, 16\] float16"),
        (drawn(2, 16)[0], drawn(4, 16), r"x must be \[T, in\] .*, not \[16\] float32"),
        (drawn(2, 3), drawn(4, 3), "must begin at multiples of 16 bytes"),
        (drawn(33)[1:].view(2, 16), drawn(4, 16), "must begin at multiples of 16 bytes"),
        (drawn(16, 4).T, drawn(4, 16), "x must be contiguous"),
    ],
)
def test_wrong_factors_are_named(x: Tensor, weight: Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        device.fixed_linear(x, weight)


def test_an_fp8_weight_with_other_scales_is_refused() -> None:
    values, scales = reference.quantize_rows(drawn(4, 16))
    with pytest.raises(ValueError, match=r"scales must be \[4\] float32, not \[1\] float32"):
        Fp8Matrix(values, scales[:1])
    with pytest.raises(ValueError, match=r"x must be \[T, 16\]"):
        linear(drawn(2, 8), Fp8Matrix(values, scales))


def test_fp8_sizes_that_no_product_takes_are_refused() -> None:
    with pytest.raises(ValueError, match=r"multiples of 16, not \[40, 64\]"):
        Fp8Matrix.empty(40, 64, torch.device("cpu"))


# --- Scales of groups ---------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def quantized_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    """The interpreter loses the carry of an FP8 number that is rounded up to a power of two."""
    if DEVICE == "cpu":
        monkeypatch.setattr(device_groups, "quantize_rows", reference.quantize_rows)


def grouped(rows: int, columns: int, group: int, int4: bool) -> GroupedMatrix:
    generator = torch.Generator().manual_seed(2)
    groups = -(-columns // group)
    scales = torch.rand((rows, groups), generator=generator) + 0.5
    if not int4:
        values = torch.randn((rows, columns), generator=generator).to(torch.float8_e4m3fn)
        return GroupedMatrix(values.to(DEVICE), scales.to(DEVICE), group)
    words = reference.pack_int4(torch.randint(0, 16, (rows, columns), generator=generator))
    zeros = torch.randint(0, 16, (rows, groups), generator=generator).float()
    return GroupedMatrix(words.to(DEVICE), torch.stack((scales / 8, zeros), -1).to(DEVICE), group)


@pytest.mark.parametrize(("dtype", "fixed"), [(torch.float32, False), *((dtype, True) for dtype in NARROW)], ids=str)
@pytest.mark.parametrize(
    ("tokens", "columns", "inner", "group", "int4"),
    [(3, 17, 96, 32, True), (35, 70, 256, 128, True), (70, 33, 192, 192, True), (20, 40, 144, 128, False)],
)
def test_products_with_scales_of_groups_equal_their_twin(
    tokens: int, columns: int, inner: int, group: int, int4: bool, dtype: torch.dtype, fixed: bool
) -> None:
    x, weight = drawn(tokens, inner, dtype=dtype) * inner**-0.5, grouped(columns, inner, group, int4)
    got, want = device_groups.grouped_linear(x, weight, fixed), reference.linear(x, weight, fixed)
    assert got.shape == (tokens, columns)
    torch.testing.assert_close(got, want, atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])


@pytest.mark.parametrize("int4", [False, True], ids=["fp8", "int4"])
@pytest.mark.parametrize("tokens", [16, 32, 64, 80])
def test_every_tile_with_scales_of_groups_gives_the_same(tokens: int, int4: bool) -> None:
    x, weight = drawn(tokens, 128, dtype=NARROW[0]) * 128**-0.5, grouped(40, 128, 64, int4)
    got, want = device_groups.grouped_linear(x, weight), reference.linear(x, weight)
    torch.testing.assert_close(got, want, atol=TOLERANCE[NARROW[0]], rtol=TOLERANCE[NARROW[0]])


@pytest.mark.parametrize("int4", [False, True], ids=["fp8", "int4"])
def test_parts_of_products_of_few_rows_add_up(int4: bool) -> None:
    x, weight = drawn(9, 640, dtype=NARROW[0]) * 640**-0.5, grouped(40, 640, 128, int4)
    parts, want = device_groups.grouped_parts(x, weight), reference.linear(x, weight)
    assert (parts.shape, parts.dtype) == ((5, 9, 40), torch.float32)
    torch.testing.assert_close(parts.sum(0).to(x.dtype), want, atol=TOLERANCE[NARROW[0]], rtol=TOLERANCE[NARROW[0]])
    assert device_groups.grouped_parts(x, weight, fixed=True).shape == (1, 9, 40)


@pytest.mark.parametrize(("columns", "inner", "group"), [(70, 256, 128), (64, 96, 32), (33, 192, 192)])
def test_products_of_many_rows_with_4_bit_numbers_convert_these_first(columns: int, inner: int, group: int) -> None:
    """Each weight is the nearest of its type to the number that it stands for."""
    x, weight = drawn(513, inner, dtype=NARROW[0]) * inner**-0.5, grouped(columns, inner, group, int4=True)
    assert torch.equal(device_groups.converted(weight, x.dtype), reference.dequantize(weight).to(x.dtype))
    want = reference.linear(x, weight)
    for got in (device_groups.grouped_linear(x, weight), device_groups.grouped_parts(x, weight)[0]):
        torch.testing.assert_close(got, want, atol=TOLERANCE[NARROW[0]], rtol=TOLERANCE[NARROW[0]])


def test_a_word_has_eight_neighbours_in_pairs() -> None:
    numbers = torch.arange(16)[None] % 16 ^ torch.tensor([[0], [5]])
    words = reference.pack_int4(numbers)
    assert (words[0] == torch.tensor([0x75316420, 0xFDB9ECA8 - (1 << 32)])).all()
    assert torch.equal(reference.unpack_int4(words).long(), numbers)
    weight = GroupedMatrix(reference.pack_int4(numbers.repeat(1, 2)), torch.tensor([0.5, 1.0]).expand(2, 1, 2), 32)
    assert torch.equal(reference.dequantize(weight), (numbers.repeat(1, 2) - 1) / 2)


def test_int4_rounds_no_worse_than_to_the_nearest_of_sixteen_even_steps() -> None:
    weight = drawn(24, 64)
    weight[0] = 0.0
    found = reference.dequantize(reference.quantize_groups(weight, 32)).view(24, 2, 32)
    spread = weight.view(24, 2, 32)
    least, most = spread.amin(-1, keepdim=True).clamp_max(0), spread.amax(-1, keepdim=True).clamp_min(0)
    step = ((most - least) / 15).clamp_min(1e-12)
    even = ((spread / step).round() + (-least / step).round()).clamp(0, 15) - (-least / step).round()
    error, of_even = (found - spread).square().sum(-1), (even * step - spread).square().sum(-1)
    assert (error <= of_even * 1.001).all()
    assert error.sum() < 0.95 * of_even.sum()
    assert found[0].abs().max() == 0


def test_scales_of_groups_of_another_shape_are_refused() -> None:
    good = grouped(16, 64, 32, int4=True)
    with pytest.raises(ValueError, match=r"scales must be \[out, groups, 2\] float32, not \[16, 2, 1\]"):
        GroupedMatrix(good.values, good.scales[:, :, :1], 32)
    with pytest.raises(ValueError, match="a scale and its zero must be neighbours, not 2 apart"):
        GroupedMatrix(good.values, good.scales.transpose(1, 2), 32)
    with pytest.raises(ValueError, match=r"values must be \[16, 8\] int32, not \[16, 4\]"):
        GroupedMatrix(good.values[:, :4].contiguous(), good.scales, 32)
    with pytest.raises(ValueError, match=r"values must be \[out, in\] float8_e4m3fn, not"):
        GroupedMatrix(good.values, good.scales[..., 0], 32)
    with pytest.raises(ValueError, match=r"scales for 48 columns cannot take \[16, 96\]"):
        GroupedMatrix.empty(16, 96, 48, True, torch.device("cpu"))
    with pytest.raises(ValueError, match=r"x must be \[T, 64\]"):
        device_groups.grouped_linear(drawn(2, 32), good)
