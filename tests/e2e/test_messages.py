"""Anthropic's client against a real server, with the embedded model that knows tools.

The import of `anthropic` takes a second: only the process that runs these tests makes it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from pydantic import BaseModel, Field

from ..support.scale import part
from ..support.servers import START_S, Server, gauge, wait_for
from ..support.tools import CITY
from .conftest import KEY

if TYPE_CHECKING:
    import anthropic

MODEL = "tiny-chat"
WEATHER: Any = {"name": "get_weather", "description": "Get the weather in a city", "input_schema": CITY}
NOW: Any = {"name": "now", "input_schema": {"type": "object", "properties": {}, "additionalProperties": False}}
QUESTION: Any = {"role": "user", "content": "What is the weather in Paris?"}
TOM = "Tom has 12 books. Then he finds 8 books at the park. How many books does Tom have now?"


@pytest.fixture(scope="module")
def claude(chat_server: Server) -> Iterator[anthropic.Anthropic]:
    import anthropic

    with anthropic.Anthropic(base_url=chat_server.url, api_key=KEY, max_retries=0, timeout=START_S) as client:
        yield client


def whole(client: anthropic.Anthropic, **fields: Any) -> Any:
    return client.messages.create(**{"model": MODEL, "max_tokens": 96, **fields})


def streamed(client: anthropic.Anthropic, **fields: Any) -> Any:
    with client.messages.stream(**{"model": MODEL, "max_tokens": 96, **fields}) as stream:
        return stream.get_final_message()


def said(message: Any) -> dict[str, Any]:
    """All of an answer but what is drawn for each."""
    found = json.loads(message.model_dump_json(exclude={"id", "usage"}, exclude_none=True, warnings=False))
    for block in found["content"]:
        block.pop("id", None)
    return {**found, "output_tokens": message.usage.output_tokens}


@pytest.mark.parametrize(
    "choice",
    part(
        [{"type": "auto"}, {"type": "any", "disable_parallel_tool_use": True}, {"type": "tool", "name": "get_weather"}],
        3,
    ),
    ids=lambda choice: choice["type"],
)
def test_a_tool_is_turned_twice_streamed_and_whole(claude: anthropic.Anthropic, choice: Any) -> None:
    answers = []
    for answer in (whole, streamed):
        messages: list[Any] = [QUESTION]
        turns = []
        for city in ("Paris", "Rome"):
            first = answer(claude, messages=messages, tools=[WEATHER, NOW], tool_choice=choice)
            assert first.stop_reason == "tool_use"
            (call,) = first.content
            assert (call.type, call.name, call.input) == ("tool_use", "get_weather", {"city": city})
            result = {"type": "tool_result", "tool_use_id": call.id, "content": json.dumps({"temperature": 21})}
            messages += [{"role": "assistant", "content": first.content}, {"role": "user", "content": [result]}]
            second = answer(claude, messages=messages, tools=[WEATHER, NOW])
            assert [block.text for block in second.content] == ["The temperature is 21."]
            assert second.stop_reason == "end_turn"
            messages += [
                {"role": "assistant", "content": second.content},
                {"role": "user", "content": "What is the weather in Rome?"},
            ]
            turns += [said(first), said(second)]
        answers.append(turns)
    assert answers[0] == answers[1]


@pytest.mark.parametrize(
    ("fields", "reason", "sequence"),
    [
        ({}, "end_turn", None),
        ({"max_tokens": 3}, "max_tokens", None),
        ({"stop_sequences": ["zzz", "makes"]}, "stop_sequence", "makes"),
        ({"extra_body": {"temperature": 1, "top_p": 0.9, "top_k": 20, "seed": 5}}, None, None),
        ({"extra_body": {"decoder": "fast-dllm"}}, "end_turn", None),
        ({"system": "Be short.", "metadata": {"user_id": "u"}, "service_tier": "auto"}, None, None),
    ],
    ids=str,
)
def test_a_streamed_answer_adds_up_to_the_whole_one(
    claude: anthropic.Anthropic, fields: dict[str, Any], reason: str | None, sequence: str | None
) -> None:
    fields = {"messages": [{"role": "user", "content": TOM}], **fields}
    one, two = whole(claude, **fields), streamed(claude, **fields)
    assert said(one) == said(two)
    assert one.content[0].text
    if reason is not None:
        assert (one.stop_reason, one.stop_sequence) == (reason, sequence)
    counted = claude.messages.count_tokens(
        model=MODEL, **{name: fields[name] for name in ("messages", "system") if name in fields}
    )
    assert one.usage.input_tokens + one.usage.cache_read_input_tokens == counted.input_tokens > 0


def test_the_events_come_in_anthropics_order(claude: anthropic.Anthropic) -> None:
    fields: Any = {"model": MODEL, "max_tokens": 96, "messages": [QUESTION], "tools": [WEATHER, NOW]}
    kinds = [event.type for event in claude.messages.create(**fields, stream=True)]
    middle = [kind for kind in kinds if kind != "content_block_delta"]
    blocks = ["content_block_start", "content_block_stop"]
    assert middle == ["message_start", *blocks, "message_delta", "message_stop"]
    assert kinds.count("content_block_delta") >= 1


class Count(BaseModel):
    count: int = Field(ge=0, le=99)


def test_a_format_is_held(claude: anthropic.Anthropic) -> None:
    parsed = claude.messages.parse(
        model=MODEL, max_tokens=40, messages=[{"role": "user", "content": TOM}], output_format=Count
    )
    assert isinstance(parsed.parsed_output, Count)


async def test_the_client_that_does_not_block_gets_the_same(claude: anthropic.Anthropic, chat_server: Server) -> None:
    from anthropic import AsyncAnthropic

    messages: Any = [{"role": "user", "content": TOM}]
    one = whole(claude, messages=messages)
    async with AsyncAnthropic(base_url=chat_server.url, api_key=KEY, max_retries=0) as client:
        two = await client.messages.create(model=MODEL, max_tokens=96, messages=messages)
        async with client.messages.stream(model=MODEL, max_tokens=96, messages=messages) as stream:
            text = "".join([piece async for piece in stream.text_stream])
    assert said(one) == said(two)
    assert one.content[0].text == text


def test_an_answer_that_was_begun_is_continued_by_anthropics_client(claude: anthropic.Anthropic) -> None:
    begun: Any = [{"role": "user", "content": TOM}, {"role": "assistant", "content": "Tom starts with 12"}]
    answer = whole(claude, messages=begun)
    assert "20" in answer.content[0].text
    assert not answer.content[0].text.startswith("Tom starts")


def test_a_stream_that_is_left_frees_its_request(claude: anthropic.Anthropic, chat_server: Server) -> None:
    options: Any = {"extra_body": {"decoder": "llada", "early_stop": False}}
    fields: Any = {"model": MODEL, "max_tokens": 200, "messages": [{"role": "user", "content": TOM}]}
    with claude.messages.stream(**fields, **options) as stream:
        next(iter(stream))
    wait_for(lambda: gauge(chat_server.url, "running_requests") == gauge(chat_server.url, "kv_pages_used") == 0)


@pytest.mark.parametrize(
    ("fields", "kind", "error", "named"),
    [
        ({"extra_body": {"temperature": 9}}, "BadRequestError", "invalid_request_error", "temperature"),
        ({"model": "other"}, "NotFoundError", "not_found_error", "other"),
        ({"tools": [{"name": "f"}]}, "BadRequestError", "invalid_request_error", "tools.0.input_schema"),
        ({"max_tokens": 5000}, "BadRequestError", "invalid_request_error", "max_tokens"),
    ],
)
@pytest.mark.parametrize("answer", [whole, streamed])
def test_the_client_raises_the_error_of_its_kind(
    claude: anthropic.Anthropic, answer: Any, fields: dict[str, Any], kind: str, error: str, named: str
) -> None:
    import anthropic

    with pytest.raises(getattr(anthropic, kind)) as refused:
        answer(claude, **{"messages": [QUESTION], **fields})
    assert refused.value.type == error
    assert named in refused.value.body["error"]["message"]


def test_a_key_comes_in_either_header(chat_server: Server) -> None:
    import anthropic

    body = {"model": MODEL, "max_tokens": 1, "messages": [QUESTION]}
    for headers, status in (
        ({"x-api-key": KEY}, 200),
        ({"authorization": f"Bearer {KEY}"}, 200),
        ({"x-api-key": KEY, "authorization": "Bearer none"}, 200),
        ({"x-api-key": "none"}, 401),
        ({}, 401),
    ):
        answer = httpx.post(f"{chat_server.url}/v1/messages", json=body, headers=headers, timeout=START_S)
        assert answer.status_code == status
        assert answer.json()["type"] == ("message" if status == 200 else "error")
    with anthropic.Anthropic(base_url=chat_server.url, api_key="none", max_retries=0) as client:
        with pytest.raises(anthropic.AuthenticationError) as refused:
            whole(client, messages=[QUESTION])
        assert refused.value.type == "authentication_error"
