"""Scores given tokens without a server, and computes the same directly."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from asynclane.models.checkpoint.config import read_config
from asynclane.models.exec.runner import Runner
from asynclane.scheduler import (
    AttentionPattern,
    Halving,
    Limits,
    Request,
    Scheduler,
    Scoring,
    StepPlan,
    Update,
    scoring_decoder,
    scoring_room,
    with_rows,
)
from asynclane.server.text.tokenizer import Tokenizer

from .driver import LIMITS, Spec, embedded_runner, full_logits

BLOCK = 32  # masks after the tokens


def scoring(*chains: np.ndarray, **fields: Any) -> Scoring:
    """The scoring of some chains."""
    return Scoring(np.concatenate(chains), np.array([*map(len, chains)]), **fields)


class Setting:
    """A network with its tokenizer and its attention pattern."""

    def __init__(self, directory: Path) -> None:
        self.runner: Runner = embedded_runner(model=directory)
        self.text = Tokenizer(directory)
        self.pattern: AttentionPattern = read_config(directory).pattern
        self.mask_id = self.text.mask_id

    def ids(self, text: str) -> np.ndarray:
        return np.array(self.text.encode(text, specials=False), np.int32)

    def score(
        self,
        requests: Sequence[tuple[np.ndarray, Scoring]],
        others: Sequence[Spec] = (),
        limits: Limits = LIMITS,
        halving: Halving | None = None,
        **fields: Any,
    ) -> tuple[list[Update], list[StepPlan]]:
        """The last update of each request, and all steps. `others` are answered beside them."""
        scheduler = Scheduler(limits, self.text.vocabulary, halving=halving, pattern=self.pattern)
        for number, spec in enumerate(others, len(requests)):
            scheduler.add(spec.request(number, self.pattern))
        for number, (prompt, scoring) in enumerate(requests):
            given = with_rows(scoring, len(prompt), limits, self.pattern)
            room, decoder = scoring_room(given, self.pattern), scoring_decoder(given)
            request = Request(number, prompt, room, decoder, ranks=0, scoring=given)
            scheduler.add(replace(request, **fields))
        last: dict[int, Update] = {}
        plans: list[StepPlan] = []
        in_flight: deque[StepPlan] = deque()
        while True:
            while len(in_flight) < (1 if halving is None else 2) and (plan := scheduler.plan()) is not None:
                in_flight.append(plan)
                plans.append(plan)
            if not in_flight:
                break
            last.update((one.request_id, one) for one in scheduler.commit(self.runner.execute(in_flight.popleft())))
        scheduler.check_integrity()
        return [last[number] for number in range(len(requests))], plans

    def direct(
        self, prompt: np.ndarray, chain: np.ndarray, behind: int = BLOCK, biases: Mapping[int, float] | None = None
    ) -> list[float]:
        """The log-probability of each token of a chain, by one forward for each, with `behind` masks after it
        and `biases` of logits."""
        rows = self.rows(prompt, chain, behind, biases)
        return [float(row[token]) for row, token in zip(rows, chain.tolist(), strict=True)]

    def rows(
        self, prompt: np.ndarray, chain: np.ndarray, behind: int = BLOCK, biases: Mapping[int, float] | None = None
    ) -> list[Tensor]:
        """The log-probabilities [V] of all tokens in the place of each of a chain."""
        found = []
        for at in range(len(chain)):
            masks = np.full(len(chain) - at + behind, self.mask_id, np.int32)
            tokens = np.concatenate((prompt, chain[:at], masks))
            tokens = np.pad(tokens, (0, -len(tokens) % (self.pattern.block_size or 1)), constant_values=self.mask_id)
            position = len(prompt) + at
            logits = full_logits(self.runner, tokens, self.mask_id, shift=self.pattern.logit_shift)
            row = logits[position - self.pattern.logit_shift]
            for biased, value in (biases or {}).items():
                row[biased] += value
            found.append(row.log_softmax(-1))
        return found
