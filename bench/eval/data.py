"""Reads files of problems, one JSON object a line, and says which line is not of the expected form."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Fields = Mapping[str, Any]

# The kinds of fields: a test for each, and what an error calls it.
KINDS: Mapping[str, tuple[type[Any], type[Any] | None, str]] = {
    "text": (str, None, "a text"),
    "texts": (list, str, "a list of texts"),
    "objects": (list, dict, "a list of objects"),
    "object": (dict, None, "an object"),
    "any": (object, None, "any value"),
}


@dataclass(frozen=True, slots=True)
class Form:
    """The form of a file: its `fields` with their kinds (`a|b` is a field of either name), and the field that is the
    key of a problem; without one, the key is a hash of the line."""

    fields: Mapping[str, str]
    key: str | None = None

    def __str__(self) -> str:
        return ", ".join(f"{name.replace('|', ' or ')} ({KINDS[kind][2]})" for name, kind in self.fields.items())


@dataclass(frozen=True, slots=True)
class Line:
    """A problem of a file: its key, and its fields under the first of their names. `place` names file and line."""

    key: str
    fields: Fields
    place: str


def read_lines(path: Path, form: Form) -> list[Line]:
    """Raises `ValueError` for the first line of another form, and for an empty file; `OSError` if it cannot be read."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8: {error}") from None
    except OSError as error:
        raise OSError(f"{path} cannot be read: {error.strerror or error}") from None
    found: dict[str, Line] = {}
    for line in _lines(path, text, form):
        if line.key in found:
            raise ValueError(f"{line.place}: its {form.key or 'text'} is that of {found[line.key].place}: keep one")
        found[line.key] = line
    if not found:
        raise ValueError(f"{path} is empty: expected one JSON object a line, with {form}")
    return [*found.values()]


def _lines(path: Path, text: str, form: Form) -> Iterator[Line]:
    for number, raw in enumerate(text.split("\n"), 1):
        if not raw.strip():
            continue
        place = f"{path}, line {number}"
        try:
            given = json.loads(raw)
            canonical = json.dumps(given, sort_keys=True).encode()
            json.dumps(given, ensure_ascii=False).encode()  # lone surrogates cannot be sent
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{place} is no JSON: {error}; expected an object with {form}") from None
        if not isinstance(given, dict):
            raise ValueError(f"{place} is no JSON object: expected one with {form}")
        fields = {
            **given,
            **{names.split("|")[0]: _field(given, names, kind, place) for names, kind in form.fields.items()},
        }
        key = hashlib.sha256(canonical).hexdigest()[:16] if form.key is None else str(fields[form.key])
        yield Line(key, fields, place)


def _field(given: Fields, names: str, kind: str, place: str) -> Any:
    of, inner, words = KINDS[kind]
    name = next((name for name in names.split("|") if name in given), None)
    if name is None:
        has = ", ".join(map(repr, given)) or "nothing"
        raise ValueError(f"{place} has no {' or '.join(map(repr, names.split('|')))} ({words}): it has {has}")
    value = given[name]
    if not isinstance(value, of) or (inner is not None and not all(isinstance(each, inner) for each in value)):
        raise ValueError(f"{place}: {name!r} must be {words}, not {json.dumps(value)[:60]}")
    return value
