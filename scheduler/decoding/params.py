"""The parameters of a decoder: their values, and errors that name the parameter and the value given.

The tables of lane policies, commit rules and caches have parameters of their own; `resolve.ALL_PARAMS` has all.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import NamedTuple

SHOWN_CHARS = 1000  # of a message, which may list all decoders
NAME_CHARS = 64  # of an unknown name that are compared with known ones
# The likeness of a slip: freq_penalty is 0.83 like frequency_penalty. Names of other programs, which mean other things,
# are less like any here: LLaDA's remasking is 0.80 like remask, its gen_length 0.76 like fine_length.
ALIKE = 0.82


class ParamError(ValueError):
    """A parameter that is unknown, out of range or excluded by others. `param` names it."""

    def __init__(self, param: str, message: str) -> None:
        super().__init__(message if len(message) <= SHOWN_CHARS else message[:SHOWN_CHARS] + "...")
        self.param = param


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The one of the `known` names that `name` may be a slip of, if one is as alike as slips are."""
    return next(iter(get_close_matches(name[:NAME_CHARS].lower(), list(known), 1, ALIKE)), None)


class Range(NamedTuple):
    """Numbers in `[low, high]`, whole ones only if `whole`, and the `words`, which are no numbers."""

    low: float
    high: float
    whole: bool = False
    words: tuple[str, ...] = ()


class Choice(NamedTuple):
    values: tuple[object, ...]


class LaneShape(NamedTuple):
    """Positions of a generate lane, and of the look-ahead after the last lane."""

    block_length: int
    lookahead: int


DEFAULT_SHAPE = LaneShape(32, 32)
NARROW_SHAPES = (LaneShape(8, 8), LaneShape(8, 0), LaneShape(4, 0))
SHAPES = (DEFAULT_SHAPE, *NARROW_SHAPES)  # from which `AUTO` chooses


CANVAS = "canvas"  # look-ahead to the end of the canvas
OFF = "off"
AUTO = "auto"  # blocks and look-ahead follow the load
BLOCK = "block"  # an answer ends with the block of its first end token
LANE = "lane"  # a position is cached once its lane has ended

Values = Range | Choice

PARAMS: Mapping[str, Values] = {
    "steps": Range(1, 1_000_000, whole=True),
    "alg": Choice(("origin", "maskgit_plus", "topk_margin", "entropy")),
    "alg_temp": Range(0.0, 100.0),
    "eps": Range(0.0, 1.0),
    "threshold": Range(0.0, 1.0),
    "factor": Range(0.0, 100.0),
    "entropy_bound": Range(0.0, 20.0),
    "bound_on": Choice(("others", "all")),
    "block_length": Range(1, 4096, whole=True, words=(AUTO,)),
    "lookahead": Range(0, 4096, whole=True, words=(CANVAS,)),
    "draft_threshold": Range(0.0, 1.0, words=(OFF,)),
    "end_threshold": Range(0.0, 1.0, words=(OFF,)),
    "stop_threshold": Range(0.0, 1.0, words=(OFF,)),
    "later_threshold": Range(0.0, 1.0, words=(OFF,)),
    "refresh_every": Range(0, 1_000_000, whole=True),
    "refresh_on": Choice(("lanes", "forks", "steps")),
    "reuse": Choice((True, False)),
    "settle": Choice((True, False, LANE)),
    "refresh_margin": Range(0, 4096, whole=True),
    "early_stop": Choice((True, False, BLOCK)),
    "max_denoising_steps": Range(1, 10_000, whole=True),
    "t_min": Range(0.001, 100.0),
    "t_max": Range(0.001, 100.0),
    "stability_threshold": Range(0, 10_000, whole=True),
    "confidence_threshold": Range(0.0, 100.0),
}


def check(name: str, value: object, kind: Values) -> object:
    """Return `value`. Raises `ParamError` unless the parameter `name` may have it."""
    match kind:
        case Choice(values):
            if not any(type(value) is type(choice) and value == choice for choice in values):
                raise ParamError(name, f"{name} must be one of {', '.join(map(shown, values))}, not {shown(value)}")
        case Range(low, high, whole, words):
            if value in words:
                return value
            number = not isinstance(value, bool) and isinstance(value, int if whole else int | float)
            if not number or not low <= value <= high:  # type: ignore[operator]
                extra = "".join(f", or {shown(word)}" for word in words)
                raise ParamError(name, f"{name} must be {in_range(kind)}{extra}, not {shown(value)}")
    return value


def shown(value: object) -> str:
    """Write a value as JSON has it, as far as it can."""
    return json.dumps(value, default=repr)


def in_range(kind: Range) -> str:
    """Say which numbers a parameter takes."""
    return f"a{' whole' if kind.whole else ''} number from {plain(kind.low)} to {plain(kind.high)}"


def plain(bound: float) -> str:
    """Write a number as a person does: 1000000, not 1e+06."""
    return str(int(bound)) if bound == int(bound) else str(bound)


class Params(dict[str, object]):
    """Checked parameters by name, read with the type that the table promises."""

    def integer(self, name: str) -> int:
        value = self[name]
        if not isinstance(value, int):
            raise TypeError(f"{name} is not a whole number: {value!r}")
        return value

    def number(self, name: str) -> float:
        value = self[name]
        if not isinstance(value, int | float):
            raise TypeError(f"{name} is not a number: {value!r}")
        return float(value)

    def threshold(self, name: str) -> float:
        """A confidence; infinite if the parameter is off or the decoder does not have it."""
        return math.inf if self.get(name, OFF) == OFF else self.number(name)

    def text(self, name: str) -> str:
        return str(self[name])

    def block_of(self, length: int) -> int:
        """Positions of a block, or a part of one that has its own lane, on a canvas of `length`; without either it is
        one block."""
        size = self.get("sub_block_length", self.get("block_length"))
        return min(length, size) if isinstance(size, int) else length


def doublings(count: int) -> int:
    """The exponent of the highest power of 2 up to `count`."""
    return count.bit_length() - 1
