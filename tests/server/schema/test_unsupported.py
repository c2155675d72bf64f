"""Names that an endpoint does not know, or does not support yet, are refused by name; what asks nothing is welcome."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from asynclane.clients import calls
from asynclane.scheduler.decoding.resolve import ALL_PARAMS
from asynclane.server.api.tokenize import TextToTokens
from asynclane.server.schema.requests import ChatCompletionRequest, CompletionRequest, DecoderParams
from asynclane.server.schema.unsupported import CHAT as CHAT_PATH
from asynclane.server.schema.unsupported import COMPLETIONS, unsupported_by

from ...support.fake_engine import FakeEngine
from ...support.http import CHAT, COMPLETION, error_of

CHAT_UNSUPPORTED, COMPLETION_UNSUPPORTED = unsupported_by(CHAT_PATH), unsupported_by(COMPLETIONS)
USER = {"role": "user", "content": "Hi"}


@pytest.mark.parametrize(
    ("name", "value"), [(name, value) for name, values in CHAT_UNSUPPORTED.items() for value in (None, *values)]
)
async def test_a_value_that_asks_nothing_is_welcome(api: Any, name: str, value: object) -> None:
    async with api() as client:
        response = await client.chat(**{name: value})
    assert response.status_code == 200, response.text


ASKING = [("chat", name) for name in CHAT_UNSUPPORTED] + [("complete", name) for name in COMPLETION_UNSUPPORTED]


@pytest.mark.parametrize(("endpoint", "name"), ASKING)
async def test_whatever_is_not_supported_is_refused_by_name(api: Any, endpoint: str, name: str) -> None:
    engine = FakeEngine()
    async with api(engine) as client:
        response = await getattr(client, endpoint)(**{name: {"asks": ["for", "something"]}})
    assert response.status_code == 400, response.text
    assert (error_of(response)["param"], error_of(response)["code"]) == (name, "unsupported_parameter")
    assert engine.prompts == []


def only_in(one: Any, other: Any) -> list[str]:
    return sorted(one.model_fields.keys() - other.model_fields.keys())


@pytest.mark.parametrize(
    ("endpoint", "name", "owner"),
    [("chat", name, "/v1/completions") for name in only_in(CompletionRequest, ChatCompletionRequest)]
    + [("complete", name, "/v1/chat/completions") for name in only_in(ChatCompletionRequest, CompletionRequest)],
)
async def test_what_only_the_other_endpoint_has_is_refused_with_its_path(
    api: Any, endpoint: str, name: str, owner: str
) -> None:
    async with api() as client:
        response = await getattr(client, endpoint)(**{name: {"asks": ["for", "something"]}})
    assert response.status_code == 400, response.text
    assert error_of(response)["param"] == name
    assert f"only {owner} has it" in error_of(response)["message"]


@pytest.mark.parametrize(
    ("path", "body", "offered"),
    [
        ("/v1/chat/completions", CHAT, set(ALL_PARAMS)),
        ("/v1/completions", COMPLETION, set(ALL_PARAMS)),
        ("/tokenize", {"prompt": "a"}, set(TextToTokens.model_fields)),
        ("/detokenize", {"tokens": [6]}, {"tokens", "model"}),
    ],
)
async def test_an_unknown_name_is_told_what_the_endpoint_takes(api: Any, path: str, body: Any, offered: Any) -> None:
    async with api() as client:
        error = error_of(await client.raw(path, json.dumps({**body, "no_such_thing": 1})), 400)
    assert (error["param"], error["code"]) == ("no_such_thing", "unknown_parameter")
    assert set(re.findall(r"\w+", error["message"].partition("; ")[2])) >= offered
    assert not set(re.findall(r"\w+", error["message"])) & (set(ALL_PARAMS) - offered)


async def test_what_only_a_chat_has_is_welcome_in_a_completion_if_it_asks_nothing(api: Any) -> None:
    async with api() as client:
        response = await client.complete(**dict.fromkeys(COMPLETION_UNSUPPORTED), n=1)
        assert response.status_code == 200, response.text
        assert (await client.complete(top_logprobs=0)).status_code == 200


async def test_best_of_n_is_all_of_n(api: Any) -> None:
    async with api() as client:
        response = await client.complete(n=3, best_of=3)
    assert len(response.json()["choices"]) == 3


async def test_null_means_not_given(api: Any) -> None:
    names = (
        "temperature",
        "top_p",
        "seed",
        "stop",
        "n",
        "stream",
        "stream_options",
        "max_tokens",
        "user",
        "steps",
    )
    async with api() as client:
        response = await client.chat(**dict.fromkeys(names))
    assert response.status_code == 200, response.text


async def test_an_earlier_answer_can_be_sent_back_as_sdks_dump_it(api: Any) -> None:
    said = {"role": "assistant", "content": "Yes.", "refusal": None, "tool_calls": None, "annotations": []}
    async with api() as client:
        response = await client.chat(messages=[USER, said, USER])
    assert response.status_code == 200, response.text


@pytest.mark.parametrize(
    ("options", "body"), [(calls.ChatParams, ChatCompletionRequest), (calls.TextParams, CompletionRequest)]
)
def test_the_client_has_a_type_for_every_parameter(options: Any, body: Any) -> None:
    """But for those that its calls set themselves, tools, which other servers know, and knobs of single
    methods and rules, which go into `extra`."""
    own = {"model", "messages", "prompt", "stream", "stream_options"}
    ours = (
        set(body.model_fields)
        - own
        - {knob for knob in ALL_PARAMS if knob not in calls.DecoderParams.__optional_keys__}
    )
    assert ours == set(options.__optional_keys__) - {"tools", "tool_choice"}


def test_the_knobs_of_the_api_are_those_of_the_scheduler() -> None:
    assert set(DecoderParams.model_fields) == set(ALL_PARAMS)
