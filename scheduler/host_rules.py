"""Runs the commit rules of the host: from the result of a step to the tokens that commit.

The device writes every token that may commit to its canvas and reports it. The next step's row brings along what the
canvas really holds (`Row.host_tokens`), before anything is computed from it. All requests of a step whose rules are of
one kind are decided in one call.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple, TypeVar

import numpy as np

from .contract import MOST_RANKS, WIDE_RANKS, Doubles, Floats, Ints, Measure, Span, StepResult
from .decoding.boundaries import Longs
from .decoding.commit.base import NO_SCORES, HostCommitRule, Lanes, Ranges, Replica, ReplicaView, StepView
from .decoding.commit.segments import Array, Bools, Segments
from .decoding.commit.shared.speculation import Ensemble, Speculator
from .decoding.commit.shared.verification import Verified, Verifier
from .decoding.lane_tree import LaneTree
from .decoding.registry import Decoder
from .decoding.vocabulary import Vocabulary

T = TypeVar("T")

FAR = 1 << 32  # more positions than any canvas has
LAST = 64.0  # by how much the device ranks the stand-in for an end token after all others (`contract.Measure`)

# A rule, a policy, a cache or a grammar that raises concerns its own request. A library in Rust raises a panic as a
# BaseException. These concern the process.
INTERRUPTS = (GeneratorExit, KeyboardInterrupt, SystemExit)


class Commits(NamedTuple):
    """The canvas after a step: `tokens` [n], the mask id where open, at canvas `positions` [n]. Each token is
    at `found` [n] in the step's result, or `logprobs.FORCED`."""

    positions: Longs
    tokens: Ints
    found: Longs


class HostRuleRunner:
    """The host commit rule of one request."""

    def __init__(
        self, rule: HostCommitRule, decoder: Decoder, vocabulary: Vocabulary, guided: bool, seed: int = 0
    ) -> None:
        """A `guided` request has a grammar, which decides where the answer ends and writes its tokens."""
        self.rule = rule
        self.seed = seed
        self.verifier = rule if isinstance(rule, Verifier) else None
        self.ensemble = rule if isinstance(rule, Ensemble) else None
        self.speculator = rule if isinstance(rule, Speculator) else None
        self.decoder = decoder
        self.vocabulary = vocabulary
        self.guided = guided
        self.ends: Bools = vocabulary.is_end
        self.chosen: Bools = np.zeros(0, np.bool_)  # which of the last step's positions commit
        self.cut: int | None = None  # the answer ends with this canvas position, or before it
        self.stays = False  # full lanes do not end yet
        self.rescores, self.reads_proposals = rule.rescores, rule.reads_proposals or guided
        # All that there are: then the other requests of a step do not change which of equal tokens are reported.
        self.ranks = (WIDE_RANKS if rule.ranks > MOST_RANKS else MOST_RANKS) if rule.ranks else None
        self.rule_ranks, self.measure = rule.ranks, rule.measure  # what it reads
        self.sees_ahead, self.replicated = rule.sees_ahead, rule.replica_count > 0
        self.drafting = self.speculator is not None and not guided  # a grammar decides what comes next
        self.read_by_policy = decoder.policy.reads_view and self.ensemble is None and not self.drafting
        # Requests for which it is equal are decided in one call.
        self.kind: Hashable = (type(rule), rule.ranks, rule.measure, self.drafting, self.read_by_policy, rule.kind)

    @property
    def checking(self) -> bool:
        """True if the next step checks a draft."""
        return self.verifier is not None and self.verifier.span is not None

    def replicas(self, tree: LaneTree) -> tuple[Replica, ...]:
        """The replica rows that the next step computes after the canvas."""
        return self.rule.replicas(tree.live[0], tree.mask_id)

    @property
    def drafts(self) -> Sequence[Ints]:
        """Canvases that the next step computes beside the request's own."""
        return () if self.speculator is None else self.speculator.drafts

    @property
    def over(self) -> bool:
        """True once the answer is complete, whatever lanes are left."""
        return self.ensemble is not None and self.ensemble.over

    def first_end(self, canvas: Ints) -> int:
        """The canvas position of the first end token, or else the length of the canvas."""
        ends = self.ends[canvas]
        return int(ends.argmax()) if ends.any() else len(canvas)

    def end_at(self, position: int | None) -> None:
        """The rule ends the answer at a canvas position, if at any. With a grammar it may not."""
        if position is not None and not self.guided:
            self.cut = position if self.cut is None else min(self.cut, position)


