"""The server on a network that reads known tokens first, as WeDLM: the whole API, with its own decoder as default."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from asynclane.server.app import build_service
from asynclane.server.settings import Settings

from ...support.checkpoints import write_checkpoint
from ...support.http import error_of

PROMPT = list(range(100, 164))


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("checkpoint") / "small-wedlm", "WeDLMForCausalLM")


@pytest.fixture
async def http(checkpoint: Path) -> AsyncIterator[httpx.AsyncClient]:
    app = build_service(Settings(model=str(checkpoint), device="cpu", decoder="wedlm")).app
    client = httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test")
    async with app.router.lifespan_context(app), client as opened:
        yield opened


async def complete(http: httpx.AsyncClient, **fields: Any) -> dict[str, Any]:
    body = {"model": "small-wedlm", "prompt": PROMPT, "max_tokens": 12}
    response = await http.post("/v1/completions", json=body | fields)
    assert response.status_code == 200, response.text
    return dict(response.json())


async def chat(http: httpx.AsyncClient, **fields: Any) -> dict[str, Any]:
    body = {"model": "small-wedlm", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 24}
    response = await http.post("/v1/chat/completions", json=body | fields)
    assert response.status_code == 200, response.text
    return dict(response.json())


async def test_answers_are_streamed_seeded_stopped_and_counted(http: httpx.AsyncClient) -> None:
    hot = {"temperature": 1.0, "seed": 7}
    first = await chat(http, **hot)
    again, other = await chat(http, **hot), await chat(http, **hot | {"seed": 8})
    text = first["choices"][0]["message"]["content"]
    assert again["choices"][0]["message"]["content"] == text != other["choices"][0]["message"]["content"]
    usage = first["usage"]
    assert usage["completion_tokens"] == 24
    assert 1 <= usage["completion_tokens_details"]["forwards"] <= 24
    assert again["usage"]["prompt_tokens_details"]["cached_tokens"] == usage["prompt_tokens"] // 16 * 16 > 0
    body = {"model": "small-wedlm", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 24, "stream": True}
    streamed = (await http.post("/v1/chat/completions", json=body | hot)).text
    events = [json.loads(line[6:]) for line in streamed.splitlines() if line.startswith("data: {")]
    parts = [choice["delta"].get("content") or "" for event in events for choice in event["choices"]]
    assert "".join(parts) == text
    assert sum(map(bool, parts)) > 1
    stop = text[4:7]
    stopped = await chat(http, **hot, stop=stop)
    assert stopped["choices"][0]["message"]["content"] == text[: text.index(stop)]
    assert stopped["choices"][0]["finish_reason"] == "stop"


async def test_grammars_suffixes_and_likelihoods_are_honoured(http: httpx.AsyncClient) -> None:
    schema = {"type": "object", "properties": {"a": {"enum": ["x", "y"]}}, "required": ["a"]}
    schema["additionalProperties"] = False
    named = {"type": "json_schema", "json_schema": {"name": "one", "schema": schema}}
    answer = await chat(http, response_format=named, temperature=0.9, seed=1)
    assert json.loads(answer["choices"][0]["message"]["content"])["a"] in ("x", "y")
    texts = {(await complete(http, suffix=suffix))["choices"][0]["text"] for suffix in (" eggs", " 12", None)}
    assert len(texts) > 1  # masks see what follows them
    scored = await complete(http, echo=True, logprobs=1, max_tokens=0, prompt=PROMPT[:5])
    logprobs = scored["choices"][0]["logprobs"]["token_logprobs"]
    assert logprobs[0] is None
    assert all(logprob < 0 for logprob in logprobs[1:])


async def test_what_the_model_does_not_allow_is_refused_by_name(http: httpx.AsyncClient) -> None:
    (card,) = (await http.get("/v1/models")).json()["data"]
    assert card["default_decoder"] == "wedlm"
    assert card["decoders"]["wedlm"]["window_length"] == 16
    assert {"saber", "wino", "llada2", "tccf"}.isdisjoint(card["decoders"])
    refused = {"decoder": "saber", "cache": "dual", "window_length": 0, "block_length": 8, "steps": 4}
    for param, value in refused.items():
        body = {"model": "small-wedlm", "prompt": PROMPT, "max_tokens": 8, param: value}
        assert error_of(await http.post("/v1/completions", json=body))["param"] == param
    body = {"model": "small-wedlm", "prompt": PROMPT, "max_tokens": 8}
    for fields, param in (({"decoder": "dsb"}, "decoder"), ({"decoder": "dsb", "cache": "dsb"}, "cache")):
        error = error_of(await http.post("/v1/completions", json=body | fields))
        assert error["param"] == param
        assert "cache 'dsb' of decoder 'dsb' is for models that see the whole canvas" in error["message"]
