"""Matrix products: the library's, products of a fixed order of sums, and products in FP8 and int4.

T tokens; a weight is [out, in].
"""

from ..common.dispatch import by_device
from . import reference

linear = by_device(reference.linear)
quantize_rows = by_device(reference.quantize_rows)
# In torch on every device.
dequantize, quantize_groups = reference.dequantize, reference.quantize_groups
pack_int4, unpack_int4 = reference.pack_int4, reference.unpack_int4
