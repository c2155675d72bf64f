"""Abilities of diffusion models alone, on real servers: text while it diffuses, templates, and filling the middle."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest

from asynclane.server.app import build_service
from asynclane.server.settings import Settings

from ..support.scale import ALL, LONG
from ..support.servers import PARIS, STORY, TOM, Server, chat, cost
from .conftest import KEY

TEMPLATE: list[Any] = ["Tom has 12 books. He finds", {"tokens": 2}, " books. Then he has", {"tokens": 16}]


@pytest.fixture(params=[pytest.param("server", marks=LONG), "chat_server"], ids=["one process", "a front end"])
def http(request: pytest.FixtureRequest) -> Iterator[httpx.Client]:
    url = request.getfixturevalue(request.param).url
    with httpx.Client(base_url=f"{url}/v1", headers={"authorization": f"Bearer {KEY}"}, timeout=60) as http:
        yield http


def chunks(http: httpx.Client, path: str, **body: Any) -> list[dict[str, Any]]:
    with http.stream("POST", path, json={**body, "stream": True}) as response:
        assert response.status_code == 200, response.read()
        lines = [line.removeprefix("data: ") for line in response.iter_lines() if line]
    assert lines.pop() == "[DONE]"
    return [json.loads(line) for line in lines]


def whole(http: httpx.Client, path: str, **body: Any) -> dict[str, Any]:
    response = http.post(path, json=body)
    assert response.status_code == 200, response.text
    return dict(response.json())


REGEX = {"guided_regex": r"Mia [a-z ]{4,20}\."}


@pytest.mark.parametrize(
    "options",
    [
        {},
        pytest.param({"decoder": "llada", "steps": 16}, marks=LONG),
        pytest.param({"decoder": "wino"}, marks=LONG),
        pytest.param({"decoder": "saber"}, marks=LONG),
        {"decoder": "blockbatch"},
        {"temperature": 1, "seed": 5, "n": 3},
        {"stop": ["fox", "zebra"]},
        pytest.param(REGEX, marks=LONG),
    ],
    ids=str,
)
def test_text_diffuses_into_the_answer_that_is_given_without_it(http: httpx.Client, options: dict[str, Any]) -> None:
    body = {"messages": [{"role": "user", "content": STORY}], "max_tokens": 48 if ALL else 32, **options}
    choices = whole(http, "chat/completions", **body)["choices"]
    sent = chunks(http, "chat/completions", diffusing=True, **body)
    assert all(chunk["diffusing"] for chunk in sent)
    for choice in choices:
        of_it = [chunk["choices"][0] for chunk in sent if chunk["choices"][0]["index"] == choice["index"]]
        *before, last = of_it
        assert last["delta"]["content"] == choice["message"]["content"]
        assert last["finish_reason"] == choice["finish_reason"]
        assert not any(chunk["finish_reason"] for chunk in before)
        texts = [chunk["delta"]["content"] for chunk in before]
        assert len(set(texts)) > 1, "it was seen to diffuse"
        assert not [text for text in texts for stop in ("<|", *options.get("stop", ())) if stop in text]


def test_a_template_is_filled_the_same_streamed_and_diffusing_and_each_gap_is_a_lane(http: httpx.Client) -> None:
    for options in ({}, {"decoder": "fast-dllm"}, {"temperature": 1, "seed": 3, "n": 2}):
        done = whole(http, "completions", template=TEMPLATE, **options)
        streams = [chunks(http, "completions", template=TEMPLATE, diffusing=how, **options) for how in (False, True)]
        for choice in done["choices"]:
            first, second = choice["gaps"]
            assert choice["text"] == f"{TEMPLATE[0]}{first['text']}{TEMPLATE[2]}{second['text']}"
            assert first["tokens"] == 2
            streamed, sent = (
                [c["choices"][0] for c in of if c["choices"][0]["index"] == choice["index"]] for of in streams
            )
            assert "".join(part["text"] for part in streamed) == choice["text"] == sent[-1]["text"]
            assert streamed[-1]["gaps"] == sent[-1]["gaps"] == choice["gaps"]
            assert all(part["text"].startswith(TEMPLATE[0]) and TEMPLATE[2] in part["text"] for part in sent)
        usage = done["usage"]
        assert usage["completion_tokens"] == sum(gap["tokens"] for c in done["choices"] for gap in c["gaps"])
        given = whole(http, str(http.base_url.join("/tokenize")), prompt=TEMPLATE[0])["count"]
        assert usage["prompt_tokens"] > given
    lanes = [
        chunk["lanes"]
        for chunk in chunks(http, "completions", template=TEMPLATE, stream_options={"include_lanes": True})
        if "lanes" in chunk
    ]
    assert [lane["role"] for lane in lanes[0]["lanes"]] == ["refine", "generate"]


def test_the_middle_has_a_path_of_its_own(http: httpx.Client) -> None:
    for body in ({"max_tokens": 6}, {}, {"n": 2, "temperature": 1, "seed": 3, "max_tokens": 5}):
        given = {"prompt": "One morning Mia", "suffix": " home.", **body}
        answers = [whole(http, path, **given) for path in ("fim/completions", "completions")]
        assert answers[0]["choices"] == answers[1]["choices"]
        assert answers[0]["usage"] == answers[1]["usage"]
        assert answers[0]["object"] == "text_completion"
    streamed = chunks(http, "fim/completions", prompt="One morning Mia", suffix=" home.", max_tokens=6)
    text = whole(http, "completions", prompt="One morning Mia", suffix=" home.", max_tokens=6)["choices"][0]["text"]
    assert "".join(chunk["choices"][0]["text"] for chunk in streamed) == text


def test_special_tokens_in_texts_that_are_given_are_text(http: httpx.Client) -> None:
    end = "<|endoftext|>"
    template = [f"One {end}", {"tokens": 3}, f" and {end} then", {"tokens": 4}, end]
    (choice,) = whole(http, "completions", template=template)["choices"]
    first, second = (gap["text"] for gap in choice["gaps"])
    assert choice["text"] == f"One {end}{first} and {end} then{second}{end}"
    assert choice["finish_reason"] == "stop"
    plain = whole(http, "completions", prompt="One", suffix=end, max_tokens=3)
    assert plain["usage"]["prompt_tokens"] > 3, "the suffix is spelt in letters"


def test_openais_client_reads_what_diffuses(client: openai.OpenAI) -> None:
    seen = [chunk.choices[0].delta.content for chunk in chat(client, TOM, stream=True, extra_body={"diffusing": True})]
    assert "#### 20" in str(seen[-1])
    done = chat(client, TOM)
    assert (seen[-1], len(seen) <= cost(done, "forwards") + 2) == (done.choices[0].message.content, True)


@pytest.mark.parametrize(
    ("model", "body"),
    [
        ("tiny-sdar", {"template": TEMPLATE}),
        ("tiny-dream", {"template": TEMPLATE[1:], "add_special_tokens": False}),
    ],
    ids=["block-causal", "shifted"],
)
async def test_a_model_that_cannot_fill_a_template_says_so(model: str, body: dict[str, Any]) -> None:
    """The application alone, without a process of its own."""
    app = build_service(Settings(model=model, device="cpu")).app
    transport = httpx.ASGITransport(app)
    async with app.router.lifespan_context(app), httpx.AsyncClient(transport=transport, base_url="http://test") as http:
        refused = await http.post("/v1/completions", json=body)
        assert refused.status_code == 400, refused.text
        assert refused.json()["error"]["param"] == "template"
        answered = await http.post("/v1/completions", json={"prompt": PARIS, "max_tokens": 3})
        assert answered.status_code == 200


@pytest.mark.parametrize("decoder", ["wino", "blockbatch", "saber"])
def test_a_decoder_that_cannot_fill_a_template_says_so(server: Server, decoder: str) -> None:
    body = {"template": TEMPLATE, "decoder": decoder}
    refused = httpx.post(f"{server.url}/v1/completions", json=body, timeout=60)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "template")
