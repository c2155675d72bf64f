"""Reads what a step left in every lane of every request, in a dozen numpy calls over all positions at once."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from .contract import Ints
from .policies.base import ABSENT, LaneFacts
from .vocabulary import DELIMITER, DIGIT, END, PERIOD, Vocabulary

FAR = np.iinfo(np.int64).max


def lane_facts(tokens: list[Ints], starts: list[int], min_fill: list[float], vocabulary: Vocabulary) -> list[LaneFacts]:
    """Facts of each lane, from the `tokens` it holds, the canvas position at which it `starts` and its share.

    A delimiter counts if it is neither the first nor the last position of its lane and no decimal point.
    """
    sizes = np.array([len(lane) for lane in tokens])
    packed = np.concatenate(tokens)
    first = np.cumsum(sizes) - sizes
    offset = np.arange(len(packed)) - np.repeat(first, sizes)
    classes = vocabulary.classes[packed]
    masked = packed == vocabulary.mask_id

    open_through = np.cumsum(masked)
    open_before_lane = open_through[first] - masked[first]
    open_here = open_through - np.repeat(open_before_lane, sizes)  # masks in [lane start, this position]
    filled = offset + 1 - open_here

    forks = (classes & DELIMITER) != 0
    forks &= filled >= np.repeat(np.asarray(min_fill), sizes) * (offset + 1)
    forks &= (offset > 0) & (offset < np.repeat(sizes, sizes) - 1)
    forks &= ~_decimal_points(classes, masked)
    fork = np.maximum.reduceat(np.where(forks, offset, ABSENT), first)
    end = np.minimum.reduceat(np.where((classes & END) != 0, offset, FAR), first)
    ended = end != FAR
    end = np.where(ended, end, ABSENT)

    last = first + sizes - 1
    origin = np.asarray(starts)
    columns = (
        open_here[last],
        np.where(fork >= 0, fork + origin, ABSENT),
        open_here[first + np.maximum(fork, 0)],
        np.where(ended, end + origin, ABSENT),
        open_here[first + np.maximum(end, 0)],
    )
    return [LaneFacts(*lane) for lane in zip(*(column.tolist() for column in columns), strict=True)]


def _decimal_points(classes: npt.NDArray[np.uint8], masked: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    """Periods with a digit before them and a digit, or nothing yet, behind. Lanes' borders do no harm: a delimiter
    there is not counted anyway."""
    points: npt.NDArray[np.bool_] = (classes & PERIOD) != 0
    digit = (classes & DIGIT) != 0
    points[1:] &= digit[:-1]
    points[:-1] &= digit[1:] | masked[1:]
    return points
