"""The attention that open positions of a block get from each other, by which later layers leave out some of them.

Source: FOCUS, arXiv 2601.23278; sands-lab/FOCUS.
"""

from ..common.dispatch import by_device
from . import reference

importance = by_device(reference.importance)
