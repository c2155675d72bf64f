"""Reads the weights of learnt rules, which lie beside the rules as `NAME.npz`; `asynclane.recipe.controllers` makes
them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib.resources import files

import numpy as np

from ..contract import Floats


@cache
def weights(name: str) -> Mapping[str, Floats]:
    """The arrays of the rule `name`, read when it is first asked for."""
    with files(__package__).joinpath(f"{name}.npz").open("rb") as file, np.load(file) as found:
        return {key: found[key] for key in found.files}
