"""Token for token, decoders give the output of their authors' own code on the embedded model, in as many forwards."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import pytest
import torch

from asynclane.models.exec.runner import Runner
from asynclane.scheduler.contract import GREEDY, DeviceCommitRule, Placement, Row, Span, StepPlan
from asynclane.scheduler.decoding.vocabulary import Vocabulary

from ..support.driver import MODEL
from ..support.golden import CASES, GOLDEN, assert_published

BY_LAST_BIT = {"saber"}  # many of its float32 values are equal, or nearly so


def test_the_outputs_belong_to_the_embedded_weights() -> None:
    for name, digest in GOLDEN["sha256"].items():
        assert hashlib.sha256((MODEL / name).read_bytes()).hexdigest() == digest, name


def test_every_entry_is_tested() -> None:
    """Except those of Fast-dLLM's revision of June 2025, which spends one more forward on a block that its full pass
    has filled."""
    names = {name for prompt in GOLDEN["prompts"] for name in prompt["decoders"]}
    assert {name for name in names if "2025_06" not in name} == set(CASES)


@pytest.mark.parametrize("case", CASES)
def test_a_decoder_gives_the_published_tokens_in_the_published_number_of_forwards(
    case: str, runner: Runner, vocabulary: Vocabulary
) -> None:
    if case in BY_LAST_BIT and torch.backends.cpu.get_cpu_capability() not in ("AVX2", "AVX512"):
        pytest.skip("sums of a softmax have other last bits here")
    assert_published(case, runner, vocabulary)


@pytest.mark.parametrize("entry", GOLDEN["logits"], ids=lambda entry: str(entry["prompt"]))
def test_logits_equal_the_published_ones(entry: dict[str, Any], runner: Runner) -> None:
    """Within 1e-4 in float32, the five largest of every position."""
    ids = entry["ids"]
    row = Row(0, 0, len(ids), len(ids), (Span(0, len(ids), DeviceCommitRule(0, 2.0)),), GREEDY, 0)
    got = runner.logits(StepPlan((Placement(0, np.array(ids, np.int32), tuple(range(-(-len(ids) // 16)))),), (row,)))
    for position, (tokens, values) in enumerate(zip(entry["top5_ids"], entry["top5_logits"], strict=True)):
        torch.testing.assert_close(got[position, tokens], torch.tensor(values), atol=1e-4, rtol=0)
