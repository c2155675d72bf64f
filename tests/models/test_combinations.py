"""Lanes of AsyncLane with the commit rules of other papers, over every cache: what the table's axes promise."""

from __future__ import annotations

import itertools

from asynclane.models.exec.runner import Runner
from asynclane.scheduler.decoding.cache import CACHES
from asynclane.scheduler.decoding.vocabulary import Vocabulary
from asynclane.scheduler.request import Outcome

from ..support.driver import Ask, run
from .test_mixed import PROMPTS

RULES = ("credit", "klass", "localleap", "tspd", "ce")
LENGTH = 16


def test_lanes_go_with_every_rule_over_every_cache(runner: Runner, vocabulary: Vocabulary) -> None:
    """And answer in a crowd of all as they do alone."""
    asked = []
    for number, (rule, cache) in enumerate(itertools.product(RULES, CACHES)):
        lookahead = "canvas" if cache == "dual" else 8  # which shows lanes the whole canvas
        knobs = {"rule": rule, "cache": cache, "block_length": 8, "lookahead": lookahead}
        asked.append(Ask(PROMPTS[number % len(PROMPTS)], LENGTH, "asynclane", knobs))
    for number, (ask, crowded) in enumerate(zip(asked, run(runner, vocabulary, asked), strict=True)):
        assert crowded.outcome is Outcome.STOP or crowded.frontier == LENGTH, ask
        if (number + number // len(CACHES)) % 3 == 0:  # each rule and each cache with some of the others
            (alone,) = run(runner, vocabulary, [ask])
            assert alone.canvas.tolist() == crowded.canvas.tolist(), ask
            assert alone.steps == crowded.steps, ask
