"""Runs requests without a server, step by step, as the engine does."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping
from collections.abc import Sequence as Many
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from asynclane.models.checkpoint.config import read_config
from asynclane.models.checkpoint.registry import EMBEDDED, Hardware, load_runner
from asynclane.models.exec.memory import Memory
from asynclane.models.exec.runner import Runner
from asynclane.scheduler import (
    NEUTRAL,
    PLAIN,
    AttentionPattern,
    Constraint,
    Executor,
    Halving,
    LaneEvents,
    Limits,
    Outcome,
    Preferences,
    Request,
    Sampling,
    Scheduler,
    Scored,
    StepCost,
    StepPlan,
    Vocabulary,
    resolve,
)
from asynclane.scheduler.contract import GREEDY, DeviceCommitRule, Ints, Placement, Row, Span
from asynclane.scheduler.decoding.registry import DECODERS
from asynclane.scheduler.sequence import Sequence
from asynclane.server.text.tokenizer import Tokenizer

from .fakes import add

MODEL = EMBEDDED / "tiny-llada"
BLOCKS_MODEL = EMBEDDED / "tiny-sdar"
LIMITS = Limits(slots=32, pages=1024, page_size=16, step_tokens=4096, max_model_len=1024, max_queue=1024)
TWO_IN_FLIGHT = Halving(StepCost([1, 1000], [0.001, 1.0]))

# Decoders that a block-causal network refuses, and its message about each.
UNSUITED = {
    "adablock": "'adablock' chooses how long a block is, and this model's have",
    **dict.fromkeys(("d2cache", "dkv", "dllm-cache", "entropy-cache"), "is for models that see the whole canvas"),
    "asynclane-paper": "decoder 'asynclane-paper' keeps keys that grow stale",
    "daedal": "looks for an end after its block, which no position of this model sees",
    **dict.fromkeys(("dsb", "elastic-cache"), "slides its block, and no position of this model sees past its own"),
    **dict.fromkeys(("leap", "wino"), "needs replicas that this model cannot have"),
    **dict.fromkeys(
        ("ass", "blockbatch", "blockbatch-dream", "dream", "nap", "window"),
        "no position of this model sees past its block",
    ),
}
# The same of a network that reads known tokens first.
UNSUITED_KNOWN_FIRST = {
    **{name: UNSUITED[name] for name in ("asynclane-paper", "d2cache", "dkv", "dllm-cache", "entropy-cache")},
    **dict.fromkeys(("indel", "llada2", "saber", "t2m", "wino"), "reads this model's output at known tokens"),
    **dict.fromkeys(("blockbatch", "blockbatch-dream"), "computes a block without the known tokens after it"),
    "daedal": UNSUITED["daedal"],
    "leap": "needs replicas that this model cannot have",
    **dict.fromkeys(("fast-dllm-v2", "s2d2", "tccf"), "is for block-causal models"),
    **dict.fromkeys(("dsb", "elastic-cache", "window"), "is for models that see the whole canvas"),
}
BLOCKS_ONLY = [name for name, spec in DECODERS.items() if spec.for_blocks]
CAUSAL_ONLY = [name for name, spec in DECODERS.items() if spec.autoregressive]
CANVASES_ONLY = [name for name, spec in DECODERS.items() if spec.denoises]
# Parameters with which a decoder fills a whole canvas: the tokenizer has no `</think>`, and no end is predicted.
FILLING: Mapping[str, Mapping[str, object]] = {"tccf": {"turn": "newline"}, "learn2pd": {"eotp": False}}
REPLICATING = ("leap", "wino")  # they compute a position twice in a step, which a shifted network cannot


def full_logits(runner: Runner, tokens: Ints, mask_id: int, start: int = 0, shift: int = 0) -> Tensor:
    """Logits [positions, V] float64 of the positions from `start + shift` on, computed in one row from `start` on; none
    for the mask token."""
    nothing, order = DeviceCommitRule(0, math.inf), None
    if runner._network.config.known_first:
        order = start + np.argsort(tokens[start:] == mask_id, kind="stable").astype(np.int32)
    row = Row(0, start, len(tokens), len(tokens), (Span(start + shift, len(tokens), nothing),), GREEDY, 0, order=order)
    pages = tuple(range(-(-len(tokens) // LIMITS.page_size)))
    logits = runner.logits(StepPlan((Placement(0, tokens, pages),), (row,))).double()
    logits[:, mask_id] = -math.inf
    return logits


def refusal(decoder: str, pattern: AttentionPattern) -> str | None:
    """The message with which a network of this attention pattern refuses a decoder, or None."""
    if decoder in CANVASES_ONLY and not pattern.canvas_length:
        return f"decoder {decoder!r} denoises random tokens"
    if pattern.canvas_length:
        return None if decoder in CANVASES_ONLY else f"decoder {decoder!r} fills masks"
    if DECODERS[decoder].autoregressive != pattern.autoregressive:
        reason = "fills masks" if pattern.autoregressive else "is for models that predict the next token"
        return f"decoder {decoder!r} {reason}"
    if pattern.autoregressive:
        return f"decoder {decoder!r} needs a network that drafts" if decoder == "deer" and not pattern.drafter else None
    if pattern.known_first:
        return UNSUITED_KNOWN_FIRST.get(decoder)
    if DECODERS[decoder].for_known_first:
        return f"decoder {decoder!r} is for models that read known tokens first"
    if decoder in BLOCKS_ONLY and not pattern.block_size:
        return f"decoder {decoder!r} is for block-causal models"
    if decoder == "s2d2" and pattern.logit_shift:
        return "decoder 's2d2' predicts a token at its own place, and this model at the one before it"
    refused = pattern.block_size or (pattern.logit_shift and decoder in REPLICATING)
    return UNSUITED.get(decoder) if refused else None


def embedded_runner(
    dtype: str = "float32",
    device: str = "cpu",
    model: Path = MODEL,
    page_size: int = LIMITS.page_size,
    **numerics: Any,
) -> Runner:
    memory = Memory(LIMITS.slots, page_size, LIMITS.step_tokens, LIMITS.pages * LIMITS.page_size)
    hardware = Hardware(device, dtype, **numerics)
    return load_runner(model, read_config(model), memory, hardware, Tokenizer(model).end_ids).runner


def embedded_vocabulary() -> Vocabulary:
    return Tokenizer(MODEL).vocabulary


@dataclass(frozen=True, slots=True)
class Spec:
    """A request of a test. `constraint` makes the state of a grammar, which belongs to one run."""

    prompt: Many[int]
    max_tokens: int
    decoder: str = "asynclane"
    params: Mapping[str, object] = field(default_factory=dict)
    sampling: Sampling = field(default_factory=Sampling)
    preferences: Preferences = NEUTRAL
    ranks: int | None = None
    share_group: str | None = None
    constraint: Callable[[], Constraint] | None = None
    suffix: Many[int] = ()
    cache_salt: str = ""
    watched: bool = False
    diffusing: bool = False
    template: Many[int] | None = None  # of `max_tokens` tokens

    def request(self, number: int, pattern: AttentionPattern) -> Request:
        return Request(
            id=number,
            prompt=np.array(self.prompt, np.int32),
            max_tokens=self.max_tokens,
            decoder=resolve(self.decoder, self.params, self.max_tokens, pattern),
            sampling=self.sampling,
            watched=self.watched,
            preferences=self.preferences,
            ranks=self.ranks,
            share_group=self.share_group,
            constraint=None if self.constraint is None else self.constraint(),
            suffix=np.array(self.suffix, np.int32),
            cache_salt=self.cache_salt,
            diffusing=self.diffusing,
            template=None if self.template is None else np.array(self.template, np.int32),
        )


@dataclass(frozen=True, slots=True)
class Answer:
    """A request that has ended. Positions are those of the canvas."""

    canvas: Ints
    streamed: list[int]  # the tokens that updates handed out, in their order
    outcome: Outcome | None
    sent: int  # positions before it were handed out
    frontier: int  # positions before it are committed
    end_at: int  # the first end token, or a number larger than the canvas
    steps: int
    computed_tokens: int
    cached_tokens: int
    refreshes: int
    reused_refreshes: int
    forks: int
    own_pages: int
    scores: Scored | None  # of the positions before `sent`
    events: list[LaneEvents]
    canvases: list[Ints]  # of a diffusing request, after each step

    @property
    def text(self) -> list[int]:
        """The tokens of the answer, without its end."""
        return [int(token) for token in self.canvas[: self.sent]]


def run(
    executor: Executor,
    vocabulary: Vocabulary,
    specs: Many[Spec],
    limits: Limits = LIMITS,
    halving: Halving | None = None,
    pattern: AttentionPattern = PLAIN,
    **options: Any,
) -> list[Answer]:
    """Run all requests to their ends; with `halving`, two steps in flight. `options` are those of `serve`."""
    return serve(Scheduler(limits, vocabulary, halving=halving, pattern=pattern), executor, specs, **options)


def serve(
    scheduler: Scheduler,
    executor: Executor,
    specs: Many[Spec],
    first: int = 0,
    arrive_every: int = 0,
    leave_after: Mapping[int, int] | None = None,
    failing_step: int | None = None,
) -> list[Answer]:
    """Run requests, numbered from `first`, by a scheduler that may have served others before. One arrives in every
    `arrive_every` steps, or all at once. `leave_after` has the steps after which some requests, by number, are aborted.
    The step `failing_step` raises."""
    requests = [spec.request(number, scheduler.pattern) for number, spec in enumerate(specs, first)]
    arriving, leaving = deque(requests), dict(leave_after or {})
    sequences: dict[int, Sequence] = {}
    streamed: dict[int, list[int]] = {request.id: [] for request in requests}
    events: dict[int, list[LaneEvents]] = {request.id: [] for request in requests}
    canvases: dict[int, list[Ints]] = {request.id: [] for request in requests}
    in_flight: deque[StepPlan] = deque()
    step = 0
    while True:
        while arriving and (not arrive_every or step >= arrive_every * len(sequences) or scheduler.idle):
            request = arriving.popleft()
            sequences[request.id] = add(scheduler, request)
        while len(in_flight) < (1 if scheduler.halving is None else 2) and (plan := scheduler.plan()) is not None:
            in_flight.append(plan)
        if not in_flight:
            break
        plan = in_flight.popleft()
        updates = scheduler.fail() if step == failing_step else scheduler.commit(executor.execute(plan))
        for update in updates:
            streamed[update.request_id] += update.tokens.tolist()
            events[update.request_id] += [] if update.lane_events is None else [update.lane_events]
            canvases[update.request_id] += [] if update.canvas is None else [update.canvas]
            expected = step == failing_step or update.failure is not None
            assert update.outcome is not Outcome.FAILED or expected, "its rule raised"
        step += 1
        for number in [number for number, steps in leaving.items() if number in sequences and steps <= step]:
            del leaving[number]
            scheduler.end(number, Outcome.ABORTED)
    scheduler.check_integrity()
    return [_answer(sequences[r.id], streamed[r.id], events[r.id], canvases[r.id]) for r in requests]


def _answer(sequence: Sequence, streamed: list[int], events: list[LaneEvents], canvases: list[Ints]) -> Answer:
    book = sequence.scorebook
    return Answer(
        canvas=sequence.canvas,
        streamed=streamed,
        outcome=sequence.outcome,
        sent=sequence.sent,
        frontier=sequence.frontier,
        end_at=sequence.end_at,
        steps=sequence.steps,
        computed_tokens=sequence.computed_tokens,
        cached_tokens=sequence.cached_tokens,
        refreshes=sequence.refreshes,
        reused_refreshes=sequence.reused_refreshes,
        forks=sequence.tree.forks,
        own_pages=len(sequence.holding.pages),
        scores=None if book is None else book.part(0, sequence.sent),
        events=events,
        canvases=canvases,
    )
