"""Unknown and unsupported parameters are refused by name, unless their value is neutral."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from asynclane.clients import calls
from asynclane.scheduler.decoding.resolve import ALL_PARAMS
from asynclane.server.api.tokenize import TextToTokens
from asynclane.server.schema.chat_request import ChatCompletionRequest
from asynclane.server.schema.completion_request import CompletionRequest
from asynclane.server.schema.requests import DecoderParams
from asynclane.server.schema.unsupported import CHAT as CHAT_PATH
from asynclane.server.schema.unsupported import COMPLETIONS, unsupported_by

from ...support.fake_engine import FakeEngine
from ...support.http import CHAT, COMPLETION, error_of

CHAT_UNSUPPORTED, COMPLETION_UNSUPPORTED = unsupported_by(CHAT_PATH), unsupported_by(COMPLETIONS)
USER = {"role": "user", "content": "Hi"}
SENT_BACK: dict[str, Any] = {
    "role": "assistant",
    "content": "Yes.",
    "refusal": None,
    "tool_calls": None,
    "annotations": [],
}
NULL = "temperature top_p seed stop n stream stream_options max_tokens user steps".split()
HINTS: list[dict[str, Any]] = [
    {"prompt_cache_key": "a"},
    {"prompt_cache_retention": "24h"},
    {"safety_identifier": "a"},
    {"verbosity": "low"},
]
NEUTRAL: list[tuple[str, dict[str, Any]]] = [
    *(("chat", {name: value}) for name, values in CHAT_UNSUPPORTED.items() for value in (None, *values)),
    ("chat", dict.fromkeys(NULL)),
    ("chat", {"messages": [USER, SENT_BACK, USER]}),
    *(("chat", hint) for hint in HINTS),
    *(("complete", hint) for hint in HINTS),
    ("chat", {"tools": [{"type": "function", "function": {"name": "f"}}], "tool_choice": "none"}),
    ("chat", {"stop": [str(number) for number in range(16)]}),
    ("chat", {"messages": [{**USER, "name": "Ann"}]}),
    ("complete", {"add_special_tokens": True}),
    ("chat", {"tools": [], "tool_choice": "auto", "parallel_tool_calls": False, "chat_template_kwargs": {}}),
    ("chat", {"reasoning_effort": "high"}),
    ("chat", {"messages": [USER, {**SENT_BACK, "reasoning_content": "Hm."}, USER]}),
    ("complete", {**dict.fromkeys(COMPLETION_UNSUPPORTED), "n": 1}),
    ("complete", {"top_logprobs": 0}),
    ("complete", {"n": 3, "best_of": 3}),
    ("chat", {"model": None, "bad_words": [], "allowed_token_ids": [], "include_stop_str_in_output": True}),
    ("complete", {"model": None, "bad_words": [], "allowed_token_ids": [], "repetition_penalty": 1}),
]


@pytest.mark.parametrize(("endpoint", "fields"), NEUTRAL, ids=str)
async def test_a_neutral_value_is_accepted(api: Any, endpoint: str, fields: dict[str, Any]) -> None:
    async with api() as client:
        response = await getattr(client, endpoint)(**fields)
    assert response.status_code == 200, response.text
    assert len(response.json()["choices"]) == (fields.get("n") or 1)


UNSUPPORTED = [("chat", name) for name in CHAT_UNSUPPORTED] + [("complete", name) for name in COMPLETION_UNSUPPORTED]


@pytest.mark.parametrize(("endpoint", "name"), UNSUPPORTED)
async def test_whatever_is_not_supported_is_refused_by_name(api: Any, endpoint: str, name: str) -> None:
    engine = FakeEngine()
    async with api(engine) as client:
        error = error_of(await getattr(client, endpoint)(**{name: {"some": ["value"]}}), 400)
    assert (error["param"], error["code"]) == (name, "unsupported_parameter")
    assert engine.prompts == []


@pytest.mark.parametrize(
    ("path", "name", "value", "hint"),
    [
        ("/v1/responses", "truncation", "auto", "leave it out"),
        ("/v1/responses", "store", True, "give false, or leave it out"),
        ("/v1/responses", "max_tokens", 5, "this endpoint calls it max_output_tokens"),
        ("/v1/responses", "messages", [], "this endpoint calls it input"),
        ("/v1/messages", "stop", "a", "this endpoint calls it stop_sequences"),
        ("/v1/messages", "system", 5, "must be a string or a list of blocks, not 5"),
        (CHAT_PATH, "max_output_tokens", 5, "this endpoint calls it max_tokens"),
        (COMPLETIONS, "stop_sequences", ["a"], "this endpoint calls it stop"),
        (COMPLETIONS, "gen_length", 5, "this endpoint calls it max_tokens"),
        (CHAT_PATH, "gen_len", 5, "this endpoint calls it max_tokens"),
        (CHAT_PATH, "max_new_tokens", 5, "this endpoint calls it max_tokens"),
        ("/v1/responses", "max_new_tokens", 5, "this endpoint calls it max_output_tokens"),
        ("/v1/messages", "gen_length", 5, "this endpoint calls it max_tokens"),
        (CHAT_PATH, "random_seed", 5, "this endpoint calls it seed"),
        (CHAT_PATH, "enable_thinking", True, "this endpoint calls it chat_template_kwargs.enable_thinking"),
        (CHAT_PATH, "service_tier", "flex", "leave it out"),
        (CHAT_PATH, "use_beam_search", True, "but true was given: give false, or leave it out"),
        (COMPLETIONS, "functions", [None, True], "but [null, true] was given"),
    ],
)
async def test_a_refusal_says_what_to_send_instead(api: Any, path: str, name: str, value: Any, hint: str) -> None:
    bodies = {"/v1/responses": {"input": "Hi"}, "/v1/messages": {**CHAT, "max_tokens": 8}, CHAT_PATH: CHAT}
    async with api() as client:
        response = await client.raw(path, json.dumps({**bodies.get(path, COMPLETION), name: value}))
    assert response.status_code == 400
    message = response.json()["error"]["message"]
    assert message.startswith(f"{name}: ")
    assert hint in message


def only_in(one: Any, other: Any) -> list[str]:
    return sorted(one.model_fields.keys() - other.model_fields.keys())


@pytest.mark.parametrize(
    ("endpoint", "name", "owner"),
    [("chat", name, COMPLETIONS) for name in only_in(CompletionRequest, ChatCompletionRequest)]
    + [("complete", name, CHAT_PATH) for name in only_in(ChatCompletionRequest, CompletionRequest)],
)
async def test_a_parameter_of_the_other_endpoint_is_refused_with_its_path(
    api: Any, endpoint: str, name: str, owner: str
) -> None:
    async with api() as client:
        error = error_of(await getattr(client, endpoint)(**{name: {"some": ["value"]}}), 400)
    assert error["param"] == name
    assert f"only {owner} has it" in error["message"]


@pytest.mark.parametrize(
    ("path", "body", "offered"),
    [
        (CHAT_PATH, CHAT, set(ALL_PARAMS)),
        (COMPLETIONS, COMPLETION, set(ALL_PARAMS)),
        ("/tokenize", {"prompt": "a"}, set(TextToTokens.model_fields)),
        ("/detokenize", {"tokens": [6]}, {"tokens", "model"}),
    ],
)
@pytest.mark.parametrize("name", ["xyzzy", "cfg_scale", "lora_request", "params", "remasking"])
async def test_the_error_about_an_unknown_name_lists_the_known_ones(
    api: Any, path: str, body: Any, offered: Any, name: str
) -> None:
    """Also about names of LLaDA's and vLLM's that mean nothing here: no name is guessed for them."""
    async with api() as client:
        error = error_of(await client.raw(path, json.dumps({**body, name: 1})), 400)
    assert (error["param"], error["code"]) == (name, "unknown_parameter")
    assert set(re.findall(r"\w+", error["message"].partition("; ")[2])) >= offered
    assert not set(re.findall(r"\w+", error["message"])) & (set(ALL_PARAMS) - offered)


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("temprature", "temperature"),
        ("badwords", "bad_words"),
        ("blok_length", "block_length"),
        ("lookahed", "lookahead"),
        ("freq_penalty", "frequency_penalty"),
        ("Max_Lanes", "max_lanes"),
        ("treshold", "threshold"),
        ("response_fromat", "response_format"),
    ],
)
async def test_the_error_about_a_misspelt_name_has_the_nearest(api: Any, name: str, nearest: str) -> None:
    async with api() as client:
        for endpoint in (client.chat, client.complete):
            error = error_of(await endpoint(**{name: 1}), 400)
            assert (error["param"], error["code"]) == (name, "unknown_parameter")
            assert error["message"].endswith(f"did you mean {nearest}?")


@pytest.mark.parametrize(
    ("options", "body"), [(calls.ChatParams, ChatCompletionRequest), (calls.TextParams, CompletionRequest)]
)
def test_the_client_has_a_type_for_every_parameter(options: Any, body: Any) -> None:
    """Except for those that its calls set themselves, and rare decoding parameters, which go into `extra`."""
    own = {"model", "messages", "prompt", "stream", "stream_options"}
    rare = set(ALL_PARAMS) - calls.DecoderParams.__optional_keys__
    assert set(body.model_fields) - own - rare == set(options.__optional_keys__)


def test_the_api_has_all_decoding_parameters() -> None:
    assert set(DecoderParams.model_fields) == set(ALL_PARAMS)
