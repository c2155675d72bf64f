"""The parameters that say what an answer's text must be: OpenAI's `response_format`, and vLLM's names, new and old."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Annotated, Literal, Self

from pydantic import Field, PlainValidator, model_validator

from ..errors import InvalidValue, shown
from ..http.body import once
from ..structured.grammar import Wanted
from ..structured.json_schema import GrammarError, schema_text
from .base import Strict, refused
from .unsupported import STRUCTURED_UNSUPPORTED

ANY_OBJECT = '{"type": "object"}'


def _schema(value: object) -> str:
    """A schema as an object or, as vLLM takes it, as JSON text."""
    if isinstance(value, str):
        try:
            value = json.loads(value, object_pairs_hook=once)
        except InvalidValue as error:
            raise refused(None, f"{error.message}: in a schema, too") from None
        except (ValueError, RecursionError):
            raise refused(None, f"must be a JSON schema, not {shown(value)}") from None
    try:
        return schema_text(value)
    except GrammarError as error:
        raise refused(None, f"{error}, not {shown(value)}") from None


Schema = Annotated[str, PlainValidator(_schema, json_schema_input_type=dict[str, object] | str)]
Choice = Annotated[str, Field(min_length=1)]
Options = Annotated[list[Choice], Field(min_length=1)]
Name = Annotated[str, Field(pattern=r"^[a-zA-Z0-9_-]{1,64}$")]


class JsonSchema(Strict):
    """`strict` false asks for less than is given: the schema holds anyway."""

    name: Name
    description: str | None = None
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

    def wanted(self) -> Wanted | None:
        if self.json_schema is not None:
            return Wanted("response_format.json_schema.schema", schema=self.json_schema.text)
        return Wanted("response_format", schema=ANY_OBJECT) if self.type == "json_object" else None


class StructuredOutputs(Strict):
    unsupported = STRUCTURED_UNSUPPORTED

    schema_text: Schema | None = Field(None, alias="json")
    json_object: bool | None = None
    regex: str | None = None
    choice: Options | None = None


class FormatFields(Strict):
    """One of these at most."""

    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: Schema | None = None
    guided_regex: str | None = None
    guided_choice: Options | None = None

    @model_validator(mode="after")
    def _check_format(self) -> Self:
        wanted = list(self._wanted())
        if len(wanted) > 1:
            raise refused(wanted[1].param, f"not together with {wanted[0].param}: give one")
        return self

    @property
    def wanted(self) -> Wanted | None:
        return next(self._wanted(), None)

    def _wanted(self) -> Iterator[Wanted]:
        if self.response_format is not None:
            found = self.response_format.wanted()
            if found is not None:
                yield found
        outputs = self.structured_outputs or StructuredOutputs(json=None)
        for prefix, schema, regex, choice in (
            ("structured_outputs.", outputs.schema_text, outputs.regex, outputs.choice),
            ("guided_", self.guided_json, self.guided_regex, self.guided_choice),
        ):
            if schema is not None:
                yield Wanted(f"{prefix}json", schema=schema)
            if regex is not None:
                yield Wanted(f"{prefix}regex", regex=regex)
            if choice is not None:
                yield Wanted(f"{prefix}choice", choice=tuple(choice))
        if outputs.json_object:
            yield Wanted("structured_outputs.json_object", schema=ANY_OBJECT)
