"""The kernels against their references in float32, at the shapes of published models, on a GPU."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from asynclane.kernels import attention, elementwise, experts, linear, logits, measure, predict
from asynclane.kernels.attention import tiles
from asynclane.kernels.common.types import FeedForwardNorms, Fp8Heads, Fp8Matrix, Matrix, QkNorm, Routing

from ..support.kernel_cases import attention_case, draws_of, in_fp8, plan_of, some_logits

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
DEVICE = "cuda"
GIVEN = "queries", "keys", "values", "page_table", "row_starts", "visible"
LLADA2 = Routing(8, sigmoid=True, normed=True, scale=2.5, groups=8, live_groups=4)
LLADA_MOE = Routing(8)
# dim, experts, width, routing
MIXTURES = [(2048, 256, 512, LLADA2), (2048, 64, 1024, LLADA_MOE)]


def randn(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return torch.randn(shape, device=DEVICE).to(dtype)


def distance(got: Tensor, want: Tensor) -> float:
    return ((got.double() - want.double()).norm() / want.double().norm()).item()


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
    given = [case[name] for name in GIVEN]
    config = tiles.attention_config(len(case["queries"]), len(rows), heads, kv_heads, dim)
    wide = [x.float() if x.is_floating_point() else x for x in given]
    want = attention.reference.paged_attention(*wide)
    for splits in (1, 3):
        assert distance(attention.paged_attention(*given, plan=plan_of(case, config, splits)), want) < 6e-3


@pytest.mark.parametrize(("heads", "kv_heads"), [(32, 32), (28, 4)])
@pytest.mark.parametrize("rows", [[(64, 512)], [(32, 777), (1, 1), (300, 2048)], [(64, 512)] * 30], ids=str)
def test_attention_to_keys_in_fp8_at_real_shapes(rows: list[tuple[int, int]], heads: int, kv_heads: int) -> None:
    case = attention_case(rows, heads, kv_heads, 128, 64, torch.bfloat16, DEVICE)
    config = tiles.attention_config(len(case["queries"]), len(rows), heads, kv_heads, 128)
    kept, rest = [in_fp8(case[name]) for name in ("keys", "values")], [case[name] for name in GIVEN[3:]]
    got = attention.paged_attention(case["queries"], *kept, *rest, plan=plan_of(case, config))
    assert distance(got, attention.reference.paged_attention(case["queries"].float(), *kept, *rest)) < 8e-3


@pytest.mark.parametrize("count", [1, 32, 300])
def test_predictions_at_real_shapes(count: int) -> None:
    temperature = [0.0 if row % 2 else 0.8 for row in range(count)]
    draws = draws_of(count, DEVICE, temperature=temperature, positions=list(range(count)), top_p=0.95)
    logits = some_logits(DEVICE, count, 126_464, torch.bfloat16, spread=3.0)
    endless = torch.zeros(count, dtype=torch.bool, device=DEVICE)
    banned, ends = torch.tensor([126_336], device=DEVICE), torch.tensor([126_081], device=DEVICE)
    want = predict.reference.predict(logits.clone(), banned, ends, endless, draws)
    got = predict.predict(logits, banned, ends, endless, draws)
    greedy = draws.temperature == 0
    assert torch.equal(got.proposals[greedy], want.proposals[greedy])
    torch.testing.assert_close(got.confidence[greedy], want.confidence[greedy], rtol=1e-4, atol=1e-9)
    # The nucleus' edge depends on the order of a float32 sum over the vocabulary.
    assert (got.proposals == want.proposals).float().mean() > 0.95


def test_small_operations_at_real_shapes() -> None:
    torch.manual_seed(0)
    x = torch.randn(333, 4096, device=DEVICE)
    weight = torch.randn(4096, device=DEVICE)
    assert distance(elementwise.rms_norm(x, weight, 1e-5), elementwise.reference.rms_norm(x, weight, 1e-5)) < 3e-3
    wide = torch.randn(333, 2 * 12288, device=DEVICE)
    assert distance(elementwise.swiglu(wide), elementwise.reference.swiglu(wide)) < 3e-3


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_a_sandwiched_layer_at_real_shapes(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    dense, residual = (randn(256, 2816, dtype=dtype) for _ in range(2))
    parts, weights = randn(256, 8, 2816, dtype=dtype), randn(256, 8, dtype=torch.float32).abs()
    norms, factors = [randn(2816, dtype=dtype) for _ in range(4)], randn(2, dtype=dtype)
    kinds = torch.arange(256, dtype=torch.int32, device=DEVICE) % 3
    post_norms = FeedForwardNorms(*norms[:3])
    for ops in (
        lambda kind: kind.add_attention(dense, residual, *norms, 1e-6),
        lambda kind: kind.add_feed_forward(dense, parts, weights, residual, post_norms, factors, kinds, norms[3], 1e-6),
    ):
        for got, want in zip(ops(elementwise), ops(elementwise.reference), strict=True):
            assert distance(got, want) < (3e-3 if dtype == torch.bfloat16 else 3e-6)


def test_logits_are_capped_and_tempered_at_a_real_vocabulary() -> None:
    found = some_logits(DEVICE, 256, 262_144, torch.bfloat16, spread=12.0)
    capped = logits.soft_cap(found, 30.0)
    torch.testing.assert_close(capped, logits.reference.soft_cap(found, 30.0), rtol=2e-6, atol=0)
    temperatures = torch.linspace(0, 0.8, 256, device=DEVICE)
    want, got = capped.clone(), capped
    (want_shares, want_tokens), (shares, tokens) = (
        ops.temper(each, temperatures, torch.bfloat16) for ops, each in ((logits.reference, want), (logits, got))
    )
    assert torch.equal(got, want)
    assert torch.equal(got.gather(1, tokens[:, None]), want.gather(1, want_tokens[:, None]))
    assert distance(shares, want_shares) < 3e-3


@pytest.mark.parametrize(("dim", "count", "width", "routing"), MIXTURES, ids=str)
@pytest.mark.parametrize("tokens", [1, 33, 700, 2944])
def test_a_token_chooses_and_its_experts_compute_at_real_shapes(
    tokens: int, dim: int, count: int, width: int, routing: Routing
) -> None:
    torch.manual_seed(tokens)
    logits, bias = randn(tokens, count, dtype=torch.float32), randn(count, dtype=torch.float32) / 8
    want = experts.reference.route(logits, bias, routing)
    chosen, weights = experts.route(logits, bias, routing)
    assert (chosen == want[0]).float().mean() > 0.999  # sigmoids that differ by a rounding may change places
    alike = (chosen == want[0]).all(-1)
    torch.testing.assert_close(weights[alike], want[1][alike], rtol=1e-5, atol=1e-6)

    x = randn(tokens, dim)
    gate_up, down = randn(count * 2 * width, dim) * dim**-0.5, randn(count * dim, width) * width**-0.5
    truth = experts.reference.experts_mlp(x.float(), gate_up.float(), down.float(), chosen, weights)
    for fixed in (False, True):
        assert distance(experts.experts_mlp(x, gate_up, down, chosen, weights, fixed), truth) < 8e-3
    of_fp8: list[Matrix] = [Fp8Matrix(*linear.quantize_rows(matrix)) for matrix in (gate_up, down)]
    found, want_fp8 = (kind.experts_mlp(x, *of_fp8, chosen, weights) for kind in (experts, experts.reference))
    assert distance(found, want_fp8) < 2e-2  # a last bit moves some numbers to the next one of FP8, a sixteenth away


@pytest.mark.parametrize(("heads", "kv_heads", "rotary"), [(32, 8, 128), (16, 4, 64), (16, 16, 128), (28, 4, 128)])
@pytest.mark.parametrize("norms", [False, True])
def test_heads_at_real_shapes(heads: int, kv_heads: int, rotary: int, norms: bool) -> None:
    torch.manual_seed(0)
    tokens, dim, size = 333, 128, 64
    qkv = randn(tokens, heads + 2 * kv_heads, dim)
    places = torch.randperm(8 * size, device=DEVICE)[:tokens]
    cos, sin = torch.rand(2, tokens, rotary, device=DEVICE)
    bias = None if norms else randn((heads + 2 * kv_heads) * dim)
    qk_norm = QkNorm(bias, *((randn(dim), randn(dim)) if norms else (None, None)))
    done = []
    for ops in (elementwise.reference, elementwise):
        keys, values = torch.zeros(2, 8, size, kv_heads, dim, dtype=qkv.dtype, device=DEVICE)
        done.append((ops.rope_write_kv(qkv, cos, sin, keys, values, places, qk_norm), keys, values))
    for want, got in zip(*done, strict=True):
        assert distance(got, want) < 4e-3


@pytest.mark.parametrize("tokens", [1, 333])
def test_heads_are_written_in_fp8_at_real_shapes(tokens: int) -> None:
    torch.manual_seed(0)
    qkv, (cos, sin) = randn(tokens, 48, 128), torch.rand(2, tokens, 128, device=DEVICE)
    places = torch.randperm(512, device=DEVICE)[:tokens]
    done = []
    for ops in (elementwise.reference, elementwise):
        kept = [Fp8Heads.zeros((8, 64, 8, 128), torch.device(DEVICE)) for _ in range(2)]
        queries = ops.rope_write_kv(qkv, cos, sin, *kept, places)
        wide = [kv.numbers.float() * kv.scales.transpose(1, 2)[..., None] for kv in kept]
        done.append((queries, *wide, *(kv.scales for kv in kept)))
    for (want, got), limit in zip(zip(*done, strict=True), (4e-3, 1e-2, 1e-2, 4e-3, 4e-3), strict=True):
        assert distance(got, want) < limit


@pytest.mark.parametrize(("heads", "kv_heads"), [(32, 8), (16, 4)])
@pytest.mark.parametrize(("block", "page_size"), [(4, 16), (4, 64), (16, 16), (32, 32), (32, 64)])
@pytest.mark.parametrize("rows", [[(64, 512)], [(2048, 2048), (4, 300), (31, 95)], [(64, 512)] * 16], ids=str)
def test_attention_within_blocks_at_real_shapes(
    rows: list[tuple[int, int]], block: int, page_size: int, heads: int, kv_heads: int
) -> None:
    case = attention_case(rows, heads, kv_heads, 128, page_size, torch.bfloat16, DEVICE)
    given = [case[name] for name in GIVEN]
    wide = [x.float() if x.is_floating_point() else x for x in given]
    want = attention.reference.paged_attention(*wide, block, case["positions"])
    config = tiles.attention_config(len(case["queries"]), len(rows), heads, kv_heads, 128)
    plan = tiles.plan_attention(*(case[name] for name in ("queries", "keys", "row_starts", "visible")), config)
    assert distance(attention.paged_attention(*given, block, case["positions"], plan=plan), want) < 6e-3


def test_measures_at_a_real_vocabulary() -> None:
    torch.manual_seed(0)
    count = 2048
    logits, nobody = randn(count, 152_064) * 3, torch.zeros(count, dtype=torch.bool, device=DEVICE)
    none = torch.zeros(0, dtype=torch.int64, device=DEVICE)
    draws = draws_of(count, DEVICE, positions=list(range(count)))
    found = predict.predict(logits, none, none, nobody, draws)
    number = torch.arange(count, device=DEVICE)
    kinds, noise = (number % 4).int(), (number // 4 % 2).float()
    want, got = (kind.measure(logits, found, kinds, noise, draws) for kind in (measure.reference, measure))
    torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-12)
    assert torch.equal(got[noise == 0], want[noise == 0])
    truth = predict.reference.predict(logits, none, none, nobody, draws)
    torch.testing.assert_close(found.margin, truth.margin, rtol=1e-4, atol=1e-7)
    torch.testing.assert_close(found.entropy, truth.entropy, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(("columns", "inner"), [(12288, 4096), (4096, 12288), (4608, 3584), (126464, 4096)])
def test_bits_do_not_depend_on_the_batch(columns: int, inner: int) -> None:
    x, weight = randn(2048, inner), randn(columns, inner)
    whole = linear.linear(x, weight, fixed=True)
    for tokens in (1, 32, 100, 200, 300, 1024):
        assert torch.equal(linear.linear(x[:tokens].contiguous(), weight, fixed=True), whole[:tokens])
    wide = x[:64].float() @ weight.float().T
    assert ((whole[:64].float() - wide).norm() / wide.norm()).item() < 4e-3


@pytest.mark.parametrize("tokens", [16, 32, 300, 2048])
def test_fp8_products_equal_their_reference(tokens: int) -> None:
    x, weight = randn(tokens, 4096), Fp8Matrix(*linear.quantize_rows(randn(512, 4096)))
    got, want = linear.linear(x, weight).float(), linear.reference.fp8_linear(x, weight).float()
    assert ((got - want).norm() / want.norm()).item() < 1e-2