class RuleInput(NamedTuple):
    """A request whose rule decides after its `step`, counted from 0.

    `part` of the step's result belongs to its `spans`. They begin with those of its own row, and then are the same ones
    for each draft, or that of a replica row; or they are those of an ensemble's branches.
    """

    runner: HostRuleRunner
    tree: LaneTree
    step: int
    spans: tuple[Span, ...]
    part: slice


class Entry(NamedTuple):
    """One row of a view: a result from `start` on, which has the `spans` of a `canvas`."""

    of: RuleInput
    canvas: Ints
    spans: tuple[Span, ...]
    start: int


def decide(inputs: Sequence[RuleInput], result: StepResult) -> list[Commits | BaseException]:
    """The commits of each request of a step, or what its rule or its lane policy has raised."""
    kinds: dict[Hashable, list[int]] = {}
    decided: list[Commits | BaseException] = [RuntimeError("undecided")] * len(inputs)
    for number, given in enumerate(inputs):
        kinds.setdefault((given.runner.kind, given.runner.checking), []).append(number)
    for numbers in kinds.values():
        group = [inputs[number] for number in numbers]
        reading = group[0].runner.read_by_policy
        commits = _after_policies(group, result) if reading else _of_kind(group, result)
        for number, one in zip(numbers, commits, strict=True):
            decided[number] = one
    return decided


def _after_policies(group: list[RuleInput], result: StepResult) -> list[Commits | BaseException]:
    """The decisions for requests of one kind, after their lane policies have read the step. These may cut lanes."""
    view = _view([_own(given) for given in group], result)
    raised = []
    for number, given in enumerate(group):
        read = partial(given.runner.decoder.policy.read_view, given.tree, view.part(number), given.runner.vocabulary)
        raised.append(_attempted(read))
    rest = [given for given, error in zip(group, raised, strict=True) if error is None]
    if len(rest) == len(group):
        return _of_kind(group, result, replace(view, lanes=_lanes(group, view.positions, view.requests)))
    commits = iter(_of_kind(rest, result) if rest else [])
    return [next(commits) if error is None else error for error in raised]


def _of_kind(group: list[RuleInput], result: StepResult, view: StepView | None = None) -> list[Commits | BaseException]:
    """The decisions for requests of one kind, together. If that raises, then one by one, so that only the request fails
    that is the cause. The `view` is that of their canvases, if it is there already."""
    runner = group[0].runner
    if runner.ensemble is not None:
        decided = _attempted(lambda: _of_ensembles(group, result))
    elif runner.checking:
        decided = _attempted(lambda: _of_checks(group, result))
    elif runner.drafting:
        decided = _attempted(lambda: _of_drafts(group, result))
    else:
        decided = _attempted(lambda: _of_canvases(group, view or _view([_own(given) for given in group], result)))
    if not isinstance(decided, BaseException):
        return decided
    if len(group) == 1:
        return [decided]
    return [commits for given in group for commits in _of_kind([given], result)]


