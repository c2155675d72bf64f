"""What does not fit the model's context is refused with both numbers, by the name of what asked for too much."""

from __future__ import annotations

from typing import Any

import pytest

from ..support.http import error_of


@pytest.mark.parametrize(
    ("prompt", "extra", "param"),
    [
        ([6] * 256, {}, "prompt"),
        ([6] * 256, {"max_tokens": 1}, "prompt"),
        ([6] * 255, {"max_tokens": 2}, "max_tokens"),
        ([6] * 200, {"max_tokens": 57}, "max_tokens"),
    ],
)
async def test_what_does_not_fit_the_context_is_told_both_numbers(
    api: Any, prompt: Any, extra: Any, param: str
) -> None:
    async with api() as client:
        error = error_of(await client.complete(prompt=prompt, **extra), 400)
    assert (error["code"], error["param"]) == ("context_length_exceeded", param)
    assert "256" in error["message"]
    assert str(len(prompt)) in error["message"]


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
async def test_an_answer_too_long_for_the_context_is_told_of_the_name_that_asked_for_it(api: Any, name: str) -> None:
    async with api() as client:
        error = error_of(await client.chat(**{name: 256}), 400)
    assert (error["code"], error["param"]) == ("context_length_exceeded", name)


async def test_a_long_conversation_does_not_fit_either(api: Any) -> None:
    async with api() as client:
        error = error_of(await client.chat(messages=[{"role": "user", "content": "word " * 30_000}]), 400)
    assert (error["code"], error["param"]) == ("context_length_exceeded", "messages")


async def test_the_last_token_of_the_context_can_be_used(api: Any) -> None:
    async with api() as client:
        response = await client.complete(prompt=[6] * 200, max_tokens=56)
    assert response.status_code == 200
