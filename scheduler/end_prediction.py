"""Finds in a step's result where the network is about to end an answer."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from .contract import Span, StepResult
from .decoding.boundaries import Bools
from .work import PlannedRequest


def first_predicted_ends(flight: Sequence[PlannedRequest], ends: Bools, result: StepResult) -> dict[int, int]:
    """Of each request with one, the first of the positions `ends` [n] that count, absolute."""
    spans = [(work, span) for work in flight for row in work.rows for span in row.spans]
    sizes = [span.end - span.start for _, span in spans]
    # A refine lane may not end the answer, whatever it proposes.
    counting = ends & (result.confidence >= np.repeat([_end_threshold(work, span) for work, span in spans], sizes))
    origin = np.repeat([span.start for _, span in spans], sizes)
    offset = np.arange(len(ends)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    owner = np.repeat([work.sequence.id for work, _ in spans], sizes)
    # From the last to the first, which stays.
    return dict(zip(owner[counting][::-1].tolist(), (origin + offset)[counting][::-1].tolist(), strict=True))


def _end_threshold(work: PlannedRequest, span: Span) -> float:
    asked = work.sequence.request.decoder.end_threshold
    return asked if span.may_end or span.start >= work.reach.last else math.inf
