"""Keys and values of all requests in fixed-size pages, written in place."""

from __future__ import annotations

import torch
from torch import Tensor

from ..kernels.common.types import Fp8Heads, PagedHeads
from ..kernels.elementwise import kv_places
from .checkpoint.config import ModelConfig
from .exec.pack import Batch
from .numerics import Numerics


class KvPages:
    """`keys[layer]`, `values[layer]`: [pages, page_size, kv_heads, head_dim], in FP8 with a scale for each position and
    head. `table` [slots, pages per request] maps a request's positions to pages."""

    def __init__(
        self, config: ModelConfig, pages: int, page_size: int, slots: int, numerics: Numerics, device: torch.device
    ) -> None:
        def heads_of(shape: tuple[int, int, int, int]) -> PagedHeads:
            if numerics.fp8_cache:
                return Fp8Heads.zeros(shape, device)
            return torch.zeros(shape, dtype=numerics.dtype, device=device)

        heads = [config.heads_of(layer) for layer in range(config.layers)]
        shapes = [(pages, page_size, one.kv_heads, one.head_dim) for one in heads]
        self.page_size = page_size
        self.keys = [heads_of(shape) for shape in shapes]
        self.values = [heads_of(shape) for shape in shapes]
        self.table = torch.zeros((slots, -(-config.max_model_len // page_size)), dtype=torch.int32, device=device)

    @staticmethod
    def page_bytes(config: ModelConfig, page_size: int, numerics: Numerics) -> int:
        """Bytes of one page, in all layers."""
        one = KvPages(config, 1, page_size, 0, numerics, torch.device("meta"))
        return sum(part.nbytes for kept in (*one.keys, *one.values) for part in _tensors(kept))

    def assign(self, slot: int, pages: Tensor) -> None:
        """Give pages [any] int32 to a slot, in the order of its positions."""
        self.table[slot, : len(pages)].copy_(pages, non_blocking=True)

    def copy(self, source: Tensor, target: Tensor) -> None:
        """Copy the pages `source` [n] to the pages `target` [n], in all layers."""
        for kept in (*self.keys, *self.values):
            for part in _tensors(kept):
                part[target] = part[source]

    def places(self, batch: Batch) -> Tensor:
        """The place of each token's keys and values: [T] int64, `page * page_size + offset`; negative for padding."""
        stored = batch.positions if batch.stored is None else batch.stored
        return kv_places(self.table, batch.slots, stored, self.page_size)


def _tensors(kept: PagedHeads) -> tuple[Tensor, ...]:
    """All memory of the keys or values of a layer, by page. Numbers in FP8 come as bytes, which any device copies."""
    return (kept.numbers.view(torch.uint8), kept.scales) if isinstance(kept, Fp8Heads) else (kept,)
