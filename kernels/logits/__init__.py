"""Changes and readings of logits that only some requests need: biases, masks of the vocabulary, log-probabilities.

N projected positions, V entries of the vocabulary.
"""

from ..common.dispatch import by_device
from . import reference
from .reference import rank

__all__ = ["adjust", "rank", "restrict"]

adjust = by_device(reference.adjust)
restrict = by_device(reference.restrict)
