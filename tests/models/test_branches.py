"""Several rows of one request in a step: what is kept of them is what one row would have come to."""

from __future__ import annotations

import pytest

from asynclane.models.runner import Runner
from asynclane.scheduler.vocabulary import Vocabulary

from ..driver import Ask, run
from .test_golden import GOLDEN

LENGTH = 64
PROMPTS = [prompt["prompt_ids"] for prompt in GOLDEN["prompts"][:4]]
PUBLISHED = {"early_stop": False}


@pytest.mark.parametrize("cache", ["none", "prefix", "dual"])
def test_freedave_answers_as_one_token_a_call_does_in_fewer_calls(
    cache: str, runner: Runner, vocabulary: Vocabulary
) -> None:
    knobs = PUBLISHED | {"cache": cache}
    guessing = run(runner, vocabulary, [Ask(prompt, LENGTH, "freedave", knobs) for prompt in PROMPTS])
    plain = run(runner, vocabulary, [Ask(prompt, LENGTH, "llada", knobs) for prompt in PROMPTS])
    assert [s.canvas.tolist() for s in guessing] == [s.canvas.tolist() for s in plain]
    print([s.steps for s in guessing], [s.steps for s in plain])
    assert all(2 * fast.steps < slow.steps for fast, slow in zip(guessing, plain, strict=True))
