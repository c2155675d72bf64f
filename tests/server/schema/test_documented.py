"""The table of docs/api.md has every parameter of a body, honoured or refused, each with a test that exists."""

from __future__ import annotations

import re
from pathlib import Path

from pydantic import BaseModel

from asynclane.server.schema.chat_request import ChatCompletionRequest
from asynclane.server.schema.completion_request import CompletionRequest
from asynclane.server.schema.messages import MessagesRequest
from asynclane.server.schema.requests import DecoderParams, GenerationRequest, StreamOptions
from asynclane.server.schema.response_input import ResponsesRequest
from asynclane.server.schema.unsupported import (
    CHAT,
    COMPLETIONS,
    COUNT_TOKENS,
    ELSEWHERE,
    MESSAGES,
    RESPONSES,
    UNSUPPORTED,
    unsupported_by,
)

CHAT_UNSUPPORTED, COMPLETION_UNSUPPORTED = unsupported_by(CHAT), unsupported_by(COMPLETIONS)
STREAM_UNSUPPORTED = UNSUPPORTED["stream_options"]

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "api.md").read_text()


def section(title: str) -> str:
    return PAGE.partition(f"## {title}\n")[2].partition("\n## ")[0]


def rows(text: str) -> list[list[str]]:
    """The rows of the first table."""
    return [row.split("|")[1:-1] for row in text.partition("\n\n|")[2].partition("\n\n")[0].splitlines()[2:]]


SECTION, MESSAGE_SECTION = section("What is honoured"), section("Anthropic's messages")
ROWS, MESSAGE_ROWS = rows(SECTION), rows(MESSAGE_SECTION)
RESPONSES_SECTION = section("Responses")
RESPONSES_ROWS = rows(RESPONSES_SECTION)


def quoted(text: str) -> set[str]:
    return set(re.findall(r"`([^`]+)`", text))


def test_every_parameter_that_is_honoured_is_documented_and_no_other() -> None:
    fields = ChatCompletionRequest.model_fields.keys() | CompletionRequest.model_fields.keys()
    options = {f"stream_options.{name}" for name in StreamOptions.model_fields}
    honoured = (fields - DecoderParams.model_fields.keys() - {"stream_options"}) | options
    assert {name for row in ROWS for name in quoted(row[0])} == honoured


def test_every_parameter_that_is_refused_is_documented() -> None:
    both = CHAT_UNSUPPORTED.keys() & COMPLETION_UNSUPPORTED.keys()
    assert both <= quoted(SECTION.partition("Everything else is refused")[2].partition("\n\n")[0])
    assert not both & {name for row in ROWS for name in quoted(row[0])}
    assert set(STREAM_UNSUPPORTED) == {"include_obfuscation"}


def test_every_parameter_of_a_response_is_documented_and_no_other() -> None:
    own = ResponsesRequest.model_fields.keys() - GenerationRequest.model_fields.keys()
    assert {name for row in RESPONSES_ROWS for name in quoted(row[0])} == own
    refused = quoted(RESPONSES_SECTION.partition("Everything else is refused")[2].partition("\n\n")[0])
    elsewhere = {*unsupported_by(CHAT), *unsupported_by(COMPLETIONS), *ELSEWHERE[RESPONSES]}
    assert refused >= unsupported_by(RESPONSES).keys() - elsewhere
    numbers = {name: bounds for name, bounds in ranges(ResponsesRequest).items() if name in own}
    assert numbers == {"max_output_tokens": "[1, 2^63)", "top_logprobs": "[0, 20]"}


def test_every_parameter_of_a_message_is_documented_and_no_other() -> None:
    fields = MessagesRequest.model_fields.keys() - DecoderParams.model_fields.keys()
    assert {name for row in MESSAGE_ROWS for name in quoted(row[0])} == fields
    refused = quoted(MESSAGE_SECTION.partition("Everything else is")[2].partition("\n\n")[0])
    assert refused == {*UNSUPPORTED[MESSAGES], *UNSUPPORTED[COUNT_TOKENS]} - {"speed"}  # which may be standard


def test_every_test_that_the_page_names_exists() -> None:
    known = {
        name
        for file in (ROOT / "tests").rglob("*.py")
        for name in re.findall(r"^(?:async )?def (test_\w+)", file.read_text(), re.M)
    }
    promises = rows("\n\n|" + SECTION.partition("These hold too:\n\n|")[2])
    assert len(promises) > 15
    for row in (*ROWS, *RESPONSES_ROWS, *MESSAGE_ROWS, *promises):
        assert any(name.startswith("test_") for name in quoted(row[-1])), f"{row[0]} names a test"
    assert {name for name in quoted(PAGE) if name.startswith("test_")} <= known


def ranges(body: type[BaseModel]) -> dict[str, str]:
    """Return the range of each number in a body, in mathematical notation; limits of 64 bits are powers."""
    found = {}
    for name, field in body.model_json_schema()["properties"].items():
        for kind in (field, *field.get("anyOf", ())):
            low = kind.get("minimum", kind.get("exclusiveMinimum"))
            high = kind.get("maximum", kind.get("exclusiveMaximum"))
            if low is not None:
                ends = "(" if "exclusiveMinimum" in kind else "[", ")" if "exclusiveMaximum" in kind else "]"
                found[name] = f"{ends[0]}{spelt(low)}, {spelt(high)}{ends[1]}"
    return found


def spelt(bound: float) -> str:
    return {2**31: "2^31", 2**63: "2^63", -(2**63): "-2^63"}.get(int(bound), f"{bound:.12g}")


def test_the_page_has_the_range_of_every_number_as_the_bodies_do() -> None:
    """Except for the decoders' parameters, which docs/decoders.md has."""
    written = re.findall(
        r"`(\w+)`[ \n]([\[(]\S+,\s\S+[\])])", SECTION.partition("Numbers and their ranges")[2].partition("\n\n")[0]
    )
    assert {name: re.sub(r"\s", " ", bounds) for name, bounds in written} == {
        name: bounds
        for body in (CompletionRequest, ChatCompletionRequest)
        for name, bounds in ranges(body).items()
        if name not in DecoderParams.model_fields
    }
