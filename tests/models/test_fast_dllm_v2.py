"""Fast-dLLM v2: logits, tokens and forwards are those of its authors' own code on a random checkpoint."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from asynclane.models.checkpoint.config import ModelConfig, read_config
from asynclane.models.checkpoint.registry import Hardware, load_runner
from asynclane.models.exec.memory import Memory
from asynclane.models.exec.runner import Runner
from asynclane.scheduler import AttentionPattern, Outcome, ParamError, resolve
from asynclane.scheduler.contract import GREEDY, Placement, Row, Span, StepPlan
from asynclane.scheduler.decoding.vocabulary import Vocabulary
from asynclane.server.text.tokenizer import Tokenizer

from ..support.driver import LIMITS, MODEL, Spec, run
from ..support.families import COMMITS_NOTHING
from ..support.fast_dllm_v2 import GOLDEN, MASK, SOME, STOP, digest, weights, write_fast_dllm_v2
from ..support.scale import part

PAGE = 32
PATTERN = AttentionPattern(logit_shift=1, block_size=32)
PLACES = replace(LIMITS, page_size=PAGE, pages=512)
VOCABULARY = Vocabulary(Tokenizer(MODEL).pieces, MASK, [STOP])


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> tuple[ModelConfig, Runner]:
    directory = write_fast_dllm_v2(tmp_path_factory.mktemp("fast-dllm-v2"))
    config = read_config(directory)
    memory = Memory(PLACES.slots, PAGE, PLACES.step_tokens, PLACES.pages * PAGE)
    return config, load_runner(directory, config, memory, Hardware("cpu", "float32"), [STOP]).runner


def params_of(setting: dict[str, Any]) -> dict[str, object]:
    """The authors' arguments in the words of `fast-dllm-v2`."""
    return {
        "threshold": setting["threshold"],
        "sub_block_length": setting["small_block_size"],
        "cache": "block" if setting["use_block_cache"] else "prefix",
        "early_stop": "block" if setting["function"] == "batch_sample" else True,
    }


def test_the_outputs_belong_to_these_weights(model: tuple[ModelConfig, Runner]) -> None:
    assert digest(weights()) == GOLDEN["sha256"]
    assert model[0].pattern == PATTERN
    assert model[0].mask_id == MASK


def test_logits_are_the_published_ones(model: tuple[ModelConfig, Runner]) -> None:
    for entry in GOLDEN["logits"]:
        ids, size = entry["ids"], len(entry["ids"])
        row = Row(0, 0, size, size, (Span(1, size + 1, COMMITS_NOTHING),), GREEDY, 0)
        placed = Placement(0, np.array(ids, np.int32), tuple(range(-(-size // PAGE))))
        got = model[1].logits(StepPlan((placed,), (row,)))
        for position, (tokens, values) in enumerate(zip(entry["top5_ids"], entry["top5_logits"], strict=True)):
            torch.testing.assert_close(got[position, tokens], torch.tensor(values), atol=1e-4, rtol=0)


@pytest.mark.parametrize("setting", part(GOLDEN["settings"], 2))
def test_tokens_and_forwards_are_the_published_ones(setting: str, model: tuple[ModelConfig, Runner]) -> None:
    """A prompt that is no multiple of the block has one call less: its whole blocks go along with the first forward.
    Tokens after a stop token do not count."""
    params = params_of(GOLDEN["settings"][setting])
    specs = [
        Spec(prompt["prompt_ids"], 129 - len(prompt["prompt_ids"]) % 32, "fast-dllm-v2", params) for prompt in SOME
    ]
    for prompt, answer in zip(SOME, run(model[1], VOCABULARY, specs, PLACES, pattern=PATTERN), strict=True):
        entry, size = prompt["decoders"][setting], len(prompt["prompt_ids"])
        wanted = entry["ids"][: entry["ids"].index(STOP)] if STOP in entry["ids"] else entry["ids"]
        assert answer.text == wanted, prompt["id"]
        assert answer.outcome is (Outcome.STOP if STOP in entry["ids"] else Outcome.LENGTH)
        assert answer.steps == entry["calls"] - (size > 32 and size % 32 > 0), prompt["id"]
        assert answer.computed_tokens == entry["tokens"], prompt["id"]


def test_the_first_token_of_a_block_needs_no_confidence(model: tuple[ModelConfig, Runner]) -> None:
    """A prompt of one whole block, which the published code loses: the first forward computes it and nothing else."""
    spec = Spec(SOME[0]["prompt_ids"][:32], 1, "fast-dllm-v2", {"threshold": 1.0})
    (answer,) = run(model[1], VOCABULARY, [spec], PLACES, pattern=PATTERN)
    assert (len(answer.text), answer.steps, answer.computed_tokens) == (1, 1, 32)


@pytest.mark.parametrize(
    ("name", "params", "pattern", "message"),
    [
        ("fast-dllm-v2", {}, AttentionPattern(logit_shift=1), "is for block-causal models"),
        ("fast-dllm-v2", {"sub_block_length": 5}, PATTERN, "must divide this model's block of 32, not 5"),
        ("fast-dllm-v2", {"cache": "dual"}, PATTERN, "use 'prefix', which is exact"),
        ("fast-dllm", {"cache": "block"}, PATTERN, "decoder 'fast-dllm' does not have"),
        ("fast-dllm", {"cache": "block"}, AttentionPattern(), "decoder 'fast-dllm' does not have"),
    ],
)
def test_what_does_not_fit_is_refused(
    name: str, params: dict[str, object], pattern: AttentionPattern, message: str
) -> None:
    with pytest.raises(ParamError, match=message):
        resolve(name, params, 32, pattern)
