"""DiffusionGemma's logits are those of transformers' code: of its decoder, over its encoder's keys and values."""

from __future__ import annotations

import json
import math
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from torch import Tensor

from asynclane.models.checkpoint.config import ModelError, read_config
from asynclane.models.checkpoint.registry import Hardware, load_runner
from asynclane.models.checkpoint.split import Rank
from asynclane.models.exec import pack
from asynclane.models.exec.memory import Memory
from asynclane.scheduler.contract import Ints
from asynclane.scheduler.decoding.attention_pattern import AttentionPattern
from asynclane.scheduler.decoding.params import ParamError
from asynclane.scheduler.decoding.resolve import resolve

from ..support.gemma import (
    CANVAS,
    VOCABULARY,
    denoised,
    encoded,
    gemma_runner,
    placed,
    plan,
    published_gemma,
    write_gemma,
)

NEAR = {"atol": 1e-4, "rtol": 0}


@pytest.fixture(scope="module")
def network() -> Any:
    return published_gemma()


@pytest.fixture(scope="module")
def directory(network: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_gemma(tmp_path_factory.mktemp("gemma"), network)


def drawn(size: int, seed: int) -> Ints:
    return np.random.default_rng(seed).integers(0, VOCABULARY, size, np.int32)


def tensor(ids: Ints) -> Tensor:
    return torch.from_numpy(ids).long()[None]


@pytest.mark.parametrize("size", [3, 7, 8, 9, 20])
def test_logits_are_those_of_the_published_network(network: Any, directory: Path, size: int) -> None:
    """For prompts below, at and above the window, without the last step's logits and with them, for two canvases."""
    runner = gemma_runner(directory)
    prompt, first, second, third = drawn(size, size), *(drawn(CANVAS, 100 + number) for number in range(3))
    cache = transformers.DynamicCache(config=network.config.text_config)
    with torch.inference_mode():
        want = network(input_ids=tensor(prompt), decoder_input_ids=tensor(first), cache=cache).logits
        again = network(cache=cache, decoder_input_ids=tensor(second), self_conditioning_logits=want / 0.7).logits
        other = network(input_ids=tensor(first), cache=cache, decoder_input_ids=tensor(third)).logits
    text = encoded(0, 0, size)  # in the same step as its canvas
    got = runner.logits(plan([placed(0, prompt.tolist())], text, denoised(0, size, first, 0.7, True)))
    torch.testing.assert_close(got, want[0], **NEAR)
    runner.execute(plan([], denoised(0, size, first, 0.7, True)))
    got = runner.logits(plan([], denoised(0, size, second, 1.0, False)))
    torch.testing.assert_close(got, again[0], **NEAR)
    after = size + CANVAS
    got = runner.logits(plan([], encoded(0, size, after, first), denoised(0, after, third, 1.0, True)))
    torch.testing.assert_close(got, other[0], **NEAR)


def test_a_step_reports_the_likeliest_tokens_and_entropies_at_its_temperature(network: Any, directory: Path) -> None:
    prompt, canvas = drawn(9, 1), drawn(CANVAS, 2)
    with torch.inference_mode():
        logits = network(input_ids=tensor(prompt), decoder_input_ids=tensor(canvas)).logits[0] / 0.3
    result = gemma_runner(directory).execute(
        plan([placed(0, prompt.tolist())], encoded(0, 0, 9), denoised(0, 9, canvas, 0.3, True))
    )
    assert result.tokens.tolist() == logits.argmax(-1).tolist() == result.proposals.tolist()
    assert result.measured is not None
    entropies = torch.distributions.Categorical(logits=logits).entropy()
    torch.testing.assert_close(-torch.from_numpy(result.measured), entropies, atol=1e-4, rtol=0)


@pytest.mark.parametrize(
    "hardware", [{}, {"dtype": "bfloat16", "deterministic": True}, {"kv_cache_dtype": "fp8"}], ids=str
)
def test_canvases_and_text_have_the_same_bits_alone_and_beside_others(
    directory: Path, hardware: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the logits of the others are computed in parts."""
    runner = gemma_runner(directory, **hardware)
    prompts = [drawn(size, size) for size in (9, 20, 5)]
    canvases = [drawn(CANVAS, 50 + number) for number in range(3)]

    def steps(*numbers: int) -> list[Tensor]:
        texts = [encoded(at, 0, len(prompts[at])) for at in numbers]
        runner.execute(plan([placed(at, prompts[at].tolist()) for at in numbers], *texts))
        for first in (True, False):
            rows = [denoised(at, len(prompts[at]), canvases[at], 0.5, first) for at in numbers]
            runner.execute(plan([], *rows))
        return [*runner.logits(plan([], *rows)).split(CANVAS)]

    monkeypatch.setattr(pack, "LOGIT_ROWS", CANVAS)
    together = steps(0, 1, 2)
    monkeypatch.undo()
    assert all(torch.equal(steps(at)[0], together[at]) for at in range(3))


@pytest.mark.parametrize("cache", ["auto", "fp8"])
def test_a_prompt_has_the_same_bits_whatever_chunks_it_is_encoded_in(directory: Path, cache: str) -> None:
    runner, prompt, canvas = gemma_runner(directory, kv_cache_dtype=cache), drawn(20, 3), drawn(CANVAS, 4)
    found = []
    for cuts in ((0, 20), (0, 5, 19, 20)):
        for start, end in pairwise(cuts):
            runner.execute(plan([] if start else [placed(0, prompt.tolist())], encoded(0, start, end)))
        found.append(runner.logits(plan([], denoised(0, 20, canvas, 1.0, True))))
    assert torch.equal(*found)


@pytest.mark.parametrize(("hardware", "least"), [({"dtype": "bfloat16"}, 0.95), ({"kv_cache_dtype": "fp8"}, 0.9)])
def test_coarser_numbers_stay_near_the_published_networks(
    directory: Path, network: Any, hardware: dict[str, str], least: float
) -> None:
    prompt, canvas = drawn(20, 3), drawn(CANVAS, 4)
    with torch.inference_mode():
        want = network(input_ids=tensor(prompt), decoder_input_ids=tensor(canvas)).logits[0]
    runner = gemma_runner(directory, **hardware)
    rows = encoded(0, 0, 20), denoised(0, 20, canvas, 1.0, True)
    got = runner.logits(plan([placed(0, prompt.tolist())], *rows))
    assert torch.cosine_similarity(got, want, dim=-1).min() > least  # with random weights some tokens change an expert


@pytest.mark.parametrize(
    ("part", "change", "message"),
    [
        ("text_config", {"hidden_activation": "silu"}, "hidden_activation = 'silu' is not supported"),
        ("text_config", {"use_bidirectional_attention": "all"}, "the encoder here is causal"),
        ("text_config", {"attention_chunk_size": 64}, "attention_chunk_size = 64 is not supported"),
        ("text_config", {"layer_types": ["full_attention"]}, "are not 6 of"),
        ("text_config", {"layer_types": [["full_attention"]] * 6}, "are not 6 of"),
        ("text_config", {"layer_types": None, "num_hidden_layers": 10**10}, "num_hidden_layers = 10000000000 is not"),
        ("text_config", {"sliding_window": 0}, "sliding_window = 0 is not from 1 to"),
        ("text_config", {"sliding_window": 2**31}, "sliding_window = 2147483648 is not from 1 to"),
        (
            "text_config",
            {"per_layer_config": {"5": {"num_key_value_heads": 3}}},
            "num_key_value_heads = 2 is no multiple of the 3 of full layers",
        ),
        ("text_config", {"rope_parameters": {"full_attention": 1}}, "full_attention = 1 is no object"),
        ("text_config", {"num_kv_shared_layers": 2}, "num_kv_shared_layers = 2 is not supported by DiffusionGemma"),
        ("text_config", {"hidden_size_per_layer_input": 256}, "hidden_size_per_layer_input = 256 is not supported"),
        ("text_config", {"final_logit_softcapping": "30"}, "final_logit_softcapping = '30' is no number"),
        ("text_config", {"top_k_experts": 2.5}, "top_k_experts = 2.5 is no whole number"),
        ("text_config", {"rope_parameters": {"full_attention": {"rope_type": "yarn"}}}, "only 'proportional'"),
        ("text_config", {"per_layer_config": {"5": {"sliding_window": 4}}}, "full layers must be alike"),
        ("text_config", {"per_layer_config": {"1": {"head_dim": 4}}}, "layer 1, which has a window"),
        ("", {"tie_word_embeddings": False}, "tie_word_embeddings = False is not supported"),
        ("", {"text_config": None}, "text_config = None is no object"),
        ("", {"canvas_length": None}, "canvas_length = None is no whole number"),
        ("", {"canvas_length": 0}, "canvas_length = 0 is not from 1 to"),
        ("text_config", {"final_logit_softcapping": 0}, "final_logit_softcapping = 0.0 is not a positive number"),
        ("text_config", {"final_logit_softcapping": None}, "final_logit_softcapping = None is no number"),
        ("text_config", {"num_experts": 0}, "^[^(]*: 0 experts of 24, of which 2 are chosen [^(]* cannot be computed$"),
    ],
)
def test_what_the_network_cannot_compute_is_refused_in_one_line(
    directory: Path, tmp_path: Path, part: str, change: dict[str, Any], message: str
) -> None:
    said = json.loads((directory / "config.json").read_text())
    (said[part] if part else said).update(change)
    (tmp_path / "config.json").write_text(json.dumps(said))
    with pytest.raises(ModelError, match=message) as refused:
        read_config(tmp_path)
    assert "\n" not in str(refused.value)


def test_devices_do_not_share_it(directory: Path) -> None:
    with pytest.raises(ModelError, match="--tensor-parallel-size 2 is not for DiffusionGemma"):
        Rank(0, 2).config(read_config(directory))


def test_the_samplers_parameters_are_those_of_generation_config(directory: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text((directory / "config.json").read_text())
    sampler = {"_cls_name": "EntropyBoundSamplerConfig", "entropy_bound": 0.2}
    (tmp_path / "generation_config.json").write_text(json.dumps({"t_min": 0.3, "sampler_config": sampler}))
    assert dict(read_config(tmp_path).pattern.sampler) == {"t_min": 0.3, "entropy_bound": 0.2}
    sampler["_cls_name"] = "Other"
    (tmp_path / "generation_config.json").write_text(json.dumps({"sampler_config": sampler}))
    with pytest.raises(ModelError, match="sampler 'Other' is not supported"):
        read_config(tmp_path)


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ({"max_denoising_steps": "x"}, "generation_config.json: max_denoising_steps = 'x' is no number"),
        ({"sampler_config": {"entropy_bound": math.nan}}, "generation_config.json: entropy_bound = nan is no number"),
        ({"sampler_config": [1]}, r"generation_config.json: sampler_config = \[1\] is no object"),
    ],
)
def test_a_sampler_that_is_no_numbers_is_refused(
    directory: Path, tmp_path: Path, said: dict[str, Any], message: str
) -> None:
    (tmp_path / "config.json").write_text((directory / "config.json").read_text())
    (tmp_path / "generation_config.json").write_text(json.dumps(said))
    with pytest.raises(ModelError, match=message):
        read_config(tmp_path)


@pytest.mark.parametrize("said", [{"max_denoising_steps": 0}, {"max_denoising_steps": 2.5}, {"t_max": -1.0}])
def test_a_sampler_out_of_range_makes_its_decoder_fail_by_name(said: dict[str, Any]) -> None:
    with pytest.raises(ParamError, match=f"{next(iter(said))} must be a"):
        resolve("renoise", {}, 64, AttentionPattern(block_size=1, canvas_length=16, sampler=tuple(said.items())))


def test_experts_in_fp8_need_inputs_in_multiples_of_16(directory: Path) -> None:
    memory = Memory(slots=4, page_size=16, step_tokens=128, cache_tokens=512)
    with pytest.raises(ModelError, match="multiples of 16"):  # experts of 24
        load_runner(directory, read_config(directory), memory, Hardware("cpu", quantization="fp8"), [1])
