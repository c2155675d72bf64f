"""Given tokens that are scored: one row for each forward, all independent, each in a slot of its own."""

from __future__ import annotations

import numpy as np

from ..contract import Placement, Row, Span
from ..decoding.cache import ComputeRange
from ..decoding.commit.base import EVERYTHING
from ..likelihood import Likelihood, Probe
from .packed import NOTHING, Holding, RowSource, StepInputs, host_tokens, reading_order


class ScoreLayout:
    """The rows of the next probes, as many as there are slots and as the window has positions for, one at least."""

    known = EVERYTHING

    def __init__(self, holding: Holding, source: RowSource, page_size: int, likelihood: Likelihood) -> None:
        self._slots, self._source, self._likelihood = holding.slots, source, likelihood
        each = len(holding.pages) // len(holding.slots)
        pages = [holding.pages[at : at + each] for at in range(0, each * len(holding.slots), each)]
        # Rows bring their tokens along, and see no keys but their own.
        self.placements = [
            Placement(slot, source.request.prompt, own) for slot, own in zip(self._slots, pages, strict=True)
        ]

    def rows(self, window: ComputeRange, inputs: StepInputs) -> tuple[Row, ...]:
        likelihood = self._likelihood
        probes, rows = likelihood.next_probes(len(self._slots)), list[Row]()
        room, logits = window.end, len(self._slots) * self._source.request.length
        for slot, probe in zip(self._slots, probes, strict=False):
            row = self._row(slot, probe, inputs)
            room -= row.end
            logits -= len(probe.positions)  # many tokens may be scored at one position
            if rows and min(room, logits) < 0:
                break
            rows.append(row)
        return tuple(rows)

    def follow(self) -> None:
        pass

    def _row(self, slot: int, probe: Probe, inputs: StepInputs) -> Row:
        source, tree = self._source, self._source.tree
        canvas = np.full(len(tree.canvas), tree.mask_id, np.int32)
        canvas[: len(probe.shown)] = probe.shown
        positions = tree.origin + probe.positions
        end = source.request.length
        if tree.pattern.block_size:  # nothing after its block is seen, but for known tokens where these come first
            shown = len(probe.shown) if tree.pattern.known_first else 0
            end = tree.pattern.ceil(max(int(positions[-1]) + 1, tree.origin + shown))
        tokens, biasing = host_tokens(source, 0, end, canvas), source.biasing
        biases = () if biasing is None else biasing.at(tree.canvas, 0)
        sampling, ranks = source.request.sampling, source.ranks
        optional = biases, ranks, None, tokens, None, probe.given, False, reading_order(source, 0, tokens)
        return Row(slot, 0, end, end, _spans(positions.tolist()), sampling, inputs.step, *optional)


def _spans(positions: list[int]) -> tuple[Span, ...]:
    """Spans of `positions`, ascending, in which nothing commits: neighbours are one."""
    spans: list[Span] = []
    for at in positions:
        if spans and spans[-1].end == at:
            spans[-1] = spans[-1]._replace(end=at + 1)
        else:
            spans.append(Span(at, at + 1, NOTHING))
    return tuple(spans)
