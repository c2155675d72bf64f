"""The server on a network whose canvases begin with random tokens: answers come canvas by canvas, and what makes no
sense there is refused by name."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from asynclane import LLM, SamplingParams
from asynclane.server.app import build_service
from asynclane.server.engine.wiring import build_parts
from asynclane.server.settings import Settings, SettingsError

from ...support.checkpoints import GEMMA, write_checkpoint
from ...support.http import chunks_of, error_of

CANVAS = 16
ASK: dict[str, Any] = {"model": "gemma", "prompt": list(range(100, 140)), "max_tokens": 40, "ignore_eos": True}
FAST = {"max_denoising_steps": 3, "entropy_bound": 5.0}


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = write_checkpoint(tmp_path_factory.mktemp("gemma") / "model", GEMMA)
    (made / "generation_config.json").write_text('{"max_denoising_steps": 4, "sampler_config": {"entropy_bound": 3.0}}')
    return made


@asynccontextmanager
async def served(directory: Path, **settings: Any) -> AsyncIterator[httpx.AsyncClient]:
    config = Settings(model=str(directory), served_model_name="gemma", device="cpu", max_model_len=128, **settings)
    app = build_service(config).app
    client = httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test")
    async with app.router.lifespan_context(app), client as http:
        yield http


async def complete(http: httpx.AsyncClient, **fields: Any) -> dict[str, Any]:
    response = await http.post("/v1/completions", json={**ASK, **fields})
    assert response.status_code == 200, response.text
    return dict(response.json())


REFUSED = [
    ({"decoder": "asynclane"}, "decoder", "canvases begin with random tokens, use 'renoise'"),
    ({"threshold": 0.9}, "threshold", "has no parameter 'threshold'"),
    ({"t_min": 0.9, "t_max": 0.5}, "t_min", "must not exceed t_max"),
    ({"entropy_bound": -1}, "entropy_bound", "must be a number from 0"),
    ({"t_max": 0.1}, "t_max", "t_min 0.4 must not exceed t_max 0.1"),
    ({"logprobs": 1}, "logprobs", "the tokens of a canvas change until it is done"),
    ({"best_of": 2}, "best_of", "best_of is not for this model: the tokens of a canvas change until it is done"),
    (
        {"echo": True, "logprobs": 1, "max_tokens": 0, "ignore_eos": False},
        "logprobs",
        "gives no probabilities of given tokens",
    ),
    ({"presence_penalty": 1}, "presence_penalty", "the tokens of a canvas change until it is done"),
    ({"frequency_penalty": 1}, "frequency_penalty", "the tokens of a canvas change until it is done"),
    ({"repetition_penalty": 1.5}, "repetition_penalty", "the tokens of a canvas change until it is done"),
    ({"suffix": "the end"}, "suffix", "the text before a canvas is all that it sees"),
    ({"guided_regex": "[a-z]+", "ignore_eos": False}, "guided_regex", "the tokens of a canvas change until it is done"),
    ({"stream": True, "stream_options": {"include_lanes": True}}, "stream_options", "denoised as a whole"),
]


async def test_a_server_answers_canvas_by_canvas_and_refuses_by_name_what_makes_no_sense(directory: Path) -> None:
    async with served(directory) as http:
        card = (await http.get("/v1/models")).json()["data"][0]
        assert card["default_decoder"] == "renoise"
        assert list(card["decoders"]) == ["renoise"]
        assert card["decoders"]["renoise"]["max_denoising_steps"] == 4
        assert card["decoders"]["renoise"]["entropy_bound"] == 3.0

        whole = await complete(http)
        assert whole["choices"][0]["finish_reason"] == "length"
        assert whole["usage"]["completion_tokens"] == 40
        assert whole["usage"]["completion_tokens_details"]["forwards"] == 4 * 3  # canvases of 16, 16 and 8 + 8
        again = await complete(http)
        assert again["choices"][0]["text"] == whole["choices"][0]["text"]
        assert again["usage"]["prompt_tokens_details"]["cached_tokens"] == 32

        stream = await http.post("/v1/completions", json={**ASK, "stream": True})
        texts = [chunk["choices"][0]["text"] for chunk in chunks_of(stream)]
        assert "".join(texts) == whole["choices"][0]["text"]
        assert len([text for text in texts if text]) == 3  # one for each canvas

        drawn = [await complete(http, temperature=1.0, seed=seed, **FAST) for seed in (1, 2, 1)]
        one, other, same = (each["choices"][0]["text"] for each in drawn)
        assert one == same != other
        biased = await complete(http, max_tokens=5, logit_bias={"200": 100})
        assert biased["usage"]["completion_tokens"] == 5
        several = await complete(http, n=2, temperature=1.0, seed=1, **FAST)
        assert several["choices"][0]["text"] == one

        for fields, param, message in REFUSED:
            response = await http.post("/v1/completions", json={**ASK, **fields})
            assert response.status_code == 400, fields
            error = error_of(response)
            assert error["param"] == param, (fields, error)
            assert message in error["message"], (fields, error)
        scored = {"model": "gemma", "input": "Hi", "include": ["message.output_text.logprobs"]}
        assert error_of(await http.post("/v1/responses", json=scored), 400)["param"] == "include"
        schema = {"type": "json_schema", "schema": {"type": "object", "additionalProperties": False}}
        formed: dict[str, Any] = {"model": "gemma", "max_tokens": 9, "messages": [{"role": "user", "content": "Hi"}]}
        formed["output_config"] = {"format": schema}
        message = (await http.post("/v1/messages", json=formed)).json()["error"]["message"]
        assert message.startswith("output_config.format is not for this model")
        image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}
        shown = [{"role": "user", "content": [{"type": "text", "text": "See"}, image]}]
        picture = {"model": "gemma", "messages": shown}
        refused = error_of(await http.post("/v1/chat/completions", json=picture), 400)
        assert "image_url" in refused["message"]


async def test_a_diffusing_stream_shows_provisional_canvases(directory: Path) -> None:
    async with served(directory) as http:
        body = {**ASK, "max_tokens": CANVAS, "stream": True, "diffusing": True}
        sent = chunks_of(await http.post("/v1/completions", json=body))
        whole = (await complete(http, max_tokens=CANVAS))["choices"][0]["text"]
    texts = [chunk["choices"][0]["text"] for chunk in sent]
    assert all(chunk["diffusing"] for chunk in sent)
    assert texts[-1] == whole
    assert len({*texts}) > 2  # after each of four steps, of which some change nothing


def test_a_server_does_not_start_with_a_decoder_that_the_model_does_not_take(directory: Path) -> None:
    with pytest.raises(SettingsError, match="canvases begin with random tokens, use 'renoise'"):
        build_parts(Settings(model=str(directory), decoder="asynclane", device="cpu", max_model_len=64))


def test_prompts_are_answered_offline_as_alone(directory: Path) -> None:
    params = SamplingParams(max_tokens=20, temperature=1.0, seed=5, ignore_eos=True)
    with LLM(str(directory), max_num_seqs=4, max_model_len=96) as llm:
        prompts: list[Any] = [[100, 101, 102], list(range(200, 240)), [7] * 17]
        together = llm.generate(prompts, params, use_tqdm=False)
        alone = [llm.generate([prompt], params, use_tqdm=False)[0] for prompt in prompts]
    assert [found.outputs[0].token_ids for found in together] == [found.outputs[0].token_ids for found in alone]
