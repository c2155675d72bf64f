"""Types of the parameters for structured output: OpenAI's `response_format`, and vLLM's names, new and old."""

from __future__ import annotations

import json
from itertools import islice
from typing import Annotated, Literal, Self

from pydantic import Field, PlainValidator, model_validator

from ..errors import InvalidValue, shown
from ..http.body import Strict, refused, unique
from ..structured.grammar import ANY_OBJECT, Wanted
from ..structured.grammar_errors import GrammarError
from ..structured.json_schema import schema_text
from . import limits
from .unsupported import UNSUPPORTED

TOO_LONG = f"has more than {limits.GRAMMAR_CHARS} characters"


def read_schema(value: object) -> str:
    """Read a schema given as an object or, as in vLLM, as JSON text."""
    if isinstance(value, str) and len(value) > limits.GRAMMAR_CHARS:
        raise refused(None, TOO_LONG)
    if isinstance(value, str):
        try:
            value = json.loads(value, object_pairs_hook=unique)
        except InvalidValue as error:
            raise refused(None, f"{error.message}: in a schema, too") from None
        except (ValueError, RecursionError):
            raise refused(None, f"must be a JSON schema, not {shown(value)}") from None
    if not _has_few_values(value):
        raise refused(None, f"has more than {limits.SCHEMA_VALUES} values")
    try:
        text = schema_text(value)
    except GrammarError as error:
        raise refused(None, f"{error}, not {shown(value)}") from None
    if len(text) > limits.GRAMMAR_CHARS:
        raise refused(None, TOO_LONG)
    return text


def _has_few_values(value: object) -> bool:
    values = 0
    stack = [value]
    while stack and values <= limits.SCHEMA_VALUES:
        node = stack.pop()
        inner = node.values() if isinstance(node, dict) else node if isinstance(node, list) else ()
        values += len(inner)
        stack += islice(inner, limits.SCHEMA_VALUES)
    return values <= limits.SCHEMA_VALUES


Schema = Annotated[str, PlainValidator(read_schema, json_schema_input_type=dict[str, object] | str)]
Option = Annotated[str, Field(min_length=1, max_length=limits.GRAMMAR_CHARS)]
Options = Annotated[list[Option], Field(fail_fast=True, min_length=1, max_length=limits.CHOICES)]
Regex = Annotated[str, Field(max_length=limits.GRAMMAR_CHARS)]


class JsonSchema(Strict):
    """With `strict` false the schema is enforced all the same."""

    name: Annotated[str, Field(pattern=r"^[a-zA-Z0-9_-]{1,64}$")]
    description: Annotated[str, Field(max_length=limits.GRAMMAR_CHARS)] | None = None
    text: Schema = Field(alias="schema")
    strict: bool | None = None


class ResponseFormat(Strict):
    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.json_schema is not None) != (self.type == "json_schema"):
            raise refused("json_schema", "it goes with type 'json_schema', which needs it")
        return self

    @property
    def wanted(self) -> Wanted | None:
        if self.json_schema is not None:
            return Wanted("response_format.json_schema.schema", schema=self.json_schema.text)
        return Wanted("response_format", schema=ANY_OBJECT) if self.type == "json_object" else None


class StructuredOutputs(Strict):
    unsupported = UNSUPPORTED["structured_outputs"]

    schema_text: Schema | None = Field(None, alias="json")
    json_object: bool | None = None
    regex: Regex | None = None
    choice: Options | None = None
