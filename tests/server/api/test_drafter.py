"""A server whose model predicts the next token, with a network beside it that drafts: `--drafter`."""

from __future__ import annotations

import json
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from safetensors.torch import load_file, save_file

from asynclane.models.checkpoint.registry import EMBEDDED
from asynclane.models.exec import pair
from asynclane.scheduler import StepPlan, StepResult
from asynclane.server.app import build_service
from asynclane.server.cli import main as cli
from asynclane.server.settings import Settings, SettingsError
from asynclane.server.text.tokenizer import Tokenizer

from ...support.causal import greedy, write_causal
from ...support.checkpoints import SINGLE, write_checkpoint
from ...support.http import error_of
from ...support.scale import ALL, LONG, part

PROMPT = list(range(100, 164))
BODY = {"model": "small-qwen3", "prompt": PROMPT, "max_tokens": 16}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    path = tmp_path_factory.mktemp("checkpoint") / "small-qwen3"
    return path, write_causal(path, vocab_size=1472)  # more than the drafter has, as of another padding


@pytest.fixture(params=[pytest.param("tiny-llada", marks=LONG), "tiny-sdar"])
async def http(checkpoint: tuple[Path, Any], request: pytest.FixtureRequest) -> AsyncIterator[httpx.AsyncClient]:
    app = build_service(Settings(model=str(checkpoint[0]), drafter=request.param, device="cpu")).app
    client = httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test")
    async with app.router.lifespan_context(app), client as opened:
        yield opened


async def complete(http: httpx.AsyncClient, **fields: Any) -> dict[str, Any]:
    response = await http.post("/v1/completions", json=BODY | fields)
    assert response.status_code == 200, response.text
    return dict(response.json())


async def test_answers_are_those_of_the_model_alone_streamed_and_shared(
    http: httpx.AsyncClient, checkpoint: tuple[Path, Any]
) -> None:
    kinds = ({}, {"temperature": 1.0, "seed": 7}, {"logit_bias": {"300": 5}}, {"n": 3, "temperature": 0.8})
    for fields in part(kinds, 2):
        given = {"seed": 3, "max_tokens": 24 if ALL else 12, "logprobs": 1, **fields}
        drafted = await complete(http, **given)
        plain = await complete(http, **given, decoder="autoregressive")
        for choice in (*drafted["choices"], *plain["choices"]):
            del choice["logprobs"]["steps"]
        assert drafted["choices"] == plain["choices"]
        assert drafted["usage"]["completion_tokens"] == plain["usage"]["completion_tokens"]
    first = await complete(http)
    again = await complete(http)
    assert first["choices"] == again["choices"]
    assert again["usage"]["prompt_tokens_details"]["cached_tokens"] == 48
    streamed = (await http.post("/v1/completions", json=BODY | {"stream": True})).text
    events = [json.loads(line[6:]) for line in streamed.splitlines() if line.startswith("data: {")]
    assert "".join(choice["text"] for event in events for choice in event["choices"]) == first["choices"][0]["text"]
    card = (await http.get("/v1/models")).json()["data"][0]
    assert card["default_decoder"] == "deer"
    assert card["decoders"] == {
        "autoregressive": {"early_stop": True},
        "deer": {"draft_length": 32, "early_stop": True},
    }


async def test_greedy_text_is_that_of_transformers(http: httpx.AsyncClient, checkpoint: tuple[Path, Any]) -> None:
    want = Tokenizer(checkpoint[0]).backend.decode(greedy(checkpoint[1], PROMPT, 16))
    assert (await complete(http, ignore_eos=True))["choices"][0]["text"] == want