def _of_canvases(group: list[RuleInput], view: StepView) -> list[Commits | BaseException]:
    rules: list[Any] = [given.runner.rule for given in group]
    decision = type(rules[0]).choose(rules, view)
    tokens = _drafted(group, view, _waiting(group, view, decision.tokens))
    stays = [False] * len(group) if decision.stays is None else decision.stays.tolist()
    for given, cut in zip(group, decision.ends or (), strict=False):
        given.runner.end_at(cut)
    bounds = zip(view.requests.starts.tolist(), view.requests.ends.tolist(), strict=True)
    offset = np.array([given.part.start for given in group]) - view.requests.starts
    found, commits = np.arange(len(tokens)) + view.each(offset), list[Commits | BaseException]()
    for given, (start, end), full in zip(group, bounds, stays, strict=True):
        here, runner = slice(start, end), given.runner
        runner.stays = full
        written = tokens[here]
        if runner.guided:  # the grammar writes the tokens
            runner.chosen, written = written != view.mask_id, view.canvas_tokens[here]
        commits.append(Commits(view.positions[here], written, found[here]))
    return commits


def _of_checks(group: list[RuleInput], result: StepResult) -> list[Commits | BaseException]:
    """The decisions about drafts. The masks that check a span are read as the span itself."""
    entries = []
    for given in group:
        verifier, origin = given.runner.verifier, given.tree.origin
        if verifier is None or verifier.span is None or result.scores is None:
            raise TypeError("this step checks no draft")
        start, end = verifier.span
        (span,) = given.spans
        own = (span._replace(start=origin + start, end=origin + end),)
        entries.append(Entry(given, given.tree.canvas, own, given.part.start))
    view = _view(entries, result)
    parts = Parts([entry.start for entry in entries], view.requests.sizes)
    logprobs = parts.of(result.scores.chosen) if result.scores is not None else np.zeros(0, np.float32)
    rules: list[Any] = [given.runner.rule for given in group]
    seeds = np.array([given.runner.seed for given in group])
    tokens = type(rules[0]).accept(rules, view, Verified(logprobs, seeds)).tokens
    commits = list[Commits | BaseException]()
    for number, entry in enumerate(entries):
        here = view.rows(range(number, number + 1))
        found = np.arange(entry.start, entry.start + here.stop - here.start)
        commits.append(Commits(view.positions[here], tokens[here], found))
    return commits


