"""A parameter is honoured or refused with a 400 that names it."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from ...support.fake_engine import FakeEngine
from ...support.http import CHAT, COMPLETION, error_of

USER = {"role": "user", "content": "Hi"}
YES = {"role": "assistant", "content": "Yes,"}

ANY: dict[str, Any] = {"name": "any", "schema": {}}


def schema(value: object) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "test", "schema": value}}


BAD_IN_BOTH: list[tuple[dict[str, Any], str]] = [
    ({"no_such_thing": 1}, "no_such_thing"),
    ({"no_such_thing": None}, "no_such_thing"),
    ({"model": None}, "model"),
    ({"model": 5}, "model"),
    ({"temperature": -0.1}, "temperature"),
    ({"temperature": 2.1}, "temperature"),
    ({"temperature": "1"}, "temperature"),
    ({"temperature": True}, "temperature"),
    ({"temperature": [1]}, "temperature"),
    ({"temperature": 10**400}, "temperature"),
    ({"top_p": 0}, "top_p"),
    ({"top_p": 1.5}, "top_p"),
    ({"seed": 2**63}, "seed"),
    ({"seed": -(2**63) - 1}, "seed"),
    ({"seed": 1.5}, "seed"),
    ({"seed": True}, "seed"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"max_tokens": -1}, "max_tokens"),
    ({"max_tokens": "5"}, "max_tokens"),
    ({"max_tokens": True}, "max_tokens"),
    ({"max_tokens": 1.5}, "max_tokens"),
    ({"n": 0}, "n"),
    ({"n": 17}, "n"),
    ({"n": True}, "n"),
    ({"stop": ""}, "stop.0"),
    ({"stop": ["a", ""]}, "stop.1"),
    ({"stop": ["a", "b", "c", "d", "e"]}, "stop"),
    ({"stop": ["x" * 1001]}, "stop.0"),
    ({"stop": 5}, "stop"),
    ({"stop": [5]}, "stop.0"),
    ({"stream": "true"}, "stream"),
    ({"stream": 1}, "stream"),
    ({"stream_options": {"include_usage": True}}, "stream_options"),
    ({"stream": False, "stream_options": {}}, "stream_options"),
    ({"stream": True, "stream_options": {"include_usage": "yes"}}, "stream_options.include_usage"),
    ({"stream": True, "stream_options": {"include_everything": True}}, "stream_options.include_everything"),
    ({"stream": True, "stream_options": {"include_lanes": 1}}, "stream_options.include_lanes"),
    ({"stream": False, "stream_options": {"include_lanes": True}}, "stream_options"),
    ({"stream": True, "stream_options": []}, "stream_options"),
    ({"response_format": "json"}, "response_format"),
    ({"response_format": {"type": "xml"}}, "response_format.type"),
    ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
    ({"response_format": {"type": "json_object", "json_schema": ANY}}, "response_format.json_schema"),
    ({"response_format": {"type": "json_schema", "json_schema": {"name": "a"}}}, "response_format.json_schema.schema"),
    (
        {"response_format": {"type": "json_schema", "json_schema": {**ANY, "name": ""}}},
        "response_format.json_schema.name",
    ),
    ({"response_format": schema(False)}, "response_format.json_schema.schema"),
    ({"response_format": schema({"type": "nothing"})}, "response_format.json_schema.schema"),
    ({"response_format": schema({"uniqueItems": True})}, "response_format.json_schema.schema"),
    ({"response_format": schema({"type": "string", "pattern": "("})}, "response_format.json_schema.schema"),
    ({"response_format": schema({"$ref": "#"})}, "response_format.json_schema.schema"),
    ({"response_format": schema({"$ref": "http://127.0.0.1/x"})}, "response_format.json_schema.schema"),
    ({"response_format": schema({"type": "integer", "multipleOf": 982451653})}, "response_format.json_schema.schema"),
    ({"response_format": schema({"enum": ["x" * 70_000]})}, "response_format.json_schema.schema"),
    ({"structured_outputs": {}, "guided_json": "{"}, "guided_json"),
    ({"structured_outputs": {"json": 5}}, "structured_outputs.json"),
    ({"structured_outputs": {"regex": "("}}, "structured_outputs.regex"),
    ({"structured_outputs": {"regex": "a\\"}}, "structured_outputs.regex"),
    ({"structured_outputs": {"regex": "(?=a)b"}}, "structured_outputs.regex"),
    ({"structured_outputs": {"regex": "(a?){5000}a{5000}"}}, "structured_outputs.regex"),
    ({"structured_outputs": {"choice": []}}, "structured_outputs.choice"),
    ({"structured_outputs": {"choice": ["a", ""]}}, "structured_outputs.choice.1"),
    ({"structured_outputs": {"grammar": "root ::= x"}}, "structured_outputs.grammar"),
    ({"structured_outputs": {"json": {}, "regex": "a"}}, "structured_outputs.regex"),
    ({"guided_regex": "a", "response_format": {"type": "json_object"}}, "guided_regex"),
    ({"guided_regex": "a", "min_tokens": 3}, "min_tokens"),
    ({"guided_choice": ["a"], "ignore_eos": True}, "ignore_eos"),
    ({"guided_choice": "a"}, "guided_choice"),
    ({"decoder": 5}, "decoder"),
    ({"threshold": [0.9]}, "threshold"),
    ({"cache": {"kind": "dual"}}, "cache"),
    ({"user": 5}, "user"),
    ({"metadata": "x"}, "metadata"),
    ({"store": "yes"}, "store"),
    ({"frequency_penalty": 2.5}, "frequency_penalty"),
    ({"frequency_penalty": False}, "frequency_penalty"),
    ({"presence_penalty": -2.1}, "presence_penalty"),
    ({"logit_bias": {"6": 101}}, "logit_bias.6"),
    ({"logit_bias": {"6": "1"}}, "logit_bias.6"),
    ({"logit_bias": {"six": 1}}, "logit_bias.six"),
    ({"logit_bias": {"06": 1}}, "logit_bias.06"),
    ({"logit_bias": {"-1": 1}}, "logit_bias.-1"),
    ({"logit_bias": {"1405": 1}}, "logit_bias.1405"),
    ({"logit_bias": {"5": 1}}, "logit_bias.5"),  # the mask
    ({"logit_bias": {str(token): -100 for token in range(301)}}, "logit_bias"),
    ({"logit_bias": [1]}, "logit_bias"),
    ({"prompt_logprobs": 1}, "prompt_logprobs"),
    ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools"),
    ({"tool_choice": "required"}, "tool_choice"),
    ({"functions": [{"name": "f"}]}, "functions"),
    ({"top_k": -2}, "top_k"),
    ({"top_k": 1.5}, "top_k"),
    ({"min_p": 1.1}, "min_p"),
    ({"stop_token_ids": 6}, "stop_token_ids"),
    ({"stop_token_ids": [6, -1]}, "stop_token_ids.1"),
    ({"stop_token_ids": [6, 1405]}, "stop_token_ids.1"),
    ({"stop_token_ids": [5]}, "stop_token_ids.0"),  # the mask
    ({"ignore_eos": 1}, "ignore_eos"),
    ({"min_tokens": -1}, "min_tokens"),
    ({"min_tokens": 6, "max_tokens": 5}, "min_tokens"),
    ({"min_tokens": 1, "stop": ["a"]}, "min_tokens"),
    ({"bad_words": ["a"]}, "bad_words"),
    ({"allowed_token_ids": [6]}, "allowed_token_ids"),
    ({"skip_special_tokens": False}, "skip_special_tokens"),
    ({"repetition_penalty": 1.1}, "repetition_penalty"),
    ({"stream": True, "stream_options": {"continuous_usage_stats": True}}, "stream_options.continuous_usage_stats"),
    ({"service_tier": "priority"}, "service_tier"),
    ({"reasoning_effort": "high"}, "reasoning_effort"),
    ({"modalities": ["audio"]}, "modalities"),
]

BAD_CHATS: list[tuple[dict[str, Any], str]] = [
    ({"messages": []}, "messages"),
    ({"messages": None}, "messages"),
    ({"messages": "Hi"}, "messages"),
    ({"messages": {}}, "messages"),
    ({"messages": ["Hi"]}, "messages.0"),
    ({"messages": [{"role": "user"}]}, "messages.0.content"),
    ({"messages": [{"content": "Hi"}]}, "messages.0.role"),
    ({"messages": [{"role": "robot", "content": "Hi"}]}, "messages.0.role"),
    ({"messages": [{"role": "user", "content": 5}]}, "messages.0.content"),
    ({"messages": [USER, {"role": "user", "content": None}]}, "messages.1.content"),
    ({"messages": [{"role": "user", "content": ["Hi"]}]}, "messages.0.content.0"),
    (
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
        "messages.0.content.0.type",
    ),
    ({"messages": [{**USER, "colour": "red"}]}, "messages.0.colour"),
    ({"messages": [{**USER, "name": "Ann"}]}, "messages.0.name"),
    ({"messages": [{**USER, "tool_call_id": "1"}]}, "messages.0.tool_call_id"),
    ({"continue_final_message": True}, "continue_final_message"),
    ({"add_generation_prompt": False}, "add_generation_prompt"),
    ({"messages": [USER, YES], "continue_final_message": False}, "continue_final_message"),
    ({"messages": [USER, YES], "add_generation_prompt": True}, "add_generation_prompt"),
    ({"logprobs": 0}, "logprobs"),
    ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
    ({"logprobs": True, "top_logprobs": -1}, "top_logprobs"),
    ({"top_logprobs": 2}, "top_logprobs"),
    ({"echo": True}, "echo"),
    ({"best_of": 2}, "best_of"),
    ({"suffix": "end"}, "suffix"),
    ({"messages": [{"role": "user", "content": "\ud800"}]}, "messages.0.content"),
    ({"max_tokens": 5, "max_completion_tokens": 6}, "max_completion_tokens"),
    ({"max_completion_tokens": 0}, "max_completion_tokens"),
    ({"prompt": "Hi"}, "prompt"),
]

BAD_COMPLETIONS: list[tuple[dict[str, Any], str]] = [
    ({"prompt": None}, "prompt"),
    ({"prompt": ""}, "prompt"),
    ({"prompt": []}, "prompt"),
    ({"prompt": [[]]}, "prompt"),
    ({"prompt": ["a", ""]}, "prompt"),
    ({"prompt": ["a", 5]}, "prompt"),
    ({"prompt": 6}, "prompt"),
    ({"prompt": [True]}, "prompt"),
    ({"prompt": [1.0]}, "prompt"),
    ({"prompt": {"text": "a"}}, "prompt"),
    ({"prompt": [-1]}, "prompt"),
    ({"prompt": [6, 1405]}, "prompt"),
    ({"prompt": [[6], [10**30]]}, "prompt"),
    ({"prompt": "\udfff"}, "prompt"),
    ({"prompt": ["a"] * 100, "n": 16}, "prompt"),
    ({"max_completion_tokens": 5}, "max_completion_tokens"),
    ({"messages": []}, "messages"),
    ({"logprobs": True}, "logprobs"),
    ({"logprobs": 21}, "logprobs"),
    ({"top_logprobs": 2}, "top_logprobs"),
    ({"logprobs": 0, "echo": True}, "logprobs"),
    ({"n": 3, "best_of": 2}, "best_of"),
    ({"best_of": 17}, "best_of"),
    ({"best_of": 2, "stream": True}, "best_of"),
    ({"continue_final_message": True}, "continue_final_message"),
]


def ids(case: object) -> str:
    return ascii(case)[:60] if isinstance(case, dict) else ""


@pytest.mark.parametrize(("fields", "param"), BAD_IN_BOTH + BAD_CHATS, ids=ids)
async def test_a_bad_chat_is_a_400_that_names_the_parameter(api: Any, fields: Any, param: str) -> None:
    engine = FakeEngine()
    async with api(engine) as client:
        response = await client.raw("/v1/chat/completions", json.dumps({**CHAT, **fields}))
    assert response.status_code == 400, response.text
    error = error_of(response)
    assert (error["param"], error["type"]) == (param, "invalid_request_error")
    assert param in error["message"]
    assert_plain(error["message"])
    assert engine.prompts == [], "a refused request must not reach the engine"


@pytest.mark.parametrize(("fields", "param"), BAD_IN_BOTH + BAD_COMPLETIONS, ids=ids)
async def test_a_bad_completion_is_a_400_that_names_the_parameter(api: Any, fields: Any, param: str) -> None:
    engine = FakeEngine()
    async with api(engine) as client:
        response = await client.raw("/v1/completions", json.dumps({**COMPLETION, **fields}))
    assert response.status_code == 400, response.text
    assert error_of(response)["param"] == param
    assert_plain(error_of(response)["message"])
    assert engine.prompts == []


def assert_plain(message: str) -> None:
    """What must be is said once, and what was given is; no library speaks."""
    assert not re.search(r"Input should|after validation|extract fields|valid (dict|list|integer|number)", message)
    assert message.count("must be") < 2
    assert len(re.findall(r", not \S", message)) < 2


@pytest.mark.parametrize("missing", ["model", "messages"])
async def test_what_is_required_is_said_to_be(api: Any, missing: str) -> None:
    body = {name: value for name, value in CHAT.items() if name != missing}
    async with api() as client:
        response = await client.raw("/v1/chat/completions", json.dumps(body))
    assert response.status_code == 400
    assert error_of(response)["param"] == missing
    assert "required" in error_of(response)["message"]


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e400"])
@pytest.mark.parametrize(
    ("field", "param"),
    [
        ('"temperature": %s', "temperature"),
        ('"threshold": %s', "threshold"),
        ('"metadata": {"a": [%s]}', "metadata.a.0"),
        ('"logit_bias": {"6": %s}', "logit_bias.6"),
    ],
)
async def test_numbers_are_finite_everywhere(api: Any, number: str, field: str, param: str) -> None:
    body = json.dumps(CHAT)[:-1] + ", " + field % number + "}"
    async with api() as client:
        response = await client.raw("/v1/chat/completions", body)
    assert response.status_code == 400
    assert error_of(response)["param"] == param


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'"text"',
        b"5",
        b"\xff\xfe",
        b'{"model": }',
        b"[" * 100_000,
        b'{"seed": ' + b"9" * 5000 + b"}",
    ],
    ids=lambda body: repr(body[:12]),
)
async def test_a_body_that_is_no_json_object_is_a_400(api: Any, body: bytes) -> None:
    async with api() as client:
        response = await client.raw("/v1/chat/completions", body)
    assert response.status_code == 400, response.text
    error = error_of(response)
    assert (error["type"], error["code"], error["param"]) == ("invalid_request_error", "invalid_json", None)
    assert "Content-Type" not in error["message"], "the header was right"


@pytest.mark.parametrize(
    ("body", "place"),
    [
        (b'{"model": }', "line 1 column 11 (char 10)"),
        (b'{"model": "tiny-llada",\n "messages": [}', "line 2 column 15 (char 38)"),
        (b"{'model': 1}", "line 1 column 2 (char 1)"),
        (b'{"model": "tiny-llada"', "line 1 column 23 (char 22)"),
    ],
    ids=["no value", "no item", "single quotes", "no end"],
)
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/tokenize", "/detokenize"])
async def test_json_that_is_broken_is_told_where(api: Any, path: str, body: bytes, place: str) -> None:
    async with api() as client:
        response = await client.raw(path, body)
    error = error_of(response)
    assert (response.status_code, error["code"], error["param"]) == (400, "invalid_json", None)
    assert error["message"].startswith("the body is not valid JSON: ")
    assert error["message"].endswith(place)


async def test_a_body_sent_as_a_form_is_told_of_the_content_type(api: Any) -> None:
    async with api() as client:
        response = await client.raw("/v1/chat/completions", json.dumps(CHAT), "application/x-www-form-urlencoded")
    assert response.status_code == 400
    assert "application/json" in error_of(response)["message"]


async def test_a_name_that_unicode_cannot_carry_is_refused_too(api: Any) -> None:
    async with api() as client:
        response = await client.raw("/v1/chat/completions", json.dumps({**CHAT, "\ud800": 1}))
    assert response.status_code == 400
    assert "Unicode" in error_of(response)["message"]


async def test_a_long_value_is_quoted_in_short(api: Any) -> None:
    async with api() as client:
        response = await client.chat(temperature="x" * 10_000)
    assert len(error_of(response)["message"]) < 300


@pytest.mark.parametrize(
    ("body", "param"),
    [({"n": 9}, "n"), ({"n": 1, "best_of": 9}, "best_of"), ({"n": 5, "prompt": ["a", "b"]}, "prompt")],
)
async def test_more_answers_than_may_wait_are_refused_by_what_asks_for_them(api: Any, body: Any, param: str) -> None:
    async with api(max_queue=8) as client:
        response = await client.complete(**{"prompt": "a", **body})
    assert response.status_code == 400
    assert error_of(response)["param"] == param


async def test_a_name_given_twice_in_a_schema_as_text_is_refused(api: Any) -> None:
    async with api() as client:
        response = await client.chat(guided_json='{"type": "boolean", "type": "integer"}')
    assert response.status_code == 400
    assert error_of(response)["param"] == "guided_json"
    assert "more than once" in error_of(response)["message"]
