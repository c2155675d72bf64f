"""The arguments of calls: answers and messages read them by one rule, so that each call can be sent back."""

from __future__ import annotations

import json
from typing import Any, NoReturn

from ..schema.limits import DEPTH


def read_arguments(text: str) -> dict[str, Any]:
    """The object of a JSON text. Raises `ValueError` for any other text, for half a surrogate pair, and for what nests
    deeper than a template can follow."""
    try:
        value = JSON.decode(text)
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise ValueError("must have no half of a surrogate pair") from None
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise ValueError("must be the JSON text of an object")
    if nests_too_deep(value):
        raise ValueError(f"must nest at most {DEPTH} levels")
    return value


def nests_too_deep(value: object) -> bool:
    level = [value]
    for _ in range(DEPTH):
        level = [
            inner
            for node in level
            if isinstance(node, dict | list)
            for inner in (node.values() if isinstance(node, dict) else node)
        ]
        if not level:
            return False
    return True


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


JSON = json.JSONDecoder(parse_constant=_no_number)
