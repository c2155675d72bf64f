"""A state machine that drives a scheduler at random: arrivals, departures, steps, and steps that fail."""

from __future__ import annotations

import itertools
import random
from collections import deque
from dataclasses import replace
from typing import Any

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from asynclane.scheduler.contract import StepPlan
from asynclane.scheduler.decoding.attention_pattern import PLAIN, AttentionPattern
from asynclane.scheduler.decoding.params import ParamError
from asynclane.scheduler.decoding.resolve import Decoder, resolve
from asynclane.scheduler.logit_bias import Preferences
from asynclane.scheduler.memory.pages import Limits
from asynclane.scheduler.request import Outcome, Request, State
from asynclane.scheduler.scheduler import QueueFull, Scheduler, Update
from asynclane.scheduler.sequence import Sequence
from asynclane.scheduler.step_cost import Budget, Halving, StepCost

from .fakes import MASK, ScriptedExecutor, add, random_executor, vocabulary
from .scale import ALL, EXPLORING

LIMITS = Limits(slots=4, pages=40, page_size=8, step_tokens=160, max_model_len=128, max_queue=6)
COST = StepCost([0, 64], [0.01, 0.02])

CASES: list[tuple[str, dict[str, Any]]] = [
    ("asynclane", {}),
    ("asynclane", {"max_lanes": 8, "min_fill": 0.0, "block_length": 8, "lookahead": 0, "threshold": 0.5}),
    ("asynclane", {"refresh_every": 1, "block_length": 4, "lookahead": 5, "threshold": 0.3}),
    ("asynclane", {"cache": "prefix", "lookahead": "canvas", "factor": 1.0}),
    ("asynclane", {"cache": "none", "block_length": 6}),
    ("asynclane", {"siblings": "isolated", "block_length": 4, "lookahead": 1, "max_lanes": 2, "threshold": 0.6}),
    ("asynclane", {"siblings": "isolated", "block_length": 2, "lookahead": 0, "max_lanes": 3, "refresh_every": 1}),
    ("asynclane-paper", {"block_length": 8, "refine_lookahead": 3, "max_lanes": 3, "threshold": 0.6, "min_fill": 0.2}),
    ("asynclane-paper", {"block_length": 4, "lookahead": 2, "refine_lookahead": 0, "max_lanes": 2, "min_steps": 1}),
    ("asynclane-paper", {"siblings": "live", "block_length": 8, "min_fill": 0.0, "child_length": "rest"}),
    ("asynclane", {"siblings": "coupled", "block_length": 8, "threshold": 0.6, "draft_threshold": 0.5}),
    ("asynclane", {"siblings": "commit", "block_length": 8, "threshold": 0.6, "boundary": "comma"}),
    ("asynclane", {"reuse": False, "refresh_every": 1, "settle": False, "threshold": 0.6}),
    ("asynclane", {"boundary": "stable", "stable_steps": 1, "block_length": 8, "end_threshold": 0.5}),
    ("asynclane", {"draft_threshold": 0.4, "threshold": 0.6, "refresh_every": 1}),
    ("asynclane", {"block_length": "auto", "threshold": 0.6, "later_threshold": 0.7}),
    ("asynclane", {"reuse": False, "refresh_every": 1, "refresh_on": "steps", "block_length": 4}),
    ("asynclane", {"early_stop": False, "block_length": 8, "threshold": 0.5}),
    ("adablock", {"block_length": 8, "delimiters": "newline_period_comma", "cache": "prefix"}),
    ("d2f", {"block_length": 4, "add_threshold": 0.0, "active_threshold": 0.5, "threshold": 0.6}),
    ("d2f", {"block_length": 8, "rule": "localleap", "cache": "none", "early_stop": False}),
    ("d3llm", {"block_length": 4, "entropy_threshold": 0.0}),
    ("d3llm", {"block_length": 4, "cache": "finished", "refresh_interval": 5}),
    ("lopa", {"branches": 2, "block_length": 4, "cache": "finished", "cache_delay": 0}),
    ("slowfast", {"block_length": 16, "slow_calls": 2, "explore": "stable"}),
    ("slowfast", {"lookahead": 0, "cache": "none", "early_stop": False, "stable_window": 1}),
    ("llada", {}),
    ("daedal", {"canvas_start": 8, "block_length": 8, "threshold": 0.5, "unsure_below": 0.4}),
    ("fast-dllm", {"cache": "none", "block_length": 16}),
    ("fast-dllm", {"cache": "dual", "early_stop": False, "threshold": 0.2}),
    ("llada2", {"block_length": 8, "edit_threshold": 0.6, "edit_steps": 3}),
    ("saber", {"block_length": 8}),
    ("t2m", {"block_length": 8, "threshold": 0.5, "remask_threshold": 0.6, "remask_times": 3, "edit_steps": 4}),
    ("saber", {"precision": "double", "early_stop": False, "cache": "prefix"}),
    ("nap", {"tokens_per_call": 2}),
    ("elastic-cache", {"block_length": 4, "threshold": 0.5, "least_similarity": 0.99}),
    ("blockbatch", {"branches": 2, "smallest_block": 2, "sync_lag": 2, "refresh_size": 4}),
    ("blockbatch-dream", {"branches": 2, "smallest_block": 2, "sync_lag": 2, "refresh_size": 4, "threshold": 0.5}),
    ("blockbatch", {"branches": 3, "smallest_block": 2, "refresh_size": 4, "share_prompt": True}),
    ("freedave", {"draft_steps": 2, "block_length": 8}),
    ("psd", {"draft_steps": 3, "block_length": 8, "threshold": 0.5, "accept": "subset"}),
    ("freedave", {"draft_steps": 2, "cache": "none", "commit_threshold": 0.6, "early_stop": False}),
    ("lopa", {"branches": 3, "block_length": 4, "threshold": 0.6}),
    ("dream", {"alg": "origin", "cache": "dual"}),
    ("dream", {"alg": "topk_margin", "alg_temp": 0.3, "cache": "prefix"}),
    ("asynclane", {"cache": "d2", "candidates": 5, "block_length": 8, "threshold": 0.6, "draft_threshold": 0.5}),
    ("asynclane", {"cache": "delayed", "block_length": 8, "threshold": 0.5, "end_threshold": 0.5}),
    ("asynclane", {"cache": "settled", "block_length": 8, "threshold": 0.5, "stop_threshold": 0.6}),
    ("fast-dllm", {"cache": "interval", "threshold": 0.5, "response_share": 0.1}),
    ("dream", {"cache": "d2", "candidates": 3}),
    ("window", {"cycle": 4, "window_tokens": 8, "active_tokens": 3}),
]


