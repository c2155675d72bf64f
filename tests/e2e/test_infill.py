"""Filling in the middle, as an editor asks for it with OpenAI's own client."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import openai
import pytest

from ..support.servers import Server

BEFORE = "This function does it:\n```python"
BEHIND = '\n    """Counts the words in the text."""\n    return len(text.split())\n```\nIt goes over the input once.'
NAME = "\ndef count_words(text):"


@pytest.fixture
def client(server: Server) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=60)


@pytest.fixture
def opened(server: Server) -> list[int]:
    """An answer that has just opened its code, as token ids: the question does not say which function is wanted."""
    question = {"role": "user", "content": "Write a Python function."}
    chat = {"model": "tiny-llada", "messages": [question, {"role": "assistant", "content": BEFORE}]}
    return list(httpx.post(f"{server.url}/tokenize", json=chat).json()["tokens"])


def fill(client: openai.OpenAI, prompt: Any, suffix: str = BEHIND, **options: Any) -> Any:
    return client.completions.create(model="tiny-llada", prompt=prompt, suffix=suffix, **options)


@pytest.mark.parametrize("decoder", ["asynclane", "fast-dllm", "llada"])
def test_a_line_is_written_for_what_comes_behind_it(client: openai.OpenAI, opened: list[int], decoder: str) -> None:
    (choice,) = fill(client, opened, max_tokens=8, extra_body={"decoder": decoder}).choices
    assert (choice.text, choice.finish_reason) == (NAME, "length")


def test_the_length_of_a_line_is_found_by_trying(client: openai.OpenAI, opened: list[int]) -> None:
    behind = BEHIND.replace("Counts the words in the text", "Tells whether the text is a palindrome")
    behind = behind.replace("return len(text.split())", "clean = text.lower()\n    return clean == clean[::-1]")
    few: dict[str, Any] = {"logprobs": 0, "extra_body": {"decoder": "llada", "steps": 4}}
    done, known = fill(client, opened, behind, **few), fill(client, opened, behind, max_tokens=8, **few)
    (choice,) = done.choices
    assert (choice.text, choice.finish_reason) == ("\ndef is_palindrome(text):", "stop")
    assert choice.logprobs == known.choices[0].logprobs
    assert (done.usage.prompt_tokens, done.usage.completion_tokens) == (known.usage.prompt_tokens, 8)
    paid, once = (usage.completion_tokens_details.model_extra["computed_tokens"] for usage in (done.usage, known.usage))
    assert paid > 5 * once


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"temperature": 1.0, "seed": 4, "n": 2},
        {"presence_penalty": 1.0, "logprobs": 2},
        {"stop": [" "]},
        {"extra_body": {"decoder": "fast-dllm"}},
        {"extra_body": {"decoder": "llada", "steps": 10}},
    ],
    ids=str,
)
def test_a_middle_is_the_same_alone_in_a_crowd_and_streamed(client: openai.OpenAI, options: dict[str, Any]) -> None:
    asked = {"prompt": "One morning Mia", "suffix": " and they lived happily.", "max_tokens": 20, **options}

    def ask() -> list[tuple[str, str]]:
        return [(choice.text, choice.finish_reason) for choice in fill(client, **asked).choices]

    alone = ask()
    with ThreadPoolExecutor(3) as pool:
        others = [pool.submit(fill, client, "Tom has", " books.", max_tokens=24) for _ in range(2)]
        crowded = ask()
    parts = [["", ""] for _ in alone]
    for chunk in fill(client, **asked, stream=True):
        for choice in chunk.choices:
            parts[choice.index][0] += choice.text
            parts[choice.index][1] = choice.finish_reason or parts[choice.index][1]
    assert alone == crowded == [(text, reason) for text, reason in parts]
    assert all(other.result().choices for other in others)
    assert not any("happily" in text for text, _ in alone)


def test_isolated_siblings_with_a_suffix_are_refused_and_both_are_named(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        fill(client, "One", max_tokens=8, extra_body={"siblings": "isolated"})
    assert refused.value.param == "siblings"
    assert "suffix" in refused.value.message


def test_the_best_of_several_middles_is_the_likeliest(client: openai.OpenAI) -> None:
    asked = {"max_tokens": 12, "temperature": 1.2, "seed": 5, "logprobs": 0}
    (best,) = fill(client, "One morning Mia", " home.", best_of=3, **asked).choices
    three = fill(client, "One morning Mia", " home.", n=3, **asked).choices
    means = [sum(c.logprobs.token_logprobs) / len(c.logprobs.token_logprobs) for c in three]
    assert best.text == three[means.index(max(means))].text
