"""The server on a network that predicts the next token, as Qwen3: the whole API, with its own decoder as default."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from asynclane.server.app import build_service
from asynclane.server.settings import Settings, SettingsError

from ...support.causal import write_causal
from ...support.http import error_of

PROMPT = list(range(100, 164))


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("checkpoint") / "small-qwen3"
    write_causal(path)
    return path


@pytest.fixture
async def http(checkpoint: Path) -> AsyncIterator[httpx.AsyncClient]:
    app = build_service(Settings(model=str(checkpoint), device="cpu")).app
    client = httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test")
    async with app.router.lifespan_context(app), client as opened:
        yield opened


async def complete(http: httpx.AsyncClient, **fields: Any) -> dict[str, Any]:
    body = {"model": "small-qwen3", "prompt": PROMPT, "max_tokens": 12}
    response = await http.post("/v1/completions", json=body | fields)
    assert response.status_code == 200, response.text
    return dict(response.json())


async def test_answers_are_streamed_seeded_shared_and_counted(http: httpx.AsyncClient) -> None:
    hot = {"temperature": 1.0, "seed": 7, "max_tokens": 24}
    first = await complete(http, **hot)
    again, other = await complete(http, **hot), await complete(http, **hot | {"seed": 8})
    text = first["choices"][0]["text"]
    assert again["choices"][0]["text"] == text != other["choices"][0]["text"]
    usage = first["usage"]
    assert usage["completion_tokens"] == usage["completion_tokens_details"]["forwards"] == 24
    assert again["usage"]["prompt_tokens_details"]["cached_tokens"] == 48  # whole pages before the last token
    body = {"model": "small-qwen3", "prompt": PROMPT, "stream": True} | hot
    streamed = (await http.post("/v1/completions", json=body)).text
    events = [json.loads(line[6:]) for line in streamed.splitlines() if line.startswith("data: {")]
    parts = [choice["text"] for event in events for choice in event["choices"]]
    assert "".join(parts) == text
    assert sum(map(bool, parts)) > 12  # some tokens are parts of a character


async def test_grammars_penalties_and_likelihoods_are_honoured(http: httpx.AsyncClient) -> None:
    schema = {"type": "object", "properties": {"a": {"enum": ["x", "y"]}}, "required": ["a"]}
    named = {"type": "json_schema", "json_schema": {"name": "one", "schema": schema | {"additionalProperties": False}}}
    answer = await complete(http, response_format=named, temperature=0.9, seed=1, max_tokens=24)
    assert json.loads(answer["choices"][0]["text"])["a"] in ("x", "y")
    plain, penalized = await complete(http), await complete(http, repetition_penalty=0.05)
    assert plain["choices"][0]["text"] != penalized["choices"][0]["text"]
    scored = await complete(http, echo=True, logprobs=1, max_tokens=0)
    logprobs = scored["choices"][0]["logprobs"]["token_logprobs"]
    assert logprobs[0] is None
    assert all(logprob < 0 for logprob in logprobs[1:])
    assert scored["usage"]["completion_tokens_details"]["forwards"] == 1


@pytest.mark.parametrize("max_tokens", [0, 1])
async def test_a_prompt_that_fills_the_context_cannot_be_scored_and_says_so(
    http: httpx.AsyncClient, max_tokens: int
) -> None:
    """A shorter answer would not help: none is written."""
    scored = {"echo": True, "logprobs": 1, "max_tokens": max_tokens}
    fits = await complete(http, prompt=[300] * 511, **scored)
    assert len(fits["choices"][0]["logprobs"]["tokens"]) == 511 + max_tokens
    body = {"model": "small-qwen3", "prompt": [300] * 512} | scored
    error = error_of(await http.post("/v1/completions", json=body), 400)
    assert (error["code"], error["param"]) == ("context_length_exceeded", "prompt")
    assert "512 in the prompt and one open position after it, 513 in all: shorten the prompt" in error["message"]


async def test_what_the_model_does_not_allow_is_refused_by_name(http: httpx.AsyncClient) -> None:
    (card,) = (await http.get("/v1/models")).json()["data"]
    assert card["default_decoder"] == "autoregressive"
    assert list(card["decoders"]) == ["autoregressive"]
    assert card["decoders"]["autoregressive"] == {"early_stop": True}
    refused = {
        "decoder": "fast-dllm",
        "threshold": 0.9,
        "block_length": 8,
        "steps": 4,
        "cache": "none",
        "rule": "klass",
        "suffix": " end",
        "template": "a {8} b",
    }
    for param, value in refused.items():
        body = {"model": "small-qwen3", "prompt": PROMPT, "max_tokens": 8, param: value}
        assert error_of(await http.post("/v1/completions", json=body))["param"] == param
    sampled = {"likelihood": "monte-carlo", "max_tokens": 0, "echo": True, "logprobs": 0}
    body = {"model": "small-qwen3", "prompt": PROMPT} | sampled
    assert error_of(await http.post("/v1/completions", json=body))["param"] == "likelihood"


def test_a_server_does_not_start_with_a_decoder_that_fills_masks(checkpoint: Path) -> None:
    with pytest.raises(SettingsError, match="predicts the next token alone, use 'autoregressive'"):
        build_service(Settings(model=str(checkpoint), device="cpu", decoder="asynclane"))
