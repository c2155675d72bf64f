"""A request as the scheduler carries it: which state it is in, and what its canvas holds."""

from __future__ import annotations

from collections.abc import Sequence as Many
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from .contract import Ints, Scores, Span, StepResult
from .decoding.attention_pattern import AttentionPattern
from .decoding.boundaries import Longs, Nesting
from .decoding.cache import (
    NOTHING,
    CachePolicy,
    Canvas,
    ComputeRange,
    Progress,
    RequestExtent,
    StepConfidence,
)
from .decoding.lane_tree import LaneTree, Layout
from .decoding.lanes.base import ABSENT, LaneStatus
from .decoding.params import ParamError
from .decoding.stability import Stability
from .decoding.vocabulary import END, Vocabulary
from .grammar_guide import Guide
from .host_rules import HostRuleRunner
from .lane_events import Computed, LaneEventRecorder, LaneEvents
from .lane_status import LaneSnapshot
from .layout import LAYOUTS
from .layout.packed import Holding, RowLayout
from .logit_bias import NEUTRAL, Biasing
from .logprobs import Scorebook, Scored
from .memory.lending import lend
from .memory.prefix_cache import NO_HASHES, BlockHashes, Lease
from .request import TRANSITIONS, Failure, Outcome, Request, RequestStats, State

if TYPE_CHECKING:
    from .work import PlannedRequest

NO_END = 1 << 30
STABLE_STEPS = 2  # where a tokenizer has no boundaries, lanes fork at what so many steps have not changed


