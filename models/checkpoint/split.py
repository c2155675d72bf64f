"""The part of a network that one of several devices has, by the splits of `families`."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from .config import ModelConfig, ModelError
from .families import Source


@dataclass(frozen=True, slots=True)
class Rank:
    """The device with this `number` of `size` that compute a network together."""

    number: int = 0
    size: int = 1

    def config(self, whole: ModelConfig) -> ModelConfig:
        """The shape of this device's part: its heads, and its share of the inner size of each MLP. Raises `ModelError`
        for a size that the devices do not divide."""
        experts = whole.experts
        if whole.canvas is not None and self.size > 1:
            raise ModelError(f"--tensor-parallel-size {self.size} is not for {whole.architecture}: use 1")
        sizes = {"heads": whole.heads, "key heads": whole.kv_heads, "MLP size": whole.ff_dim}
        if experts is not None:
            sizes |= {"MLP size of an expert": experts.ff_dim, "size of the shared MLP": experts.shared_ff_dim}
        for name, size in sizes.items():
            if size % self.size:
                raise ModelError(f"--tensor-parallel-size {self.size} does not divide the model's {name}, {size}")
        return replace(
            whole,
            heads=whole.heads // self.size,
            kv_heads=whole.kv_heads // self.size,
            ff_dim=whole.ff_dim // self.size,
            experts=experts
            and replace(experts, ff_dim=experts.ff_dim // self.size, shared_ff_dim=experts.shared_ff_dim // self.size),
        )

    def span(self, count: int) -> tuple[int, int]:
        """The first and the end of this device's share of `count` rows. The last devices have fewer if they do not
        divide it."""
        share = -(-count // self.size)
        return min(self.number * share, count), min((self.number + 1) * share, count)

    def shape(self, source: Source) -> tuple[int, ...]:
        """The shape of this device's part of a tensor."""
        rows, *columns = source.shape
        match source.split:
            case "rows":
                return sum(end - start for start, end in map(self.span, source.parts)), *columns
            case "columns":
                start, end = self.span(columns[0])
                return rows, end - start
            case "whole":
                return source.shape

    def part(self, source: Source, tensor: Tensor) -> Tensor:
        """This device's part of a tensor."""
        match source.split:
            case "rows" if len(source.parts) == 1:
                return tensor[slice(*self.span(len(tensor)))]
            case "rows":
                return torch.cat(
                    [rows[slice(*self.span(len(rows)))] for rows in torch.split(tensor, list(source.parts))]
                )
            case "columns":
                return tensor[:, slice(*self.span(tensor.shape[1]))]
            case "whole":
                return tensor


WHOLE = Rank()
