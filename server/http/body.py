"""Request bodies, from bytes to strict pydantic models. An unknown parameter is an error that names it."""

from __future__ import annotations

import json
import math
import sys
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Any, ClassVar, Self

from fastapi import Request
from fastapi.routing import APIRoute
from pydantic import BaseModel, ConfigDict, ValidationError, model_validator
from pydantic_core import PydanticCustomError
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from ...scheduler import nearest
from ..errors import EncodedBody, InvalidValue, dotted, from_validation, shown
from ..schema import limits
from .keys import client_of
from .limits import Bodies
from .request_log import CLIENT_CLOSED_REQUEST
from .sse import ClientGone

JSON_KINDS = {list: "a list", str: "a text", bool: "true or false", type(None): "null"}


class JsonRoute(APIRoute):
    """A route whose body is read within limits and by `parse`. No other route reads one."""

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] in (self.methods or ()):
            bodies: Bodies = scope["app"].state.bodies
            async with self.admitted(scope):
                await bodies.serve(super().handle, scope, receive, send)
        else:
            await super().handle(scope, receive, send)

    def admitted(self, scope: Scope) -> AbstractAsyncContextManager[None]:
        """The time in which a request is served. Entering raises an `ApiError` to refuse it before its body is read."""
        return nullcontext()

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handler = super().get_route_handler()
        model = self.dependant.body_params[0].field_info.annotation

        async def handle(request: Request) -> Response:
            encoding = request.headers.get("content-encoding", "identity")
            if encoding.strip().lower() != "identity":
                raise EncodedBody(encoding)
            read = JsonRequest(request.scope, request.receive)
            read.model = model
            read.unparsed = b"".join([chunk async for chunk in request.stream()])
            if not read.unparsed:  # FastAPI would take it for null
                raise InvalidValue(None, "the body is empty: send a JSON object", code="invalid_json")
            try:
                return await handler(read)
            except ClientGone:
                return Response(status_code=CLIENT_CLOSED_REQUEST)

        return handle


class JsonRequest(Request):
    """A request whose JSON is a `model`, which FastAPI takes as it is. Nothing holds the bytes after that."""

    model: Any
    unparsed: bytes

    async def body(self) -> bytes:
        return b"{}"  # FastAPI holds it until the answer ends

    async def json(self) -> Any:
        body, self.unparsed = self.unparsed, b""
        bodies: Bodies = self.app.state.bodies
        return await bodies.off_loop.run(client_of(self.scope), len(body), lambda: validated(self.model, body))


def validated(model: type[BaseModel], body: bytes) -> BaseModel:
    """Raises `InvalidValue`."""
    try:
        return model.model_validate(parse(body))
    except ValidationError as error:
        raise from_validation(error.errors(include_url=False)[0]) from None


def parse(body: bytes) -> dict[str, Any]:
    """Read a JSON object. Raises `InvalidValue`, which says where the body is not valid JSON."""
    _check_counts(body)
    try:
        # The hooks are written in Python, where an interpreter lets other threads run. The C parser does not.
        found = json.loads(
            body.decode("utf-8-sig"), object_pairs_hook=unique, parse_int=_whole_number, parse_float=_number
        )
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


def _whole_number(digits: str) -> int:
    return int(digits)


def _number(digits: str) -> float:
    return float(digits)


def _check_counts(body: bytes) -> None:
    """Raises `InvalidValue` for more values than any request needs: in memory each takes many times its bytes."""
    if body.count(b'"') <= 2 * limits.STRINGS and not _excess(body):
        return
    # Leave out what is within texts. These steps take milliseconds, as they run over bytes.
    body = body.replace(b"\\\\", b"").replace(b'\\"', b"")
    excess = f"{limits.STRINGS} names and texts" if body.count(b'"') > 2 * limits.STRINGS else ""
    excess = excess or _excess(b"".join(body.split(b'"')[::2]))
    if excess:
        raise InvalidValue(None, f"the body has more than {excess}, which no request needs", code="too_many_values")


