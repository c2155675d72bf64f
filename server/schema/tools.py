"""Types of the parameters for tools, and of the calls that messages send back."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import Field, PlainValidator, model_validator

from ..errors import shown
from ..http.body import Strict, refused
from ..structured.grammar import ANY_OBJECT
from ..structured.json_schema import pointer_part, schemas_in
from ..text.arguments import nests_too_deep, read_arguments
from . import limits
from .formats import read_schema

Name = Annotated[str, Field(pattern=r"^[a-zA-Z0-9_-]{1,64}$")]
Label = Annotated[str, Field(max_length=limits.LABEL_CHARS)]
KINDS = {"properties": dict, "required": list, "enum": list}  # what templates read of a schema
NO_ARGUMENTS = '{"type": "object", "properties": {}, "additionalProperties": false}'


def _object(value: object) -> dict[str, Any]:
    """An object of any members that nests no deeper than a template can follow."""
    if not isinstance(value, dict):
        raise refused(None, f"must be an object, not {shown(value)}")
    if nests_too_deep(value):
        raise refused(None, f"nests deeper than {limits.DEPTH} levels")
    return value


def _parameters(value: object) -> dict[str, Any]:
    """A schema of objects."""
    schema = _object(value)
    read_schema(schema)  # its size
    if schema.get("type", "object") != "object":
        raise refused("type", f"arguments are an object, not {shown(schema['type'])}")
    for pointer, node in schemas_in(schema):
        for name, kind in KINDS.items():
            if name in node and not isinstance(node[name], kind):
                what = "an object" if kind is dict else "a list"
                raise refused(None, f"{pointer}/{name} must be {what}, not {shown(node[name])}")
        for name, value in node.get("properties", {}).items():
            if not isinstance(value, dict | bool):
                raise refused(None, f"{pointer}/properties/{pointer_part(name)} must be a schema, not {shown(value)}")
    return schema


AnyObject = Annotated[dict[str, Any], PlainValidator(_object, json_schema_input_type=dict[str, object])]
Parameters = Annotated[dict[str, Any], PlainValidator(_parameters, json_schema_input_type=dict[str, object])]


class Function(Strict):
    """Without `parameters`, a function has none. `strict`: the arguments of each call follow the schema."""

    name: Name
    description: Annotated[str, Field(max_length=limits.GRAMMAR_CHARS)] | None = None
    parameters: Parameters | None = None
    strict: bool | None = None

    def schema_text(self) -> str:
        """The schema of the arguments, which are an object."""
        if self.parameters is None:
            return NO_ARGUMENTS
        return json.dumps({"type": "object", **self.parameters}, ensure_ascii=False) if self.parameters else ANY_OBJECT


class Tool(Strict):
    type: Literal["function"]
    function: Function

    def for_template(self) -> dict[str, Any]:
        """The tool as it was sent, without `strict`, which is for the server."""
        function = self.function
        sent = {"name": function.name, "description": function.description, "parameters": function.parameters}
        return {"type": self.type, "function": {name: value for name, value in sent.items() if value is not None}}


Tools = Annotated[list[Tool], Field(fail_fast=True, max_length=limits.TOOLS)]


class NamedFunction(Strict):
    name: Annotated[str, Field(max_length=limits.NAME_CHARS)]


class NamedTool(Strict):
    type: Literal["function"]
    function: NamedFunction


def _choice(value: object) -> object:
    """Read one of three words, or a named function."""
    if isinstance(value, dict):
        return NamedTool.model_validate(value)
    if value in ("none", "auto", "required"):
        return value
    raise refused(None, f"must be none, auto, required or a function by its name, not {shown(value)}")


Choice = Literal["none", "auto", "required"]
ToolChoice = Annotated[Choice | NamedTool, PlainValidator(_choice, json_schema_input_type=Choice | NamedTool)]


class CalledFunction(Strict):
    """`arguments` is JSON text; an empty one is that of a function without parameters."""

    name: Annotated[str, Field(min_length=1, max_length=limits.NAME_CHARS)]
    arguments: str
    parsed_arguments: object = None  # of an SDK that read the call; it changes nothing

    @model_validator(mode="after")
    def _check(self) -> Self:
        self.values()
        return self

    def values(self) -> Mapping[str, Any]:
        try:
            return read_arguments(self.arguments or "{}")
        except ValueError as error:
            raise refused("arguments", f"{error}, not {shown(self.arguments)}") from None


class ToolCall(Strict):
    """A call of an earlier answer, as it was sent."""

    id: Annotated[str, Field(min_length=1, max_length=limits.LABEL_CHARS)]
    type: Literal["function"]
    function: CalledFunction
    index: Annotated[int, Field(ge=0)] | None = None  # of a stream's call; it changes nothing

    def for_template(self) -> dict[str, Any]:
        """Templates get the arguments as an object, which they write themselves."""
        function = {"name": self.function.name, "arguments": self.function.values()}
        return {"id": self.id, "type": self.type, "function": function}


ToolCalls = Annotated[list[ToolCall], Field(fail_fast=True, max_length=limits.TOOLS)]
