"""A mixture of experts: the experts that each token chooses, and their MLPs over the tokens that chose them.

T tokens, E experts of which a token chooses K, F inner width. Ties go to the expert with the lower number.
"""

from ..common.dispatch import by_device
from . import reference

route = by_device(reference.route)
experts_mlp = by_device(reference.experts_mlp)
experts_parts = by_device(reference.experts_parts)