@dataclass(slots=True, eq=False)
class Sequence:
    """A request as the scheduler carries it. Canvas coordinates start at 0 behind the prompt."""

    request: Request
    tree: LaneTree
    cache: CachePolicy
    nesting: Nesting
    stability: Stability | None
    recorder: LaneEventRecorder | None
    biasing: Biasing | None
    scorebook: Scorebook | None
    guide: Guide | None
    judging: HostRuleRunner | None
    state: State = State.WAITING
    outcome: Outcome | None = None
    held: Holding = field(default_factory=lambda: Holding((), ()))
    names: BlockHashes = NO_HASHES  # of the pages of its prompt that others may have too
    lease: Lease | None = None  # pages before those it holds, which others may have too
    frontier: int = 0  # canvas positions before it are committed
    end_at: int = NO_END  # first end token committed so far
    predicted_end: int = NO_END  # first end token that the network is about to commit
    sent: int = 0  # canvas positions before it were handed out
    steps: int = 0
    computed_tokens: int = 0
    cached_tokens: int = 0  # positions of the prompt that others had computed
    refreshes: int = 0
    reused_refreshes: int = 0  # those that advanced the lanes as well, so cost no call of their own
    served_at: int = 0  # the scheduler's step that last carried it, or admitted it
    layout: RowLayout = field(init=False)

    @classmethod
    def of(cls, request: Request, vocabulary: Vocabulary, pattern: AttentionPattern) -> Sequence:
        """Raises `ParamError` if the decoder, or the network, cannot do what else is asked."""
        if request.decoder.layout is Layout.ISOLATED and len(request.suffix):
            raise ParamError("siblings", "isolated siblings see nothing behind their look-ahead: not with a suffix")
        judging = None if request.decoder.host_rule is None else HostRuleRunner(request.decoder.host_rule(), vocabulary)
        if judging is not None and judging.revises and request.constraint is not None:
            name, decoder = request.constraint.name, request.decoder.name
            raise ParamError(
                name, f"{name} is not for decoder {decoder!r} and its rule, which change what has committed"
            )
        request.require_scores()
        if pattern.block_size and len(request.suffix):
            raise ParamError("suffix", "suffix is not for this model: no position sees what comes behind its block")
        policy, mask_id = request.decoder.policy, vocabulary.mask_id
        policy.require(vocabulary)
        canvas = np.full(request.max_tokens, mask_id, np.int32)
        tree = LaneTree(canvas, mask_id, len(request.prompt), pattern, vocabulary.filler)
        stable_steps = policy.stable_steps or (0 if policy.boundary.known_to(vocabulary) else STABLE_STEPS)
        return cls(
            request=request,
            tree=tree,
            cache=request.decoder.cache(),
            nesting=Nesting.of(policy.boundary),
            stability=Stability(request.max_tokens, stable_steps) if stable_steps else None,
            recorder=LaneEventRecorder(tree.canvas, mask_id) if request.watched else None,
            biasing=None if request.preferences == NEUTRAL else Biasing(request.preferences, vocabulary),
            scorebook=None if request.ranks is None else Scorebook(request.max_tokens, request.ranks),
            guide=None if request.constraint is None else Guide(request.constraint, request.decoder, vocabulary),
            judging=judging,
        )

    @property
    def id(self) -> int:
        return self.request.id

    @property
    def canvas(self) -> Ints:
        return self.tree.canvas

    @property
    def pattern(self) -> AttentionPattern:
        return self.tree.pattern

    @property
    def prompt_length(self) -> int:
        return len(self.request.prompt)

    def hold(self, lease: Lease, held: Holding, page_size: int) -> None:
        """It is admitted, with what it needs on the device: its first lanes are born."""
        self.lease, self.held = lease, held
        if self.guide is not None:
            self.guide.begin(self)
        self.request.decoder.policy.open(self.tree)
        placed = held._replace(pages=(*lease.numbers, *held.pages))
        self.layout = LAYOUTS[self.request.decoder.layout](placed, self, page_size)

    def move(self, state: State) -> None:
        if state not in TRANSITIONS[self.state]:
            raise RuntimeError(f"request {self.id} cannot go from {self.state.value} to {state.value}")
        self.state = state

    def reach(self) -> RequestExtent:
        """What the next step concerns, in absolute positions. With blocks they end where one does: the network has
        never seen a part of one."""
        prompt, live, grid = self.prompt_length, self.tree.live, self.pattern
        end = self.request.length if len(self.request.suffix) else prompt + self.drafts_end()
        canvas = Canvas(prompt, self.canvas.copy(), self.tree.mask_id) if self.cache.reads_canvas else NOTHING
        start, last, frontier = prompt + live[0].start, prompt + live[-1].end, grid.floor(prompt + self.frontier)
        return RequestExtent(start, last, grid.ceil(end), frontier, canvas)

    def drafts_end(self) -> int:
        """The end of the look-ahead behind all lanes, a canvas position."""
        last, lookahead = self.tree.live[-1].end, self.request.decoder.lookahead
        end = self._canvas_end() if lookahead is None else min(last + lookahead, self.tree.limit)
        return max(last, min(end, self.predicted_end + 1))

    def _canvas_end(self) -> int:
        """Where the canvas ends, which a judge may have cut."""
        cut = None if self.judging is None else self.judging.cut
        return len(self.canvas) if cut is None else cut + 1

    def window(self, reach: RequestExtent) -> ComputeRange:
        """What the next step computes: in the first, what of the prompt nobody else has."""
        window = self.cache.compute_range(reach)
        if self.guide is not None:
            window = window._replace(gaps=())  # a grammar goes from one position to the next
        if (
            self.revises or self.request.decoder.replica_positions
        ):  # what has committed is looked at again, or stood in for
            window = window.covering(reach.first, reach.last)
        if self.lease is None or self.steps:
            return window
        return window._replace(start=max(window.start, self.lease.begin()))

    def view(self) -> LaneSnapshot:
        """What the digest reads of it."""
        policy, live = self.request.decoder.policy, self.tree.live
        start, end = live[0].start, live[-1].end
        settled = None if self.stability is None else self.stability.settled(start, end)
        return LaneSnapshot(
            live, self.canvas[start:end], settled, policy.boundary, self.nesting, policy.min_fill, policy.marks
        )

    @property
    def told(self) -> bool:
        """Whether the host decides what its canvas holds, so that the device must be told."""
        return self.judging is not None or self.guide is not None

    @property
    def revises(self) -> bool:
        """Whether what lanes hold is not final before they end."""
        return self.judging is not None and self.judging.revises

    def take_in(self, spans: Many[Span], result: StepResult, part: slice) -> None:
        """`part` of a step's result is of `spans`, which were this request's."""
        whole = part
        if self.request.decoder.replica_positions:  # which lie behind the canvas
            spans = [span for span in spans if span.start < self.request.length]
            part = slice(part.start, part.start + sum(span.end - span.start for span in spans))
        if self.cache.reads_canvas:
            positions = np.concatenate([np.arange(span.start, span.end) for span in spans])
            self.cache.observe(StepConfidence(positions, result.confidence[part]))
        found, tokens, proposals = np.arange(part.start, part.stop), result.tokens[part], result.proposals[part]
        if self.judging is not None:
            spans, tokens, found = self.judging.decide(self, spans, result, whole)
            proposals = result.proposals[found]
            if self.judging.ensemble is None:
                result.tokens[part.start : part.start + len(tokens)] = tokens
        at = 0
        for span in spans:
            here = slice(at, at := at + span.end - span.start)
            start = span.start - self.prompt_length
            self._score(start, tokens[here], result.scores, found[here])
            self._take(start, tokens[here], proposals[here])
        if self.guide is not None:
            self.guide.take(self, result, part)

    def _score(self, start: int, tokens: Ints, scores: Scores | None, found: Longs) -> None:
        """Before `_take`: what is at `found` [n] in a step's `scores` belongs to these `tokens` [n]."""
        if self.scorebook is not None and scores is not None:
            held = self.canvas[start : start + len(tokens)]
            fresh = np.flatnonzero((tokens != self.tree.mask_id) & (tokens != held))
            self.scorebook.take(start + fresh, scores, found[fresh], self.steps)

    def _take(self, start: int, tokens: Ints, proposals: Ints) -> None:
        """A step left `tokens` from canvas position `start` on, and proposed `proposals`."""
        self.canvas[start : start + len(tokens)] = tokens
        if self.stability is not None:
            self.stability.update(start, np.where(tokens == self.tree.mask_id, proposals, tokens))

    def predict_end(self, end: int | None, window: ComputeRange) -> None:
        """The answer seems to end with the token at `end`, an absolute position, as far as `window` shows. What it
        left out is as it was."""
        found = NO_END if end is None else end - self.prompt_length
        before, masked = self.predicted_end, self.tree.mask_id
        if window.leaves_out(self.prompt_length + before) and self.canvas[before] == masked:
            found = min(found, before)
        self.predicted_end = found

    def advance(self, facts: list[LaneStatus], vocabulary: Vocabulary) -> Progress:
        """The canvas holds what a step brought; `facts` belong to the live lanes."""
        tree, lanes, started = self.tree, tuple(self.tree.live), self.tree.live[0].start
        finished, forks = tree.finished, tree.forks
        stays = self.judging is not None and self.judging.stays
        if self.recorder is not None:
            self.recorder.before(tree.live)
        for lane, fact in zip(tree.live, facts, strict=True):
            lane.steps += 1
            lane.masks = fact.open or int(stays)
        if self.judging is not None and self.judging.cut is not None:
            tree.end_at(self.judging.cut)
        self.request.decoder.policy.advance(tree, facts[: len(tree.live)])  # a cut has left the first of them
        self.layout.follow(self)
        if self.revises:  # only what has left the lanes is final
            facts = [fact for lane, fact in zip(lanes, facts, strict=True) if lane not in tree.live]
        self.end_at = min([self.end_at, *(fact.end_at for fact in facts if fact.end_at != ABSENT)])
        passed, self.frontier = self.frontier, self._next_mask()
        if self.judging is not None and self.judging.sees_ahead:
            self.end_at = min(self.end_at, self._first_end(passed, vocabulary))
        if self.revises and tree.live:
            self.frontier = min(self.frontier, tree.live[0].start)
        if tree.live:
            self.nesting = self.nesting.after(self.canvas[started : tree.live[0].start], vocabulary)
        return Progress(tree.finished - finished, tree.forks - forks, self.prompt_length + self.frontier)

    def count(self, work: PlannedRequest, progress: Progress) -> LaneEvents | None:
        """A step is behind it, which brought `progress`; tells those who watch."""
        window, step, self.steps = work.window, self.steps, self.steps + 1
        frontier, known = work.reach.frontier, self.layout.known
        reach = work.reach._replace(frontier=min(frontier, known))
        self.cache.computed(window, reach, progress._replace(frontier=min(progress.frontier, known)))
        lend(self, work)
        self.refreshes += window.refresh
        self.reused_refreshes += window.refresh and window.drives
        self.computed_tokens += work.tokens
        if self.recorder is None:
            return None
        rows = [row for row in work.rows if row.copy is None]
        start, end = min(row.start for row in rows), max(row.end for row in rows)
        computed = Computed(start - self.prompt_length, end - self.prompt_length, window.refresh)
        return self.recorder.after(self.tree, step, computed)

    def hand_out(self) -> tuple[Ints, Scored | None]:
        """The tokens that have become final since the last call, without end tokens, and their scores."""
        start, self.sent = self.sent, max(self.sent, min(self.frontier, self.end_at))
        scores = None if self.scorebook is None else self.scorebook.part(start, self.sent)
        return self.canvas[start : self.sent], scores

    @property
    def stats(self) -> RequestStats:
        tree = self.tree
        return RequestStats(
            prompt_tokens=self.prompt_length if self.steps else 0,
            cached_tokens=self.cached_tokens,
            computed_tokens=self.computed_tokens,
            forwards=self.steps,
            lanes=tree.born,
            forks=tree.forks,
            cancelled_lanes=tree.cancelled,
            refreshes=self.refreshes,
            reused_refreshes=self.reused_refreshes,
        )

    @property
    def failure(self) -> Failure | None:
        """The reason why its grammar has failed."""
        guide = self.guide
        return Failure(guide.name, guide.problem) if guide is not None and guide.failed else None

    def ending(self) -> Outcome | None:
        """How the request has ended, if it has."""
        guide = self.guide
        if guide is not None and guide.failed:
            return Outcome.FAILED
        settled = self.frontier
        if self.request.decoder.whole_blocks and self.tree.live:
            settled = min(settled, self.tree.live[0].start)
        stopped = self.end_at < settled or (guide is not None and guide.finished)
        stopped |= not self.tree.live and self._canvas_end() < len(self.canvas)
        over = self.judging is not None and self.judging.over
        if self.tree.live and not over and not (stopped and self.request.decoder.early_stop):
            return None
        cut = guide is not None and guide.closing
        return Outcome.STOP if stopped and not cut else Outcome.LENGTH

    def _first_end(self, start: int, vocabulary: Vocabulary) -> int:
        """The first end token between `start` and the frontier: one that was committed ahead is in no lane."""
        ends = np.flatnonzero(vocabulary.classes[self.canvas[start : self.frontier]] & END)
        return start + int(ends[0]) if len(ends) else NO_END

    def _next_mask(self) -> int:
        end = self._canvas_end()  # drafts may have been written behind where it was cut
        masked = self.canvas[self.frontier : end] == self.tree.mask_id
        return self.frontier + int(masked.argmax()) if masked.any() else end
