"""The base of all request bodies: what is not known, or not supported, is an error that names it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Self

from pydantic import BaseModel, ConfigDict, model_validator
from pydantic_core import PydanticCustomError

from ..errors import shown


def refused(param: str | None, reason: str, code: str = "invalid_value") -> PydanticCustomError:
    """An error of ours in pydantic, for `errors.from_validation`. `param` is relative to the field."""
    return PydanticCustomError("refused", "{reason}", {"param": param, "reason": reason, "code": code})


def _same(value: object, neutral: object) -> bool:
    """Equal as JSON: 0 and 0.0 are, 0 and false are not."""
    return value == neutral and isinstance(value, bool) == isinstance(neutral, bool)


def _document_refusals(schema: dict[str, Any], model: type[Strict]) -> None:
    """JSON Schema has what is not supported, with the values that ask nothing, and no more."""
    schema["additionalProperties"] = False
    schema["properties"] |= {
        name: {"enum": [None, *neutral], "description": f"{model.lacks(name)}: these values ask nothing."}
        for name, neutral in sorted(model.unsupported.items())
    }


class Strict(BaseModel):
    """Unknown names are errors; so are unsupported ones, unless their value asks nothing."""

    # Pydantic would refuse extra names, too, but could not say which there are.
    model_config = ConfigDict(
        strict=True, extra="allow", allow_inf_nan=False, frozen=True, json_schema_extra=_document_refusals
    )
    unsupported: ClassVar[Mapping[str, tuple[object, ...]]] = {}
    elsewhere: ClassVar[Mapping[str, str]] = {}  # the endpoint that has what this one has not

    @classmethod
    def lacks(cls, name: str) -> str:
        """Why a parameter that is known is not honoured here."""
        return f"only {cls.elsewhere[name]} has it" if name in cls.elsewhere else "not supported yet"

    @classmethod
    def offers(cls) -> str:
        """What to choose from, for who gave a name that is unknown."""
        return "known here: " + ", ".join(field.alias or name for name, field in cls.model_fields.items())

    @model_validator(mode="before")
    @classmethod
    def _drop_neutral(cls, raw: object) -> object:
        if not isinstance(raw, dict):
            return raw
        for name in cls.unsupported.keys() & raw.keys():
            value, neutral = raw[name], cls.unsupported[name]
            if value is not None and not any(_same(value, one) for one in neutral):
                reason = f"{cls.lacks(name)}, but {shown(value)} was given"
                raise refused(name, reason, code="unsupported_parameter")
        return {name: value for name, value in raw.items() if name not in cls.unsupported}

    @model_validator(mode="after")
    def _refuse_unknown(self) -> Self:
        for name in self.model_extra or ():
            why = self.lacks(name) if name in self.elsewhere else f"unknown parameter; {self.offers()}"
            raise refused(name, why, code="unknown_parameter")
        return self


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
