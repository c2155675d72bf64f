"""Sums over the devices that share a network, each of which reads the others' memory: in the kernel that uses the sum.

T tokens in the rows of a `Mailbox`; a weight is [out, in].
"""

from ..common.dispatch import by_device
from . import reference

linear_sum_add_rms_norm = by_device(reference.linear_sum_add_rms_norm)
sum_add_rms_norm = by_device(reference.sum_add_rms_norm)
