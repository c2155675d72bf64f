"""Restrictions of what an answer may be, on a real server: words, tokens, repetitions, and the names of the model."""

from __future__ import annotations

from typing import Any

import httpx
import openai
import pytest

from ..support.scale import ALL, LONG
from ..support.servers import PARIS, STORY, Server, chat, cost, text_of

PLAIN = "The capital of France is Paris."


def streamed(client: openai.OpenAI, question: str, **options: Any) -> str:
    chunks = chat(client, question, stream=True, **options)
    return "".join(part.delta.content or "" for chunk in chunks for part in chunk.choices)


def ids_of(server: Server, text: str) -> list[int]:
    body = {"prompt": text, "add_special_tokens": False}
    return list(httpx.post(f"{server.url}/tokenize", json=body).json()["tokens"])


@pytest.mark.parametrize(
    ("decoder", "questions"),
    [
        ("asynclane", [PARIS, STORY]),
        ("fast-dllm", [PARIS, STORY] if ALL else [PARIS]),
        pytest.param("llada", [PARIS, STORY], marks=LONG),
        pytest.param("credit", [PARIS, STORY], marks=LONG),
    ],
    ids=["asynclane", "fast-dllm", "llada", "credit"],
)
def test_a_bad_word_never_comes_however_it_is_spelt(client: openai.OpenAI, decoder: str, questions: list[str]) -> None:
    words = ["Paris", "capital", " fox", "is"]
    for question in questions:
        plain = text_of(client, question, max_tokens=48, extra_body={"decoder": decoder})
        assert any(word in plain for word in words)
        options: dict[str, Any] = {"max_tokens": 48, "extra_body": {"decoder": decoder, "bad_words": words}}
        text = text_of(client, question, **options)
        assert text
        assert not [word for word in words if word in text]
        assert streamed(client, question, **options) == text


def test_words_that_do_not_come_anyway_change_nothing_but_the_number_of_lanes(client: openai.OpenAI) -> None:
    done = chat(client, PARIS, extra_body={"bad_words": ["zebra", "/", "\\", "ö*"]})
    assert (done.choices[0].message.content, done.choices[0].finish_reason) == (PLAIN, "stop")
    assert cost(done, "forks") == 0


def test_an_answer_has_allowed_tokens_alone_and_ends_only_with_one_of_them(
    client: openai.OpenAI, server: Server
) -> None:
    letters, (end,) = ids_of(server, "abc"), ids_of(server, "<|endoftext|>")
    assert len(letters) > 1
    for more, reason in (([], {"length"}), ([end], {"length", "stop"})):
        options: dict[str, Any] = {"max_tokens": 12, "extra_body": {"allowed_token_ids": [*letters, *more]}}
        (choice,) = chat(client, STORY, **options).choices
        assert set(choice.message.content) <= set("abc")
        assert choice.finish_reason in reason
        assert streamed(client, STORY, **options) == choice.message.content
    assert len(text_of(client, STORY, max_tokens=50, extra_body={"allowed_token_ids": letters[:2]})) == 50


def test_a_choice_between_tokens_is_the_likelier_and_its_probability_counts_no_other(
    client: openai.OpenAI, server: Server
) -> None:
    (one,), (two,) = ids_of(server, " Paris"), ids_of(server, " a")
    begun: Any = [{"role": "user", "content": PARIS}, {"role": "assistant", "content": PLAIN.removesuffix(" Paris.")}]
    done = client.chat.completions.create(
        model="tiny-llada",
        messages=begun,
        max_tokens=1,
        logprobs=True,
        extra_body={"allowed_token_ids": [two, one], "min_tokens": 1, "ignore_eos": True},
    )
    assert done.choices[0].message.content == " Paris"


def test_repetition_counts_the_prompt_too(client: openai.OpenAI) -> None:
    plain, penal = (text_of(client, PARIS, extra_body={"repetition_penalty": value}) for value in (1, 5))
    assert plain == PLAIN
    assert "capital" not in penal
    assert "France" not in penal
    drawn = {"temperature": 1, "seed": 3, "max_tokens": 32, "extra_body": {"repetition_penalty": 1.3}}
    assert text_of(client, STORY, **drawn) == streamed(client, STORY, **drawn)
    assert text_of(client, STORY, **drawn) != text_of(client, STORY, temperature=1, seed=3, max_tokens=32)


def test_a_stop_string_is_the_end_of_the_text_if_it_is_to_be_in_it(client: openai.OpenAI) -> None:
    for stop in ("France", "is P"):
        options: dict[str, Any] = {"stop": [stop, "zebra"], "extra_body": {"include_stop_str_in_output": True}}
        done = chat(client, PARIS, logprobs=True, **options).choices[0]
        assert (done.message.content, done.finish_reason) == (PLAIN[: PLAIN.index(stop) + len(stop)], "stop")
        assert streamed(client, PARIS, **options) == done.message.content
        assert not text_of(client, PARIS, stop=stop).endswith(stop)


def test_the_model_may_be_left_out(server: Server) -> None:
    question = [{"role": "user", "content": PARIS}]
    bodies: dict[str, dict[str, Any]] = {
        "chat/completions": {"messages": question},
        "completions": {"prompt": "One", "max_tokens": 2},
        "responses": {"input": PARIS},
        "messages": {"messages": question, "max_tokens": 9},
    }
    for path, body in bodies.items():
        answer = httpx.post(f"{server.url}/v1/{path}", json=body, timeout=60)
        assert (answer.status_code, answer.json()["model"]) == (200, "tiny-llada"), path
