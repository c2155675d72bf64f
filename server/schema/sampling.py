"""The parts of a request body that say how an answer is drawn, where it stops, and what is told of it."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated, Any, Self

from pydantic import (
    BeforeValidator,
    Field,
    GetJsonSchemaHandler,
    PlainValidator,
    WithJsonSchema,
    create_model,
    model_validator,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from ...scheduler import ALL_PARAMS, MOST_RANKS, Choice, Range
from ..errors import shown
from .base import Strict, refused
from .unsupported import STREAM_UNSUPPORTED

INT32, INT64 = 2**31, 2**63
MAX_BIASES = 300  # as OpenAI has it; fewer than any vocabulary has tokens, so that not all can be banned
BAN = -100  # a bias that bans, as OpenAI promises of it


class StreamOptions(Strict):
    unsupported = STREAM_UNSUPPORTED

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None
    include_lanes: bool | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.continuous_usage_stats and not self.include_usage:
            raise refused("continuous_usage_stats", "only with include_usage: true")
        return self


def _stops(value: object) -> object:
    if value is None:
        return []
    if isinstance(value, str):
        return [value]
    if isinstance(value, list):
        return value
    raise refused(None, f"must be a string or a list of up to 4 strings, not {shown(value)}")


def _scalar(value: object) -> object:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise refused(None, f"must be a number, a string, true or false, not {shown(value)}")


Stop = Annotated[str, Field(min_length=1, max_length=1000)]
FewStops = Annotated[list[Stop], Field(max_length=4)]
Stops = Annotated[FewStops, BeforeValidator(_stops, json_schema_input_type=Stop | FewStops | None)]
Bias = Annotated[float, Field(ge=BAN, le=100)]
TokenId = Annotated[int, Field(ge=0, lt=INT32)]
TokenName = Annotated[str, WithJsonSchema({"type": "string", "pattern": "^(0|[1-9][0-9]{0,8})$"})]
Penalty = Annotated[float, Field(ge=-2, le=2)]
Ranks = Annotated[int, Field(ge=0, le=MOST_RANKS)]
Knob = Annotated[object, PlainValidator(_scalar)]


def _knob_schema(kind: Range | Choice) -> dict[str, Any]:
    if isinstance(kind, Choice):
        return {"enum": [None, *kind.values]}
    number = {"type": "integer" if kind.whole else "number", "minimum": kind.low, "maximum": kind.high}
    return {"anyOf": [number, {"enum": [None, *kind.words]}]}


class _Knobs(Strict):
    """Typed loosely: the engine knows which decoder has which knob, and its range. The JSON Schema has the ranges."""

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        found = handler(schema)
        properties = handler.resolve_ref_schema(found)["properties"]
        properties |= {name: _knob_schema(kind) for name, kind in ALL_PARAMS.items()}
        return found


if TYPE_CHECKING:

    class DecoderParams(_Knobs):
        """Every knob of every decoder, each null if it is not given."""

else:
    DecoderParams = create_model(
        "DecoderKnobs", __base__=_Knobs, __module__=__name__, **dict.fromkeys(ALL_PARAMS, (Knob, None))
    )


class SamplingFields(Strict):
    """OpenAI's parameters and vLLM's for drawing and stopping."""

    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=-1, lt=INT32)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    seed: Annotated[int, Field(ge=-INT64, lt=INT64)] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    logit_bias: Annotated[dict[TokenName, Bias], Field(max_length=MAX_BIASES)] | None = None
    stop: Stops = Field(default_factory=list)
    stop_token_ids: Annotated[list[TokenId], Field(max_length=MAX_BIASES)] | None = None
    ignore_eos: bool | None = None
    min_tokens: Annotated[int, Field(ge=0, lt=INT64)] | None = None

    @model_validator(mode="after")
    def _check_tokens(self) -> Self:
        for name in self.logit_bias or {}:
            if not (name.isascii() and name.isdigit() and len(name) < 10 and str(int(name)) == name):
                raise refused(f"logit_bias.{name}", f"names of logit_bias are token ids, not {shown(name)}")
        if self.min_tokens and self.stop:
            raise refused("min_tokens", "not together with stop: it keeps away end tokens and stop_token_ids alone")
        return self

    @property
    def named_tokens(self) -> dict[str, int]:
        """Every token id that the body names, by the parameter to blame if there is no such token."""
        biased = {f"logit_bias.{name}": int(name) for name in self.logit_bias or {}}
        return biased | {f"stop_token_ids.{at}": token for at, token in enumerate(self.stop_token_ids or ())}

    def biases(self, ban: float = -math.inf) -> tuple[tuple[int, float], ...]:
        """Token ids and what is added to their logits: `ban` for a banned token."""
        given = (self.logit_bias or {}).items()
        return tuple((int(name), ban if value == BAN else value) for name, value in given if value)
