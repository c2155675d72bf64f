"""Request bodies, from bytes to strict pydantic models. An unknown parameter is an error that names it."""

from __future__ import annotations

import json
import math
import sys
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Self

from fastapi import Request
from fastapi.routing import APIRoute
from pydantic import BaseModel, ConfigDict, model_validator
from pydantic_core import PydanticCustomError
from starlette.responses import Response

from ..errors import EncodedBody, InvalidValue, shown

JSON_KINDS = {list: "a list", str: "a text", bool: "true or false", type(None): "null"}


class JsonRoute(APIRoute):
    """A route whose body is read by `parse`."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handler = super().get_route_handler()

        async def handle(request: Request) -> Response:
            encoding = request.headers.get("content-encoding", "identity")
            if encoding.strip().lower() != "identity":
                raise EncodedBody(encoding)
            read = JsonRequest(request.scope, request.receive)
            if not await read.body():  # FastAPI would take it for null
                raise InvalidValue(None, "the body is empty: send a JSON object", code="invalid_json")
            return await handler(read)

        return handle


class JsonRequest(Request):
    async def json(self) -> dict[str, Any]:
        return parse(await self.body())


def parse(body: bytes) -> dict[str, Any]:
    """Read a JSON object. Raises `InvalidValue`, which says where the body is not valid JSON."""
    try:
        found = json.loads(body.decode("utf-8-sig"), object_pairs_hook=unique)
    except UnicodeDecodeError as error:
        problem = f"is not UTF-8 at byte {error.start}"
    except RecursionError:
        problem = "nests too deep"
    except json.JSONDecodeError as error:  # which gives line, column and character
        problem = f"is not valid JSON: {error}"
    except ValueError:
        problem = f"has a number of more than {sys.get_int_max_str_digits()} digits, which cannot be read"
    else:
        if isinstance(found, dict):
            return found
        problem = f"must be a JSON object, not {JSON_KINDS.get(type(found), 'a number')}"
    raise InvalidValue(None, f"the body {problem}", code="invalid_json")


def unique(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """Build a JSON object. Raises `InvalidValue` if a name comes twice: readers differ in which value they take."""
    found = dict(pairs)
    if len(found) < len(pairs):
        name, _ = Counter(name for name, _ in pairs).most_common(1)[0]
        raise InvalidValue(name, f"{shown(name)} is given more than once", code="duplicate_parameter")
    return found


def refused(param: str | None, reason: str, code: str = "invalid_value") -> PydanticCustomError:
    """An error to raise in a validator; `errors.from_validation` reads it. `param` is relative to the field."""
    return PydanticCustomError("refused", "{reason}", {"param": param, "reason": reason, "code": code})


def _document_unsupported(schema: dict[str, Any], model: type[Strict]) -> None:
    """Add unsupported parameters to the JSON Schema, with the values that are accepted."""
    schema["additionalProperties"] = False
    schema["properties"] |= {
        name: {"enum": [None, *neutral], "description": f"{model.lacks(name)}: these values change nothing."}
        for name, neutral in sorted(model.unsupported.items())
    }


class Strict(BaseModel):
    """A part of a body. Unknown names are errors; so are unsupported ones, unless their value is neutral."""

    # Pydantic could refuse extra names itself, but its message could not list the known ones.
    model_config = ConfigDict(
        strict=True, extra="allow", allow_inf_nan=False, frozen=True, json_schema_extra=_document_unsupported
    )
    unsupported: ClassVar[Mapping[str, tuple[object, ...]]] = {}
    elsewhere: ClassVar[Mapping[str, str]] = {}  # the endpoint that has a parameter which this one has not

    @classmethod
    def lacks(cls, name: str) -> str:
        """Why a known parameter is not honoured here."""
        return f"only {cls.elsewhere[name]} has it" if name in cls.elsewhere else "not supported yet"

    @classmethod
    def offers(cls) -> str:
        """The known names, for the error about an unknown one."""
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
    """A whole body. Its numbers are finite and its texts valid Unicode, at any depth."""

    @model_validator(mode="before")
    @classmethod
    def _check_leaves(cls, raw: object) -> object:
        for path, value in _leaves(raw):
            if isinstance(value, float) and not math.isfinite(value):
                raise refused(path, f"must be a finite number, not {value!r}")
            if isinstance(value, str) and not _is_unicode(value):
                raise refused(path, "must be valid Unicode, not half a surrogate pair")
        return raw


def _same(value: object, neutral: object) -> bool:
    """Compare as JSON: 0 and 0.0 are the same, 0 and false are not."""
    return value == neutral and isinstance(value, bool) == isinstance(neutral, bool)


def _leaves(raw: object) -> Iterator[tuple[str, object]]:
    """Every value in a JSON tree with its dotted path. Not recursive, since bodies may nest deep."""
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
