"""Token for token, the decoders give what their authors' own code gives on the embedded model, in as many calls.

tests/golden/decoders.json names repository, revision and arguments of every entry. `make test` takes one of its
twelve prompts, `make test-golden` all.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from asynclane.models.exec.runner import Runner
from asynclane.scheduler.contract import (
    GREEDY,
    DeviceCommitRule,
    Doubles,
    Ints,
    Placement,
    Row,
    Span,
    StepPlan,
)
from asynclane.scheduler.decoding.commit.base import Bools, Longs, top
from asynclane.scheduler.decoding.commit.host import saber
from asynclane.scheduler.decoding.vocabulary import Vocabulary
from asynclane.scheduler.sequence import Sequence
from asynclane.server.text.tokenizer import Tokenizer

from ..support.driver import MODEL, Ask, run
from ..support.scale import part

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "decoders.json").read_text())
PROMPTS = part(GOLDEN["prompts"], 12)
END_ID = 1
PUBLISHED = {"early_stop": False}  # the authors' code goes on behind the end token

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "llada_one_per_step": ("llada", {}),
    "llada_two_per_step": ("llada", {"steps": 64}),
    "adablock_newline": ("adablock", {"cache": "none"}),
    "adablock_newline_period_comma": ("adablock", {"cache": "none", "delimiters": "newline_period_comma"}),
    "d3llm_multi_block": ("d3llm", {"cache": "none"}),
    "d3llm_multi_block_early_stop": ("d3llm", {"cache": "none", "early_stop": True}),
    "fast_dllm_none_threshold": ("fast-dllm", {"cache": "none", "threshold": 0.9}),
    "fast_dllm_none_factor": ("fast-dllm", {"cache": "none", "factor": 1.0}),
    "fast_dllm_prefix_threshold": ("fast-dllm", {"cache": "prefix", "threshold": 0.9}),
    "fast_dllm_prefix_factor": ("fast-dllm", {"cache": "prefix", "factor": 1.0}),
    "fast_dllm_prefix_quota": ("fast-dllm", {"cache": "prefix", "steps": 128}),
    "fast_dllm_dual_threshold": ("fast-dllm", {"cache": "dual", "threshold": 0.9}),
    "fast_dllm_dual_factor": ("fast-dllm", {"cache": "dual", "factor": 1.0}),
    "blockbatch_8_16_32_64": ("blockbatch", {"branches": 4, "smallest_block": 8}),
    "fast_dllm_dual_quota": ("fast-dllm", {"cache": "dual", "steps": 128}),
    "credit": ("credit", {"early_stop": "block"}),
    "klass": ("klass", {}),
    "wino_block32": ("wino", {"block_length": 32}),
    "wino_block128": ("wino", {}),
}
ONE_END = {"blockbatch_8_16_32_64"}  # the authors' code knows only the end token of the model's configuration


def test_the_outputs_belong_to_the_embedded_weights() -> None:
    for name, digest in GOLDEN["sha256"].items():
        assert hashlib.sha256((MODEL / name).read_bytes()).hexdigest() == digest, name


def test_every_entry_is_tested() -> None:
    """Those of Fast-dLLM's revision of June 2025 apart, which spends a call more on a block its full pass filled."""
    names = {name for prompt in GOLDEN["prompts"] for name in prompt["decoders"]}
    assert {name for name in names if "2025_06" not in name} == {*CASES, "saber"}


def filled(sequence: Sequence, vocabulary: Vocabulary) -> Ints:
    """The canvas, filled up with end tokens behind the end of an answer that stops there, or with the end of its block,
    as the authors write them."""
    decoder, canvas = sequence.request.decoder, sequence.canvas.copy()
    if decoder.whole_blocks:
        canvas[canvas == vocabulary.mask_id] = END_ID
    elif decoder.early_stop:
        canvas[sequence.end_at + 1 :] = END_ID
    return canvas


def assert_published(case: str, runner: Runner, vocabulary: Vocabulary) -> None:
    decoder, knobs = CASES[case]
    if case in ONE_END:
        vocabulary = Vocabulary(Tokenizer(MODEL).pieces, vocabulary.mask_id, [1])
    asks = [Ask(prompt["prompt_ids"], GOLDEN["gen_length"], decoder, PUBLISHED | knobs) for prompt in PROMPTS]
    for prompt, sequence in zip(PROMPTS, run(runner, vocabulary, asks), strict=True):
        assert_equal(case, prompt, sequence, vocabulary)


def assert_equal(case: str, prompt: dict[str, Any], sequence: Sequence, vocabulary: Vocabulary) -> None:
    entry = prompt["decoders"][case]
    assert filled(sequence, vocabulary).tolist() == entry["ids"][-GOLDEN["gen_length"] :], prompt["id"]
    assert sequence.steps == entry.get("model_calls", entry["nfe"]), prompt["id"]


@pytest.mark.parametrize("case", CASES)
def test_decoder_gives_the_published_tokens_in_the_published_calls(
    case: str, runner: Runner, vocabulary: Vocabulary
) -> None:
    assert_published(case, runner, vocabulary)


def test_saber_gives_the_published_tokens_where_no_float32_tie_decides(
    runner: Runner, vocabulary: Vocabulary, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many of its float32 confidences are equal, and the published code leaves their order to torch. So a prompt is
    compared only if no position was left out that is equal to one picked; in the golden outputs g01 is one."""
    ties: list[int] = []

    def watched(score: Doubles, among: Bools, count: int | None = None) -> Longs:
        picked = top(score, among, count)
        left = among.copy()
        left[picked] = False
        ties.append(int((score[left] == score[picked].min(initial=np.inf)).sum()))
        return picked

    monkeypatch.setattr(saber, "top", watched)
    for prompt in {prompt["id"]: prompt for prompt in (GOLDEN["prompts"][1], *PROMPTS)}.values():
        ties.clear()
        (sequence,) = run(runner, vocabulary, [Ask(prompt["prompt_ids"], GOLDEN["gen_length"], "saber", PUBLISHED)])
        if not any(ties):
            assert_equal("saber", prompt, sequence, vocabulary)


@pytest.mark.parametrize("entry", GOLDEN["logits"], ids=lambda entry: str(entry["prompt"]))
def test_logits_equal_the_published_ones(entry: dict[str, Any], runner: Runner) -> None:
    """Within 1e-4 in float32, the five largest of every position."""
    ids = entry["ids"]
    span = Span(0, len(ids), DeviceCommitRule(sure=0, threshold=2.0))
    row = Row(0, 0, len(ids), len(ids), (span,), GREEDY, 0)
    pages = tuple(range(-(-len(ids) // 16)))
    plan = StepPlan((Placement(0, np.array(ids, np.int32), pages),), (row,))
    got = runner.logits(plan)
    for position, (tokens, values) in enumerate(zip(entry["top5_ids"], entry["top5_logits"], strict=True)):
        torch.testing.assert_close(got[position, tokens], torch.tensor(values), atol=1e-4, rtol=0)
