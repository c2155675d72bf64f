"""`/v1/responses` as users of OpenAI's client write it: whole, streamed, parsed, and with functions in two turns."""

from __future__ import annotations

import json
from typing import Any, Literal

import openai
import pytest
from openai.types.responses import Response
from pydantic import BaseModel, Field

from ..support.servers import PARIS

MODEL = "tiny-chat"
CITY: Any = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
CITY |= {"additionalProperties": False}
WEATHER: Any = {"type": "function", "name": "get_weather", "description": "Get the weather in a city"}
WEATHER |= {"parameters": CITY, "strict": False}
NOW: Any = {"type": "function", "name": "now", "parameters": None, "strict": None}
TOOLS: Any = [WEATHER, NOW]
QUESTION: Any = {"role": "user", "content": "What is the weather in Paris?"}
CHOICE: Any = {"structured_outputs": {"choice": ["Paris", "Rome"]}}
NAMED: Any = {"type": "function", "name": "now"}


@pytest.fixture(scope="module")
def asked(chat_client: openai.OpenAI) -> openai.OpenAI:
    return chat_client


class Answer(BaseModel):
    item: Literal["books", "eggs"]
    count: int = Field(ge=0, le=99)


class Weather(BaseModel):
    city: Literal["Paris", "Rome"]


def streamed(client: openai.OpenAI, **options: Any) -> Any:
    with client.responses.stream(model=MODEL, **options) as stream:
        return stream.get_final_response()


def whole(client: openai.OpenAI, **options: Any) -> Any:
    return client.responses.create(model=MODEL, **options)


def plain(value: Any) -> Any:
    """A value without the names and times that differ between two answers to the same request."""
    if isinstance(value, dict):
        drawn = {"id", "call_id", "created_at", "completed_at"}
        return {name: plain(one) for name, one in value.items() if name not in drawn}
    return [plain(one) for one in value] if isinstance(value, list) else value


def test_a_response_is_complete_and_names_what_was_honoured(asked: openai.OpenAI) -> None:
    done = whole(asked, input=PARIS, instructions="Be kind.", metadata={"a": "b"}, user="Mia", max_output_tokens=40)
    Response.model_validate(done.to_dict(mode="json"))
    assert done.output_text
    assert (done.status, done.instructions, done.metadata, done.user) == ("completed", "Be kind.", {"a": "b"}, "Mia")
    assert (done.max_output_tokens, done.error, done.incomplete_details) == (40, None, None)
    assert done.usage.total_tokens == done.usage.input_tokens + done.usage.output_tokens
    assert done.to_dict()["store"] is False
    assert whole(asked, input=[{"role": "user", "content": PARIS}]).output_text == "The capital of France is Paris."


@pytest.mark.parametrize(
    "options",
    [
        {"input": PARIS},
        {"input": PARIS, "include": ["message.output_text.logprobs"], "top_logprobs": 2},
        {"input": PARIS, "include": ["message.output_text.logprobs"], "extra_body": CHOICE},
        {"input": [QUESTION], "tools": TOOLS},
        {"input": [QUESTION], "tools": TOOLS, "tool_choice": "required", "max_output_tokens": 96},
        {"input": [QUESTION], "tools": TOOLS, "tool_choice": NAMED},
        {"input": PARIS, "text": {"format": {"type": "json_object"}}, "max_output_tokens": 24, "temperature": 0.0},
        {"input": PARIS, "max_output_tokens": 3},
        {"input": PARIS, "temperature": 1.0, "top_p": 0.9, "extra_body": {"seed": 3, "decoder": "fast-dllm"}},
    ],
    ids=str,
)
def test_the_events_of_a_stream_add_up_to_the_whole_response(asked: openai.OpenAI, options: Any) -> None:
    expected = whole(asked, **options)
    events = list(asked.responses.create(model=MODEL, stream=True, **options))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert [event.type for event in events[:2]] == ["response.created", "response.in_progress"]
    ended: Any = events[-1]
    assert ended.type == f"response.{expected.status}"
    Response.model_validate(ended.response.to_dict(mode="json"))
    assert plain(ended.response.to_dict()) == plain(expected.to_dict())
    assert plain(added_up(events)) == plain(ended.response.to_dict())["output"]


def added_up(events: list[Any]) -> list[Any]:
    """The items of a response, from the events that add to them, each of which agrees with those that end them."""
    items: list[Any] = []
    for one in (event.to_dict() for event in events):
        kind = one["type"].removeprefix("response.")
        if kind == "output_item.added":
            assert one["output_index"] == len(items)
            assert one["item"]["status"] == "in_progress"
            items.append(one["item"])
        elif kind == "content_part.added":
            assert one["content_index"] == len(items[-1]["content"])
            items[-1]["content"].append(one["part"])
        elif kind in ("output_text.delta", "reasoning_text.delta"):
            part = items[one["output_index"]]["content"][one["content_index"]]
            part["text"] += one["delta"]
            part.get("logprobs", []).extend(one.get("logprobs", []))
        elif kind == "function_call_arguments.delta":
            items[one["output_index"]]["arguments"] += one["delta"]
        elif kind in ("output_text.done", "reasoning_text.done"):
            assert items[-1]["content"][-1]["text"] == one["text"]
        elif kind == "content_part.done":
            probabilities = {name: one["part"][name] for name in ("choice_probabilities",) if name in one["part"]}
            items[-1]["content"][-1] |= probabilities  # at the end alone
            assert items[-1]["content"][-1] == one["part"]
        elif kind == "function_call_arguments.done":
            assert items[-1]["arguments"] == one["arguments"]
        elif kind == "output_item.done":
            items[-1]["status"] = one["item"]["status"]
            assert items[-1] == one["item"]
    return items


