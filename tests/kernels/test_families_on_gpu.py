"""What only some families need, at the shapes of published networks, against the twins in float32."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton", minversion="3.5" if torch.cuda.is_available() else "3.9")

from asynclane.kernels import experts as twins
from asynclane.kernels import linear as products
from asynclane.kernels import measures as plain_measures
from asynclane.kernels import reference, tiles
from asynclane.kernels.heads import HeadWeights
from asynclane.kernels.linear import Fp8Matrix, Matrix
from asynclane.kernels.routing import Routing
from asynclane.kernels.triton import (
    attention,
    confidence,
    elementwise,
    experts,
    measures,
)

from ..support.kernel_cases import attention_case, draws_of

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
LLADA2 = Routing(8, sigmoid=True, normed=True, scale=2.5, groups=8, live_groups=4)
LLADA_MOE = Routing(8)
# dim, experts, width, routing
MIXTURES = [(2048, 256, 512, LLADA2), (2048, 64, 1024, LLADA_MOE)]
DEVICE = "cuda"


def drawn(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return torch.randn(shape, device=DEVICE).to(dtype)


def distance(got: Tensor, want: Tensor) -> float:
    return ((got.double() - want.double()).norm() / want.double().norm()).item()


@pytest.mark.parametrize(("dim", "count", "width", "routing"), MIXTURES, ids=str)
@pytest.mark.parametrize("tokens", [1, 33, 700, 2944])
def test_a_token_chooses_and_its_experts_compute_at_real_shapes(
    tokens: int, dim: int, count: int, width: int, routing: Routing
) -> None:
    torch.manual_seed(tokens)
    logits, bias = drawn(tokens, count, dtype=torch.float32), drawn(count, dtype=torch.float32) / 8
    want = twins.route(logits, bias, routing)
    chosen, weights = experts.route(logits, bias, routing)
    assert (chosen == want[0]).float().mean() > 0.999  # sigmoids that differ by a rounding may change places
    alike = (chosen == want[0]).all(-1)
    torch.testing.assert_close(weights[alike], want[1][alike], rtol=1e-5, atol=1e-6)

    x = drawn(tokens, dim)
    gate_up, down = drawn(count * 2 * width, dim) * dim**-0.5, drawn(count * dim, width) * width**-0.5
    truth = twins.experts_mlp(x.float(), gate_up.float(), down.float(), chosen, weights)
    for fixed in (False, True):
        assert distance(experts.experts_mlp(x, gate_up, down, chosen, weights, fixed), truth) < 8e-3
    of_fp8: list[Matrix] = [Fp8Matrix(*products.quantize_rows(matrix)) for matrix in (gate_up, down)]
    found, twin = (kind.experts_mlp(x, *of_fp8, chosen, weights) for kind in (experts, twins))
    assert distance(found, twin) < 8e-3


@pytest.mark.parametrize(("heads", "kv_heads", "rotary"), [(32, 8, 128), (16, 4, 64), (16, 16, 128), (28, 4, 128)])
@pytest.mark.parametrize("norms", [False, True])
def test_heads_at_real_shapes(heads: int, kv_heads: int, rotary: int, norms: bool) -> None:
    torch.manual_seed(0)
    tokens, dim, size = 333, 128, 64
    qkv = drawn(tokens, heads + 2 * kv_heads, dim)
    places = torch.randperm(8 * size, device=DEVICE)[:tokens]
    cos, sin = torch.rand(2, tokens, rotary, device=DEVICE)
    bias = None if norms else drawn((heads + 2 * kv_heads) * dim)
    extras = HeadWeights(bias, *((drawn(dim), drawn(dim)) if norms else (None, None)))
    done = []
    for ops in (reference, elementwise):
        keys, values = torch.zeros(2, 8, size, kv_heads, dim, device=DEVICE, dtype=torch.bfloat16)
        done.append((ops.rope_write_kv(qkv, cos, sin, keys, values, places, extras), keys, values))
    for want, got in zip(*done, strict=True):
        assert distance(got, want) < 4e-3


@pytest.mark.parametrize(("heads", "kv_heads"), [(32, 8), (16, 4)])
@pytest.mark.parametrize(("block", "page_size"), [(4, 16), (4, 64), (16, 16), (32, 32), (32, 64)])
@pytest.mark.parametrize("rows", [[(64, 512)], [(2048, 2048), (4, 300), (31, 95)], [(64, 512)] * 16], ids=str)
def test_attention_within_blocks_at_real_shapes(
    rows: list[tuple[int, int]], block: int, page_size: int, heads: int, kv_heads: int
) -> None:
    case = attention_case(rows, heads, kv_heads, 128, page_size, torch.bfloat16, DEVICE)
    given = [case[name] for name in ("queries", "keys", "values", "page_table", "row_starts", "visible")]
    wide = [x.float() if x.is_floating_point() else x for x in given]
    want = reference.paged_attention(*wide, block, case["positions"])
    most = max(visible for _, visible in rows)
    config = tiles.attention_config(len(case["queries"]), len(rows), most, heads, kv_heads, 128)
    plan = tiles.plan_attention(case["queries"], case["keys"], case["page_table"], case["row_starts"], config)
    assert distance(attention.paged_attention(*given, block, case["positions"], plan=plan), want) < 6e-3


def test_measures_at_a_real_vocabulary() -> None:
    torch.manual_seed(0)
    count = 2048
    logits, nobody = drawn(count, 152_064) * 3, torch.zeros(count, dtype=torch.bool, device=DEVICE)
    none = torch.zeros(0, dtype=torch.int64, device=DEVICE)
    draws = draws_of(count, DEVICE, positions=list(range(count)))
    found = confidence.predict(logits, none, none, nobody, draws)
    number = torch.arange(count, device=DEVICE)
    kinds, noise = (number % 5).int(), (number // 5 % 2).float()
    want, got = (kind.measure(found, kinds, noise, draws) for kind in (plain_measures, measures))
    torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-12)
    assert torch.equal(got[noise == 0], want[noise == 0])
    truth = reference.predict(logits, none, none, nobody, draws)
    torch.testing.assert_close(found.margin, truth.margin, rtol=1e-4, atol=1e-7)
    torch.testing.assert_close(found.entropy, truth.entropy, rtol=1e-3, atol=1e-3)
