"""Torch version of `tell`: the host writes to the canvases what it has decided itself."""

from __future__ import annotations

from torch import Tensor


def tell(canvases: Tensor, slots: Tensor, positions: Tensor, tokens: Tensor) -> None:
    """Writes `tokens` [T] int32 to the canvases [slots, length] int64 at (slots, positions) [T] int64; nothing where a
    token is below 0."""
    told = (tokens >= 0).nonzero()[:, 0]
    canvases[slots[told], positions[told]] = tokens[told].long()
