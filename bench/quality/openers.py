"""Puts first questions to a model: 30 openers, 10 second turns, 10 small JSON schemas, 10 requests for tools.

Usage: python -m asynclane.bench.quality.openers [--model tiny-chat] [--decoder asynclane]
The questions and their checks are those of openers.json, which was written before the training data of tiny-chat. Each
line shows an answer and whether its check passes. The answers are at temperature 0. Schemas are enforced by grammar and
are not shown to the model; tools are shown by the checkpoint's chat template, and calls are free text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

QUESTIONS = Path(__file__).with_name("openers.json")
CALL = re.compile(r"<tool_call>\s*(\{.*\})\s*</tool_call>", re.DOTALL)
LONGEST = 800  # characters of a sensible answer


@dataclass(frozen=True, slots=True)
class Opener:
    """A question, patterns of which one is in a sensible answer, and what such an answer says."""

    ask: str
    any: tuple[str, ...]
    sensible: str


@dataclass(frozen=True, slots=True)
class SecondTurn:
    first: str
    then: str
    any: tuple[str, ...]
    sensible: str


@dataclass(frozen=True, slots=True)
class Extraction:
    """A question whose answer follows a schema; `expect` are values that it must have."""

    ask: str
    schema: Mapping[str, Any]
    expect: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Request:
    """A question with tools; `call` is the right one, None where none is needed."""

    ask: str
    tools: tuple[Mapping[str, Any], ...]
    call: Mapping[str, Any] | None


@dataclass(frozen=True, slots=True)
class Questions:
    openers: tuple[Opener, ...]
    second_turns: tuple[SecondTurn, ...]
    schemas: tuple[Extraction, ...]
    tools: tuple[Request, ...]


def questions() -> Questions:
    found = json.loads(QUESTIONS.read_text(encoding="utf-8"))
    return Questions(
        tuple(Opener(row["ask"], tuple(row["any"]), row["sensible"]) for row in found["openers"]),
        tuple(
            SecondTurn(row["first"], row["then"], tuple(row["any"]), row["sensible"]) for row in found["second_turns"]
        ),
        tuple(Extraction(row["ask"], row["schema"], row["expect"]) for row in found["schemas"]),
        tuple(Request(row["ask"], tuple(row["tools"]), row["call"]) for row in found["tools"]),
    )


def good_text(patterns: Sequence[str], text: str) -> bool:
    """True for a text of sensible length in which one of the patterns is found."""
    return 0 < len(text) <= LONGEST and any(re.search(p, text, re.IGNORECASE | re.DOTALL) for p in patterns)


def good_json(row: Extraction, text: str) -> bool:
    """True for JSON that validates. Whether its values are right is another question: `right_values`."""
    from jsonschema import Draft202012Validator

    try:
        value = json.loads(text)
    except ValueError:
        return False
    return bool(Draft202012Validator(row.schema).is_valid(value))


def right_values(row: Extraction, text: str) -> bool:
    """True for a JSON object with the names of the schema and the values that it must have."""
    try:
        value = json.loads(text)
    except ValueError:
        return False
    return isinstance(value, dict) and set(value) == set(row.schema["properties"]) and {**value, **row.expect} == value


def good_call(row: Request, text: str) -> bool:
    """True for the one right call and no other; for a text without a call where none is needed."""
    calls = CALL.findall(text)
    if row.call is None:
        return not calls and "tool_call" not in text and 0 < len(text) <= LONGEST
    try:
        return len(calls) == 1 and json.loads(calls[0]) == row.call
    except ValueError:
        return False
