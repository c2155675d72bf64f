"""Texts of one token each, of which an answer is one: its first forward scores all of them.

The device computes the first position of the answer once more for each, without the answer's grammar. The scheduler
takes these places out of the result before anything else reads it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .contract import Ints, Row, Scores, Span, StepResult
from .layout.packed import NOTHING
from .likelihood import OWN


def with_candidates(row: Row, tokens: Ints) -> Row:
    """`row` with the first position of its spans once more for each of `tokens` [n], after all others."""
    first = row.spans[0].start  # nothing of the answer is forced: all its candidates are open
    positions = sum([span.end - span.start for span in row.spans])
    scored = np.concatenate((np.full(positions, OWN, np.int32), tokens))
    added = (Span(first, first + 1, NOTHING, may_end=False),) * len(tokens)
    return row._replace(spans=(*row.spans, *added), scored=scored)


def without(result: StepResult, parts: Sequence[slice]) -> StepResult:
    """A result without some of its positions."""
    kept = np.ones(len(result.tokens), np.bool_)
    for part in parts:
        kept[part] = False
    scores, measured = result.scores, result.measured
    if scores is not None:
        token_ranks = None if scores.token_ranks is None else scores.token_ranks[kept]
        scores = Scores(scores.chosen[kept], scores.ranked[kept], scores.logprobs[kept], token_ranks)
    return StepResult(
        result.tokens[kept],
        result.proposals[kept],
        result.confidence[kept],
        result.device_s,
        scores,
        None if measured is None else measured[kept],
    )
