"""S2D2: a block-causal network checks its own draft of a block, as the autoregressive network that it is, too."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple, Self

import numpy as np

from ....contract import WIDE_RANKS, Doubles, Floats, Ints
from ...params import Choice, Params, Range
from ..base import CommitDecision, StepView
from ..segments import Bools, Longs
from ..shared.noise import ACCEPT, RESAMPLE, uniform
from ..shared.verification import Verified, Verifier

LEAST = 1e-12  # probabilities below count as this much
BINS = 2  # of each feature of the bandit's buckets
EVEN = 0.5  # the number that is drawn everywhere, with `draws` "half"


class Drafted(NamedTuple):
    """The distributions that a span was drafted from: the tokens [n], their probabilities [n], and the likeliest tokens
    [n, ranks] with their log-probabilities."""

    tokens: Ints
    probability: Doubles
    ranked: Ints
    logprobs: Floats


class S2D2(Verifier):
    """A forward drafts the block: open positions of `threshold` confidence commit, or else the best, unless the draft
    is checked. Then the next forward computes it causally, and a mask for each position of its first run of masks,
    which sees the draft to its left: the probability q of the drafted token for a network of blocks of one. With p from
    the draft, tokens are accepted from the left on, each with probability q / p; in the place of the first refused one
    a token of max(q - p, 0) commits.

    The draft is checked by `routing`: "span", if the run has `least_span` positions; "score", if the expected number of
    accepted tokens less the cost is `least_score` or more; "hysteresis", from a score above `score_on` until one below
    `score_off`; "bandit", as UCB with the weight `exploration` learns from the tokens a forward of either way. The
    expected number is the sum of products of exp(-entropy / ln(vocabulary)) along the run. The cost is `verify_cost`,
    with `cost_by` "token" times the open positions of `threshold` confidence. With `cached` "causal" keys of finished
    blocks and of the prompt are those of a causal network, with `drafted` "causal" also those of the block's tokens
    before its first mask.

    At temperature 1 with `draws` "seeded" accepted and resampled tokens are distributed as q. With "half", the default,
    0.5 takes the place of all numbers that are drawn, and the likeliest token that of a resampled one: then greedy
    answers need no seed. Source: arXiv 2603.25702; phymhan/S2D2 SDAR/generate_ssd_policy.py. Four things differ: of
    p and q the 256 likeliest tokens count; the mask token is none of them; at other temperatures than 1, p and q are
    those of temperature 1; and prompt and finished blocks are stored in the forward of the next draft, not in forwards
    of their own.
    """

    NAME = "s2d2"
    SOURCE = "arXiv 2603.25702; phymhan/S2D2 SDAR/generate_ssd_policy.py"
    DEFAULTS = {
        "threshold": 0.85,
        "routing": "score",
        "least_score": 0.0,
        "least_span": 1,
        "score_on": 1.0,
        "score_off": -5.0,
        "exploration": 1.0,
        "verify_cost": 0.0,
        "cost_by": "call",
        "cached": "causal",
        "drafted": "causal",
        "draws": "half",
    }
    PARAMS = {
        "routing": Choice(("score", "span", "hysteresis", "bandit")),
        "least_score": Range(-4096.0, 4096.0),
        "least_span": Range(1, 4096, whole=True),
        "score_on": Range(-4096.0, 4096.0),
        "score_off": Range(-4096.0, 4096.0),
        "exploration": Range(0.0, 100.0),
        "verify_cost": Range(0.0, 4096.0),
        "cost_by": Choice(("call", "token")),
        "cached": Choice(("causal", "block")),
        "drafted": Choice(("causal", "block")),
        "draws": Choice(("half", "seeded")),
    }
    ranks = WIDE_RANKS

    def __init__(self, params: Params, length: int) -> None:
        super().__init__(params, length)
        self.causal_cache, self.causal_drafts = params["cached"] == "causal", params["drafted"] == "causal"
        self._threshold, self._seeded = params.number("threshold"), params["draws"] == "seeded"
        self._routing = Routing(params)
        self._drafted: Drafted | None = None  # the span

    @classmethod
    def choose(cls, rules: Sequence[Self], view: StepView) -> CommitDecision:
        threshold = view.each([rule._threshold for rule in rules])
        chosen = view.at_least(view.confidence, threshold)
        sure, drafts = view.open & (view.confidence > threshold), list[tuple[slice, slice, Features]]()
        for number in range(len(rules)):
            here = view.rows(range(number, number + 1))
            start, end = _first_run(view.open[here])
            span = slice(here.start + start, here.start + end)
            lane, vocabulary = view.lanes.lanes[number], math.log(len(view.ends))
            found = Features(
                doubts=view.entropy[span] / vocabulary,
                sure=int(np.count_nonzero(sure[here])),
                filled=lane.progress,
            )
            drafts.append((here, span, found))
        for rule, canvas, (here, span, found) in zip(rules, view.canvases, drafts, strict=True):
            verifies = rule._routing.decide(found)
            if not verifies:
                rule.span = None
                rule._routing.learn(int(np.count_nonzero(chosen[here])), forwards=1)
                continue
            chosen[here] = False
            rule.span = int(view.positions[span.start]), int(view.positions[span.stop - 1]) + 1
            rule.draft = canvas.copy()
            rule.draft[view.positions[here]] = np.where(view.open[here], view.tokens[here], view.canvas_tokens[here])
            rule._drafted = Drafted(
                view.tokens[span].copy(),
                view.confidence[span].copy(),
                view.ranked[span].copy(),
                view.logprobs[span].copy(),
            )
        return view.commit(chosen)

    @classmethod
    def accept(cls, rules: Sequence[Self], view: StepView, verified: Verified) -> CommitDecision:
        tokens, counts = view.canvas_tokens.copy(), list[int]()
        for number, rule in enumerate(rules):
            here, drafted = view.rows(range(number, number + 1)), rule._drafted
            if drafted is None:
                raise RuntimeError("nothing was drafted")
            seed, step, positions = int(verified.seeds[number]), int(view.steps[number]), view.positions[here]
            drawn = rule._draw(seed, positions, step, ACCEPT)
            likely = np.exp(verified.logprobs[here].astype(np.float64))
            refused = ~(drawn < np.minimum(1.0, likely / np.maximum(drafted.probability, LEAST)))
            count = int(refused.argmax()) if refused.any() else len(refused)
            tokens[here][:count] = drafted.tokens[:count]
            if count < len(refused):
                at = here.start + count
                weights = _residual(view.ranked[at], view.logprobs[at], drafted.ranked[count], drafted.logprobs[count])
                tokens[at] = rule._choose(view.ranked[at], weights, (seed, positions[count : count + 1], step))
                count += 1
            counts.append(count)
        for rule, count in zip(rules, counts, strict=True):
            rule.span = rule._drafted = None
            rule._routing.learn(count, forwards=2)
        return CommitDecision(tokens)

    def _draw(self, seed: int, positions: Longs, step: int, purpose: np.uint64) -> Doubles:
        """A number in (0, 1) for each of `positions` [n]."""
        return uniform(seed, positions, step, purpose) if self._seeded else np.full(len(positions), EVEN)

    def _choose(self, tokens: Ints, weights: Doubles, key: tuple[int, Longs, int]) -> int:
        """One of `tokens` [ranks] by their `weights` [ranks]; drawn by the seed, the position and the step."""
        if not self._seeded:
            return int(tokens[weights.argmax()])
        below = np.cumsum(weights) <= self._draw(*key, RESAMPLE) * weights.sum()
        return int(tokens[min(int(np.count_nonzero(below)), int(np.flatnonzero(weights)[-1]))])


def _first_run(open_: Bools) -> tuple[int, int]:
    """The first run of open positions [n], of which there is one at least."""
    start = int(open_.argmax())
    closed = ~open_[start:]
    return start, start + int(closed.argmax()) if closed.any() else len(open_)


def _residual(tokens: Ints, logprobs: Floats, drafted: Ints, drafted_logprobs: Floats) -> Doubles:
    """The weights of max(q - p, 0) over the likeliest `tokens` [ranks] of q, or of q if these are all 0."""
    q, known = np.exp(logprobs.astype(np.float64)), np.exp(drafted_logprobs.astype(np.float64))
    same = tokens[:, None] == drafted
    rest: Doubles = np.maximum(q - (same * known).sum(1), 0.0)
    return rest if rest.any() else q


class Features(NamedTuple):
    """A draft before it is decided whether it is checked: the `doubts` [n] of its first run, entropies over that of a
    uniform distribution; its open positions that are `sure`; and the share of its answer that is `filled`."""

    doubts: Doubles
    sure: int
    filled: float


class Routing:
    """Decides which drafts of a request are checked, and learns from the tokens that this brings."""

    def __init__(self, params: Params) -> None:
        self._by, self._block = params.text("routing"), params.integer("block_length")
        self._least_span, self._least_score = params.integer("least_span"), params.number("least_score")
        self._on, self._off = params.number("score_on"), params.number("score_off")
        self._cost, self._by_token = params.number("verify_cost"), params["cost_by"] == "token"
        self._exploration = params.number("exploration")
        self._checking = False  # of the hysteresis
        self._decisions = 0  # of the bandit
        self._tried: dict[tuple[int, ...], list[float]] = {}  # by bucket and way: how often, and the sum of rewards
        self._last: tuple[int, ...] = ()  # the bucket and the way that it has chosen

    def decide(self, draft: Features) -> bool:
        if self._by == "span":
            return len(draft.doubts) >= self._least_span
        if self._by == "bandit":
            return self._explore(draft)
        score = float(np.cumprod(np.exp(-draft.doubts)).sum()) - self._cost * (draft.sure if self._by_token else 1)
        if self._by == "score":
            return score >= self._least_score
        self._checking = score >= self._off if self._checking else score > self._on
        return self._checking

    def learn(self, tokens: int, forwards: int) -> None:
        """The last decision has brought so many tokens in so many forwards."""
        if self._by == "bandit":
            tried = self._tried.setdefault(self._last, [0, 0.0])
            tried[0] += 1
            tried[1] += tokens / forwards

    def _explore(self, draft: Features) -> bool:
        length = (len(draft.doubts) - 1) / max(self._block - 1, 1)
        features = length, draft.filled, float(draft.doubts.mean())
        bucket = tuple([min(int(feature * BINS), BINS - 1) for feature in features])
        self._decisions += 1
        checked, plain = (self._promise((*bucket, way)) for way in (1, 0))
        self._last = (*bucket, int(checked >= plain))
        return checked >= plain

    def _promise(self, tried: tuple[int, ...]) -> float:
        count, rewards = self._tried.get(tried, (0, 0.0))
        if not count:
            return math.inf
        return rewards / count + self._exploration * math.sqrt(math.log(self._decisions) / count)
