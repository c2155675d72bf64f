"""Decoding parameters as they are typed on a command line."""

from __future__ import annotations

from collections.abc import Iterable

Param = str | float | bool

WORDS = {"true": True, "false": False}


def parse_params(texts: Iterable[str]) -> dict[str, Param]:
    """Parameters from texts NAME=VALUE. Raises `ValueError`."""
    params: dict[str, Param] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not (name and equals and value):
            raise ValueError(f"a parameter is NAME=VALUE, not {text!r}")
        if name in params:
            raise ValueError(f"the parameter {name!r} is given twice")
        params[name] = parse_value(value)
    return params


def parse_value(text: str) -> Param:
    """A boolean, a whole number, a number, or else the text itself."""
    if text in WORDS:
        return WORDS[text]
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
