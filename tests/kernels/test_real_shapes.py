"""Kernels against their torch twins at the shapes of published models, on a GPU."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton", minversion="3.5" if torch.cuda.is_available() else "3.9")

from asynclane.kernels import reference, tiles
from asynclane.kernels.triton import attention, confidence, elementwise

from ..support.kernel_cases import attention_case, draws_of, plan_of, some_logits

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
DEVICE = "cuda"


def assert_close_overall(got: Tensor, want: Tensor, limit: float) -> None:
    assert ((got.float() - want.float()).norm() / want.float().norm()).item() < limit


@pytest.mark.parametrize(("heads", "kv_heads", "dim"), [(32, 32, 128), (28, 4, 128), (4, 4, 64)])
@pytest.mark.parametrize(
    "rows",
    [[(64, 512)], [(64, 512)] * 16, [(32, 777), (1, 1), (300, 2048), (2048, 2048)], [(1024, 1024), *[(64, 512)] * 30]],
    ids=["one", "sixteen", "mixed", "prefill"],
)
@pytest.mark.parametrize("page_size", [16, 64])
def test_attention_at_real_shapes(
    rows: list[tuple[int, int]], heads: int, kv_heads: int, dim: int, page_size: int
) -> None:
    case = attention_case(rows, heads, kv_heads, dim, page_size, torch.bfloat16, DEVICE)
    given = [case[name] for name in ("queries", "keys", "values", "page_table", "row_starts", "visible")]
    most = max(visible for _, visible in rows)
    config = tiles.attention_config(len(case["queries"]), len(rows), most, heads, kv_heads, dim)
    wide = [x.float() if x.is_floating_point() else x for x in given]
    got = attention.paged_attention(*given, plan=plan_of(case, config))
    assert_close_overall(got, reference.paged_attention(*wide), 6e-3)


@pytest.mark.parametrize("count", [1, 32, 300])
def test_predictions_at_real_shapes(count: int) -> None:
    temperature = [0.0 if row % 2 else 0.8 for row in range(count)]
    draws = draws_of(count, DEVICE, temperature=temperature, positions=list(range(count)), top_p=0.95)
    logits = some_logits(DEVICE, count, 126_464, torch.bfloat16, spread=3.0)
    endless = torch.zeros(count, dtype=torch.bool, device=DEVICE)
    banned, ends = torch.tensor([126_336], device=DEVICE), torch.tensor([126_081], device=DEVICE)
    want = reference.predict(logits.clone(), banned, ends, endless, draws)
    got = confidence.predict(logits, banned, ends, endless, draws)
    greedy = draws.temperature == 0
    assert torch.equal(got.proposals[greedy], want.proposals[greedy])
    torch.testing.assert_close(got.confidence[greedy], want.confidence[greedy], rtol=1e-4, atol=1e-9)
    # The nucleus' edge depends on the order of a float32 sum over the vocabulary.
    assert (got.proposals == want.proposals).float().mean() > 0.95


def test_small_operations_at_real_shapes() -> None:
    torch.manual_seed(0)
    x = torch.randn(333, 4096, device=DEVICE, dtype=torch.bfloat16)
    weight = torch.randn(4096, device=DEVICE, dtype=torch.bfloat16)
    assert_close_overall(elementwise.rms_norm(x, weight, 1e-5), reference.rms_norm(x, weight, 1e-5), 3e-3)
    wide = torch.randn(333, 2 * 12288, device=DEVICE, dtype=torch.bfloat16)
    assert_close_overall(elementwise.swiglu(wide), reference.swiglu(wide), 3e-3)
