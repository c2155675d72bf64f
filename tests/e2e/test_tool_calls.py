"""The tool loop as users of OpenAI's client write it, with the embedded model that knows tools."""

from __future__ import annotations

import json
import os
import random
from typing import Any

import jsonschema
import openai
import pytest

from ..support.servers import WAIT_S
from ..support.tools import NOW, WEATHER, random_tools

SETS = int(os.environ.get("TOOL_SETS", "2"))  # random sets of tools; 300 take half an hour
MODEL = "tiny-chat"
TOOLS: Any = [WEATHER, NOW]
QUESTION: Any = {"role": "user", "content": "What is the weather in Paris?"}
NAMED: Any = {"type": "function", "function": {"name": "now"}}
Calls = list[tuple[str, str]]


@pytest.fixture(scope="module")
def tool_client(chat_client: openai.OpenAI) -> openai.OpenAI:
    return chat_client


def whole(client: openai.OpenAI, messages: Any, **options: Any) -> tuple[Any, str | None, Calls, str]:
    done = client.chat.completions.create(model=MODEL, messages=messages, max_tokens=96, **options)
    message = done.choices[0].message
    calls = [(call.function.name, call.function.arguments) for call in message.tool_calls or ()]
    return message, message.content, calls, done.choices[0].finish_reason


def streamed(client: openai.OpenAI, messages: Any, **options: Any) -> tuple[Any, str | None, Calls, str]:
    with client.chat.completions.stream(model=MODEL, messages=messages, max_tokens=96, **options) as stream:
        done = stream.get_final_completion()
    message = done.choices[0].message
    calls = [(call.function.name, call.function.arguments) for call in message.tool_calls or ()]
    return message, message.content or None, calls, done.choices[0].finish_reason


def loop(client: openai.OpenAI, answer: Any, **options: Any) -> list[tuple[str | None, Calls, str]]:
    """Two turns: calls, and what the model says to their results."""
    messages: list[Any] = [QUESTION]
    message, *first = answer(client, messages, tools=TOOLS, **options)
    assert message.tool_calls
    messages.append(message.to_dict() if answer is whole else message)
    result = {"role": "tool", "content": json.dumps({"temperature": 21})}
    messages += [{**result, "tool_call_id": call.id} for call in message.tool_calls]
    _, *second = answer(client, messages, tools=TOOLS)
    return [tuple(first), tuple(second)]  # type: ignore[list-item]


@pytest.mark.parametrize("choice", ["auto", "required", NAMED], ids=["auto", "required", "named"])
def test_a_tool_is_called_and_its_result_answered_streamed_and_whole(tool_client: openai.OpenAI, choice: Any) -> None:
    one, two = (
        loop(tool_client, answer, tool_choice=choice, parallel_tool_calls=False) for answer in (whole, streamed)
    )
    assert one == two
    content, calls, finish = one[0]
    assert (content, len(calls), finish) == (None, 1, "tool_calls")
    name, arguments = calls[0]
    assert (name, json.loads(arguments)) == (("now", {}) if choice is NAMED else ("get_weather", {"city": "Paris"}))
    assert one[1] == ("The temperature is 21.", [], "stop")


def test_choices_seeds_stops_and_probabilities_go_together_with_tools(tool_client: openai.OpenAI) -> None:
    options: Any = {"model": MODEL, "messages": [QUESTION], "tools": TOOLS, "tool_choice": "required"}
    options |= {"max_tokens": 96, "n": 2, "seed": 5, "temperature": 1, "parallel_tool_calls": False}
    one, two = (tool_client.chat.completions.create(**options, logprobs=ranked).choices for ranked in (False, True))
    assert [c.message.tool_calls[0].function for c in one] == [c.message.tool_calls[0].function for c in two]
    spelt = "".join(token.token for token in two[0].logprobs.content)
    assert spelt.startswith("<tool_call>\n{")
    cut = tool_client.chat.completions.create(**options, stop=['"arguments"']).choices[0]
    assert (cut.message.tool_calls, cut.finish_reason) == (None, "stop")
    assert '"arguments"' not in (cut.message.content or "")


def test_an_answer_that_may_call_strictly_has_calls_that_validate_or_none(tool_client: openai.OpenAI) -> None:
    strict: Any = [{**WEATHER, "function": {**WEATHER["function"], "strict": True}}]
    begun: Any = {"role": "assistant", "content": "I look. <tool_call>"}
    for seed in range(3):
        _, _, calls, _ = whole(tool_client, [QUESTION], tools=strict, temperature=1, seed=seed)
        assert all(json.loads(arguments).keys() == {"city"} for _, arguments in calls)
    assert whole(tool_client, [QUESTION, begun], tools=strict)[3] in ("stop", "length")


@pytest.mark.parametrize("seed", range(SETS))
def test_each_call_of_a_random_tool_parses_and_validates_over_http(tool_client: openai.OpenAI, seed: int) -> None:
    tools: Any = random_tools(random.Random(seed))
    schemas = {tool["function"]["name"]: tool["function"].get("parameters", {"maxProperties": 0}) for tool in tools}
    options: Any = {"model": MODEL, "messages": [QUESTION], "tools": tools, "tool_choice": "required"}
    options |= {"max_tokens": 400, "temperature": seed % 2, "seed": seed, "parallel_tool_calls": False}
    message = tool_client.chat.completions.create(**options, timeout=WAIT_S * 2).choices[0].message
    assert message.content is None
    assert message.tool_calls
    for call in message.tool_calls:
        checker = jsonschema.Draft202012Validator.FORMAT_CHECKER
        validator = jsonschema.Draft202012Validator(schemas[call.function.name], format_checker=checker)
        validator.validate(json.loads(call.function.arguments))
