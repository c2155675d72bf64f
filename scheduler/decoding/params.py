"""The knobs of the decoders: values of all but those that another table tells, and errors that name the knob and what
was given."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

from .boundaries import Boundary

SHOWN_CHARS = 300  # of a message that quotes what was given


class ParamError(ValueError):
    """A knob that is unknown or out of range. `param` names it."""

    def __init__(self, param: str, message: str) -> None:
        super().__init__(message if len(message) <= SHOWN_CHARS else message[:SHOWN_CHARS] + "...")
        self.param = param


class Range(NamedTuple):
    """Numbers in `[low, high]`; `whole` excludes fractions, `words` are more values, no numbers."""

    low: float
    high: float
    whole: bool = False
    words: tuple[str, ...] = ()


class Choice(NamedTuple):
    values: tuple[object, ...]


CANVAS = "canvas"  # look-ahead to the end of the canvas
OFF = "off"
AUTO = "auto"  # as the load allows
BLOCK_LENGTHS = (32, 40, 48, 64)  # between which `AUTO` chooses
BLOCK = "block"  # an answer ends with the block of its first end token

Values = Range | Choice

PARAMS: Mapping[str, Values] = {
    "steps": Range(1, 1_000_000, whole=True),
    "alg": Choice(("origin", "maskgit_plus", "topk_margin", "entropy")),
    "alg_temp": Range(0.0, 100.0),
    "eps": Range(0.0, 1.0),
    "threshold": Range(0.0, 1.0),
    "factor": Range(0.0, 100.0),
    "block_length": Range(1, 4096, whole=True, words=(AUTO,)),
    "block_count": Range(1, 64, whole=True),
    "fine_length": Range(1, 4096, whole=True),
    "lookahead": Range(0, 4096, whole=True, words=(CANVAS,)),
    "draft_threshold": Range(0.0, 1.0, words=(OFF,)),
    "end_threshold": Range(0.0, 1.0, words=(OFF,)),
    "later_threshold": Range(0.0, 1.0, words=(OFF,)),
    "max_lanes": Range(1, 64, whole=True),
    "min_fill": Range(0.0, 1.0),
    "min_steps": Range(1, 4096, whole=True),
    "boundary": Choice(tuple(boundary.name.lower() for boundary in Boundary)),
    "stable_steps": Range(0, 4096, whole=True),
    "siblings": Choice(("live", "isolated", "coupled", "commit")),
    "refresh_every": Range(0, 1_000_000, whole=True),
    "refresh_on": Choice(("lanes", "forks", "steps")),
    "add_threshold": Range(0.0, 1.0),
    "active_threshold": Range(0.0, 1.0, words=(OFF,)),
    "delimiter_threshold": Range(0.0, 1.0),
    "window": Range(0.0, 1.0),
    "slow_calls": Range(1, 4096, whole=True),
    "cycle_threshold": Range(0.0, 1.0),
    "stable_window": Range(1, 4096, whole=True),
    "stable_spread": Range(0.0, 4096.0),
    "explore": Choice(("all", "stable")),
    "reuse": Choice((True, False)),
    "settle": Choice((True, False)),
    "early_stop": Choice((True, False, BLOCK)),
}


def check(name: str, value: object, kind: Values) -> object:
    """`value` if knob `name` may have it, of this kind. Raises `ParamError`."""
    match kind:
        case Choice(values):
            if not any(type(value) is type(choice) and value == choice for choice in values):
                raise ParamError(name, f"{name} must be one of {', '.join(map(repr, values))}, not {value!r}")
        case Range(low, high, whole, words):
            if value in words:
                return value
            number = not isinstance(value, bool) and isinstance(value, int if whole else int | float)
            if not number or not low <= value <= high:  # type: ignore[operator]
                what = "a whole number" if whole else "a number"
                extra = "".join(f" or {word!r}" for word in words)
                bounds = f"from {plain(low)} to {plain(high)}"
                raise ParamError(name, f"{name} must be {what} {bounds}{extra}, not {value!r}")
    return value


def plain(bound: float) -> str:
    """As a person writes it: 1000000, not 1e+06."""
    return str(int(bound)) if bound == int(bound) else str(bound)


class Params(dict[str, object]):
    """Checked knobs by name, read with the type that the table promises."""

    def require(self, name: str, holds: bool, message: str) -> None:
        """Raises `ParamError` of a knob whose value does not go with another's."""
        if not holds:
            raise ParamError(name, f"{name} {self[name]!r} {message}")

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
        """A confidence, above all that there are if the knob is off or the decoder has none."""
        return math.inf if self.get(name, OFF) == OFF else self.number(name)

    def text(self, name: str) -> str:
        return str(self[name])