def random_schedules(few: int, many: int) -> settings:
    """So many random schedules: `few` in `make test`."""
    return settings(max_examples=20 * many if EXPLORING else many if ALL else few, stateful_step_count=40)


def decoder_for(name: str, params: dict[str, Any], length: int, pattern: AttentionPattern = PLAIN) -> Decoder:
    """A look-ahead that is larger than the canvas would be refused."""
    lookahead = params.get("lookahead")
    fitting = {"lookahead": min(lookahead, length)} if isinstance(lookahead, int) else {}
    return resolve(name, {**params, **fitting}, length, pattern)


def halving_for(depth: int) -> Halving | None:
    return Halving(COST, slack_s=1.0) if depth > 1 else None


def scheduler_of(depth: int, shift: int) -> Scheduler:
    return Scheduler(LIMITS, vocabulary(), Budget(COST), halving_for(depth), AttentionPattern(logit_shift=shift))


class Schedules(RuleBasedStateMachine):
    """Random arrivals, departures at any moment, steps that fail, and rows larger than what is left of a step."""

    depth = 1  # steps in flight
    limits, decoders = LIMITS, CASES
    pattern, shifts = PLAIN, True

    def __init__(self) -> None:
        super().__init__()
        self.requests: dict[int, Sequence] = {}
        self.ended: dict[int, Outcome] = {}
        self.streamed: dict[int, list[int]] = {}
        self.in_flight: deque[StepPlan] = deque()

    @initialize(shift=st.integers(0, 1))
    def begin(self, shift: int) -> None:
        """With a network of either kind."""
        self.pattern = replace(self.pattern, logit_shift=shift if self.shifts else 0)
        halving = halving_for(self.depth)
        self.scheduler = Scheduler(self.limits, vocabulary(), Budget(COST), halving, self.pattern)
        self.executor = self.new_executor()

    def new_executor(self) -> ScriptedExecutor:
        return random_executor(seed=7, shift=self.pattern.logit_shift)

    @rule(prompt=st.integers(1, 60), word=st.integers(6, 7), length=st.integers(1, 68), pick=st.integers(0, 999))
    def arrive(self, prompt: int, word: int, length: int, pick: int) -> None:
        number = len(self.requests)
        decoder = decoder_for(*self.decoders[pick % len(self.decoders)], length, self.pattern)
        tokens = np.full(prompt, word, np.int32)
        ranks = 2 if decoder.scored else None
        client, bundle = f"client {pick % 3}", f"bundle {number}" if pick % 2 else None
        request = Request(number, tokens, length, decoder, share_group=str(number), ranks=ranks)
        self._add(replace(request, client=client, weight=1.0 + pick % 2, bundle=bundle))

    @precondition(lambda self: self.requests)
    @rule(pick=st.randoms(use_true_random=False))
    def arrive_as_another_choice(self, pick: random.Random) -> None:
        """Another choice of a prompt that is still waiting, runs, or has ended."""
        original = pick.choice(list(self.requests.values())).request
        self._add(replace(original, id=len(self.requests), preferences=Preferences(presence=1.0, min_tokens=1)))

    def _add(self, request: Request) -> None:
        number = request.id
        try:
            self.requests[number] = add(self.scheduler, request)
            self.streamed[number] = []
        except ParamError:
            assert request.decoder.branches, "rows that fit were refused"
        except QueueFull:
            assert len(self.scheduler.waiting) >= LIMITS.max_queue
            free = self.scheduler.slots.free, self.scheduler.pages.free
            self.scheduler._admit()
            assert free == (self.scheduler.slots.free, self.scheduler.pages.free), "somebody waited beside free places"

    @precondition(lambda self: len(self.in_flight) < self.depth)
    @rule()
    def plan_step(self) -> None:
        plan = self.scheduler.plan()
        assert plan is not None or self.in_flight or self.scheduler.idle
        if plan is not None:
            assert 0 < plan.tokens <= self.limits.step_tokens
            self.in_flight.append(plan)

    @precondition(lambda self: bool(self.in_flight))
    @rule()
    def commit_step(self) -> None:
        updates = self.scheduler.commit(self.executor.execute(self.in_flight.popleft()))
        assert not any(update.outcome is Outcome.FAILED for update in updates), "a rule raised"
        self._take(updates)

    @precondition(lambda self: bool(self.in_flight))
    @rule()
    def step_raises(self) -> None:
        self._take(self.scheduler.fail())
        self.in_flight.popleft()

    @rule(pick=st.randoms(use_true_random=False))
    def leave(self, pick: random.Random) -> None:
        alive = [s for s in self.requests.values() if s.state is not State.FINISHED]
        if alive:
            sequence = pick.choice(alive)
            stepping = sequence.state is State.STEPPING
            self.scheduler.end(sequence.id, Outcome.ABORTED)
            if not stepping and sequence.state is State.FINISHED:
                self.ended[sequence.id] = Outcome.ABORTED

    def _take(self, updates: list[Update]) -> None:
        for update in updates:
            number = update.request_id
            assert number not in self.ended, "an end was reported twice"
            assert MASK not in update.tokens
            self.streamed[number] += update.tokens.tolist()
            if update.outcome is not None:
                self.ended[number] = update.outcome

    @invariant()
    def books_are_balanced(self) -> None:
        self.scheduler.check_integrity()

    @invariant()
    def lanes_are_gapless_and_ordered(self) -> None:
        for sequence in self.scheduler.running.values():
            lanes = sequence.tree.live
            for left, right in itertools.pairwise(lanes):
                assert left.start < left.end <= right.start
            assert not lanes or not (sequence.canvas[: lanes[0].start] == MASK).any()

    @invariant()
    def streamed_tokens_are_final(self) -> None:
        for number, tokens in self.streamed.items():
            assert self.requests[number].canvas[: len(tokens)].tolist() == tokens

    def teardown(self) -> None:
        for _ in range(4000):
            while len(self.in_flight) < self.depth and (plan := self.scheduler.plan()) is not None:
                self.in_flight.append(plan)
            if not self.in_flight:
                break
            self.commit_step()
        assert self.scheduler.idle, "a request starved"
        assert set(self.ended) == set(self.requests)
        assert self.scheduler.load().pages_used == self.scheduler.slots.used == 0
