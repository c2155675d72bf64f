"""Types of the parameters for structured output: OpenAI's `response_format`, and vLLM's names, new and old."""

from __future__ import annotations

import json
from typing import Annotated, Literal, Self

from pydantic import Field, PlainValidator, model_validator

from ..errors import InvalidValue, shown
from ..http.body import Strict, refused, unique
from ..structured.grammar import ANY_OBJECT, Wanted
from ..structured.grammar_errors import GrammarError
from ..structured.json_schema import schema_text
from .unsupported import UNSUPPORTED


def _schema(value: object) -> str:
    """Read a schema given as an object or, as in vLLM, as JSON text."""
    if isinstance(value, str):
        try:
            value = json.loads(value, object_pairs_hook=unique)
        except InvalidValue as error:
            raise refused(None, f"{error.message}: in a schema, too") from None
        except (ValueError, RecursionError):
            raise refused(None, f"must be a JSON schema, not {shown(value)}") from None
    try:
        return schema_text(value)
    except GrammarError as error:
        raise refused(None, f"{error}, not {shown(value)}") from None


Schema = Annotated[str, PlainValidator(_schema, json_schema_input_type=dict[str, object] | str)]
Options = Annotated[list[Annotated[str, Field(min_length=1)]], Field(min_length=1)]


class JsonSchema(Strict):
    """With `strict` false the schema is enforced all the same."""

    name: Annotated[str, Field(pattern=r"^[a-zA-Z0-9_-]{1,64}$")]
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

    @property
    def wanted(self) -> Wanted | None:
        if self.json_schema is not None:
            return Wanted("response_format.json_schema.schema", schema=self.json_schema.text)
        return Wanted("response_format", schema=ANY_OBJECT) if self.type == "json_object" else None


class StructuredOutputs(Strict):
    unsupported = UNSUPPORTED["structured_outputs"]

    schema_text: Schema | None = Field(None, alias="json")
    json_object: bool | None = None
    regex: str | None = None
    choice: Options | None = None
