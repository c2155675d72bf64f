"""A parameter is honoured or refused with HTTP 400 and its name."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from asynclane.scheduler import ALL_PARAMS
from asynclane.server.schema import limits
from asynclane.server.schema.completion_request import CompletionRequest

from ...support.fake_engine import FakeEngine
from ...support.http import CHAT, error_of

USER = {"role": "user", "content": "Hi"}
PART = {"type": "text", "text": ""}
NO_CALLS = {"tool_choice": "none"}
YES = {"role": "assistant", "content": "Yes,"}
ANY: dict[str, Any] = {"name": "any", "schema": {}}
SCHEMA = "response_format.json_schema.schema"

# By name: values that are refused by that name.
Values = dict[str, list[Any]]
BAD_VALUES: Values = {
    "no_such_thing": [1, None],
    "model": [5],
    "temperature": [-0.1, 2.1, "1", True, [1], 10**400],
    "top_p": [0, 1.5],
    "seed": [2**63, -(2**63) - 1, 1.5, True],
    "max_tokens": [0, -1, "5", True, 1.5],
    "n": [0, 17, True],
    "stop": [["a"] * 17, 5],
    "stream": ["true", 1],
    "stream_options": [{"include_usage": True}],
    "response_format": ["json"],
    "guided_json": ["{"],
    "guided_choice": ["a"],
    "decoder": [5],
    "threshold": [[0.9]],
    "cache": [{"kind": "dual"}],
    "user": [5],
    "verbosity": ["loud"],
    "safety_identifier": [5],
    "prompt_cache_key": [[]],
    "metadata": ["x"],
    "store": ["yes"],
    "frequency_penalty": [2.5, False],
    "presence_penalty": [-2.1],
    "repetition_penalty": [0, 1e-39, -1, 10.5, "1"],
    "include_stop_str_in_output": [1, "yes"],
    "bad_words": ["a"],
    "allowed_token_ids": [6, {"6": 1}],
    "logit_bias": [{str(token): -100 for token in range(301)}, [1]],
    "top_k": [-2, 1.5],
    "min_p": [1.1],
    "stop_token_ids": [6],
    "ignore_eos": [1],
    "min_tokens": [-1],
}
BAD_CHAT_VALUES: Values = {
    "messages": [[], None, "Hi", {}],
    "continue_final_message": [True],
    "add_generation_prompt": [False],
    "logprobs": [0],
    "top_logprobs": [2],
    "max_completion_tokens": [0],
}
BAD_COMPLETION_VALUES: Values = {
    "prompt": [None, "", "\udfff", 6, {"text": "a"}, [], [[]], ["a", ""], ["a", 5], [True], [1.0], [-1], [6, 1405]],
    "logprobs": [True, 21],
    "top_logprobs": [2],
    "best_of": [17],
    "continue_final_message": [True],
}

Cases = list[tuple[str, dict[str, Any]]]
STREAMED: Cases = [
    ("stream_options.include_usage", {"include_usage": "yes"}),
    ("stream_options.include_everything", {"include_everything": True}),
    ("stream_options.include_lanes", {"include_lanes": 1}),
    ("stream_options.continuous_usage_stats", {"continuous_usage_stats": True}),
]
FORMATS: Cases = [
    ("response_format.type", {"type": "xml"}),
    ("response_format.json_schema", {"type": "json_schema"}),
    ("response_format.json_schema", {"type": "json_object", "json_schema": ANY}),
    (SCHEMA, {"type": "json_schema", "json_schema": {"name": "a"}}),
    ("response_format.json_schema.name", {"type": "json_schema", "json_schema": {**ANY, "name": ""}}),
]
SCHEMAS: list[object] = [
    False,
    {"type": "nothing"},
    {"uniqueItems": True},
    {"type": "string", "pattern": "("},
    {"$ref": "#"},
    {"$ref": "http://127.0.0.1/x"},
    {"type": "integer", "multipleOf": 982451653},
    {"enum": ["x" * 70_000]},
]
STRUCTURED: Cases = [
    ("structured_outputs.json", {"json": 5}),
    *(("structured_outputs.regex", {"regex": regex}) for regex in ("(", "a\\", "(?=a)b", "(a?){5000}a{5000}")),
    ("structured_outputs.choice", {"choice": []}),
    ("structured_outputs.choice.1", {"choice": ["a", ""]}),
    ("structured_outputs.grammar", {"grammar": "root ::= x"}),
    ("structured_outputs.regex", {"json": {}, "regex": "a"}),
]
BIASES: Cases = [  # 5 is the mask
    *((f"logit_bias.{name}", {name: 1}) for name in ("six", "06", "-1", "1405", "5")),
    ("logit_bias.6", {"6": 101}),
    ("logit_bias.6", {"6": "1"}),
]
BAD_IN_BOTH: Cases = [
    *((param, {param: value}) for param, values in BAD_VALUES.items() for value in values),
    *((param, {"stream": True, "stream_options": options}) for param, options in STREAMED),
    *((param, {"response_format": wanted}) for param, wanted in FORMATS),
    *((SCHEMA, {"response_format": {"type": "json_schema", "json_schema": {**ANY, "schema": s}}}) for s in SCHEMAS),
    *((param, {"structured_outputs": outputs}) for param, outputs in STRUCTURED),
    *((param, {"logit_bias": bias}) for param, bias in BIASES),
    *((param, {"stop": stop}) for param, stop in [("stop.0", ""), ("stop.1", ["a", ""]), ("stop.0", ["x" * 1001])]),
    ("stop.0", {"stop": [5]}),
    ("prompt_logprobs", {"stream": True, "prompt_logprobs": 0}),
    ("stream_options", {"stream": False, "stream_options": {}}),
    ("stream_options", {"stream": False, "stream_options": {"include_lanes": True}}),
    ("stream_options", {"stream": True, "stream_options": []}),
    ("guided_json", {"structured_outputs": {}, "guided_json": "{"}),
    ("guided_regex", {"guided_regex": "a", "response_format": {"type": "json_object"}}),
    ("structured_outputs.json_object", {"guided_regex": "a", "structured_outputs": {"json_object": True}}),
    ("min_tokens", {"guided_regex": "a", "min_tokens": 3}),
    ("ignore_eos", {"guided_choice": ["a"], "ignore_eos": True}),
    ("min_tokens", {"min_tokens": 6, "max_tokens": 5}),
    ("min_tokens", {"min_tokens": 1, "stop": ["a"]}),
    ("stop_token_ids.1", {"stop_token_ids": [6, -1]}),
    ("stop_token_ids.1", {"stop_token_ids": [6, 1405]}),
    ("stop_token_ids.0", {"stop_token_ids": [5]}),
    *((f"bad_words.{len(words) - 1}", {"bad_words": words}) for words in ([5], ["a", ""])),
    ("bad_words", {"bad_words": ["a"], "guided_regex": "a"}),
    ("bad_words", {"bad_words": ["x" * 60_000, "y" * 60_000]}),
    ("allowed_token_ids", {"bad_words": ["a"], "allowed_token_ids": [6]}),
    ("allowed_token_ids.1", {"allowed_token_ids": [6, -1]}),
    ("allowed_token_ids.1", {"allowed_token_ids": [6, 1405]}),
    ("allowed_token_ids.0", {"allowed_token_ids": [5]}),
    *(("allowed_token_ids", {"allowed_token_ids": [token]}) for token in (1, 6)),  # an end token alone, and without one
    ("allowed_token_ids", {"allowed_token_ids": [6], "stop_token_ids": [6], "min_tokens": 1}),
]
IMAGE = {"type": "image_url", "image_url": {"url": "x"}}
MESSAGES: list[tuple[str, list[Any]]] = [
    ("messages.0", ["Hi"]),
    ("messages.0.content", [{"role": "user"}]),
    ("messages.0.role", [{"content": "Hi"}]),
    ("messages.0.role", [{"role": "robot", "content": "Hi"}]),
    ("messages.0.content", [{"role": "user", "content": 5}]),
    ("messages.1.content", [USER, {"role": "user", "content": None}]),
    ("messages.0.content.0", [{"role": "user", "content": ["Hi"]}]),
    ("messages.0.content.0.type", [{"role": "user", "content": [IMAGE]}]),
    ("messages.0.colour", [{**USER, "colour": "red"}]),
    ("messages.0.name", [{**USER, "name": ""}]),
    ("messages.0.tool_call_id", [{**USER, "tool_call_id": "1"}]),
    ("messages.0.content", [{"role": "user", "content": "\ud800"}]),
]
BAD_CHATS: Cases = [
    *((param, {param: value}) for param, values in BAD_CHAT_VALUES.items() for value in values),
    *((param, {"messages": messages}) for param, messages in MESSAGES),
    ("continue_final_message", {"messages": [USER, YES], "continue_final_message": False}),
    ("add_generation_prompt", {"messages": [USER, YES], "add_generation_prompt": True}),
    ("top_logprobs", {"logprobs": True, "top_logprobs": 21}),
    ("top_logprobs", {"logprobs": True, "top_logprobs": -1}),
    ("max_completion_tokens", {"max_tokens": 5, "max_completion_tokens": 6}),
]
# Of an answer: none is written where the prompt is scored.
ANSWERING: dict[str, Any] = {
    "stream": True,
    "n": 2,
    "best_of": 2,
    "suffix": "a",
    "decoder": "llada",
    "threshold": 0.5,
    "stop": "a",
    "stop_token_ids": [5],
    "ignore_eos": True,
    "presence_penalty": 1,
    "frequency_penalty": 1,
    "repetition_penalty": 1.5,
    "include_stop_str_in_output": True,
    "guided_regex": "a",
    "bad_words": ["a"],
    "allowed_token_ids": [6],
}
DRAWING: dict[str, Any] = {"temperature": 0.5, "top_p": 0.9, "top_k": 5, "min_p": 0.1}
BAD_COMPLETIONS: Cases = [
    *((param, {param: value}) for param, values in BAD_COMPLETION_VALUES.items() for value in values),
    ("prompt", {"prompt": [[6], [10**30]]}),
    ("prompt", {"prompt": ["a"] * 100, "n": 16}),
    ("max_tokens", {"max_tokens": 0}),
    ("max_tokens", {"max_tokens": 0, "echo": True}),
    ("max_tokens", {"max_tokens": 0, "logprobs": 1}),
    ("prompt_logprobs", {"prompt_logprobs": 0, "logprobs": 0, "echo": True, "max_tokens": 0}),
    ("max_tokens", {"logprobs": 0, "echo": True}),
    ("max_tokens", {"logprobs": 0, "echo": True, "max_tokens": 2}),
    ("max_tokens", {"logprobs": 0, "echo": True, "max_tokens": 1, "likelihood": "monte-carlo"}),
    ("logprobs", {"logprobs": 1, "echo": True, "max_tokens": 0, "likelihood": "monte-carlo"}),
    ("likelihood_samples", {"logprobs": 1, "echo": True, "max_tokens": 0, "likelihood_samples": 8}),
    ("likelihood", {"likelihood": "chain"}),
    ("likelihood", {"logprobs": 1, "echo": True, "max_tokens": 0, "likelihood": "exact"}),
    ("likelihood_start", {"likelihood_start": 1}),
    ("likelihood_start", {"logprobs": 1, "echo": True, "max_tokens": 0, "likelihood_start": 900}),
    *(
        (param, {"logprobs": 1, "echo": True, "max_tokens": 0, param: value})
        for param, value in {**ANSWERING, **DRAWING}.items()
    ),
    ("best_of", {"n": 3, "best_of": 2}),
    ("best_of", {"best_of": 2, "stream": True}),
]


def ids(case: object) -> str:
    return ascii(case)[:60] if isinstance(case, dict) else ""


CASES = [("chat", *case) for case in BAD_IN_BOTH + BAD_CHATS]
CASES += [("complete", *case) for case in BAD_IN_BOTH + BAD_COMPLETIONS]


@pytest.mark.parametrize(("endpoint", "param", "fields"), CASES, ids=ids)
async def test_a_bad_value_is_refused_by_the_name_of_its_parameter(
    api: Any, endpoint: str, param: str, fields: Any
) -> None:
    engine = FakeEngine()
    async with api(engine) as client:
        error = error_of(await getattr(client, endpoint)(**fields), 400)
    assert (error["param"], error["type"]) == (param, "invalid_request_error")
    assert param in error["message"]
    assert not re.search(r"Input should|after validation|extract fields|valid (dict|list|integer)", error["message"])
    assert error["message"].count("must be") < 2, "it says once what is allowed"
    assert len(re.findall(r", not \S", error["message"])) < 2, "and once what was given"
    assert engine.prompts == [], "a refused request must not reach the engine"


@pytest.mark.parametrize("fields", [{"max_tokens": 0}, {"max_tokens": 1}, {"max_tokens": 1, **DRAWING}], ids=ids)
def test_a_prompt_that_is_scored_takes_what_evaluation_tools_send_and_what_draws_a_token(fields: Any) -> None:
    """lm-evaluation-harness sends a temperature of 0 and a seed."""
    sent = {"prompt": [5, 6], "logprobs": 1, "echo": True, "temperature": 0, "seed": 1234, **fields}
    assert CompletionRequest.model_validate(sent).scores_prompt


def function(name: str, **fields: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, **fields}}


def messages(count: int) -> dict[str, Any]:
    return {"messages": [USER] * count}


# By parameter: the limit, and fields that have so many entries or characters.
LIMITS: list[tuple[str, str, int, Any]] = [
    ("chat", "messages", limits.MESSAGES, messages),
    ("chat", "messages.0.content", limits.PARTS, lambda n: {"messages": [{**USER, "content": [PART] * n}]}),
    ("chat", "messages.0.name", limits.NAME_CHARS, lambda n: {"messages": [{**USER, "name": "x" * n}]}),
    ("chat", "tools", limits.TOOLS, lambda n: {"tools": [function(f"f{at}") for at in range(n)], **NO_CALLS}),
    (
        "chat",
        "tools.0.function.parameters",
        limits.GRAMMAR_CHARS,
        lambda n: {"tools": [function("f", parameters={"title": "x" * (n - 13)})], **NO_CALLS},
    ),
    ("chat", "user", limits.HINT_CHARS, lambda n: {"user": "x" * n}),
    ("chat", "cache_salt", limits.SALT_CHARS, lambda n: {"cache_salt": "x" * n}),
    ("chat", "metadata", limits.METADATA, lambda n: {"metadata": dict.fromkeys(map(str, range(n)), "x")}),
    ("chat", "metadata.a", limits.METADATA_TEXT_CHARS, lambda n: {"metadata": {"a": "x" * n}}),
    ("chat", "stop", limits.STOPS, lambda n: {"stop": ["x"] * n}),
    ("chat", "stop.0", limits.STOP_CHARS, lambda n: {"stop": "x" * n}),
    ("chat", "stop_token_ids", limits.BIASES, lambda n: {"stop_token_ids": list(range(6, 6 + n))}),
    ("chat", "logit_bias", limits.BIASES, lambda n: {"logit_bias": dict.fromkeys(map(str, range(6, 6 + n)), 1)}),
    ("chat", "guided_choice", limits.CHOICES, lambda n: {"guided_choice": ["x"] * n}),
    ("chat", "guided_regex", limits.GRAMMAR_CHARS, lambda n: {"guided_regex": "[" + "x" * (n - 2) + "]"}),
    ("chat", "guided_json", limits.GRAMMAR_CHARS, lambda n: {"guided_json": "{" + " " * (n - 2) + "}"}),
    ("chat", "guided_json", limits.SCHEMA_VALUES, lambda n: {"guided_json": {"examples": [1] * (n - 1)}}),
    ("complete", "prompt", limits.PROMPTS, lambda n: {"prompt": ["x"] * n}),
]


@pytest.mark.parametrize(("endpoint", "param", "limit", "fields"), LIMITS, ids=[f"{row[1]}-{row[2]}" for row in LIMITS])
async def test_lists_and_texts_have_limits(api: Any, endpoint: str, param: str, limit: int, fields: Any) -> None:
    async with api(max_queue=limits.PROMPTS, max_request_tokens=2**30) as client:
        response = await getattr(client, endpoint)(**fields(limit))
        assert response.status_code == 200 or error_of(response)["code"] == "context_length_exceeded"
        assert error_of(await getattr(client, endpoint)(**fields(limit + 1)), 400)["param"] == param


@pytest.mark.parametrize("name", ["m" * 65, "decoder", "threshold"])
async def test_names_have_limits(api: Any, name: str) -> None:
    fields = {"metadata": {name: "x"}} if name[0] == "m" else {name: "x" * 65}
    async with api() as client:
        error = error_of(await client.chat(**fields), 400)
    assert error["param"].startswith("metadata." if name[0] == "m" else name)
    assert "64 characters" in error["message"]


@pytest.mark.parametrize("number", [2**63, -(2**63) - 1])
async def test_a_number_of_a_decoder_fits_a_message_to_the_engine(api: Any, number: int) -> None:
    async with api() as client:
        for name in ALL_PARAMS:
            error = error_of(await client.chat(**{name: number}), 400)
            assert error["param"] == name
            assert "64 bits" in error["message"]


@pytest.mark.parametrize("missing", ["messages"])
async def test_a_required_parameter_is_named(api: Any, missing: str) -> None:
    body = {name: value for name, value in CHAT.items() if name != missing}
    async with api() as client:
        error = error_of(await client.raw("/v1/chat/completions", json.dumps(body)), 400)
    assert error["param"] == missing
    assert "required" in error["message"]


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
        assert error_of(await client.raw("/v1/chat/completions", body), 400)["param"] == param


async def test_a_name_that_is_no_unicode_is_refused(api: Any) -> None:
    async with api() as client:
        assert "Unicode" in error_of(await client.chat(**{"\ud800": 1}), 400)["message"]


async def test_a_long_value_is_shortened_in_the_message(api: Any) -> None:
    async with api() as client:
        assert len(error_of(await client.chat(temperature="x" * 10_000), 400)["message"]) < 300


@pytest.mark.parametrize(
    ("body", "param"),
    [({"n": 9}, "n"), ({"n": 1, "best_of": 9}, "best_of"), ({"n": 5, "prompt": ["a", "b"]}, "prompt")],
)
async def test_more_answers_than_the_queue_holds_are_refused(api: Any, body: Any, param: str) -> None:
    async with api(max_queue=8) as client:
        assert error_of(await client.complete(**{"prompt": "a", **body}), 400)["param"] == param


async def test_a_name_given_twice_in_a_schema_as_text_is_refused(api: Any) -> None:
    async with api() as client:
        error = error_of(await client.chat(guided_json='{"type": "boolean", "type": "integer"}'), 400)
    assert error["param"] == "guided_json"
    assert "more than once" in error["message"]
