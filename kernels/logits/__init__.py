"""Changes and readings of logits that only some requests or networks need: biases, masks of the vocabulary, a soft cap,
temperatures, log-probabilities.

N projected positions, V entries of the vocabulary.
"""

from ..common.dispatch import by_device
from . import reference
from .reference import rank

__all__ = ["adjust", "rank", "restrict", "soft_cap", "temper"]

adjust = by_device(reference.adjust)
restrict = by_device(reference.restrict)
soft_cap = by_device(reference.soft_cap)
temper = by_device(reference.temper)