async def test_tokens_that_only_the_drafter_has_are_never_drafted_nor_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The drafter has 108 ids more, and likes these, its own mask and the id of the model's open positions best."""
    size = 1300
    write_causal(tmp_path / "served", vocab_size=size)
    keep_tokens(tmp_path / "served", size - 1)
    shutil.copytree(EMBEDDED / "tiny-sdar", tmp_path / "drafter")
    weights = load_file(tmp_path / "drafter" / SINGLE)
    liked = [5, *range(size - 1, 1408)]
    (head,) = [weight for name, weight in weights.items() if "embed_tokens" in name]
    noise = torch.randn(len(liked), head.shape[1], generator=torch.Generator().manual_seed(0))
    head[liked] = 3 * noise.to(head.dtype)
    save_file(weights, tmp_path / "drafter" / SINGLE)
    drafts, join = list[int](), pair._joined

    def joined(plan: StepPlan, served: StepResult, drafter: StepResult, ids: pair.Ids) -> StepResult:
        drafts.extend(drafter.proposals.tolist())
        return join(plan, served, drafter, ids)

    monkeypatch.setattr(pair, "_joined", joined)
    settings = Settings(model=str(tmp_path / "served"), drafter=str(tmp_path / "drafter"), device="cpu")
    app = build_service(settings).app
    client = httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test")
    async with app.router.lifespan_context(app), client as http:
        for temperature in (0.0, 1.0):
            fields = {
                "model": "served",
                "prompt": [*PROMPT, 5, 4],
                "temperature": temperature,
                "seed": 3,
                "logprobs": 2,
            }
            drafted, plain = [await complete(http, **fields, **more) for more in ({}, {"decoder": "autoregressive"})]
            for choice in (*drafted["choices"], *plain["choices"]):
                del choice["logprobs"]["steps"]
            assert drafted["choices"] == plain["choices"]
    assert len(drafts) > 100
    assert max(drafts) < size - 1
    assert 5 not in drafts


def keep_tokens(directory: Path, count: int) -> None:
    """Leave the first tokens of a tokenizer, and none of them as its mask."""
    described = json.loads((directory / "tokenizer.json").read_text())
    model = described["model"]
    model["vocab"] = {spelt: token for spelt, token in model["vocab"].items() if token < count}
    model["merges"] = [parts for parts in model["merges"] if "".join(parts) in model["vocab"]]
    (directory / "tokenizer.json").write_text(json.dumps(described))
    for name in ("tokenizer_config.json", "special_tokens_map.json"):
        named = json.loads((directory / name).read_text())
        del named["mask_token"]
        (directory / name).write_text(json.dumps(named))


async def test_what_deer_cannot_do_is_refused_by_name(http: httpx.AsyncClient) -> None:
    named = {"type": "json_schema", "json_schema": {"name": "one", "schema": {"type": "object"}}}
    refused = {
        "draft_length": 0,
        "presence_penalty": 0.5,
        "frequency_penalty": 0.5,
        "repetition_penalty": 1.2,
        "response_format": named,
        "suffix": " end",
        "threshold": 0.9,
        "decoder": "s2d2",
    }
    for param, value in refused.items():
        error = error_of(await http.post("/v1/completions", json=BODY | {param: value}))
        assert error["param"] == param
        if param in ("presence_penalty", "response_format"):
            assert error["message"].endswith("use 'autoregressive'")
    assert (await complete(http, presence_penalty=0.5, decoder="autoregressive"))["choices"]


def test_a_drafter_that_does_not_belong_to_the_model_ends_the_start_with_one_line(
    checkpoint: tuple[Path, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = str(checkpoint[0])
    wedlm = write_checkpoint(tmp_path / "wedlm", "WeDLMForCausalLM")
    other = write_checkpoint(tmp_path / "other", "SDARForCausalLM")
    described = json.loads((other / "tokenizer.json").read_text())
    vocabulary = described["model"]["vocab"]
    one, two = sorted(vocabulary, key=vocabulary.__getitem__)[40:42]
    vocabulary[one], vocabulary[two] = vocabulary[two], vocabulary[one]
    (other / "tokenizer.json").write_text(json.dumps(described))
    for argv, reason in (
        (["--model", model, "--drafter", str(other)], "has another tokenizer than the model: its token"),
        (["--model", model, "--drafter", model], "Qwen3ForCausalLM does not draft several masks at once"),
        (["--model", model, "--drafter", str(wedlm)], "WeDLMForCausalLM does not draft several masks at once"),
        (["--model", "tiny-llada", "--drafter", "tiny-sdar"], "LLaDAModelLM fills masks itself"),
        (
            ["--model", model, "--drafter", "tiny-sdar", "--tensor-parallel-size", "2"],
            "leave out --tensor-parallel-size",
        ),
        (["--model", model, "--drafter", "tiny-sdar", "--page-size", "8"], "a multiple of the drafter's block of 16"),
        (["--model", model, "--decoder", "deer"], "start the server with --drafter"),
    ):
        assert cli.main(["serve", "--device", "cpu", "--port", "0", *argv]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert reason in line


def test_a_drafters_context_bounds_that_of_the_model(checkpoint: tuple[Path, Any]) -> None:
    settings = Settings(model=str(checkpoint[0]), drafter="tiny-llada", device="cpu", max_model_len=1024)
    with pytest.raises(SettingsError, match="--max-model-len 1024 exceeds the model's 512"):
        build_service(settings)
