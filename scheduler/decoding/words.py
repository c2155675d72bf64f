"""The words that a decoder takes for its parameters, found by making it with each of them."""

from __future__ import annotations

from collections.abc import Mapping

from .attention_pattern import PLAIN, AttentionPattern
from .params import Choice, ParamError
from .plugins import ALL_PARAMS
from .resolve import defaults_of, resolve

LENGTH = 1 << 9  # of a canvas that all defaults and all values fit
# Values that are allowed only together with another parameter.
NEEDS: Mapping[tuple[str, object], Mapping[str, object]] = {
    ("cache", "dual"): {"lookahead": "canvas"},
    ("cache", "dsb"): {"lookahead": "canvas"},
    ("boundary", "stable"): {"stable_steps": 1},
}


def words_of(name: str, param: str, pattern: AttentionPattern = PLAIN) -> tuple[object, ...]:
    """The values of a parameter that are no numbers, as far as the decoder takes them when all else is default, or with
    the other parameter that a value needs."""
    kind = ALL_PARAMS[param]
    words = kind.values if isinstance(kind, Choice) else kind.words
    return tuple(
        word
        for word in words
        if any(takes(name, {**more, param: word}, pattern) for more in ({}, NEEDS.get((param, word), {})))
    )


def all_words(name: str, pattern: AttentionPattern = PLAIN) -> Mapping[str, tuple[object, ...]]:
    """Those of every parameter of a decoder."""
    return {param: words_of(name, param, pattern) for param in defaults_of(name, pattern)}


def takes(name: str, params: Mapping[str, object], pattern: AttentionPattern = PLAIN) -> bool:
    try:
        resolve(name, params, LENGTH, pattern)
    except ParamError:
        return False
    return True
