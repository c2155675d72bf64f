"""The knobs of the decoders: their ranges in one table, and errors that name the knob and the value given."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

SHOWN_CHARS = 300  # of a message that quotes what was given


class KnobError(ValueError):
    """A knob that is unknown or out of range. `param` names it."""

    def __init__(self, param: str, message: str) -> None:
        super().__init__(message if len(message) <= SHOWN_CHARS else message[:SHOWN_CHARS] + "...")
        self.param = param


class Range(NamedTuple):
    """Numbers in `[low, high]`; `whole` excludes fractions, `word` is one more value that is no number."""

    low: float
    high: float
    whole: bool = False
    word: str | None = None


class Choice(NamedTuple):
    values: tuple[object, ...]


CANVAS = "canvas"  # look-ahead to the end of the canvas

KNOBS: Mapping[str, Range | Choice] = {
    "steps": Range(1, 1_000_000, whole=True),
    "threshold": Range(0.0, 1.0),
    "factor": Range(0.0, 100.0),
    "block_length": Range(1, 4096, whole=True),
    "cache": Choice(("none", "prefix", "dual", "compact")),
    "lookahead": Range(0, 4096, whole=True, word=CANVAS),
    "max_lanes": Range(1, 64, whole=True),
    "min_fill": Range(0.0, 1.0),
    "refresh_every": Range(0, 1_000_000, whole=True),
    "early_stop": Choice((True, False)),
}


def check(name: str, value: object) -> object:
    """`value` if knob `name` may have it. Raises `KnobError`."""
    match KNOBS[name]:
        case Choice(values):
            if not any(type(value) is type(choice) and value == choice for choice in values):
                raise KnobError(name, f"{name} must be one of {', '.join(map(repr, values))}, not {value!r}")
        case Range(low, high, whole, word):
            if word is not None and value == word:
                return value
            number = not isinstance(value, bool) and isinstance(value, int if whole else int | float)
            if not number or not low <= value <= high:  # type: ignore[operator]
                kind = "a whole number" if whole else "a number"
                extra = f" or {word!r}" if word else ""
                raise KnobError(name, f"{name} must be {kind} from {low:g} to {high:g}{extra}, not {value!r}")
    return value


class Knobs(dict[str, object]):
    """Checked knobs by name, read with the type that the table promises."""

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

    def text(self, name: str) -> str:
        return str(self[name])
