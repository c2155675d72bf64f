"""What the step in flight computes of one request, and how it gets what the step brought."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass

from .contract import Row, StepResult
from .decoding.cache import ComputeRange, RequestExtent
from .lane_status import LaneSnapshot
from .sequence import Sequence


@dataclass(frozen=True, slots=True)
class PlannedRequest:
    """What a step computes, and what its commit needs to know.

    `open` counts the masks before the step, of a request that adapts to the load.
    """

    sequence: Sequence
    window: ComputeRange
    reach: RequestExtent
    rows: tuple[Row, ...]
    tokens: int
    open: int


# A rule, a policy, a cache or a grammar raised, which concerns no other request than the one that asked for it.
FAULT = "request %d ends: what decides for it failed"


def take_in(flight: Iterable[PlannedRequest], result: StepResult) -> tuple[dict[int, LaneSnapshot], list[Sequence]]:
    """Copies a step's result into the canvases. What the digest reads of those whose lanes it drives, by request id,
    and the requests that failed at it, which is logged."""
    offset, views, failed = 0, dict[int, LaneSnapshot](), list[Sequence]()
    for work in flight:
        spans = [span for row in work.rows for span in row.spans]
        part = slice(offset, offset := offset + sum(span.end - span.start for span in spans))
        try:
            if spans:
                work.sequence.take_in(spans, result, part)
            if work.window.drives:
                views[work.sequence.id] = work.sequence.view()
        except Exception:
            logging.getLogger(__name__).exception(FAULT, work.sequence.id)
            failed.append(work.sequence)
    return views, failed
