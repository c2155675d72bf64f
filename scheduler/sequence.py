"""A request as the scheduler carries it: its state, its canvas, and all that decides about them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from .contract import DeviceCommitRule, Ints, Row, Scores, Span, StepResult
from .decoding.attention_pattern import AttentionPattern
from .decoding.boundaries import Longs, Nesting
from .decoding.cache import NO_CANVAS, Canvas, ComputeRange, Progress, RequestExtent, StepConfidence
from .decoding.lane_tree import LaneTree
from .decoding.lanes.base import ABSENT, LaneStatus
from .decoding.stability import Stability
from .decoding.vocabulary import END, Vocabulary
from .grammar_guide import Continuation, GrammarGuide
from .host_rules import Commits, HostRuleRunner
from .lane_events import LaneEventRecorder, LaneEvents
from .lane_status import LaneSnapshot
from .layout import LAYOUTS, Holding, RowLayout, RowSource
from .layout.packed import StepInputs
from .logit_bias import NEUTRAL, Biasing
from .logprobs import Scorebook
from .memory.prefix_cache import NO_HASHES, Lease, PrefixCache
from .request import TRANSITIONS, Failure, Outcome, Request, RequestStats, State, Update

NO_END = 1 << 30
STABLE_STEPS = 2  # where a tokenizer has no boundaries, lanes fork at what so many steps have not changed


@dataclass(frozen=True, slots=True)
class PlannedRequest:
    """A request in a step: its rows, their `spans` and `tokens`, and what its commit needs to know.

    `open` are the masks before the step, of a request that adapts to the load. `prompt_tokens` are those of `tokens`
    that count against the limit on prompt positions in one step.
    """

    sequence: Sequence
    window: ComputeRange
    extent: RequestExtent
    rows: tuple[Row, ...]
    spans: tuple[Span, ...]
    tokens: int
    open: int
    prompt_tokens: int = 0

    @property
    def prompt_chunk(self) -> bool:
        """True if the step computes a chunk of the prompt and nothing else: it is no forward of the request."""
        return 0 < self.prompt_tokens == self.tokens


class Sequence:
    """A request as the scheduler carries it. Canvas positions start at 0, after the prompt."""

    layout: RowLayout

    def __init__(self, request: Request, vocabulary: Vocabulary, pattern: AttentionPattern) -> None:
        decoder, policy, constraint = request.decoder, request.decoder.policy, request.constraint
        prompt, length, mask_id = len(request.prompt), request.max_tokens, vocabulary.mask_id
        rule = None if decoder.host_rule is None else decoder.host_rule()
        stable_steps = policy.stable_steps or (0 if policy.boundary.known_to(vocabulary) else STABLE_STEPS)
        neutral, guided = request.preferences == NEUTRAL, constraint is not None
        self.request = request
        self.prompt_length = prompt
        self.tree = LaneTree(np.full(length, mask_id, np.int32), mask_id, prompt, pattern, vocabulary.filler)
        self.canvas = self.tree.canvas
        self.cache = decoder.cache()
        self.nesting = Nesting.of(policy.boundary, request.prompt, vocabulary)
        self.stability = Stability(length, stable_steps) if stable_steps else None
        self.recorder = LaneEventRecorder(self.canvas, mask_id) if request.watched else None
        self.scorebook = None if request.ranks is None else Scorebook(length, request.ranks)
        self.host_rule = None if rule is None else HostRuleRunner(rule, decoder, vocabulary, guided)
        self.guide = None if constraint is None else GrammarGuide(constraint, vocabulary, length)
        biasing = None if neutral else Biasing(request.preferences, vocabulary, prompt, length)
        drafts = DeviceCommitRule(sure=0, threshold=decoder.draft_threshold)
        self.source = RowSource(request, self.tree, drafts, biasing, self.host_rule, self.guide)
        self._vocabulary = vocabulary
        self._revises = decoder.revises  # the tokens of a lane are not final before it ends
        self.state = State.WAITING
        self.outcome: Outcome | None = None
        self.holding = Holding((), ())
        self.block_hashes = NO_HASHES  # of the pages of its prompt that others may read
        self.lease: Lease | None = None  # pages before its own ones, which others may read
        self.frontier = 0  # canvas positions before it are committed
        self.end_at = NO_END  # the first end token committed so far
        self.predicted_end = NO_END  # the first end token that the network is about to commit
        self.sent = 0  # canvas positions before it were handed out
        self.served_at = 0  # the scheduler's step that last carried it, or admitted it
        self.prefilled = 0  # absolute positions before it were computed in chunks of the prompt, before all forwards
        self.steps = self.computed_tokens = self.cached_tokens = self.refreshes = self.reused_refreshes = 0

    @property
    def id(self) -> int:
        return self.request.id

    @property
    def pages(self) -> tuple[int, ...]:
        """The pages that it reads: those that it shares and its own."""
        return (*(self.lease.numbers if self.lease is not None else ()), *self.holding.pages)

    @property
    def stats(self) -> RequestStats:
        tree = self.tree
        return RequestStats(
            prompt_tokens=self.prompt_length if self.steps or self.prefilled else 0,
            cached_tokens=self.cached_tokens,
            computed_tokens=self.computed_tokens,
            forwards=self.steps,
            lanes=tree.born,
            forks=tree.forks,
            cancelled_lanes=tree.cancelled,
            refreshes=self.refreshes,
            reused_refreshes=self.reused_refreshes,
        )

    def move(self, state: State) -> None:
        if state not in TRANSITIONS[self.state]:
            raise RuntimeError(f"request {self.id} cannot go from {self.state.value} to {state.value}")
        self.state = state

    def find_hashes(self, prefixes: PrefixCache) -> None:
        """Set the keys of whole pages of the prompt that nothing computes again."""
        request, decoder = self.request, self.request.decoder
        if self.cache.keeps_prompt:
            # A network that predicts from the position before computes the prompt's last one with the canvas.
            prompt = request.prompt[: max(0, self.prompt_length - self.tree.pattern.logit_shift)]
            group = None if decoder.branches or decoder.adaptive else request.share_group
            self.block_hashes = prefixes.block_hashes(prompt, request.cache_salt, group)

    def admit(self, lease: Lease, holding: Holding, page_size: int) -> None:
        """The request has what it needs on the device: its first lanes begin."""
        self.lease, self.holding = lease, holding
        if self.guide is not None:
            self._continue(self.guide.begin(), None)
        self.request.decoder.policy.open(self.tree)
        everything = Holding(holding.slots, (*lease.numbers, *holding.pages))
        self.layout = LAYOUTS[self.request.decoder.layout](everything, self.source, page_size)

    def may_begin(self, stepping: Mapping[int, int]) -> bool:
        """Return whether the pages that it does not compute itself are known, or computed by the requests `stepping`
        with it, each of them up to a position."""
        return bool(self.steps or self.prefilled) or self.lease is None or self.lease.ready(stepping)

    def open_prompt(self) -> tuple[int, int]:
        """The start and the end of the prompt's whole blocks that are still to be computed. Their keys and values
        depend on no later position, so steps before the first forward may compute them, in chunks."""
        pattern = self.tree.pattern
        if self.steps or not pattern.block_size or not self.cache.keeps_prompt:
            return 0, 0
        start, end = self._begin(), pattern.floor(max(0, self.prompt_length - pattern.logit_shift))
        return min(start, end), end

    def _begin(self) -> int:
        """The first position that no step before the first forward has computed, of this request or of others."""
        return self.prefilled or (self.lease.begin() if self.lease is not None else 0)

    def plan(self, prompt_end: int | None = None) -> PlannedRequest:
        """The next step of the request, which may still have to wait. With a `prompt_end` the step computes the open
        part of the prompt up to there, and drives the lanes if that is all of it."""
        lookahead_end = self._lookahead_end()
        extent = self._extent(lookahead_end)
        window = self._window(extent)
        prompt_tokens = 0
        if prompt_end is not None:
            start, end = self.open_prompt()
            prompt_tokens = prompt_end - start
            if prompt_end < end:
                window = ComputeRange(start, prompt_end, prompt_end, drives=False)
        inputs = StepInputs(self.steps, self.frontier, self.end_at, lookahead_end)
        rows = self.layout.rows(window, inputs)
        spans = tuple([span for row in rows for span in row.spans])
        open_ = self.open_tokens() if self.request.decoder.adaptive else 0
        tokens = sum([row.tokens for row in rows])
        return PlannedRequest(self, window, extent, rows, spans, tokens, open_, prompt_tokens)

    def open_tokens(self) -> int:
        """The masks that can still be reached."""
        return self.tree.masks(0, self.tree.limit)

    def _extent(self, lookahead_end: int) -> RequestExtent:
        """The positions that matter to the next step. They end where a block of the network does: it has never seen a
        part of one."""
        prompt, live, pattern = self.prompt_length, self.tree.live, self.tree.pattern
        end = self.request.length if len(self.request.suffix) else prompt + lookahead_end
        canvas = Canvas(prompt, self.canvas.copy(), self.tree.mask_id) if self.cache.reads_canvas else NO_CANVAS
        start, last, frontier = prompt + live[0].start, prompt + live[-1].end, pattern.floor(prompt + self.frontier)
        return RequestExtent(start, last, pattern.ceil(end), frontier, canvas)

    def _lookahead_end(self) -> int:
        """The end of the look-ahead after all lanes, a canvas position."""
        last, lookahead = self.tree.live[-1].end, self.request.decoder.lookahead
        end = self._canvas_end() if lookahead is None else min(last + lookahead, self.tree.limit)
        return max(last, min(end, self.predicted_end + 1))

    def _canvas_end(self) -> int:
        """The end of the canvas, or where a host commit rule has cut it."""
        cut = None if self.host_rule is None else self.host_rule.cut
        return len(self.canvas) if cut is None else cut + 1

    def _window(self, extent: RequestExtent) -> ComputeRange:
        """The positions that the next step computes. The first forward leaves out what steps before it, or other
        requests, have computed."""
        window = self.cache.compute_range(extent)
        if self.guide is not None:
            window = window._replace(gaps=())  # a grammar goes from one position to the next
        if (
            self._revises or self.request.decoder.replica_positions
        ):  # committed positions are looked at again, or replicated
            window = window.covering(extent.first, extent.last)
        if self.steps:
            return window
        return window._replace(start=max(window.start, self._begin()))

    def take(self, spans: tuple[Span, ...], result: StepResult, part: slice) -> Ints | None:
        """Write the commits of a step to the canvas. `part` of its result belongs to `spans`, which are this request's.
        Returns the tokens that the host has left there, from the start of `part` on; None: those of the result."""
        positions = _positions(spans)
        if self.request.decoder.replica_positions:  # replica rows lie after the canvas
            positions = positions[positions < self.request.length]
        own = slice(part.start, part.start + len(positions))
        if self.cache.reads_canvas:
            self.cache.observe(StepConfidence(positions, result.confidence[own]))
        positions = positions - self.prompt_length  # not in place: the cache keeps the absolute ones
        rule, guide = self.host_rule, self.guide
        if rule is None:
            commits = Commits(positions, result.tokens[own], np.arange(own.start, own.stop))
        else:
            commits = rule.decide(self.tree, self.steps, positions, result, part)
        self._write(commits, result.scores)
        if self.stability is not None:
            open_ = commits.tokens == self.tree.mask_id
            self.stability.update(commits.positions, np.where(open_, result.proposals[commits.found], commits.tokens))
        if guide is not None:
            chosen = None if rule is None else rule.chosen
            self._continue(guide.take(int(positions[0]), self.frontier, result, own, chosen), result.scores)
        return None if rule is None or rule.ensemble is not None else commits.tokens

    def _continue(self, text: Continuation, scores: Scores | None) -> None:
        """Write the next tokens of an answer with a grammar."""
        start, self.frontier = self.frontier, self.frontier + len(text.tokens)
        positions = np.arange(start, self.frontier)
        if text.ends:
            self.end_at = self.frontier - 1
            self.tree.end_at(self.end_at)
        self._write(Commits(positions, np.array(text.tokens, np.int32), np.array(text.found, np.int64)), scores)

    def _write(self, commits: Commits, scores: Scores | None) -> None:
        positions, tokens, found = commits
        if self.scorebook is not None:
            new = np.flatnonzero((tokens != self.tree.mask_id) & (tokens != self.canvas[positions]))
            self.scorebook.take(positions[new], tokens[new], found[new], scores, self.steps)
        self.canvas[positions] = tokens

    def snapshot(self) -> LaneSnapshot:
        """The live lanes, after `take`."""
        policy, live = self.request.decoder.policy, self.tree.live
        start, end = live[0].start, live[-1].end
        settled = None if self.stability is None else self.stability.settled(start, end)
        tokens = self.canvas[start:end]
        return LaneSnapshot(live, tokens, settled, policy.boundary, self.nesting, policy.min_fill, policy.marks)

    def predict_end(self, end: int | None, window: ComputeRange) -> None:
        """The answer seems to end with the token at the absolute position `end`, or nowhere in `window`. What the
        window leaves out is unchanged."""
        found = NO_END if end is None else end - self.prompt_length
        before, masked = self.predicted_end, self.tree.mask_id
        if window.leaves_out(self.prompt_length + before) and self.canvas[before] == masked:
            found = min(found, before)
        self.predicted_end = found

    def advance(self, planned: PlannedRequest, statuses: list[LaneStatus] | None) -> LaneEvents | None:
        """Count a step, and let the lanes advance if it drove them: `statuses` belong to the live lanes. Returns the
        lane events of a watched request. A chunk of the prompt is no forward, and does not count as a step."""
        if planned.prompt_chunk:
            self._advance_prompt(planned)
            return None
        window, extent = planned.window, planned.extent
        progress = Progress(0, 0, extent.frontier) if statuses is None else self._advance_lanes(statuses)
        step, self.steps, known = self.steps, self.steps + 1, self.layout.known
        extent = extent._replace(frontier=min(extent.frontier, known))
        self.cache.computed(window, extent, progress._replace(frontier=min(progress.frontier, known)))
        if self.lease is not None:
            self._share_pages(self.lease, planned)
        self.refreshes += window.refresh
        self.reused_refreshes += window.refresh and window.drives
        self.computed_tokens += planned.tokens
        if self.recorder is None:
            return None
        rows, prompt = [row for row in planned.rows if row.copy is None], self.prompt_length
        start, end = min(row.start for row in rows), max(row.end for row in rows)
        return self.recorder.after(self.tree, step, start - prompt, end - prompt, window.refresh)

    def _advance_lanes(self, statuses: list[LaneStatus]) -> Progress:
        tree, rule, lanes, started = self.tree, self.host_rule, tuple(self.tree.live), self.tree.live[0].start
        finished, forks = tree.finished, tree.forks
        stays = rule is not None and rule.stays
        if self.recorder is not None:
            self.recorder.before(lanes)
        for lane, status in zip(lanes, statuses, strict=True):
            lane.steps += 1
            lane.masks = status.open or int(stays)
        if rule is not None and rule.cut is not None:
            tree.end_at(rule.cut)
        self.request.decoder.policy.advance(tree, statuses[: len(tree.live)])  # a cut leaves the first of them
        self.layout.follow()
        if self._revises:  # only lanes that have ended are final
            statuses = [status for lane, status in zip(lanes, statuses, strict=True) if lane not in tree.live]
        self.end_at = min([self.end_at, *(status.end_at for status in statuses if status.end_at != ABSENT)])
        passed, self.frontier = self.frontier, self._next_mask()
        if rule is not None and rule.sees_ahead:
            self.end_at = min(self.end_at, self._first_end(passed))
        if self._revises and tree.live:
            self.frontier = min(self.frontier, tree.live[0].start)
        if tree.live:
            self.nesting = self.nesting.after(self.canvas[started : tree.live[0].start], self._vocabulary)
        return Progress(tree.finished - finished, tree.forks - forks, self.prompt_length + self.frontier)

    def _advance_prompt(self, planned: PlannedRequest) -> None:
        """Count a chunk of the prompt."""
        if not self.prefilled:
            self.cached_tokens = planned.window.start
        self.prefilled = planned.window.end
        self.computed_tokens += planned.tokens
        if self.lease is not None:
            self.lease.computed(self.prefilled)

    def _share_pages(self, lease: Lease, planned: PlannedRequest) -> None:
        """Others may read the pages that a step has left in their last state."""
        if self.steps == 1:
            self.cached_tokens = self.cached_tokens if self.prefilled else planned.window.start
            lease.computed(planned.window.end)
        prompt, size = self.request.prompt, self.prompt_length

        def text(start: int, end: int) -> Ints:
            return np.concatenate((prompt[start:end], self.canvas[max(start - size, 0) : max(end - size, 0)]))

        grown = lease.grow(planned.extent.frontier, text, self.holding.pages)
        self.holding = self.holding._replace(pages=self.holding.pages[grown:])

    def report(self, events: LaneEvents | None) -> Update:
        """The tokens that have become final since the last report, without end tokens, and how the request has ended,
        if it has. Nothing is final before the first forward."""
        if not self.steps:
            return self.report_end()
        start, self.sent = self.sent, max(self.sent, min(self.frontier, self.end_at))
        scores = None if self.scorebook is None else self.scorebook.part(start, self.sent)
        self.outcome = self._ending()
        tokens = self.canvas[start : self.sent]
        return Update(self.id, tokens, self.outcome, self.stats, self._failure(), events, scores)

    def report_end(self) -> Update:
        """The state of the request, without what its last step brought: its end, or a chunk of its prompt."""
        return Update(self.id, self.canvas[:0], self.outcome, self.stats, self._failure())

    def _failure(self) -> Failure | None:
        guide = self.guide
        if self.outcome is not Outcome.FAILED or guide is None or not guide.failed:
            return None
        return Failure(guide.constraint.name, guide.problem)

    def _ending(self) -> Outcome | None:
        guide, rule, live = self.guide, self.host_rule, self.tree.live
        if guide is not None and guide.failed:
            return Outcome.FAILED
        settled = self.frontier
        if self.request.decoder.whole_blocks and live:
            settled = min(settled, live[0].start)
        stopped = self.end_at < settled or (guide is not None and guide.constraint.finished)
        stopped |= not live and self._canvas_end() < len(self.canvas)
        over = rule is not None and rule.over
        if live and not over and not (stopped and self.request.decoder.early_stop):
            return None
        cut = guide is not None and guide.constraint.closing
        return Outcome.STOP if stopped and not cut else Outcome.LENGTH

    def _first_end(self, start: int) -> int:
        """The first end token between `start` and the frontier. One that was committed ahead is in no lane."""
        ends = np.flatnonzero(self._vocabulary.classes[self.canvas[start : self.frontier]] & END)
        return start + int(ends[0]) if len(ends) else NO_END

    def _next_mask(self) -> int:
        end = self._canvas_end()  # drafts may have been written after the cut
        masked = self.canvas[self.frontier : end] == self.tree.mask_id
        return self.frontier + int(masked.argmax()) if masked.any() else end


def _positions(spans: tuple[Span, ...]) -> Longs:
    """All positions [n] of `spans`."""
    first, last = spans[0].start, spans[-1].end
    if last - first == sum([span.end - span.start for span in spans]):  # nearly always
        return np.arange(first, last)
    return np.concatenate([np.arange(span.start, span.end) for span in spans])
