"""Writes to the canvases: tokens that commit by a rule on the device, and tokens that the host has chosen.

N projected positions in S spans laid end to end.
"""

from ..common.dispatch import by_device
from . import reference

transfer = by_device(reference.transfer)
commit = by_device(reference.commit)
write_tokens = by_device(reference.write_tokens)
