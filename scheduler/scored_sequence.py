"""A request that scores given tokens. It has no lanes to advance: its steps are rows that do not depend on each
other."""

from __future__ import annotations

from .contract import Ints, Span, StepResult, make
from .decoding.attention_pattern import AttentionPattern
from .decoding.cache import ComputeRange, NoCache, RequestExtent
from .decoding.commit.base import EVERYTHING
from .decoding.commit.device import Threshold
from .decoding.lane_tree import LaneCounts
from .decoding.lanes.blockwise import Blockwise
from .decoding.params import Params
from .decoding.registry import Decoder
from .decoding.vocabulary import Vocabulary
from .host_rules import Commits
from .lane_events import LaneEvents
from .lane_status import RequestStatus
from .layout import Holding
from .layout.packed import StepInputs
from .layout.scores import ScoreLayout
from .likelihood import Likelihood, Scoring
from .memory.pages import Limits
from .memory.prefix_cache import Lease
from .request import Outcome, Request, Update
from .sequence import PlannedRequest, Sequence

BLOCK = 32  # masks after the tokens, of a network whose positions see all of them
SHARE = 2  # a request fills at most one part in so many of a step, of the slots and of the pages


def scoring_room(scoring: Scoring, pattern: AttentionPattern) -> int:
    """The positions after the prompt: the longest chain, and the masks that follow it. A network with blocks has them
    to the end of a block; Monte Carlo has none, as in LLaDA's evaluation."""
    longest = int(scoring.lengths.max())
    if scoring.samples:
        return longest
    return longest + (1 if pattern.block_size else BLOCK)


def with_rows(scoring: Scoring, prompt_tokens: int, limits: Limits, pattern: AttentionPattern) -> Scoring:
    """The same, with as many rows at once as its share of the device has."""
    length = pattern.ceil(prompt_tokens + scoring_room(scoring, pattern))
    fit = limits.slots, limits.pages // limits.pages_for(length), limits.step_tokens // length
    return scoring._replace(rows=max(1, min(fit) // SHARE))


def scoring_decoder(scoring: Scoring) -> Decoder:
    """The decoder of a request that scores: it commits nothing."""
    return Decoder(
        name="likelihood",
        policy=Blockwise(EVERYTHING),
        rule=Threshold(2.0),
        host_rule=None,
        cache=lambda: NoCache(Params({})),
        lookahead=0,
        early_stop=False,
        branches=scoring.rows - 1,
        branch_row=EVERYTHING,
    )


class ScoredSequence(Sequence):
    __slots__ = ("_likelihood",)
    layout: ScoreLayout

    def __init__(
        self, request: Request, vocabulary: Vocabulary, pattern: AttentionPattern, counts: LaneCounts | None = None
    ) -> None:
        super().__init__(request, vocabulary, pattern, counts)
        if request.scoring is None:
            raise TypeError(f"request {request.id} scores nothing")
        seed, ranks = request.sampling.seed, request.ranks or 0
        self._likelihood = Likelihood(request.scoring, vocabulary.mask_id, seed, ranks, pattern.autoregressive)

    def admit(self, lease: Lease, holding: Holding, limits: Limits) -> None:
        self.lease, self.holding = lease, holding
        self.layout = ScoreLayout(holding, self.source, limits.page_size, self._likelihood)

    def plan(self, prompt_end: int | None = None) -> PlannedRequest:
        """The next rows: all that fit, or with a `prompt_end` rows of so many positions, and one at least."""
        most = EVERYTHING if prompt_end is None else prompt_end
        window = ComputeRange(0, most, self.request.length, drives=False)
        extent = RequestExtent(0, 0, self.request.length, 0)
        rows = self.layout.rows(window, make(StepInputs, (self.steps, 0, 0, 0)))
        spans = tuple([span for row in rows for span in row.spans])
        tokens = sum([row.end for row in rows])
        return make(PlannedRequest, (self, window, extent, rows, spans, tokens, tokens, 0, 0, False))

    @property
    def most_rows(self) -> int:
        """The rows of its next step, if there is room for all of them."""
        return min(len(self.holding.slots), self._likelihood.left)

    def open_tokens(self) -> int:
        return self._likelihood.left

    def take(self, spans: tuple[Span, ...], result: StepResult, part: slice, decided: Commits | None) -> Ints | None:
        if result.scores is None:
            raise RuntimeError("a step has no log-probabilities")
        self._likelihood.take(result.proposals[part], result.scores, part, self.steps)
        return None

    def advance(self, planned: PlannedRequest, status: RequestStatus | None) -> LaneEvents | None:
        self.steps += 1
        self.computed_tokens += planned.tokens
        return None

    def report(self, events: LaneEvents | None) -> Update | None:
        """All scores at once, when they are complete."""
        if not self._likelihood.over:
            return self.report_end() if self.steps == 1 else None
        scoring, self.outcome = self.request.scoring, Outcome.LENGTH
        if scoring is not None and scoring.sums:
            none, sums = self.canvas[:0], self._likelihood.sums()
            return Update(self.id, none, self.outcome, self.stats, candidate_logprobs=sums)
        tokens, scores = self._likelihood.scored()
        if scoring is not None and scoring.proposes and self._vocabulary.is_end[tokens[-1]]:
            self.outcome = Outcome.STOP
        return Update(self.id, tokens, self.outcome, self.stats, scores=scores)