def test_log_probabilities_are_those_of_the_text(asked: openai.OpenAI) -> None:
    done = whole(asked, input=PARIS, include=["message.output_text.logprobs"], top_logprobs=2)
    part = done.output[0].content[0]
    assert "".join(token.token for token in part.logprobs) == part.text
    assert all(len(token.top_logprobs) == 2 for token in part.logprobs)
    assert whole(asked, input=PARIS).output[0].content[0].logprobs == []


def test_a_choice_has_the_probabilities_of_all_its_options(asked: openai.OpenAI) -> None:
    done = whole(asked, input=PARIS, include=["message.output_text.logprobs"], extra_body=CHOICE)
    found = done.to_dict()["output"][0]["content"][0]["choice_probabilities"]
    assert [one["choice"] for one in found] == ["Paris", "Rome"]
    assert sum(one["probability"] for one in found) == pytest.approx(1)
    assert done.output_text in ("Paris", "Rome")


@pytest.mark.parametrize("answer", [whole, streamed])
@pytest.mark.parametrize("choice", ["auto", "required"])
def test_a_function_is_called_and_its_output_answered(asked: openai.OpenAI, answer: Any, choice: str) -> None:
    items: list[Any] = [QUESTION]
    one = answer(asked, input=items, tools=TOOLS, tool_choice=choice, parallel_tool_calls=False)
    (call,) = one.output
    assert (call.type, call.name, json.loads(call.arguments)) == ("function_call", "get_weather", {"city": "Paris"})
    assert (call.status, one.status) == ("completed", "completed")
    output = json.dumps({"temperature": 21})
    items += [*one.output, {"type": "function_call_output", "call_id": call.call_id, "output": output}]
    two = answer(asked, input=items, tools=TOOLS)
    assert two.output_text == "The temperature is 21."
    items += [*two.output, {"role": "user", "content": PARIS}]
    assert answer(asked, input=items, tools=TOOLS).output_text


def test_a_model_of_pydantic_comes_back_parsed_whole_and_streamed(asked: openai.OpenAI) -> None:
    question = "Tom has 12 eggs and finds 11 more. How many eggs does Tom have now?"
    done = asked.responses.parse(model=MODEL, input=question, text_format=Answer)
    assert isinstance(done.output_parsed, Answer)
    assert streamed(asked, input=question, text_format=Answer).output_parsed == done.output_parsed
    assert done.text is not None
    assert done.text.format is not None
    assert done.text.format.type == "json_schema"


def test_arguments_of_a_function_of_pydantic_come_back_parsed(asked: openai.OpenAI) -> None:
    tools: Any = [openai.pydantic_function_tool(Weather)]
    items: Any = [QUESTION]
    done = asked.responses.parse(
        model=MODEL, input=items, tools=tools, tool_choice="required", parallel_tool_calls=False
    )
    call = done.output[0]
    assert call.type == "function_call"
    assert isinstance(call.parsed_arguments, Weather)
    items += done.output  # with what the client has parsed
    items.append({"type": "function_call_output", "call_id": call.call_id, "output": "sunny"})
    assert asked.responses.create(model=MODEL, input=items).output_text


def test_an_answer_that_the_limit_cuts_is_incomplete(asked: openai.OpenAI) -> None:
    done = whole(asked, input=PARIS, max_output_tokens=3)
    assert (done.status, done.output[-1].status) == ("incomplete", "incomplete")
    assert done.incomplete_details.reason == "max_output_tokens"
    assert done.usage.output_tokens == 3
    rest = whole(asked, input=[{"role": "user", "content": PARIS}, *done.output])
    assert done.output_text + rest.output_text == "The capital of France is Paris."


@pytest.mark.parametrize(
    ("options", "param"),
    [
        ({"store": True}, "store"),
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"background": True}, "background"),
        ({"tools": [{"type": "web_search"}]}, "tools.0.type"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"max_output_tokens": 10**6}, "max_output_tokens"),
    ],
    ids=str,
)
@pytest.mark.parametrize("stream", [False, True])
def test_what_is_not_supported_is_a_bad_request_by_name(
    asked: openai.OpenAI, options: Any, param: str, stream: bool
) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        asked.responses.create(model=MODEL, input=PARIS, stream=stream, **options)
    assert caught.value.param == param
    with pytest.raises(openai.NotFoundError):
        asked.responses.create(model="gpt", input=PARIS, stream=stream)
