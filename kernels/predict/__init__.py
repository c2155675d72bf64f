"""The prediction for each projected position: its best or drawn token, and the numbers that commit rules read.

N projected positions, V entries of the vocabulary.
"""

from ..common.dispatch import by_device
from . import reference

predict = by_device(reference.predict)