def _of_drafts(group: list[RuleInput], result: StepResult) -> list[Commits | BaseException]:
    entries, rows = list[Entry](), list[range]()
    for given in group:
        canvases = (given.tree.canvas, *given.runner.drafts)
        own = given.spans[: len(given.spans) // len(canvases)]
        size = (given.part.stop - given.part.start) // len(canvases)
        rows.append(range(len(entries), len(entries) + len(canvases)))
        entries += [Entry(given, each, own, given.part.start + row * size) for row, each in enumerate(canvases)]
    view = _view(entries, result)
    rules: list[Any] = [given.runner.rule for given in group]
    choices = type(rules[0]).choose_among(rules, view, rows)
    commits = list[Commits | BaseException]()
    for given, own_rows, choice in zip(group, rows, choices, strict=True):
        here = view.rows(own_rows[:1])
        found = given.part.start + choice.branches * len(choice.tokens) + np.arange(len(choice.tokens))
        commits.append(Commits(view.positions[here], choice.tokens, found))
    return commits


def _of_ensembles(group: list[RuleInput], result: StepResult) -> list[Commits | BaseException]:
    entries, rows = list[Entry](), list[range]()
    for given in group:
        start, turns = given.part.start, [] if given.runner.ensemble is None else given.runner.ensemble.turns
        rows.append(range(len(entries), len(entries) + len(turns)))
        for turn, span in zip(turns, given.spans, strict=True):
            entries.append(Entry(given, turn.canvas, (span,), start))
            start += turn.end - turn.start
    view = _view(entries, result)
    return [_attempted(partial(_observed, entries, view, own)) for own in rows]


def _observed(entries: list[Entry], view: StepView, rows: range) -> Commits:
    """The decision for the request that has these `rows` of the view."""
    if (ensemble := entries[rows.start].of.runner.ensemble) is None:
        raise TypeError("this rule has one canvas")
    canvas = ensemble.observe([view.part(row) for row in rows])
    return Commits(np.arange(len(canvas)), canvas.copy(), np.zeros(len(canvas), np.int64))


def _attempted(call: Callable[[], T]) -> T | BaseException:
    """The result of a call, or what it has raised."""
    try:
        return call()
    except INTERRUPTS:
        raise
    except BaseException as error:  # noqa: BLE001
        return error


def _waiting(group: list[RuleInput], view: StepView, tokens: Ints) -> Ints:
    """The `tokens` [n] without those of later lanes that are below the threshold of their decoder."""
    later = [given.runner.decoder.later_threshold for given in group]
    if not any(later):
        return tokens
    lanes = view.lanes
    waits = view.open & (view.confidence < view.each(later)) & lanes.spread(~lanes.forced, outside=False)
    return np.where(waits, view.mask_id, tokens)


def _drafted(group: list[RuleInput], view: StepView, tokens: Ints) -> Ints:
    """The `tokens` [n] with drafts after the lanes. Only rules that see ahead have decided there."""
    after = np.flatnonzero(~view.lanes.inside)
    if not len(after):
        return tokens
    runners, owner = [given.runner for given in group], view.requests.index[after]
    decided = np.array([runner.sees_ahead for runner in runners])[owner]
    threshold = np.array([runner.decoder.draft_threshold for runner in runners])[owner]
    ahead, proposed = np.where(decided, tokens[after], view.canvas_tokens[after]), view.tokens[after]
    drafts = (ahead == view.mask_id) & (view.confidence[after] >= threshold) & ~view.ends[proposed]
    drafted = tokens.copy()
    drafted[after] = np.where(drafts, proposed, ahead)
    return drafted


def _own(given: RuleInput) -> Entry:
    """The row of the request's own canvas."""
    spans, tree = given.spans, given.tree
    if given.runner.replicated:  # a replica row lies after the canvas
        spans = tuple([span for span in spans if span.start < tree.origin + len(tree.canvas)])
    return Entry(given, tree.canvas, spans, given.part.start)


def _view(entries: list[Entry], result: StepResult) -> StepView:
    """The view of all `entries`, of one kind."""
    runner, mask_id = entries[0].of.runner, entries[0].of.tree.mask_id
    requests, positions = _positions(entries)
    ranges = Ranges.of(positions, requests)
    canvases = [entry.canvas for entry in entries]
    canvas_tokens = ranges.gather(canvases)
    parts = Parts([entry.start for entry in entries], requests.sizes)
    proposals, reported = parts.of(result.proposals), parts.of(result.tokens)
    reads = canvas_tokens == mask_id
    proposed = [entry.of.runner.reads_proposals for entry in entries]
    if any(proposed):
        reads &= ~np.repeat(proposed, requests.sizes)
    tokens = np.where(reads, reported, proposals)
    confidence, entropy = _certainty(result, parts, tokens != proposals, runner.measure)
    ranked, logprobs = _likeliest(result, parts, runner.rule_ranks)
    return StepView(
        canvases=canvases,
        mask_id=mask_id,
        positions=positions,
        ranges=ranges,
        canvas_tokens=canvas_tokens,
        tokens=tokens,
        confidence=confidence,
        entropy=entropy,
        ranked=ranked,
        logprobs=logprobs,
        requests=requests,
        lanes=_lanes([entry.of for entry in entries], positions, requests),
        ends=runner.ends,
        controls=runner.vocabulary.controls,
        steps=np.array([entry.of.step for entry in entries]),
        replica=_replica(entries, requests.sizes, result) if runner.replicated else None,
        frequencies=runner.vocabulary.frequencies,
        rescored=parts.of(result.scores.chosen) if runner.rescores and result.scores is not None else NO_SCORES,
    )


def _positions(entries: list[Entry]) -> tuple[Segments, Longs]:
    """The segments of all entries, and their positions [n] on the canvases."""
    spans = [span for entry in entries for span in entry.spans]
    counts = np.array([len(entry.spans) for entry in entries])
    starts, stops = np.array([span.start for span in spans]), np.array([span.end for span in spans])
    after = np.cumsum(stops - starts)
    ends = after[np.cumsum(counts) - 1]
    requests = Segments(np.concatenate((np.zeros(1, np.intp), ends[:-1])), ends, int(ends[-1]))
    origins = np.repeat([entry.of.tree.origin for entry in entries], counts)
    return requests, np.arange(requests.size) + np.repeat(stops - after - origins, stops - starts)


class Parts:
    """Parts of a result, given where they start and how long they are."""

    def __init__(self, starts: Sequence[int], sizes: Longs) -> None:
        stops = (np.array(starts) + sizes).tolist()
        self._slices = [slice(start, stop) for start, stop in zip(starts, stops, strict=True)]
        self._adjoin = stops[:-1] == [*starts[1:]]

    def of(self, values: Array) -> Array:
        """The parts of an array, one after another."""
        if self._adjoin:
            return values[self._slices[0].start : self._slices[-1].stop]
        return np.concatenate([values[part] for part in self._slices])


def _certainty(result: StepResult, parts: Parts, stands_in: Bools, measure: Measure) -> tuple[Doubles, Doubles]:
    """Confidence and entropy [n]. `stands_in` [n] are tokens in the place of an end token."""
    confidence = parts.of(result.confidence)
    measured = -confidence if result.measured is None else parts.of(result.measured).astype(np.float64)
    if measure is Measure.SINGLE:
        return confidence if result.measured is None else measured, np.full(len(confidence), np.nan)
    if not stands_in.any():
        return confidence, -measured
    return np.where(stands_in, measured + LAST, confidence), np.where(stands_in, np.inf, -measured)


def _likeliest(result: StepResult, parts: Parts, ranks: int) -> tuple[Ints, Floats]:
    """Tokens and their log-probabilities [n, ranks], as many as the rule needs."""
    if result.scores is None or not ranks:
        size = len(parts.of(result.tokens))
        return np.zeros((size, 0), np.int32), np.zeros((size, 0), np.float32)
    return parts.of(result.scores.ranked[:, :ranks]), parts.of(result.scores.logprobs[:, :ranks])


def _lanes(inputs: list[RuleInput], positions: Longs, requests: Segments) -> Lanes:
    """The lanes of all requests, without those that have none of the `positions` [n]."""
    lanes = [lane for given in inputs for lane in given.tree.live]
    counts = [len(given.tree.live) for given in inputs]
    starts, ends = np.array([lane.start for lane in lanes]), np.array([lane.end for lane in lanes])
    forced = np.array([lane.active for lane in lanes], np.bool_)
    forced[np.cumsum(counts) - counts] = True
    owner = np.repeat(np.arange(len(inputs)), counts)
    places, offset = positions + FAR * requests.index, FAR * owner
    starts, ends = places.searchsorted(starts + offset), places.searchsorted(ends + offset)
    some = starts < ends
    if not some.all():
        lanes = [lanes[number] for number in np.flatnonzero(some).tolist()]
    return Lanes(lanes, (starts[some], ends[some]), owner[some], forced[some], requests.size)


def _replica(entries: list[Entry], sizes: Longs, result: StepResult) -> ReplicaView | None:
    """The output at the replica rows, which follow the own rows of their requests and have the same `sizes` [r]."""
    after = [entry.start + size for entry, size in zip(entries, sizes.tolist(), strict=True)]
    there = [start < entry.of.part.stop for start, entry in zip(after, entries, strict=True)]
    if not any(there):
        return None
    # Where there is none, its own row is read in its place, and not used.
    starts = [start if has else entry.start for start, has, entry in zip(after, there, entries, strict=True)]
    parts = Parts(starts, sizes)
    ranked, logprobs = _likeliest(result, parts, entries[0].of.runner.rule_ranks)
    return ReplicaView(np.repeat(there, sizes), parts.of(result.proposals), ranked, logprobs)
