"""Helpers of learnt rules: the scale of their input, and their weights `NAME.npz` in this folder, which
`asynclane.training.controllers` makes."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib.resources import files

import numpy as np

from ....contract import Doubles, Floats

LEAST_DOUBT = 1e-4
ROWS = 64  # of one matrix product


@cache
def weights(name: str) -> Mapping[str, Floats]:
    """The arrays of the rule `name`, read at its first use."""
    with files(__package__).joinpath(f"{name}.npz").open("rb") as file, np.load(file) as found:
        return {key: found[key] for key in found.files}


def certainty(confidence: Doubles) -> Doubles:
    """From 0 to 1, by the magnitude of the doubt: 0.9 is as far from 0.99 as from 0."""
    return -np.log10(np.clip(1.0 - confidence, LEAST_DOUBT, 1.0)) / 4.0


def product(rows: Floats, matrix: Floats) -> Floats:
    """The product [n, m] of `rows` [n, k] with a `matrix` [k, m]. Each row's result is the same whatever rows come with
    it: a library chooses its kernel by the number of rows, so the products are all of the same size."""
    count, width = rows.shape
    padded = np.zeros((-(-count // ROWS), ROWS, width), np.float32)
    padded.reshape(-1, width)[:count] = rows
    found: Floats = (padded @ matrix).reshape(-1, *matrix.shape[1:])[:count]
    return found
