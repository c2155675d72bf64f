"""A request as the scheduler carries it: its state, its canvas, and all that decides about them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from .contract import Doubles, Floats, Ints, Row, Scores, Span, StepResult, make
from .decoding.attention_pattern import AttentionPattern
from .decoding.boundaries import Longs, Nesting
from .decoding.cache import NO_CANVAS, Canvas, ComputeRange, Progress, RequestExtent, StepConfidence
from .decoding.commit.base import EVERYTHING
from .decoding.commit.device import shared_rule
from .decoding.lane_tree import LaneCounts, LaneTree, Layout
from .decoding.lanes.base import ABSENT
from .decoding.params import LaneShape
from .decoding.stability import Stability
from .decoding.vocabulary import END, Vocabulary
from .grammar_guide import Continuation, GrammarGuide
from .host_rules import Commits, HostRuleRunner, RuleInput
from .lane_events import LaneEventRecorder, LaneEvents
from .lane_status import LaneSnapshot, RequestStatus
from .layout import LAYOUTS, Holding, RowLayout, RowSource
from .layout.packed import StepInputs
from .logit_bias import NEUTRAL, Biasing
from .logprobs import Scorebook
from .memory.pages import Limits
from .memory.prefix_cache import NO_HASHES, Lease, PrefixCache
from .request import TRANSITIONS, Failure, Outcome, Request, RequestStats, State, Update
from .step_cost import PROMPT_POSITION, PROMPT_POSITION_OF_BOTH, AnswerCost, StepSize

NO_END = 1 << 30
STABLE_STEPS = 2  # where a tokenizer has no boundaries, lanes fork at what so many steps have not changed


class PlannedRequest(NamedTuple):
    """A request in a step: its rows, their `spans` and `tokens`, of which `passed` pass all layers, since others hardly
    cost time, and a drafter computes `drafted`; and what its commit needs to know.

    `prompt_tokens` are the positions of its prompt that count against the limit on these in one step. Each counts once,
    also where two networks compute it. A `prompt_chunk` is a step that computes nothing else: it is no forward of the
    request.
    """

    sequence: Sequence
    window: ComputeRange
    extent: RequestExtent
    rows: tuple[Row, ...]
    spans: tuple[Span, ...]
    tokens: int
    passed: int
    drafted: int = 0
    prompt_tokens: int = 0
    prompt_chunk: bool = False

    @property
    def beside_prompt(self) -> StepSize:
        """Its positions in all layers besides those of the prompt."""
        return StepSize(self.passed, self.drafted).plus(self.sequence.prompt_position, -self.prompt_tokens)


def size_of(requests: list[PlannedRequest]) -> StepSize:
    """The positions of all `requests` together that pass all layers."""
    return StepSize(sum([planned.passed for planned in requests]), sum([planned.drafted for planned in requests]))


class Sequence:
    """A request as the scheduler carries it. Canvas positions start at 0, after the prompt."""

    # Each step reads most of them of every request: without slots, dictionaries would take a tenth of the host's time.
    __slots__ = (
        *("id", "request", "prompt_length", "policy", "tree", "canvas", "cache", "layout", "source"),
        *("stability", "recorder", "scorebook", "host_rule", "guide", "_nesting", "_nested", "_vocabulary"),
        *(
            "_revises",
            "_computes_lanes",
            "_device_decides",
            "_only_writes",
            "_waits",
            "_row_tokens",
            "_lookahead",
            "_drawn_once",
        ),
        *("state", "outcome", "holding", "block_hashes", "lease", "frontier", "end_at", "predicted_end", "sent"),
        *("shape", "scores_candidates", "candidate_logprobs", "stop_threshold", "drafts"),
        *("served_at", "prefilled", "steps", "computed_tokens", "cached_tokens", "refreshes", "reused_refreshes"),
        "dropped_tokens",
    )
    layout: RowLayout

    def __init__(
        self, request: Request, vocabulary: Vocabulary, pattern: AttentionPattern, counts: LaneCounts | None = None
    ) -> None:
        """Its live lanes are in `counts`."""
        decoder, policy, constraint = request.decoder, request.decoder.policy, request.constraint
        prompt, length, mask_id = len(request.prompt), request.max_tokens, vocabulary.mask_id
        rule = None if decoder.host_rule is None else decoder.host_rule()
        stable_steps = policy.stable_steps or (0 if policy.boundary.known_to(vocabulary) else STABLE_STEPS)
        neutral, guided = request.preferences == NEUTRAL, constraint is not None
        self.request = request
        self.id = request.id
        self.prompt_length = prompt
        self.policy = policy
        canvas = np.full(length, mask_id, np.int32) if request.template is None else request.template.copy()
        self.tree = LaneTree(canvas, mask_id, prompt, pattern, vocabulary.filler)
        if counts is not None:
            self.tree.counts = counts
        self.canvas = self.tree.canvas
        self.cache = decoder.cache()
        self._nesting = Nesting.of(policy.boundary, request.prompt, vocabulary)
        self._nested = 0  # the canvas position up to which it is known what is open
        self.stability = Stability(length, stable_steps) if stable_steps else None
        self.recorder = LaneEventRecorder(self.canvas, mask_id) if request.watched else None
        self.scorebook = None if request.ranks is None else Scorebook(length, request.ranks)
        self.host_rule = None
        if rule is not None:
            self.host_rule = HostRuleRunner(rule, decoder, vocabulary, guided, request.sampling.seed)
            if rule.grows:
                self.tree.limit = rule.resize(self.tree)
        least = decoder.later_threshold
        self.guide = None if constraint is None else GrammarGuide(constraint, vocabulary, length, least)
        biasing = None
        if not neutral:
            biasing = Biasing(request.preferences, vocabulary, request.prompt, self.canvas, request.suffix)
        drafts = shared_rule(0, decoder.draft_threshold)
        self.source = RowSource(request, self.tree, drafts, biasing, self.host_rule, self.guide)
        self._vocabulary = vocabulary
        self._revises = decoder.revises  # the tokens of a lane are not final before it ends
        self._computes_lanes = decoder.revises or bool(decoder.replica_positions)  # all of them in each step
        self._device_decides = rule is None and constraint is None
        records = self.scorebook is not None or self.stability is not None or self.cache.reads_canvas
        self._only_writes = self._device_decides and not records
        self._waits = policy.waits and self._device_decides and self.recorder is None
        self._row_tokens = EVERYTHING  # positions that a row may have
        self._lookahead = decoder.lookahead
        self._drawn_once = pattern.autoregressive  # then noise that depends on the position alone is enough
        self.stop_threshold = math.inf if guided else decoder.stop_threshold  # a grammar decides where to end
        self.drafts = decoder.layout is Layout.DRAFTER  # a drafter computes some rows, and the prompt as well
        self.shape: LaneShape | None = None  # chosen by the load
        self.state = State.WAITING
        self.outcome: Outcome | None = None
        self.holding = Holding((), ())
        self.block_hashes = NO_HASHES  # of the pages of its prompt that others may read
        self.lease: Lease | None = None  # pages before its own ones, which others may read
        self.frontier = 0  # canvas positions before it are committed
        self.end_at = NO_END  # the first end token committed so far
        self.predicted_end = NO_END  # the first end token that the network is about to commit
        self.sent = 0  # canvas positions before it were handed out
        self.scores_candidates = len(request.candidates) > 0  # in its first forward
        self.candidate_logprobs: Doubles | None = None  # [candidates] once it has
        self.served_at = 0  # the scheduler's step that last carried it, or admitted it
        self.prefilled = 0  # absolute positions before it were computed in chunks of the prompt, before all forwards
        self.steps = self.computed_tokens = self.cached_tokens = self.refreshes = self.reused_refreshes = 0
        self.dropped_tokens = 0

    @property
    def pages(self) -> tuple[int, ...]:
        """The pages that it reads: those that it shares and its own."""
        return (*(self.lease.numbers if self.lease is not None else ()), *self.holding.pages)

    @property
    def stats(self) -> RequestStats:
        tree = self.tree
        prompt_tokens = self.prompt_length if self.steps or self.prefilled else 0
        lanes = tree.born, tree.forks, tree.cancelled
        positions = prompt_tokens, self.cached_tokens, self.computed_tokens
        counts = self.steps, *lanes, self.refreshes, self.reused_refreshes, self.dropped_tokens
        return make(RequestStats, (*positions, *counts))

    @property
    def prompt_position(self) -> StepSize:
        """A position of its prompt, as a part of a step."""
        return PROMPT_POSITION_OF_BOTH if self.drafts else PROMPT_POSITION

    def answer_cost(self) -> AnswerCost | None:
        """The cost of an answer that has ended by itself; None of one that was ended."""
        if self.outcome not in (Outcome.STOP, Outcome.LENGTH):
            return None
        tokens = self.sent + (self.outcome is Outcome.STOP)
        return AnswerCost(self.steps, self.computed_tokens, self.prompt_length - self.cached_tokens, tokens)

    def take_candidates(self, logprobs: Floats) -> None:
        """The first forward has found the log-probability of each candidate."""
        self.candidate_logprobs, self.scores_candidates = logprobs.astype(np.float64), False

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
            verifier = None if self.host_rule is None else self.host_rule.verifier
            # Pages with keys of a drafter, too, and those of another attention, are shared among their own kind.
            other = self.drafts or (verifier is not None and verifier.causal_cache)
            self.block_hashes = prefixes.block_hashes(prompt, request.cache_salt, group, other)

    def follow_load(self, shape: LaneShape) -> None:
        """Set the lengths of blocks and look-ahead, before any lane begins. The blocks of a network stay, and so does a
        look-ahead that is shorter."""
        self.shape = shape
        pattern = self.tree.pattern
        fixed = pattern.block_size and not pattern.known_first
        self.tree.block_length = pattern.block_size if fixed else shape.block_length
        self._lookahead = min(shape.lookahead, self._lookahead or 0)

    def admit(self, lease: Lease, holding: Holding, limits: Limits) -> None:
        """The request has what it needs on the device: its first lanes begin."""
        self.lease, self.holding = lease, holding
        self._row_tokens = limits.step_tokens
        if self.guide is not None:
            self._continue(self.guide.begin(), None)
        self.policy.open(self.tree)
        self._nested = self.tree.live[0].start
        everything = Holding(holding.slots, (*lease.numbers, *holding.pages))
        self.layout = LAYOUTS[self.request.decoder.layout](everything, self.source, limits.page_size)

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
        prompt_tokens, chunk = 0, False
        if prompt_end is not None:
            start, end = self.open_prompt()
            prompt_tokens = prompt_end - start
            if prompt_end < end:
                window = ComputeRange(start, prompt_end, prompt_end, drives=False)
                chunk = True
        step = 0 if self._drawn_once else self.steps
        inputs = make(StepInputs, (step, self.frontier, self.end_at, lookahead_end))
        rows = self.layout.rows(window, inputs)
        if len(rows) == 1:
            _, start, end, _, spans, *_ = rows[0]
            tokens = end - start
        else:
            spans = tuple([span for row in rows for span in row.spans])
            tokens = sum([row.end - row.start for row in rows])
        passed = tokens if window.selection is None else tokens - window.selection.dropped
        drafted = sum([row.end - row.start for row in rows if row.drafter]) if self.drafts else 0
        return make(PlannedRequest, (self, window, extent, rows, spans, tokens, passed, drafted, prompt_tokens, chunk))

    def open_tokens(self) -> int:
        """The masks that can still be reached."""
        return self.tree.masks(0, self.tree.limit)

    def _extent(self, lookahead_end: int) -> RequestExtent:
        """The positions that matter to the next step. They end where a block of the network does: it has never seen a
        part of one."""
        prompt, live, pattern = self.prompt_length, self.tree.live, self.tree.pattern
        end = self.request.length if self.request.infill else prompt + lookahead_end
        frontier = prompt + self.frontier
        if pattern.block_size:
            end, frontier = pattern.ceil(end - self.source.after), pattern.floor(frontier)
        canvas = NO_CANVAS
        if self.cache.reads_canvas:
            canvas = Canvas(prompt, self.canvas.copy(), self.tree.mask_id)
        return make(RequestExtent, (prompt + live[0].start, prompt + live[-1].end, end, frontier, canvas))

    def _lookahead_end(self) -> int:
        """The end of the look-ahead after all lanes, a canvas position."""
        tree, lookahead = self.tree, self._lookahead
        last = tree.live[-1].end
        if lookahead is None:
            end = self._canvas_end()
        else:
            end = last + lookahead
            if end > tree.limit:
                end = tree.limit
        if end > self.predicted_end:
            end = self.predicted_end + 1
        return end if end > last else last

    def _canvas_end(self) -> int:
        """The end of the canvas, or where a host commit rule has cut it."""
        rule = self.host_rule
        if rule is not None and rule.rule.grows:
            return rule.rule.canvas_end
        cut = None if rule is None else rule.cut
        return len(self.canvas) if cut is None else cut + 1

    def _window(self, extent: RequestExtent) -> ComputeRange:
        """The positions that the next step computes. The first forward leaves out what steps before it, or other
        requests, have computed."""
        window = self.cache.compute_range(extent)
        if self.guide is not None:
            window = window._replace(gaps=())  # a grammar goes from one position to the next
        if self._computes_lanes:  # committed positions are looked at again, or replicated
            window = window.covering(extent.first, extent.last)
        if not self.steps:
            window = window._replace(start=max(window.start, self._begin()))
        if window.end - window.start > self._row_tokens:  # lanes and look-ahead after that wait
            end = self.tree.pattern.floor(window.start + self._row_tokens)
            return window._replace(end=end, visible=min(window.visible, end), selection=None)
        return window

    def rule_input(self, rule: HostRuleRunner, spans: tuple[Span, ...], part: slice) -> RuleInput:
        """The input of the host commit rule: `part` of a step's result, which belongs to `spans`."""
        return RuleInput(rule, self.tree, self.steps, spans, part)

    def take(self, spans: tuple[Span, ...], result: StepResult, part: slice, decided: Commits | None) -> Ints | None:
        """Write the commits of a step to the canvas. `part` of its result belongs to `spans`, which are this request's;
        a host commit rule has `decided`. Returns the tokens that the host has left there, from the start of `part` on;
        None: those of the result."""
        if self._only_writes:
            _write_spans(self.canvas, self.prompt_length, spans, result.tokens[part])
            return None
        rule, guide = self.host_rule, self.guide
        if decided is None or (rule is not None and rule.ensemble is not None):
            positions = _positions(spans) - self.prompt_length
        else:
            positions = decided.positions
        own = slice(part.start, part.start + len(positions))
        if self.cache.reads_canvas:
            entropy = None
            if self.cache.reads_entropy and result.measured is not None:
                entropy = -result.measured[own]
            self.cache.observe(StepConfidence(positions + self.prompt_length, result.confidence[own], entropy))
        # With a grammar, what the device has committed is not final.
        tokens = result.tokens[own] if guide is None else self.canvas[positions]
        commits = decided or Commits(positions, tokens, np.arange(own.start, own.stop))
        self._write(commits, result.scores)
        if self.stability is not None:
            open_ = commits.tokens == self.tree.mask_id
            self.stability.update(commits.positions, np.where(open_, result.proposals[commits.found], commits.tokens))
        if guide is not None:
            chosen = None if rule is None else rule.chosen
            first = int(positions[0])
            text = guide.take(first, self.frontier, result, own, chosen)
            self._continue(text, result.scores)
            if self.scorebook is not None:
                drafts, places = guide.drafts[text.drafted], text.drafted - first + own.start
                self.scorebook.take(text.drafted, drafts, places, result.scores, self.steps)
            return self.canvas[positions]
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
        policy, tree, live = self.policy, self.tree, self.tree.live
        start, end = live[0].start, live[-1].end
        settled = None if self.stability is None else self.stability.settled(start, end)
        tokens, crowded = self.canvas[start:end], policy.crowded(tree)
        rule, fill, marks = policy.boundary, policy.min_fill, policy.marks
        rest = marks, crowded, policy.edges
        return make(LaneSnapshot, (live, tokens, settled, rule, self._nesting_here, fill, *rest))

    def _nesting_here(self) -> Nesting:
        """The brackets, quotes and code block that are open where the first live lane starts."""
        start = self.tree.live[0].start
        if self._nested < start:
            self._nesting = self._nesting.after(self.canvas[self._nested : start], self._vocabulary)
            self._nested = start
        return self._nesting

    def predict_end(self, end: int | None, window: ComputeRange) -> None:
        """The answer seems to end with the token at the absolute position `end`, or nowhere in `window`. What the
        window leaves out is unchanged."""
        found = NO_END if end is None else end - self.prompt_length
        before, masked = self.predicted_end, self.tree.mask_id
        if window.leaves_out(self.prompt_length + before) and self.canvas[before] == masked:
            found = min(found, before)
        self.predicted_end = found

    def stop_at(self, end: int, token: int) -> None:
        """The network ends the answer with `token` at the absolute position `end`. After all lanes none of them can
        commit it, so it is committed here, once nothing is open before it: no other step is needed."""
        at = end - self.prompt_length
        if at >= self.tree.live[-1].end and not self.tree.masks(self.frontier, at):
            self.canvas[at] = token
            self.end_at = at
            self.tree.limit = at + 1

    def advance(self, planned: PlannedRequest, status: RequestStatus | None) -> LaneEvents | None:
        """Count a step, and let the lanes advance if it drove them: `status` is that of the live lanes. Returns the
        lane events of a watched request. A chunk of the prompt is no forward, and does not count as a step."""
        if planned.prompt_chunk:
            self._advance_prompt(planned)
            return None
        window, extent = planned.window, planned.extent
        if status is None:
            progress = Progress(0, 0, extent.frontier)
        elif status.eventful is None and self._waits:  # mostly
            for lane, open_ in zip(self.tree.live, status.open, strict=True):
                lane.steps += 1
                lane.masks = open_
            self.frontier = status.first_open
            progress = make(Progress, (0, 0, self.prompt_length + self.frontier))
        else:
            progress = self._advance_lanes(status)
        step, self.steps, known = self.steps, self.steps + 1, self.layout.known
        if self.source.from_before:  # the next step computes the position that predicts its first open one
            known = self.tree.pattern.floor(self.prompt_length + self.frontier - self.source.from_before)
        if window.end < extent.frontier:  # the row was cut, and all of it had been committed
            known = min(known, window.end)
        if known < progress.frontier or known < extent.frontier:
            extent = extent._replace(frontier=min(extent.frontier, known))
            progress = progress._replace(frontier=min(progress.frontier, known))
        self.cache.computed(window, extent, progress)
        if self.lease is not None and (not step or self.lease.may_grow(extent.frontier)):
            self._share_pages(self.lease, window, extent.frontier)
        if window.refresh:
            self.refreshes += 1
            self.reused_refreshes += window.drives
        self.computed_tokens += planned.passed
        self.dropped_tokens += planned.tokens - planned.passed
        if self.recorder is None:
            return None
        rows, prompt = [row for row in planned.rows if row.copy is None], self.prompt_length
        start, end = min(row.start for row in rows), max(row.end for row in rows)
        return self.recorder.after(self.tree, step, start - prompt, end - prompt, window.refresh)

    def _advance_lanes(self, status: RequestStatus) -> Progress:
        tree, rule, lanes, statuses = self.tree, self.host_rule, tuple(self.tree.live), status.lanes
        finished, forks = tree.finished, tree.forks
        stays = rule is not None and rule.stays
        if self.recorder is not None:
            self.recorder.before(lanes)
        for lane, one in zip(lanes, statuses, strict=True):
            lane.steps += 1
            lane.masks = one.open or int(stays)
        if rule is not None and rule.cut is not None:
            tree.end_at(rule.cut)
        if rule is not None and rule.rule.grows:
            tree.limit = rule.rule.resize(tree)
        after = lanes[-1].end
        self.policy.advance(tree, statuses[: len(tree.live)])  # a cut leaves the first of them
        self.layout.follow()
        if self._revises:  # only lanes that have ended are final
            statuses = [one for lane, one in zip(lanes, statuses, strict=True) if lane not in tree.live]
        for one in statuses:
            if one.end_at != ABSENT and one.end_at < self.end_at:
                self.end_at = one.end_at
        passed = self.frontier
        if self._device_decides:
            self.frontier = self._next_mask(after) if status.first_open == ABSENT else status.first_open
        else:
            self.frontier = self._next_mask(self.frontier)
        if rule is not None and rule.sees_ahead:
            self.end_at = min(self.end_at, self._first_end(passed))
        if self._revises and tree.live:
            self.frontier = min(self.frontier, tree.live[0].start)
        return Progress(tree.finished - finished, tree.forks - forks, self.prompt_length + self.frontier)

    def _advance_prompt(self, planned: PlannedRequest) -> None:
        """Count a chunk of the prompt."""
        if not self.prefilled:
            self.cached_tokens = planned.window.start
        self.prefilled = planned.window.end
        self.computed_tokens += planned.tokens
        if self.lease is not None:
            self.lease.computed(self.prefilled)

    def _share_pages(self, lease: Lease, window: ComputeRange, final: int) -> None:
        """Others may read the pages that a step has left in their last state: those before the position `final`."""
        if self.steps == 1:
            self.cached_tokens = self.cached_tokens if self.prefilled else window.start
            lease.computed(window.end)
        prompt, size = self.request.prompt, self.prompt_length

        def text(start: int, end: int) -> Ints:
            return np.concatenate((prompt[start:end], self.canvas[max(start - size, 0) : max(end - size, 0)]))

        grown = lease.grow(final, text, self.holding.pages)
        self.holding = self.holding._replace(pages=self.holding.pages[grown:])

    def report(self, events: LaneEvents | None) -> Update | None:
        """The tokens that have become final since the last report, without end tokens, and how the request has ended,
        if it has. Nothing is final before the first forward. None if there is nothing to report."""
        if not self.steps:
            return self.report_end()
        start, self.outcome = self.sent, self._ending()
        end = self.frontier if self.frontier < self.end_at else self.end_at
        if end > start:
            self.sent = end
        elif self.outcome is None and events is None and self.steps > 1 and not self.request.diffusing:
            return None
        scores = None if self.scorebook is None else self.scorebook.part(start, self.sent)
        tokens, failure = self.canvas[start : self.sent], None if self.outcome is None else self._failure()
        canvas = self._committed() if self.request.diffusing else None
        found = self.id, tokens, self.outcome, self.stats, failure, events, scores, self.candidate_logprobs, canvas
        return make(Update, found)

    def _committed(self) -> Ints:
        """The canvas up to its last committed token; with a grammar its drafts are in it."""
        canvas = self.canvas[: self._canvas_end()].copy()
        if self.guide is not None:
            np.copyto(canvas, self.guide.drafts[: len(canvas)], where=canvas == self.tree.mask_id)
        committed = np.flatnonzero(canvas != self.tree.mask_id)
        return canvas[: committed[-1] + 1 if len(committed) else 0]

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
        if self._device_decides and live and self.frontier <= self.end_at:  # nearly always
            return None
        if guide is not None and guide.failed:
            return Outcome.FAILED
        settled = self.frontier
        if self.request.decoder.whole_blocks and live:
            settled = min(settled, self.tree.pattern.floor(self.prompt_length + live[0].start) - self.prompt_length)
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

    def _next_mask(self, start: int) -> int:
        """The first open position from `start` on."""
        end = self._canvas_end()  # drafts may have been written after the cut
        if start < end and self.canvas[start] == self.tree.mask_id:
            return start
        masked = self.canvas[start:end] == self.tree.mask_id
        return start + int(masked.argmax()) if masked.any() else end


def _write_spans(canvas: Ints, origin: int, spans: tuple[Span, ...], tokens: Ints) -> None:
    """Write `tokens` [n], of all positions of `spans`, to a canvas that begins at `origin`."""
    at, start = 0, spans[0].start - origin
    if spans[-1].end - origin - start == len(tokens):
        canvas[start : start + len(tokens)] = tokens
        return
    end = start
    for span in spans:  # neighbours are written together
        if span.start - origin != end:
            canvas[start:end] = tokens[at : at + end - start]
            at, start = at + end - start, span.start - origin
        end = span.end - origin
    canvas[start:end] = tokens[at:]


def _positions(spans: tuple[Span, ...]) -> Longs:
    """All positions [n] of `spans`."""
    first, last = spans[0].start, spans[-1].end
    if last - first == sum([span.end - span.start for span in spans]):  # nearly always
        return np.arange(first, last)
    return np.concatenate([np.arange(span.start, span.end) for span in spans])
