"""Matrix products: the library's, products of a fixed order of sums, and products in FP8.

T tokens; a weight is [out, in].
"""

from ..common.dispatch import by_device
from . import reference

linear = by_device(reference.linear)
quantize_rows = by_device(reference.quantize_rows)
