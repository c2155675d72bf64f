"""The small operations of a transformer block.

T tokens of many rows laid end to end, H query heads, G key heads, D numbers of a head.
"""

from ..common.dispatch import by_device
from . import reference

embed = by_device(reference.embed)
kv_places = by_device(reference.kv_places)
rms_norm = by_device(reference.rms_norm)
add_rms_norm = by_device(reference.add_rms_norm)
add_attention = by_device(reference.add_attention)
add_feed_forward = by_device(reference.add_feed_forward)
swiglu = by_device(reference.swiglu)
geglu = by_device(reference.geglu)
rope_write_kv = by_device(reference.rope_write_kv)
