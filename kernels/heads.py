"""What a family does to the heads of queries, keys and values before positions are rotated into them."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True)
class HeadWeights:
    """`bias` [(H + 2 * G) * D] is added to queries, keys and values; then each head's query and key is divided by its
    root mean square and multiplied by `query_norm` or `key_norm` [D]. None: not done; the norms come together."""

    bias: Tensor | None = None
    query_norm: Tensor | None = None
    key_norm: Tensor | None = None
    eps: float = 1e-6


PLAIN = HeadWeights()
