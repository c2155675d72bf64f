"""Reads decoder knobs as they are typed on a command line."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

Param = str | float | bool

WORDS: Mapping[str, Param] = {"true": True, "false": False}


def parse_params(texts: Iterable[str]) -> dict[str, Param]:
    """`NAME=VALUE` each. Raises `ValueError` that says which one is none, or is given twice."""
    knobs: dict[str, Param] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not (name and equals and value):
            raise ValueError(f"a knob is NAME=VALUE, not {text!r}")
        if name in knobs:
            raise ValueError(f"the knob {name!r} is given twice")
        knobs[name] = parse_value(value)
    return knobs


def parse_value(text: str) -> Param:
    """The words of `WORDS`, a whole number, a number, or else the text itself."""
    if text in WORDS:
        return WORDS[text]
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
