"""Runs requests on the embedded model without a server, step by step, as the engine does."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from collections.abc import Sequence as Many
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from asynclane.models.checkpoint.config import read_config
from asynclane.models.checkpoint.registry import EMBEDDED, Hardware, load_runner
from asynclane.models.exec.memory import Memory
from asynclane.models.exec.runner import Runner
from asynclane.scheduler.contract import Executor, Sampling, StepPlan
from asynclane.scheduler.decoding.attention_pattern import PLAIN, AttentionPattern
from asynclane.scheduler.decoding.registry import DECODERS
from asynclane.scheduler.decoding.resolve import resolve
from asynclane.scheduler.decoding.vocabulary import Vocabulary
from asynclane.scheduler.grammar_guide import Constraint
from asynclane.scheduler.logit_bias import NEUTRAL, Preferences
from asynclane.scheduler.memory.pages import Limits
from asynclane.scheduler.request import Outcome, Request
from asynclane.scheduler.scheduler import Scheduler
from asynclane.scheduler.sequence import Sequence
from asynclane.scheduler.step_cost import Halving
from asynclane.server.text.tokenizer import Tokenizer

from .fakes import add

MODEL = EMBEDDED / "tiny-llada"
BLOCKS_MODEL = EMBEDDED / "tiny-sdar"
LIMITS = Limits(slots=32, pages=1024, page_size=16, step_tokens=4096, max_model_len=1024, max_queue=256)


# Decoders that a block-causal network refuses, and what it says of each.
UNSUITED = {
    "adablock": "'adablock' chooses how long a block is, and this model's have",
    **dict.fromkeys(("d2cache", "dkv", "dllm-cache"), "is for models that see the whole canvas"),
    **dict.fromkeys(("leap", "wino"), "needs replicas that this model cannot have"),
    **dict.fromkeys(("ass", "blockbatch", "dream", "window"), "no position of this model sees past its block"),
}
BLOCKS_ONLY = [name for name, method in DECODERS.items() if method.for_blocks]
# Knobs with which a decoder fills a whole canvas: the tokenizer has no `</think>`, and no end is foreseen.
FILLING: Mapping[str, Mapping[str, object]] = {"tccf": {"turn": "newline"}, "learn2pd": {"eotp": False}}
REPLICATED = ("leap", "wino")  # they ask a position a second time, and a shifted network cannot be asked so


def refusal(decoder: str, pattern: AttentionPattern) -> str | None:
    """What a network of this geometry says of a decoder that it refuses."""
    if decoder in BLOCKS_ONLY and not pattern.block_size:
        return f"decoder {decoder!r} is for block-causal models"
    refused = pattern.block_size or (pattern.logit_shift and decoder in REPLICATED)
    return UNSUITED.get(decoder) if refused else None


def embedded_runner(dtype: str = "float32", device: str = "cpu", model: Path = MODEL, **numerics: Any) -> Runner:
    memory = Memory(LIMITS.slots, LIMITS.page_size, LIMITS.step_tokens, LIMITS.pages * LIMITS.page_size)
    hardware = Hardware(device, dtype, **numerics)
    return load_runner(model, read_config(model), memory, hardware, Tokenizer(model).end_ids).runner


def embedded_vocabulary() -> Vocabulary:
    return Tokenizer(MODEL).vocabulary


@dataclass(frozen=True, slots=True)
class Ask:
    """A request in the words of a test."""

    prompt: Many[int]
    max_tokens: int
    decoder: str = "asynclane"
    knobs: Mapping[str, object] = field(default_factory=dict)
    sampling: Sampling = field(default_factory=Sampling)
    preferences: Preferences = NEUTRAL
    ranks: int | None = None
    share_group: str | None = None
    constraint: Constraint | None = None
    suffix: Many[int] = ()
    cache_salt: str = ""


def run(
    runner: Executor,
    vocabulary: Vocabulary,
    asks: Many[Ask],
    limits: Limits = LIMITS,
    halving: Halving | None = None,
    pattern: AttentionPattern = PLAIN,
) -> list[Sequence]:
    """All of `asks` at once, to their ends; with `halving`, two steps in flight."""
    return serve(Scheduler(limits, vocabulary, halving=halving, pattern=pattern), runner, asks)


def serve(scheduler: Scheduler, runner: Executor, asks: Many[Ask], first: int = 0) -> list[Sequence]:
    """As `run`, numbered from `first`, by a scheduler that may have served others before."""
    sequences = [
        add(
            scheduler,
            Request(
                id=number,
                prompt=np.array(ask.prompt, np.int32),
                max_tokens=ask.max_tokens,
                decoder=resolve(ask.decoder, ask.knobs, ask.max_tokens, scheduler.pattern),
                sampling=ask.sampling,
                preferences=ask.preferences,
                ranks=ask.ranks,
                share_group=ask.share_group,
                constraint=ask.constraint,
                suffix=np.array(ask.suffix, np.int32),
                cache_salt=ask.cache_salt,
            ),
        )
        for number, ask in enumerate(asks, first)
    ]
    flights: deque[StepPlan] = deque()
    while True:
        while len(flights) < (1 if scheduler.halving is None else 2) and (plan := scheduler.plan()) is not None:
            flights.append(plan)
        if not flights:
            break
        for update in scheduler.commit(runner.execute(flights.popleft())):
            assert update.outcome is not Outcome.FAILED or update.failure is not None, "its rule raised"
    scheduler.check_integrity()
    return sequences
