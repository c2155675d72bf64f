"""Attention over keys and values in pages, without a causal mask.

T tokens in R rows laid end to end, H query heads, G key heads, D numbers of a head. A launch on a GPU follows an
`AttentionPlan` (`tiles`), so that a CUDA graph can be replayed for other rows.
"""

from ..common.dispatch import by_device
from . import reference

paged_attention = by_device(reference.paged_attention)