def _excess(body: bytes) -> str:
    """The limit that a body without texts exceeds."""
    if body.count(b",") > limits.COMMAS:
        return f"{limits.COMMAS} values"
    if body.count(b"[") + body.count(b"{") > limits.CONTAINERS:
        return f"{limits.CONTAINERS} lists and objects"
    return ""


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
    elsewhere: ClassVar[Mapping[str, str]] = {}  # the endpoint that has a parameter, or its name here

    @classmethod
    def lacks(cls, name: str) -> str:
        """Why a known parameter is not honoured here."""
        other = cls.elsewhere.get(name)
        if other is None:
            return "not supported yet"
        return f"only {other} has it" if other.startswith("/") else f"this endpoint calls it {other}"

    @classmethod
    def offers(cls) -> str:
        """The known names, for the error about an unknown one."""
        return "known here: " + ", ".join(field.alias or name for name, field in cls.model_fields.items())

    @classmethod
    def _nearest(cls, name: str) -> str:
        """The known name that `name` may have been meant as, or else all of them."""
        meant = nearest(name, (field.alias or field_name for field_name, field in cls.model_fields.items()))
        return f"did you mean {meant}?" if meant else cls.offers()

    @model_validator(mode="before")
    @classmethod
    def _drop_neutral(cls, raw: object) -> object:
        if not isinstance(raw, dict):
            return raw
        for name in cls.unsupported.keys() & raw.keys():
            value, neutral = raw[name], cls.unsupported[name]
            if value is not None and not any(_same(value, one) for one in neutral):
                allowed = f"give {' or '.join(map(json.dumps, neutral))}, or " if neutral else ""
                reason = f"{cls.lacks(name)}, but {shown(value)} was given: {allowed}leave it out"
                raise refused(name, reason, code="unsupported_parameter")
        return {name: value for name, value in raw.items() if name not in cls.unsupported}

    @model_validator(mode="after")
    def _refuse_unknown(self) -> Self:
        for name in self.model_extra or ():
            why = self.lacks(name) if name in self.elsewhere else f"unknown parameter; {self._nearest(name)}"
            raise refused(name, why, code="unknown_parameter")
        return self


class Body(Strict):
    """A whole body. Its numbers are finite and its texts valid Unicode, at any depth."""

    @model_validator(mode="before")
    @classmethod
    def _check_leaves(cls, raw: object) -> object:
        # Not recursive, since bodies may nest deep. The path of a leaf is made if it is refused.
        stack: list[tuple[Place, object]] = [(None, raw)]
        while stack:
            place, container = stack.pop()
            if isinstance(container, dict):
                for name in container:
                    if not _is_unicode(name):
                        raise refused(_path(place) or "a name in the body", NO_UNICODE)
                items: Iterable[tuple[str | int, object]] = container.items()
            else:
                items = enumerate(container) if isinstance(container, list) else ()
            for key, value in items:
                if isinstance(value, dict | list):
                    stack.append(((place, key), value))
                elif isinstance(value, str) and not _is_unicode(value):
                    raise refused(_path((place, key)), NO_UNICODE)
                elif isinstance(value, float) and not math.isfinite(value):
                    raise refused(_path((place, key)), f"must be a finite number, not {value!r}")
        return raw


# Where a value stands in a body: its container's place, and its name or index there.
Place = tuple["Place", str | int] | None
NO_UNICODE = "must be valid Unicode, not half a surrogate pair"


def _path(place: Place) -> str:
    names = []
    while place is not None:
        place, name = place
        names.append(name)
    return dotted(reversed(names))


def _same(value: object, neutral: object) -> bool:
    """Compare as JSON: 0 and 0.0 are the same, 0 and false are not."""
    return value == neutral and isinstance(value, bool) == isinstance(neutral, bool)


def _is_unicode(text: str) -> bool:
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
