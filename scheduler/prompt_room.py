"""Divides the room that a step has for prompts and scored tokens, so that requests that run go on beside them."""

from __future__ import annotations

from collections.abc import Iterable
from operator import attrgetter
from typing import NamedTuple

from .decoding.attention_pattern import AttentionPattern
from .memory.pages import Limits
from .scored_sequence import ScoredSequence
from .sequence import PlannedRequest, Sequence
from .step_cost import SHORT_ROOM, Pacing, StepSize
from .turns import Turns

SCORED_TOKENS = 512  # positions of a step that score given tokens while others wait for their answers


class OpenPrompt(NamedTuple):
    """A request whose prompt is computed from `start` to `end` before its first forward, or with it."""

    sequence: Sequence
    start: int
    end: int


class PromptRoom:
    """Clients take turns to have their prompts computed; a turn costs as much as its positions. These count once, also
    where a drafter computes them as well."""

    def __init__(self, limits: Limits, pattern: AttentionPattern) -> None:
        self._most, self._page_size, self._pattern = limits.prefill_tokens, limits.page_size, pattern
        self._turns = Turns()

    def open(self, free: list[Sequence]) -> dict[int, OpenPrompt]:
        """The requests whose prompt is computed within a limit, by id. Of one client whoever was admitted first goes
        first."""
        if not self._most:
            return {}
        new = [sequence for sequence in free if not sequence.steps]
        new.sort(key=lambda one: self._turns.begin(one.request.client))
        prompts = [OpenPrompt(sequence, *sequence.open_prompt()) for sequence in new]
        return {prompt.sequence.id: prompt for prompt in prompts if prompt.start < prompt.end}

    def ends(
        self, prompts: list[OpenPrompt], in_flight: list[PlannedRequest], work: StepSize, pacing: Pacing | None
    ) -> dict[int, int]:
        """The position up to which each request may compute its prompt in the next step, by id; 0: it waits.

        A limit bounds the prompt positions of all steps in flight together, so that running requests go on beside them;
        their next steps have the size `work`. With `pacing` it follows the cost of steps while a long prompt is
        open: short ones then go first, and get half of it at most.
        """
        found: dict[int, int] = {}
        taken = sum([planned.prompt_tokens for planned in in_flight])
        if pacing is None:
            self._add_chunks(found, prompts, self._most - taken)
            return found
        block = self._pattern.block_size
        short = [prompt for prompt in prompts if prompt.end <= pacing.short_prompt]
        long = [prompt for prompt in prompts if prompt.end > pacing.short_prompt]
        if not long:
            self._add_chunks(found, short, min(max(SHORT_ROOM, block), self._most) - taken)
            return found
        for planned in in_flight:
            work = work.plus(planned.beside_prompt)
        each = max(prompt.sequence.prompt_position for prompt in prompts)
        room = pacing.room(work, max(prompt.start for prompt in prompts), self._most, each)
        half = max(room // 2, block)
        taken += self._add_chunks(found, short, half - taken)
        self._add_chunks(found, long, room - taken)
        return found

    def take(self, planned: PlannedRequest) -> None:
        """A step computes the prompt positions of `planned`, if it has any."""
        if planned.prompt_tokens:
            request = planned.sequence.request
            self._turns.take(request.client, cost=planned.prompt_tokens / request.weight)

    def _add_chunks(self, found: dict[int, int], prompts: Iterable[OpenPrompt], room: int) -> int:
        """Add the end of the next chunk of each of the `prompts` to those that were `found`, of `room` positions in
        all. Returns how many they are."""
        taken = 0
        for sequence, start, end in prompts:
            stop = self._chunk_end(start, min(end, start + room - taken), end) if sequence.may_begin(found) else start
            found[sequence.id] = stop if stop > start else 0
            taken += stop - start
        return taken

    def _chunk_end(self, start: int, limit: int, end: int) -> int:
        """The end of a chunk of a prompt from `start` up to `limit`: that of the prompt if it is in reach, or the last
        border of pages, or of blocks."""
        if limit == end:
            return end
        page = limit - limit % self._page_size
        return page if page > start else max(start, self._pattern.floor(limit))


def score_ends(free: list[Sequence], in_flight: list[PlannedRequest]) -> dict[int, int]:
    """The positions that each request of `free` that scores tokens may compute in the next step, by id; 0: it waits. A
    limit bounds those of all steps in flight together, but for one row. The longest waiting goes first."""
    scoring = [sequence for sequence in free if isinstance(sequence, ScoredSequence)]
    if not scoring:
        return {}
    room = SCORED_TOKENS - sum(one.tokens for one in in_flight if isinstance(one.sequence, ScoredSequence))
    found: dict[int, int] = {}
    for sequence in sorted(scoring, key=attrgetter("served_at", "id")):
        length = sequence.request.length
        rows = min(sequence.most_rows, max(1, room // length)) if room > 0 else 0
        found[sequence.id] = rows * length
        room -= rows * length
    return found
