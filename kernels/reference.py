"""Torch versions of every kernel, in the signatures that the device kernels share: packed tokens, no padding.

T tokens, R rows, S spans, N projected positions, H query heads, G key heads, D head dim, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor

from .attend import attend
from .heads import PLAIN, HeadWeights
from .noise import token_noise
from .prediction import Draws, Prediction

COLDEST = 1e-20  # a temperature that float32 can divide by


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x [..., dim] over its root mean square, in float32, times weight [dim] (Zhang and Sennrich, 2019)."""
    wide = x.float()
    return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)).to(x.dtype).mul_(weight)


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """`residual + x` [T, dim], normed and as it is: (normed, sum)."""
    total = residual + x
    return rms_norm(total, weight, eps), total


def swiglu(gate_up: Tensor) -> Tensor:
    """gate_up [T, 2 * ff] -> silu(gate) * up [T, ff] (Shazeer, 2020)."""
    gate, up = gate_up.chunk(2, dim=-1)
    return F.silu(gate).mul_(up)


def rope_write_kv(
    qkv: Tensor, cos: Tensor, sin: Tensor, keys: Tensor, values: Tensor, places: Tensor, extras: HeadWeights = PLAIN
) -> Tensor:
    """Rotates queries and keys, writes keys and values to their places, returns the queries [T, H, D].

    qkv [T, H + 2 * G, D]; cos, sin [T, R] float32, half-split rotation (Su et al., 2021) in float32 of the first R
    numbers of each head; keys, values [pages, page_size, G, D]; places [T] int64, `page * page_size + offset`,
    negative: nothing is written. `extras` come before the rotation.
    """
    kv_heads = keys.shape[2]
    heads = qkv.shape[1] - 2 * kv_heads
    if extras.bias is not None:
        qkv = qkv + extras.bias.view(qkv.shape[1:])
    turned = qkv[:, : heads + kv_heads]
    if extras.query_norm is not None and extras.key_norm is not None:
        normed = (turned[:, :heads], extras.query_norm), (turned[:, heads:], extras.key_norm)
        turned = torch.cat([rms_norm(part, weight, extras.eps) for part, weight in normed], dim=1)
    rotated = _rotate(turned.float(), cos[:, None], sin[:, None]).to(qkv.dtype)
    written = (places >= 0).nonzero()[:, 0]
    keys.flatten(0, 1)[places[written]] = rotated[written, heads:]
    values.flatten(0, 1)[places[written]] = qkv[written, heads + kv_heads :]
    return rotated[:, :heads]


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    turned, rest = x[..., : cos.shape[-1]], x[..., cos.shape[-1] :]
    half = turned.shape[-1] // 2
    low, high = turned[..., :half], turned[..., half:]
    turned = turned * cos + torch.cat((-high, low), dim=-1) * sin
    return torch.cat((turned, rest), dim=-1) if rest.shape[-1] else turned


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
) -> Tensor:
    """Attention without a causal mask, each row to the first `visible` keys of its request: [T, H * D].

    queries [T, H, D]; keys, values [pages, page_size, G, D]; page_table [R, pages per request] int32;
    row_starts [R + 1] int32, row r owns tokens `row_starts[r] .. row_starts[r + 1]`; visible [R] int32.
    block > 0 with positions [T] int64, ascending within a row: a query at p sees keys below `(p // block + 1) * block`.
    hides [R] int32 with positions: in a row r where it is above 0 a query at p does not see the key at p - hides[r].
    """
    page_size = keys.shape[1]
    out = torch.empty_like(queries)
    bounds, lengths = row_starts.tolist(), visible.tolist()
    hidden = [0] * len(lengths) if hides is None else hides.tolist()
    for row, length in enumerate(lengths):
        start, end = bounds[row], bounds[row + 1]
        if start == end:  # a row without spans asks nothing of the last block
            continue
        pages = page_table[row, : -(-length // page_size)]
        k, v = (kv[pages].flatten(0, 1)[:length].transpose(0, 1) for kv in (keys, values))
        for part, limit in _parts(positions, start, end, block, length):
            unseen = None if positions is None or not hidden[row] else positions[part] - hidden[row]
            out[part] = attend(queries[part].transpose(0, 1), k[:, :limit], v[:, :limit], unseen)
    return out.flatten(1)


def _parts(positions: Tensor | None, start: int, end: int, block: int, length: int) -> list[tuple[slice, int]]:
    """Tokens `[start, end)` of a row cut where they see different keys, and how many each part sees. A block by itself,
    rather than all under a mask: then its bits do not depend on what lies behind it."""
    if not block:
        return [(slice(start, end), length)]
    if positions is None:
        raise ValueError("block needs positions")
    blocks = (positions[start:end] // block).tolist()
    cuts = [start, *(start + at for at, (here, there) in enumerate(pairwise(blocks), 1) if here != there), end]
    return [(slice(cut, to), min((blocks[cut - start] + 1) * block, length)) for cut, to in pairwise(cuts)]


def propose(logits: Tensor, banned: Tensor) -> tuple[Tensor, Tensor]:
    """The best token of each position and its probability: ([N] int64, [N] float64).

    logits [N, V], overwritten at the ids `banned` [any] int64. The probability is 1 / (1 + the others' weight),
    whose float32 sum keeps near-certain positions apart where a float32 softmax would round them all to 1.
    """
    logits[:, banned] = float("-inf")
    best, tokens = logits.max(dim=-1)
    return tokens, _probability(logits, best, best)


def _probability(logits: Tensor, best: Tensor, chosen: Tensor) -> Tensor:
    """Softmax probability [N] float64 of the entries `chosen` [N] of logits [N, V], whose maxima are `best` [N]."""
    return (chosen.double() - best.double()).exp() / _weight(logits, best)


def _weight(logits: Tensor, best: Tensor) -> Tensor:
    """What all entries weigh together, where the best weighs 1: [N] float64."""
    weights = (logits.float() - best.float()[:, None]).exp()
    weights.masked_fill_(logits == best[:, None], 0.0)
    ties = (logits == best[:, None]).sum(-1)
    return ties.double() + weights.sum(-1).double()


def replace_ends(
    logits: Tensor, tokens: Tensor, confidence: Tensor, endless: Tensor, end_ids: Tensor
) -> tuple[Tensor, Tensor]:
    """`tokens` and their `confidence`, but where `endless` and an end token is proposed, the best other token with its
    own probability: ([N] int64, [N] float64).

    logits [N, V]; tokens [N] int64; confidence [N] float64; endless [N] bool; end_ids [any] int64.
    """
    where = (endless & torch.isin(tokens, end_ids)).nonzero()[:, 0]
    if not len(where):
        return tokens, confidence
    rows = logits[where]
    best, others = rows.amax(-1), rows.index_fill(-1, end_ids, float("-inf")).max(dim=-1)
    return (
        tokens.index_copy(0, where, others.indices),
        confidence.index_copy(0, where, _probability(rows, best, others.values)),
    )


def sample(
    logits: Tensor,
    temperature: Tensor,
    top_p: Tensor,
    seeds: Tensor,
    positions: Tensor,
    steps: Tensor,
    top_k: Tensor | None = None,
    min_p: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """A token drawn at each position, and its probability at temperature 1: ([N] int64, [N] float64).

    logits [N, V] with banned ids at -inf; temperature, top_p, min_p [N] float32, temperature > 0; top_k [N] int32
    (0: off); seeds, positions, steps [N] int64. Gumbel noise (Gumbel, 1954) comes from a counter, so a draw depends on
    (seed, position, step) alone. top_p keeps the smallest set of tokens that holds this probability (Holtzman et al.,
    2019), min_p tokens at least so likely against the best (Nguyen et al., 2024); `Draws` says how they nest.
    """
    best = logits.float().amax(-1, keepdim=True)
    # From the best downwards: however small the temperature, the best is 0 and none becomes inf or NaN.
    scaled = (logits.float() - best) / temperature.clamp_min(COLDEST)[:, None]
    if min_p is not None:
        scaled = scaled.masked_fill(scaled < min_p.log()[:, None], float("-inf"))
    if top_k is not None:
        scaled = _keep(scaled, top_k > 0, lambda ordered, where: top_k[where].long())
    scaled = _keep(scaled, top_p < 1, lambda ordered, where: _nucleus(ordered, top_p[where]))
    tokens = (scaled + token_noise(seeds, positions, steps, logits.shape[-1])).argmax(-1)
    chosen = logits.gather(-1, tokens[:, None])[:, 0]
    return tokens, _probability(logits, best[:, 0], chosen)


def _keep(scaled: Tensor, asked: Tensor, count: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """Only the `count` best of each row that asked, and those as good as the last of them."""
    where = asked.nonzero()[:, 0]
    if not len(where):
        return scaled
    rows = scaled[where]
    ordered = rows.sort(dim=-1, descending=True).values
    last = ordered.gather(-1, count(ordered, where).clamp(1, rows.shape[-1])[:, None] - 1)
    return scaled.index_copy(0, where, rows.masked_fill(rows < last, float("-inf")))


def _nucleus(ordered: Tensor, top_p: Tensor) -> Tensor:
    mass = ordered.softmax(-1)
    return (mass.cumsum(-1) - mass < top_p[:, None]).sum(-1)


def predict(logits: Tensor, banned: Tensor, end_ids: Tensor, endless: Tensor, draws: Draws | None = None) -> Prediction:
    """All that a step needs to know of its projected positions, from logits [N, V] that it may overwrite.

    banned [any] int64, ids never proposed; end_ids [any] int64; endless [N] bool, where `tokens` holds no end id.
    """
    proposals, confidence = propose(logits, banned)
    best = logits.amax(-1)
    if draws is not None:
        where = (draws.temperature > 0).nonzero()[:, 0]
        if len(where):
            drawn = Draws(*(knob[where] for knob in draws))
            proposals[where], confidence[where] = sample(
                logits[where], drawn.temperature, drawn.top_p, drawn.seeds, drawn.positions, drawn.steps, drawn.top_k,
                drawn.min_p,
            )  # fmt: skip
    tokens, commit_probability = replace_ends(logits, proposals, confidence, endless, end_ids)
    second = logits.topk(2, dim=-1).values[:, 1]
    margin = (1 - (second.double() - best.double()).exp()) / _weight(logits, best)
    shares = logits.float().log_softmax(-1)
    entropy = -(shares.exp() * shares.clamp_min(torch.finfo(torch.float32).min)).sum(-1)
    return Prediction(proposals, confidence, tokens, commit_probability, margin, entropy)


def transfer(
    confidence: Tensor,
    open_: Tensor,
    span_starts: Tensor,
    sure: Tensor,
    threshold: Tensor,
    factor: Tensor,
    last_free: Tensor,
) -> Tensor:
    """Which open positions commit: [N] bool. The rule is `scheduler.contract.DeviceCommitRule`; ties go to the left.

    confidence [N] float64, finite; open_ [N] bool; span_starts [S + 1] int32, spans laid end to end; sure [S] int32;
    threshold, factor [S] float32; last_free [S] bool.
    """
    starts, sizes = span_starts[:-1].long(), span_starts.diff().long()
    column = torch.arange(int(sizes.max()), device=confidence.device)
    inside = column < sizes[:, None]
    flat = (starts[:, None] + column).clamp_(max=len(confidence) - 1)
    eligible = inside & open_[flat]
    scores = confidence[flat].masked_fill_(~eligible, float("-inf"))
    ordered, order = scores.sort(dim=1, descending=True, stable=True)
    rank = column + 1
    count = eligible.sum(1, keepdim=True)
    passes = ordered >= threshold[:, None] - factor[:, None] / (rank + 1)
    passes |= rank <= sure[:, None]
    passes |= (rank == count) & last_free[:, None]
    chosen = passes.cumprod(1).bool() & (rank <= count)
    commit = torch.zeros_like(eligible).scatter_(1, order, chosen)
    return commit[inside]


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
    """Writes `tokens` where masks commit by `transfer`; returns what the canvases then hold: [N] int64.

    canvases [slots, length] int64; slots, positions, tokens [N] int64; confidence [N] float64; the rest as in
    `transfer`.
    """
    held = canvases[slots, positions]
    chosen = transfer(confidence, held == mask_id, span_starts, sure, threshold, factor, last_free)
    held = torch.where(chosen, tokens, held)
    canvases[slots, positions] = held
    return held


def embed(canvases: Tensor, slots: Tensor, positions: Tensor, embedding: Tensor) -> Tensor:
    """Embeddings [T, dim] of the canvas tokens at (slots, positions).

    canvases [slots, length] int64; slots, positions [T] int64; embedding [V, dim].
    """
    return embedding[canvases[slots, positions]]
