"""The server on a block-causal network: prefixes are shared and counted, and what makes no sense is refused."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from asynclane.server.app import build_service
from asynclane.server.engine import wiring as build
from asynclane.server.settings import Settings

from ...support.http import error_of
from ...support.scale import ALL

Open = Callable[..., AbstractAsyncContextManager[httpx.AsyncClient]]
PREFIX = list(range(100, 420))
MODEL = "tiny-sdar"
ASK = {"model": MODEL, "prompt": "Hi"}


@pytest.fixture
def served() -> Open:
    @asynccontextmanager
    async def serve(**settings: Any) -> AsyncIterator[httpx.AsyncClient]:
        app = build_service(Settings(model=MODEL, device="cpu", decoder="fast-dllm", **settings)).app
        client = httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test")
        async with app.router.lifespan_context(app), client as http:
            yield http

    return serve


async def complete(http: httpx.AsyncClient, last: int, **fields: Any) -> tuple[str, dict[str, Any]]:
    body = {**ASK, "prompt": [*PREFIX, last], "max_tokens": 8, **fields}
    response = await http.post("/v1/completions", json=body)
    assert response.status_code == 200, response.text
    return response.json()["choices"][0]["text"], response.json()["usage"]


def cached(usage: dict[str, Any]) -> int:
    return int(usage["prompt_tokens_details"]["cached_tokens"])


async def test_usage_and_metrics_tell_what_of_a_prompt_was_there_and_another_salt_finds_nothing(served: Open) -> None:
    async with served() as http:
        found = [await complete(http, token, cache_salt=other) for token, other in ((7, None), (8, None), (8, "a"))]
        metrics = (await http.get("/metrics")).text
    assert [cached(usage) for _, usage in found] == [0, len(PREFIX), 0]
    assert found[1][0] == found[2][0]
    assert found[2][1]["completion_tokens_details"]["computed_tokens"] >= len(PREFIX)
    assert found[1][1]["completion_tokens_details"]["computed_tokens"] < len(PREFIX)
    assert f"asynclane_prefix_cache_hit_tokens_total {len(PREFIX)}.0" in metrics
    assert f"asynclane_prefix_cache_query_tokens_total {3 * (len(PREFIX) + 1)}.0" in metrics
    assert "asynclane_kv_pages_used 0.0" in metrics
    assert f"asynclane_kv_pages_kept {2 * len(PREFIX) // 16}.0" in metrics


async def test_what_was_cached_tells_nothing_about_clients_with_another_key(served: Open, tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("alice:k1\nbob:k2")
    found = []
    async with served(api_key_file=str(tmp_path / "keys")) as http:
        for token, key in ((7, "k1"), (8, "k1"), (9, "k2"), (10, "k2")):
            http.headers["authorization"] = f"Bearer {key}"
            found.append(await complete(http, token))
    assert [cached(usage) for _, usage in found] == [0, len(PREFIX), 0, len(PREFIX)]


async def test_sharing_can_be_switched_off(served: Open) -> None:
    async with served(prefix_sharing=False) as http:
        assert [cached((await complete(http, 7))[1]) for _ in range(2)] == [0, 0]


async def test_usage_does_not_depend_on_the_chunks_of_a_prompt(served: Open) -> None:
    """By default the prompt is one chunk, as without chunks."""
    found = []
    sizes = (None, 0, 16, 100) if ALL else (0, 16)
    for size in sizes:
        async with served(chunked_prefill_size=size) as http:
            found.append([await complete(http, 7, temperature=1.0, seed=3) for _ in range(2)])
    assert found == found[:1] * len(sizes)


async def test_defaults_suit_the_network_and_other_values_are_refused_with_the_reason(served: Open) -> None:
    async with served() as http:
        (card,) = (await http.get("/v1/models")).json()["data"]
        refusals = {
            param: error_of(await http.post("/v1/completions", json={**ASK, "max_tokens": 8, param: value}))
            for param, value in {"cache": "dual", "block_length": 24, "suffix": "end"}.items()
        }
        body = {**ASK, "decoder": "asynclane", "refresh_every": 2}
        refusals["refresh_every"] = error_of(await http.post("/v1/completions", json=body))
        body = {**ASK, "decoder": "tccf", "max_tokens": 8}
        refusals["turn"] = error_of(await http.post("/v1/completions", json=body))
        assert (await http.post("/v1/completions", json={**body, "turn": "newline"})).status_code == 200
    assert "tccf" not in card["decoders"]  # with its defaults, as `inspect` says
    assert card["decoders"]["fast-dllm"]["cache"] == "prefix"
    assert card["decoders"]["fast-dllm"]["block_length"] == 16
    for param, error in refusals.items():
        assert (error["param"], error["type"]) == (param, "invalid_request_error")
    assert "use 'prefix'" in refusals["cache"]["message"]
    assert "a token that this model's vocabulary does not have: give 'newline'" in refusals["turn"]["message"]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"max_step_tokens": 8}, "--max-step-tokens 8 leaves no context"),
        ({"page_size": 40}, "--page-size 40 must be a multiple of the model's block of 16"),
        ({"chunked_prefill_size": 8}, "--chunked-prefill-size 8 is less than the model's block of 16: raise it"),
        ({"max_model_len": 100}, "--max-model-len 100 must be a multiple of the model's block of 16"),
    ],
)
def test_sizes_are_of_whole_blocks(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build.build_parts(Settings(model=MODEL, **settings))


def test_a_bidirectional_model_refuses_to_share_prefixes() -> None:
    with pytest.raises(ValueError, match="--prefix-sharing is for block-causal models"):
        build.build_parts(Settings(prefix_sharing=True))


def test_a_bidirectional_model_refuses_chunks_of_prompts() -> None:
    with pytest.raises(ValueError, match="--chunked-prefill-size is for block-causal models"):
        build.build_parts(Settings(chunked_prefill_size=512))
