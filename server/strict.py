"""The base of all request bodies: what is not known, or not supported, is an error that names it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, model_validator
from pydantic_core import PydanticCustomError

from .errors import shown


def refused(param: str | None, reason: str, code: str = "invalid_value") -> PydanticCustomError:
    """An error of ours in pydantic, for `errors.from_validation`. `param` is relative to the field."""
    return PydanticCustomError("refused", "{reason}", {"param": param, "reason": reason, "code": code})


def _same(value: object, neutral: object) -> bool:
    """Equal as JSON: 0 and 0.0 are, 0 and false are not."""
    return value == neutral and isinstance(value, bool) == isinstance(neutral, bool)


def _document_unsupported(schema: dict[str, Any], model: type[Strict]) -> None:
    """JSON Schema has them too, with the values that ask nothing."""
    schema["properties"] |= {
        name: {"enum": [None, *neutral], "description": "Not supported yet: these values ask nothing."}
        for name, neutral in sorted(model.unsupported.items())
    }


class Strict(BaseModel):
    """Unknown names are errors; so are unsupported ones, unless their value asks nothing."""

    model_config = ConfigDict(
        strict=True, extra="forbid", allow_inf_nan=False, frozen=True, json_schema_extra=_document_unsupported
    )
    unsupported: ClassVar[Mapping[str, tuple[object, ...]]] = {}

    @model_validator(mode="before")
    @classmethod
    def _drop_neutral(cls, raw: object) -> object:
        if not isinstance(raw, dict):
            return raw
        for name in cls.unsupported.keys() & raw.keys():
            value, neutral = raw[name], cls.unsupported[name]
            if value is not None and not any(_same(value, one) for one in neutral):
                reason = f"not supported yet, but {shown(value)} was given"
                raise refused(name, reason, code="unsupported_parameter")
        return {name: value for name, value in raw.items() if name not in cls.unsupported}


class Body(Strict):
    """A whole body: its numbers are finite and its texts Unicode, however deep they lie."""

    @model_validator(mode="before")
    @classmethod
    def _check_leaves(cls, raw: object) -> object:
        for path, value in _leaves(raw):
            if isinstance(value, float) and not math.isfinite(value):
                raise refused(path, f"must be a finite number, not {value!r}")
            if isinstance(value, str) and not _is_unicode(value):
                raise refused(path, "must be valid Unicode, not half a surrogate pair")
        return raw


def _leaves(raw: object) -> Iterator[tuple[str, object]]:
    """Every value in a JSON tree with its dotted path; not recursive, for bodies may nest deep."""
    stack: list[tuple[str, object]] = [("", raw)]
    while stack:
        path, value = stack.pop()
        if isinstance(value, dict):
            yield from ((path or "a name in the body", name) for name in value)
            stack += [(f"{path}.{name}" if path else str(name), item) for name, item in value.items()]
        elif isinstance(value, list):
            # Token ids are many, and any integer is fine.
            stack += [(f"{path}.{index}", item) for index, item in enumerate(value) if type(item) is not int]
        else:
            yield path, value


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
