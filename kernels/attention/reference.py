"""Attention in torch, row by row, in an order of sums that does not depend on where a row starts."""

from __future__ import annotations

from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor

from ..common.types import Fp8Heads, PagedHeads
from ..linear.reference import MIN_ROWS
from .tiles import AttentionPlan, AttentionWindow

# torch takes queries in blocks of some multiple of these many, and sums a last block of one or two otherwise.
BLOCK_ROWS = 32
FEW_ROWS = 2
# It sums the weights of a query's keys in vectors of at most these many, and those left over by themselves.
VECTOR_KEYS = 16


def paged_attention(
    queries: Tensor,
    keys: PagedHeads,
    values: PagedHeads,
    page_table: Tensor,
    row_starts: Tensor,
    visible: Tensor,
    block_size: int = 0,
    positions: Tensor | None = None,
    mask_offsets: Tensor | None = None,
    plan: AttentionPlan | None = None,
    causal_offsets: Tensor | None = None,
    window: AttentionWindow | None = None,
    scale: float | None = None,
) -> Tensor:
    """Attention of each row to the first `visible` keys of its request: [T, H * D].

    queries [T, H, D]; keys, values [pages, page_size, G, D], in the type of queries or `Fp8Heads`, which are multiplied
    by their scales and rounded to that type as they are read; page_table [R, pages per request] int32;
    row_starts [R + 1] int32, row r has tokens `row_starts[r] .. row_starts[r + 1]`; visible [R] int32.
    block_size > 0 with positions [T] int64: a query at p sees keys below `(p // block_size + 1) * block_size`. Within a
    row they ascend, unless block_size is 1: they are then where the keys beside the queries are stored.
    mask_offsets [R] int32 with positions: in a row r where it is above 0 a query at p does not see the key at
    `p - mask_offsets[r]`. plan: the layout of a launch on a GPU, not used here. causal_offsets [R] int32 with
    positions: in a row r where it is not below 0 a query at p sees the keys before `p - causal_offsets[r]` and at p
    alone. window: goes with block_size 1, and with no offsets. scale: of the scores; None: one over the root of D.
    """
    page_size = keys.shape[1]
    out = torch.empty_like(queries)
    bounds, lengths = row_starts.tolist(), visible.tolist()
    offsets = [0] * len(lengths) if mask_offsets is None else mask_offsets.tolist()
    causal = [-1] * len(lengths) if causal_offsets is None else causal_offsets.tolist()
    for row, length in enumerate(lengths):
        start, end = bounds[row], bounds[row + 1]
        if start == end:  # the last layer has no queries of a row without spans
            continue
        pages = page_table[row, : -(-length // page_size)]
        k, v = (_read(kv, pages, queries.dtype)[:length].transpose(0, 1) for kv in (keys, values))
        if causal[row] >= 0:
            _attend_causally(queries, k, v, out, _places(positions, start, end), causal[row])
            continue
        canvas_start = -1 if window is None or window.canvas_starts is None else int(window.canvas_starts[row])
        for part, limit in _parts(positions, start, end, 0 if canvas_start >= 0 else block_size, length):
            masked = None if positions is None or not offsets[row] else positions[part] - offsets[row]
            first = 0
            if window is not None and window.size:
                own = canvas_start if canvas_start >= 0 else limit - 1
                first = max(0, own - window.size + 1)
            seen = slice(first, limit)
            attend = sdpa_of_one if block_size == 1 and canvas_start < 0 else sdpa
            out[part] = attend(queries[part].transpose(0, 1), k[:, seen], v[:, seen], masked, scale)
    return out.flatten(1)


def _read(kv: PagedHeads, pages: Tensor, dtype: torch.dtype) -> Tensor:
    """Keys or values of these pages [n]: [n * page_size, G, D]."""
    if isinstance(kv, Fp8Heads):
        scales = kv.scales[pages].transpose(1, 2)[..., None]
        return (kv.numbers[pages].float() * scales).to(dtype).flatten(0, 1)
    return kv[pages].flatten(0, 1)


def _places(positions: Tensor | None, start: int, end: int) -> list[tuple[int, int]]:
    """Tokens `[start, end)`, each with its position."""
    if positions is None:
        raise ValueError("causal_offsets needs positions")
    return [*enumerate(positions[start:end].tolist(), start)]


def _attend_causally(
    queries: Tensor, k: Tensor, v: Tensor, out: Tensor, places: list[tuple[int, int]], offset: int
) -> None:
    """Each token of a causal row attends by itself to k, v [G, keys, D]: its bits do not depend on the others."""
    for token, at in places:
        own, before = slice(at, at + 1), at - offset
        keys, values = (
            kv[:, : at + 1] if not offset else torch.cat((kv[:, :before], kv[:, own]), dim=1) for kv in (k, v)
        )
        out[token : token + 1] = sdpa_of_one(queries[token : token + 1].transpose(0, 1), keys, values)


def _parts(positions: Tensor | None, start: int, end: int, block_size: int, length: int) -> list[tuple[slice, int]]:
    """Tokens `[start, end)` of a row cut where they see different keys, and the number of keys that each part sees.

    Each block attends by itself, instead of all under a mask: its bits then do not depend on later positions.
    """
    if not block_size:
        return [(slice(start, end), length)]
    if positions is None:
        raise ValueError("block_size needs positions")
    blocks = (positions[start:end] // block_size).tolist()
    cuts = [start, *(start + at for at, (here, there) in enumerate(pairwise(blocks), 1) if here != there), end]
    return [(slice(cut, to), min((blocks[cut - start] + 1) * block_size, length)) for cut, to in pairwise(cuts)]


def sdpa(q: Tensor, k: Tensor, v: Tensor, masked: Tensor | None = None, scale: float | None = None) -> Tensor:
    """q [H, queries, D] attends to k, v [G, keys, D]: [queries, H, D]. masked [queries] int64: the key that each query
    does not see.

    The last queries of a row of `keys` positions have the same bits in a row that starts a page or more later: both
    are cut where the longer one would be.
    """
    queries, keys = q.shape[1], k.shape[1]
    few = keys % BLOCK_ROWS if keys % BLOCK_ROWS <= FEW_ROWS else 0
    cut = max(queries - few, 0)
    parts = [slice(start, end) for start, end in ((0, cut), (cut, queries)) if start < end]
    out = [_sdpa(q[:, part], k, v, None if masked is None else masked[part], part.start < cut, scale) for part in parts]
    return (out[0] if len(out) == 1 else torch.cat(out, dim=1)).transpose(0, 1)


def sdpa_of_one(q: Tensor, k: Tensor, v: Tensor, masked: Tensor | None = None, scale: float | None = None) -> Tensor:
    """`sdpa` of a single query of a causal row, or of several at its position, with the bits that torch finds for the
    whole row under a causal mask.

    So q is one of many queries, and keys that it does not see fill up the last vector of keys.
    """
    keys, queries = k.shape[1], q.shape[1]
    more = -queries % MIN_ROWS
    k, v = (F.pad(kv, (0, 0, 0, -keys % VECTOR_KEYS)) for kv in (k, v))
    seen = (torch.arange(k.shape[1], device=q.device) < keys).repeat(queries + more, 1)
    if masked is not None:
        seen[:, masked] = False
    return _torch_sdpa(F.pad(q, (0, 0, 0, more)), k, v, seen, scale)[:, :queries].transpose(0, 1)


def _sdpa(q: Tensor, k: Tensor, v: Tensor, masked: Tensor | None, whole: bool, scale: float | None) -> Tensor:
    """As `sdpa`, but [H, queries, D]. `whole`: torch sums these queries in whole blocks, even if the row has only a
    few of them; else they are the few that it sums otherwise."""
    queries = q.shape[1]
    if whole:
        q = F.pad(q, (0, 0, 0, -queries % MIN_ROWS))
    seen = None
    if masked is not None:
        seen = torch.ones((q.shape[1], k.shape[1]), dtype=torch.bool, device=q.device)
        seen[:queries].scatter_(1, masked[:, None], value=False)
    return _torch_sdpa(q, k, v, seen, scale)[:, :queries]


def _torch_sdpa(q: Tensor, k: Tensor, v: Tensor, seen: Tensor | None, scale: float | None) -> Tensor:
    """q [H, queries, D] attends to k, v [G, keys, D] where seen [queries, keys] allows it: [H, queries, D]."""
    grouped = q.shape[0] != k.shape[0]
    return F.scaled_dot_product_attention(q[None], k[None], v[None], seen, scale=scale, enable_gqa=grouped)[0]
