"""Several rows of one request in a step: what is kept of them is what one row would have come to."""

from __future__ import annotations

import pytest

from asynclane.models.runner import Runner
from asynclane.scheduler.rules.blockbatch import BlockBatch, Branch
from asynclane.scheduler.sequence import Sequence
from asynclane.scheduler.vocabulary import Vocabulary

from ..driver import Ask, run
from .test_golden import GOLDEN
from .test_golden import PROMPTS as ASKED

LENGTH = 32
PROMPTS = [prompt["prompt_ids"] for prompt in GOLDEN["prompts"][:2]]
PUBLISHED = {"early_stop": False}


@pytest.mark.parametrize("cache", ["none", "prefix", "dual"])
def test_freedave_answers_as_one_token_a_call_does_in_fewer_calls(
    cache: str, runner: Runner, vocabulary: Vocabulary
) -> None:
    knobs = PUBLISHED | {"cache": cache}
    guessing = run(runner, vocabulary, [Ask(prompt, LENGTH, "freedave", knobs) for prompt in PROMPTS])
    plain = run(runner, vocabulary, [Ask(prompt, LENGTH, "llada", knobs) for prompt in PROMPTS])
    assert [s.canvas.tolist() for s in guessing] == [s.canvas.tolist() for s in plain]
    assert all(3 * fast.steps < 2 * slow.steps for fast, slow in zip(guessing, plain, strict=True))


def test_blockbatch_gives_the_published_tokens_and_the_published_winner(runner: Runner, vocabulary: Vocabulary) -> None:
    """In as many calls as the winner took part in."""
    asks = [Ask(prompt["prompt_ids"], GOLDEN["gen_length"], "blockbatch", PUBLISHED) for prompt in ASKED]
    for prompt, sequence in zip(ASKED, run(runner, vocabulary, asks), strict=True):
        entry = prompt["decoders"]["blockbatch_8_16_32_64"]
        winner = winner_of(sequence)
        got = [prompt["id"], winner.size, winner.calls, sequence.canvas.tolist()]
        assert got == [prompt["id"], entry["winner_block_size"], entry["nfe"], entry["ids"][-GOLDEN["gen_length"] :]]


def winner_of(sequence: Sequence) -> Branch:
    assert sequence.judging is not None
    ensemble = sequence.judging.ensemble
    assert isinstance(ensemble, BlockBatch)
    assert ensemble.winner is not None
    return ensemble.branches[ensemble.winner]
