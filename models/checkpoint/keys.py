"""Single keys of config.json: read strictly, and recorded, so that a key that no reader looks up can be refused."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping
from typing import Any

# No model comes near these sizes: larger ones would fill the memory before they are found not to match the weights.
MOST = {
    "dim": 2**20,
    "layers": 2**10,
    "heads": 2**12,
    "kv_heads": 2**12,
    "ff_dim": 2**22,
    "vocab_size": 2**24,
    "max_model_len": 2**24,
}


class Keys(dict[str, Any]):
    """A configuration that records which of its keys a reader has looked up. `block_size` is the one that a setting
    gives, `names` are those of its directory and, in the cache of Hugging Face, of its repository."""

    block_size: int | None = None
    names: tuple[str, ...] = ()

    def __init__(self, raw: Mapping[str, Any]) -> None:
        super().__init__(raw)
        self.read = set[str]()
        if isinstance(text := raw.get("text_config"), Mapping):  # that of the text part of a larger network
            self["text_config"] = Keys(text)

    def __getitem__(self, key: str) -> Any:
        self.read.add(key)
        return super().__getitem__(key)

    def get(self, key: str, default: Any = None) -> Any:
        self.read.add(key)
        return super().get(key, default)


def require(raw: Mapping[str, Any], fixed: Mapping[str, object]) -> None:
    """Raises `ValueError` where a configuration says something else than the one way that the network knows."""
    for key, value in fixed.items():
        said = raw.get(key, value)
        if said != value and not (said is None and not value):
            raise ValueError(f"{key} = {shown(said)} is not supported, only {value!r}")


def whole(raw: Mapping[str, Any], key: str, default: int | None = None) -> int:
    """A whole number, which files may write with a point. `default`: of a key that is missing, null or 0. Raises
    `ValueError` for anything else, which `int` would cut or read as a number."""
    value = raw[key] if default is None else _given(raw, key, default)
    if isinstance(value, bool) or not (isinstance(value, int) or (isinstance(value, float) and value.is_integer())):
        raise ValueError(f"{key} = {shown(value)} is no whole number")
    return int(value)


def section(raw: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """An object, which is empty for a key that is missing or has nothing. Raises `ValueError` for anything else."""
    value = raw.get(key)
    if value is None or value == []:  # tools write both
        return {}
    if not isinstance(value, Mapping):
        raise ValueError(f"{key} = {shown(value)} is no object")
    return value


def listed(value: object, key: str) -> list[Any]:
    """The value of a key, if it is a list. Raises `ValueError` for anything else."""
    if not isinstance(value, list):
        raise ValueError(f"{key} = {shown(value)} is no list")
    return value


def number(raw: Mapping[str, Any], key: str, default: float | None = None) -> float:
    """A finite number. `default`: of a key that is missing, null or 0. Raises `ValueError` for strings and flags."""
    value = raw[key] if default is None else _given(raw, key, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < math.inf:
        raise ValueError(f"{key} = {shown(value)} is no number")
    return float(value)


def _given(raw: Mapping[str, Any], key: str, default: float) -> Any:
    """A value; `default` for null and 0. An empty string, list or object is none of these, nor is false."""
    value = raw.get(key)
    return default if value is None or (type(value) in (int, float) and value == 0) else value


def flag(raw: Mapping[str, Any], key: str, default: bool | None = None) -> bool:
    """`default`: of a key that is missing. The string "false" is refused: for Python it is true."""
    value = raw[key] if default is None else raw.get(key, default)
    if value not in (None, True, False):
        raise ValueError(f"{key} = {shown(value)} is neither true nor false")
    return bool(value)


def shown(value: object) -> str:
    return textwrap.shorten(repr(value), 80, placeholder=" ...")
