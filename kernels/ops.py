"""Every operation of a step, on the device that its tensors are on: Triton on CUDA, torch elsewhere.

Triton is imported at the first CUDA tensor, so a machine without it can import this. Shapes are in `reference`,
`linear`, `experts` and `canvases`.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from . import canvases, experts, measures, reference
from . import linear as products
from . import logits as on_logits
from .heads import PLAIN, HeadWeights
from .linear import Fp8Matrix, Matrix
from .prediction import Draws, Prediction
from .routing import Routing
from .tiles import AttentionPlan


def linear(x: Tensor, weight: Matrix, fixed: bool = False) -> Tensor:
    """x [T, in] times weight [out, in], transposed: [T, out]. `fixed`: a row's bits do not depend on the other rows."""
    if isinstance(weight, Fp8Matrix):
        if x.is_cuda:
            from .triton import linear as device

            return device.fp8_linear(x, weight)
        return products.fp8_linear(x, weight)
    if x.is_cuda and fixed:
        from .triton import linear as device

        return device.fixed_linear(x, weight)
    if x.is_cuda:
        return F.linear(x, weight)
    return products.fixed_linear(x, weight) if fixed else products.linear(x, weight)


def quantize_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    """x [T, n] as FP8 values [T, n] and their scales [T] float32."""
    if x.is_cuda:
        from .triton import linear as device

        return device.quantize_rows(x)
    return products.quantize_rows(x)


def tell(canvas: Tensor, slots: Tensor, positions: Tensor, tokens: Tensor) -> None:
    """Writes `tokens` to the canvases at (slots, positions), but those below 0."""
    if canvas.is_cuda:
        from .triton import canvases as device

        device.tell(canvas, slots, positions, tokens)
    else:
        canvases.tell(canvas, slots, positions, tokens)


def embed(canvases: Tensor, slots: Tensor, positions: Tensor, embedding: Tensor) -> Tensor:
    """Embeddings [T, dim] of the canvas tokens at (slots, positions)."""
    if embedding.is_cuda:
        from .triton import elementwise

        return elementwise.embed(canvases, slots, positions, embedding)
    return reference.embed(canvases, slots, positions, embedding)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x [T, dim] over its root mean square, times weight [dim]."""
    if x.is_cuda:
        from .triton import elementwise

        return elementwise.rms_norm(x, weight, eps)
    return reference.rms_norm(x, weight, eps)


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """`residual + x` [T, dim], normed and as it is: (normed, sum)."""
    if x.is_cuda:
        from .triton import elementwise

        return elementwise.add_rms_norm(x, residual, weight, eps)
    return reference.add_rms_norm(x, residual, weight, eps)


def swiglu(gate_up: Tensor) -> Tensor:
    """gate_up [T, 2 * ff] -> silu(gate) * up [T, ff]."""
    if gate_up.is_cuda:
        from .triton import elementwise

        return elementwise.swiglu(gate_up)
    return reference.swiglu(gate_up)


def rope_write_kv(
    qkv: Tensor, cos: Tensor, sin: Tensor, keys: Tensor, values: Tensor, places: Tensor, extras: HeadWeights = PLAIN
) -> Tensor:
    """Rotates queries and keys, writes keys and values to their places, returns the queries [T, H, D]."""
    if qkv.is_cuda:
        from .triton import elementwise

        return elementwise.rope_write_kv(qkv, cos, sin, keys, values, places, extras)
    return reference.rope_write_kv(qkv, cos, sin, keys, values, places, extras)


def route(logits: Tensor, bias: Tensor | None, routing: Routing) -> tuple[Tensor, Tensor]:
    """Each token's experts [T, K] int32 and their weights [T, K] float32, of its logits [T, E] float32."""
    if logits.is_cuda:
        from .triton import experts as device

        return device.route(logits, bias, routing)
    return experts.route(logits, bias, routing)


def experts_mlp(
    x: Tensor, gate_up: Matrix, down: Matrix, chosen: Tensor, weights: Tensor, fixed: bool = False
) -> Tensor:
    """The weighted sum [T, dim] of what each token's experts make of it. `fixed`: a token's bits do not depend on the
    other tokens."""
    if x.is_cuda:
        from .triton import experts as device

        return device.experts_mlp(x, gate_up, down, chosen, weights, fixed)
    return experts.experts_mlp(x, gate_up, down, chosen, weights, fixed)


