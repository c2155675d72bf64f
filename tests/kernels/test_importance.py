"""Importance: the attention that candidates of a row get from each other, in the kernel as in a plain loop."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
import torch
from torch import Tensor

from asynclane.kernels.common.types import Fp8Heads
from asynclane.kernels.importance import reference

from ..support.kernel_cases import DEVICE, NARROW, assert_near, drawn, in_fp8, kernels_of

device = kernels_of("importance")
# Candidates of each row, heads, key heads, head dim, page size, room after the last candidate.
SHAPES = [
    ([1], 2, 1, 16, 16, 0),
    ([3, 0, 5], 4, 2, 16, 16, 4),
    ([17, 2, 32, 1], 6, 3, 32, 16, 0),
    ([64, 33], 2, 2, 64, 64, 7),
]
MOST = 64


def case(
    counts: list[int], heads: int, kv_heads: int, dim: int, page_size: int, room: int, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, int]:
    """Candidates are every other token of rows in shuffled places; all other keys are NaN."""
    total = 2 * sum(counts) + 3
    pages = -(-total // page_size) + 1
    places = torch.randperm(pages * page_size, generator=torch.Generator().manual_seed(1))[:total].to(DEVICE)
    candidates = torch.arange(1, 2 * sum(counts), 2, device=DEVICE)
    keys = torch.full((pages * page_size, kv_heads, dim), math.nan, dtype=dtype, device=DEVICE)
    keys[places[candidates]] = drawn(len(candidates), kv_heads, dim, dtype=dtype, seed=2)
    queries = torch.full((total, heads, dim), math.nan, dtype=dtype, device=DEVICE)
    queries[candidates] = drawn(len(candidates), heads, dim, dtype=dtype, seed=3)
    starts = torch.tensor([0, *counts], device=DEVICE).cumsum(0).int()
    padded = torch.cat((candidates, candidates.new_zeros(room)))
    return queries, keys.view(pages, page_size, kv_heads, dim), places, padded, starts, MOST


def plain(queries: Tensor, keys: Tensor, places: Tensor, candidates: Tensor, starts: Tensor) -> list[float]:
    """As FOCUS has it: a softmax over the highest of three neighbouring scores, summed over queries and heads."""
    found = []
    flat = keys.flatten(0, 1).double()
    group = queries.shape[1] // keys.shape[2]
    for start, end in pairwise(starts.tolist()):
        own = candidates[start:end].tolist()
        total = torch.zeros(len(own), dtype=torch.float64)
        for head in range(queries.shape[1]):
            for query in own:
                q = queries[query, head].double()
                scores = [float(q @ flat[places[key], head // group]) / math.sqrt(len(q)) for key in own]
                pooled = [max(scores[max(0, at - 1) : at + 2]) for at in range(len(own))]
                total += torch.tensor(pooled, dtype=torch.float64).softmax(0)
        found += total.tolist()
    return found


@pytest.mark.parametrize("shape", SHAPES[:3], ids=str)
def test_importance_is_that_of_a_plain_loop(shape: tuple[list[int], int, int, int, int, int]) -> None:
    arguments = case(*shape, torch.float32)
    count = sum(shape[0])
    want = torch.tensor(plain(*arguments[:5]), dtype=torch.float32)
    torch.testing.assert_close(reference.importance(*arguments)[:count].cpu(), want)
    queries = sum(count * shape[1] for count in shape[0])
    assert math.isclose(want.sum().item(), queries, rel_tol=1e-5), "each query of each head gives 1 in all"


@pytest.mark.parametrize("dtype", [torch.float32, *NARROW], ids=str)
@pytest.mark.parametrize("fp8", [False, True])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_kernel_finds_what_torch_finds(
    shape: tuple[list[int], int, int, int, int, int], fp8: bool, dtype: torch.dtype
) -> None:
    queries, keys, *rest = case(*shape, dtype)
    kept: Tensor | Fp8Heads = in_fp8(keys) if fp8 else keys
    want = reference.importance(queries, kept, *rest)
    got = device.importance(queries, kept, *rest)
    assert got.dtype == torch.float32
    assert_near(got[: sum(shape[0])].to(dtype), want[: sum(shape[0])].to(dtype))


@pytest.mark.parametrize("heads", [4, 64])
def test_a_row_has_the_same_importance_beside_others(heads: int) -> None:
    queries, keys, places, candidates, starts, most = case([5, 9, 16], heads, 2, 16, 16, 0, torch.float32)
    whole = device.importance(queries, keys, places, candidates, starts, most)
    for row, (start, end) in enumerate(pairwise(starts.tolist())):
        alone = torch.tensor([0, end - start], dtype=torch.int32, device=DEVICE)
        for ops in (reference, device):
            own = ops.importance(queries, keys, places, candidates[start:end].clone(), alone, most)
            both = ops.importance(queries, keys, places, candidates, starts, most)
            assert torch.equal(own, both[start:end]), row
    assert whole.isfinite().all()
