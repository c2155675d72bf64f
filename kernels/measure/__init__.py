"""The confidence of positions whose commit rule does not go by plain probability."""

from ..common.dispatch import by_device
from . import reference

measure = by_device(reference.measure)
