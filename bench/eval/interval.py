"""The interval in which a measured share lies."""

from __future__ import annotations

import math
from typing import NamedTuple

Z_95 = 1.959964  # 95 % of a normal distribution lie within so many standard deviations


class Interval(NamedTuple):
    low: float
    high: float


def wilson(successes: int, count: int, z: float = Z_95) -> Interval:
    """Wilson's score interval of a share of which `successes` of `count` were seen (JASA 22, 1927).

    Unlike the textbook interval it is right near 0 and 1, where good decoders are. Raises `ValueError` for no trials
    and for more successes than trials.
    """
    if not 0 <= successes <= count or count < 1:
        raise ValueError(f"an interval needs 0 <= successes <= count and count >= 1, not {successes} of {count}")
    share = successes / count
    scale = 1 + z * z / count
    centre = (share + z * z / (2 * count)) / scale
    margin = z / scale * math.sqrt(share * (1 - share) / count + z * z / (4 * count * count))
    return Interval(max(0.0, centre - margin), min(1.0, centre + margin))