def paged_attention(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    page_table: Tensor,
    row_starts: Tensor,
    visible: Tensor,
    block: int = 0,
    positions: Tensor | None = None,
    hides: Tensor | None = None,
    plan: AttentionPlan | None = None,
) -> Tensor:
    """Attention of each row to the first `visible` keys of its request: [T, H * D]. `plan` lays out a CUDA launch."""
    if queries.is_cuda:
        from .triton import attention

        return attention.paged_attention(
            queries, keys, values, page_table, row_starts, visible, block, positions, hides, plan
        )
    return reference.paged_attention(queries, keys, values, page_table, row_starts, visible, block, positions, hides)


def adjust(logits: Tensor, begins: Tensor, ends: Tensor, entry_starts: Tensor, ids: Tensor, deltas: Tensor) -> None:
    """Adds biases to the logits [N, V] of the positions that have them, in place."""
    if logits.is_cuda:
        from .triton import biases

        biases.adjust(logits, begins, ends, entry_starts, ids, deltas)
    else:
        on_logits.adjust(logits, begins, ends, entry_starts, ids, deltas)


def restrict(logits: Tensor, places: Tensor, words: Tensor) -> None:
    """Takes all probability from tokens that may not come at some positions of logits [N, V], in place."""
    if logits.is_cuda:
        from .triton import restrictions

        restrictions.restrict(logits, places, words)
    else:
        on_logits.restrict(logits, places, words)


def rank(logits: Tensor, banned: Tensor, found: Prediction, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """Log-probabilities of what may commit, and of each position's likeliest tokens. It runs in torch everywhere."""
    return on_logits.rank(logits, banned, found, count)


def predict(
    logits: Tensor,
    banned: Tensor,
    end_ids: Tensor,
    endless: Tensor,
    draws: Draws | None = None,
    narrowed: bool = True,
    fixed: bool = False,
) -> Prediction:
    """What each projected position proposes and may commit. `narrowed` False: no row asks for top_k or top_p;
    `fixed`: a position's bits do not depend on how many there are."""
    if logits.is_cuda:
        from .triton import confidence

        splits = confidence.FIXED_SPLITS if fixed else None
        return confidence.predict(logits, banned, end_ids, endless, draws, narrowed, splits)
    return reference.predict(logits, banned, end_ids, endless, draws)


def measure(found: Prediction, logits: Tensor, kinds: Tensor, noise: Tensor, draws: Draws) -> Tensor:
    """What counts as the confidence of positions whose rule does not go by probability: [N] float64. `logits` as
    `predict` left them, which a CPU asks for the last bit of SINGLE; a GPU rounds, and needs none."""
    if kinds.is_cuda:
        from .triton import measures as device

        return device.measure(found, kinds, noise, draws)
    return measures.measure(measures.with_singles(found, logits, kinds), kinds, noise, draws)


def transfer(
    confidence: Tensor,
    open_: Tensor,
    span_starts: Tensor,
    sure: Tensor,
    threshold: Tensor,
    factor: Tensor,
    last_free: Tensor,
) -> Tensor:
    """Which open positions commit: [N] bool."""
    rule = confidence, open_, span_starts, sure, threshold, factor, last_free
    if confidence.is_cuda:
        from .triton import commit as device

        return device.transfer(*rule)
    return reference.transfer(*rule)


def commit(
    canvases: Tensor,
    slots: Tensor,
    positions: Tensor,
    tokens: Tensor,
    confidence: Tensor,
    mask_id: int,
    span_starts: Tensor,
    sure: Tensor,
    threshold: Tensor,
    factor: Tensor,
    last_free: Tensor,
) -> Tensor:
    """Writes `tokens` where masks commit; returns what the canvases then hold: [N] int64."""
    where = canvases, slots, positions, tokens, confidence, mask_id
    rule = span_starts, sure, threshold, factor, last_free
    if canvases.is_cuda:
        from .triton import commit as device

        return device.commit(*where, *rule)
    return reference.commit(*where, *rule)
