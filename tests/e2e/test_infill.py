"""Filling in the middle, as an editor requests it with OpenAI's own client."""

from __future__ import annotations

from typing import Any

import httpx
import openai
import pytest

from ..support.scale import LONG
from ..support.servers import Server

BEFORE = "This function does it:\n```python"
AFTER = '\n    """Counts the words in the text."""\n    return len(text.split())\n```\nIt goes over the input once.'
NAME = "\ndef count_words(text):"


@pytest.fixture
def opened(server: Server) -> list[int]:
    """An answer that has just opened its code, as token ids: the question does not say which function is wanted."""
    question = {"role": "user", "content": "Write a Python function."}
    chat = {"model": "tiny-llada", "messages": [question, {"role": "assistant", "content": BEFORE}]}
    return list(httpx.post(f"{server.url}/tokenize", json=chat).json()["tokens"])


def fill(client: openai.OpenAI, prompt: Any, suffix: str = AFTER, **options: Any) -> Any:
    return client.completions.create(model="tiny-llada", prompt=prompt, suffix=suffix, **options)


@pytest.mark.parametrize("decoder", ["asynclane", "fast-dllm", "llada"])
def test_a_line_is_written_for_what_comes_after_it(client: openai.OpenAI, opened: list[int], decoder: str) -> None:
    (choice,) = fill(client, opened, max_tokens=8, extra_body={"decoder": decoder}).choices
    assert (choice.text, choice.finish_reason) == (NAME, "length")


@LONG
def test_the_length_of_a_line_is_found_by_trying(client: openai.OpenAI, opened: list[int]) -> None:
    after = AFTER.replace("Counts the words in the text", "Tells whether the text is a palindrome")
    after = after.replace("return len(text.split())", "clean = text.lower()\n    return clean == clean[::-1]")
    few: dict[str, Any] = {"logprobs": 0, "extra_body": {"decoder": "llada", "steps": 4}}
    done, known = fill(client, opened, after, **few), fill(client, opened, after, max_tokens=8, **few)
    (choice,) = done.choices
    assert (choice.text, choice.finish_reason) == ("\ndef is_palindrome(text):", "stop")
    assert choice.logprobs == known.choices[0].logprobs
    assert (done.usage.prompt_tokens, done.usage.completion_tokens) == (known.usage.prompt_tokens, 8)
    paid, once = (usage.completion_tokens_details.model_extra["computed_tokens"] for usage in (done.usage, known.usage))
    assert paid > 5 * once
