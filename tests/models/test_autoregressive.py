"""Qwen2 and Qwen3 predict the next token: text and probabilities are those of transformers' own code."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from asynclane.models.checkpoint.config import ModelError, read_config
from asynclane.models.exec.runner import Runner
from asynclane.scheduler import AttentionPattern, Sampling
from asynclane.server.engine.wiring import open_checkpoint

from ..support.causal import MASK, NETWORKS, greedy, write_causal
from ..support.driver import Spec, embedded_runner, embedded_vocabulary, run
from ..support.likelihood import Setting, scoring

PATTERN = AttentionPattern(logit_shift=1, block_size=1)
PROMPTS = [list(range(100, 164)), [7, 8, 9], list(range(300, 317))]
WHOLE = {"early_stop": False}
Networks = tuple[Runner, Any]


@pytest.fixture(params=NETWORKS)
def networks(request: pytest.FixtureRequest, tmp_path: Path) -> Networks:
    network = write_causal(tmp_path, request.param)
    return embedded_runner(model=tmp_path), network


def logprobs_of(network: Any, ids: list[int], start: int) -> Tensor:
    """The log-probabilities that transformers gives to the tokens from `start` on, each from those before it."""
    with torch.no_grad():
        logits = network(torch.tensor([ids])).logits[0, start - 1 : -1]
    logits[:, MASK] = -torch.inf
    found: Tensor = logits.log_softmax(-1).gather(1, torch.tensor(ids[start:])[:, None])[:, 0]
    return found


def test_greedy_text_is_that_of_transformers_and_each_forward_computes_one_token(networks: Networks) -> None:
    runner, network = networks
    specs = [Spec(prompt, 24, "autoregressive", WHOLE, watched=True) for prompt in PROMPTS]
    for prompt, answer in zip(PROMPTS, run(runner, embedded_vocabulary(), specs, pattern=PATTERN), strict=True):
        assert answer.canvas.tolist() == greedy(network, prompt, 24)
        assert (answer.steps, answer.computed_tokens) == (24, len(prompt) + 23)
        assert [event.positions.tolist() for event in answer.events] == [[at] for at in range(24)]


def test_probabilities_of_an_answer_are_those_of_transformers(networks: Networks) -> None:
    runner, network = networks
    spec = Spec(PROMPTS[0], 12, "autoregressive", WHOLE, ranks=3, sampling=Sampling(1.0, seed=4))
    (answer,) = run(runner, embedded_vocabulary(), [spec], pattern=PATTERN)
    assert answer.scores is not None
    want = logprobs_of(network, [*spec.prompt, *answer.text], len(spec.prompt))
    torch.testing.assert_close(torch.from_numpy(answer.scores.logprobs), want, atol=1e-4, rtol=0)


def test_given_tokens_are_scored_in_one_row_with_the_probabilities_of_transformers(tmp_path: Path) -> None:
    """Two chains that begin alike have a row for each token up to where they differ, and one for the rest of each."""
    network, ids = write_causal(tmp_path), np.arange(200, 220, dtype=np.int32)
    setting, other = Setting(tmp_path), np.append(ids[:5], ids[:2])
    requests = [(ids[:3], scoring(ids[3:], proposes=True)), (ids[:3], scoring(ids[3:], other[3:], sums=True))]
    (tokens, sums), plans = setting.score(requests)
    assert tokens.scores is not None
    assert tokens.tokens[-1] == greedy(network, ids.tolist(), 1)[0]
    want = logprobs_of(network, [*ids.tolist(), int(tokens.tokens[-1])], 3)
    torch.testing.assert_close(torch.from_numpy(tokens.scores.logprobs), want, atol=1e-4, rtol=0)
    assert sums.candidate_logprobs is not None
    totals = [float(logprobs_of(network, chain.tolist(), 3).sum()) for chain in (ids, other)]
    assert sums.candidate_logprobs.tolist() == pytest.approx(totals, abs=1e-3)
    assert sum(len(plan.rows) for plan in plans) == 2 + (3 + 2)


def test_a_network_needs_an_id_that_no_token_has(tmp_path: Path) -> None:
    """As published ones have. Here the tokenizer's own mask takes that part, where it has one."""
    write_causal(tmp_path, vocab_size=1472)
    assert read_config(tmp_path).mask_id == MASK
    (tmp_path / "special_tokens_map.json").unlink()
    said = json.loads((tmp_path / "tokenizer_config.json").read_text())
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({key: said[key] for key in said if key != "mask_token"}))
    assert open_checkpoint(str(tmp_path)).config.mask_id == 1471
    said = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(said | {"vocab_size": 1405}))
    with pytest.raises(ModelError, match="no id of the network is free to stand for open positions"):
        open_checkpoint(str(tmp_path))


def test_blocks_are_refused(tmp_path: Path) -> None:
    write_causal(tmp_path)
    with pytest.raises(ModelError, match="Qwen3ForCausalLM has no blocks"):
        read_config(tmp_path, block_size=4)
