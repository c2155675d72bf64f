"""Structured output as users of OpenAI's client request it."""

from __future__ import annotations

import json
import re
from typing import Any, Literal

import httpx
import openai
import pydantic
import pytest

from ..support.servers import TOM, Server

QUESTION: Any = [{"role": "user", "content": TOM}]


class Answer(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid")

    item: Literal["books", "eggs"]
    count: int = pydantic.Field(ge=0, le=99)


FORMAT: dict[str, Any] = {
    "type": "json_schema",
    "json_schema": {"name": "answer", "strict": True, "schema": Answer.model_json_schema()},
}


def texts(client: openai.OpenAI, **options: Any) -> list[str]:
    done = client.chat.completions.create(model="tiny-llada", messages=QUESTION, max_tokens=64, **options)
    assert {choice.finish_reason for choice in done.choices} == {"stop"}
    return [choice.message.content or "" for choice in done.choices]


def test_a_model_of_pydantic_comes_back_parsed(client: openai.OpenAI) -> None:
    done = client.chat.completions.parse(model="tiny-llada", messages=QUESTION, max_tokens=64, response_format=Answer)
    assert isinstance(done.choices[0].message.parsed, Answer)


@pytest.mark.parametrize(
    ("options", "pattern"),
    [
        ({"structured_outputs": {"regex": "[A-Z][a-z]{2,6}: [0-9]{2}"}}, "[A-Z][a-z]{2,6}: [0-9]{2}"),
        ({"guided_regex": "[0-9]{2}"}, "[0-9]{2}"),
        ({"structured_outputs": {"choice": ["twelve", "twenty"]}}, "twelve|twenty"),
        ({"guided_choice": ["a/b", "c|d"]}, r"a/b|c\|d"),
        ({"structured_outputs": {"json": {"enum": [1, "x"]}}}, '1|"x"'),
        ({"guided_json": '{"const": {"a": [1, true]}}'}, re.escape('{"a": [1, true]}')),
    ],
    ids=str,
)
def test_vllms_names_old_and_new(client: openai.OpenAI, options: dict[str, Any], pattern: str) -> None:
    (text,) = texts(client, extra_body=options)
    assert re.fullmatch(pattern, text)
    done = client.completions.create(model="tiny-llada", prompt="Tom has", max_tokens=64, extra_body=options)
    assert re.fullmatch(pattern, done.choices[0].text)


def test_a_json_object_parses_even_when_its_room_ends(client: openai.OpenAI) -> None:
    for size in (12, 40):
        done = client.chat.completions.create(
            model="tiny-llada", messages=QUESTION, max_tokens=size, response_format={"type": "json_object"}
        )
        assert isinstance(json.loads(done.choices[0].message.content or ""), dict)
        assert done.choices[0].finish_reason in ("stop", "length")


def test_stop_strings_logprobs_and_bans_go_together_with_a_format(client: openai.OpenAI) -> None:
    (whole,) = texts(client, response_format=FORMAT)
    (cut,) = texts(client, response_format=FORMAT, stop=["count"])
    assert cut == whole.partition("count")[0]
    done = client.chat.completions.create(
        model="tiny-llada",
        messages=QUESTION,
        max_tokens=64,
        response_format=FORMAT,
        logprobs=True,
        top_logprobs=3,
        logit_bias={str(token): -100 for token in range(96, 106)},
    )
    text, scores = done.choices[0].message.content or "", done.choices[0].logprobs
    Answer.model_validate_json(text)
    assert scores is not None
    assert "".join(score.token for score in scores.content or []) == text


def test_a_grammar_that_turns_out_too_complex_is_refused_by_name(server: Server) -> None:
    (x,) = httpx.post(f"{server.url}/tokenize", json={"model": "tiny-llada", "prompt": "x"}).json()["tokens"][-1:]
    body = {
        "model": "tiny-llada",
        "prompt": "Tom",
        "max_tokens": 24,
        "guided_regex": "x|y(a?){5000}a{5000}",
        "logit_bias": {x: -100},
    }
    for stream in (False, True):
        refused = httpx.post(f"{server.url}/v1/completions", json={**body, "stream": stream})
        assert refused.status_code == 400, refused.text
        assert refused.json()["error"]["param"] == "guided_regex"
    assert httpx.get(f"{server.url}/health").status_code == 200
