"""A matrix product and the small operation after it: on a GPU in one or two kernels if there are few rows.

T tokens; a weight is [out, in].
"""

from ..common.dispatch import by_device
from . import reference

linear_add_rms_norm = by_device(reference.linear_add_rms_norm)
linear_rope_write_kv = by_device(reference.linear_rope_write_kv)
linear_swiglu = by_device(reference.linear_swiglu)
