"""A request whose canvases begin with random tokens. It has no lanes: one canvas is denoised after another, each step
the whole one, and a finished one is encoded as text in the first step of the next."""

from __future__ import annotations

import numpy as np

from .contract import Denoising, Floats, Ints, Row, Span, StepResult, make
from .decoding.attention_pattern import AttentionPattern
from .decoding.cache import ComputeRange, RequestExtent
from .decoding.denoising import INITIAL, RENOISED, Denoiser, random_tokens
from .decoding.lane_tree import LaneCounts
from .decoding.vocabulary import Vocabulary
from .host_rules import Commits
from .lane_events import LaneEvents
from .lane_status import RequestStatus
from .layout import Holding
from .layout.canvases import CanvasLayout, CanvasStep
from .memory.pages import Limits
from .memory.prefix_cache import Lease
from .request import Outcome, Request
from .sequence import NO_END, PlannedRequest, Sequence


class CanvasSequence(Sequence):
    """`canvas` has the finished text, and from `_start` on the likeliest tokens of the canvas that is denoised."""

    __slots__ = ("_denoiser", "_found", "_size", "_start", "_step", "_text_start", "_tokens", "_unchanged")
    layout: CanvasLayout  # type: ignore[assignment]

    def __init__(
        self,
        request: Request,
        vocabulary: Vocabulary,
        pattern: AttentionPattern,
        counts: LaneCounts | None,
        max_model_len: int,
    ) -> None:
        super().__init__(request, vocabulary, pattern, counts)
        if request.decoder.denoiser is None:
            raise TypeError(f"decoder {request.decoder.name!r} denoises no canvas")
        self._denoiser: Denoiser = request.decoder.denoiser
        self._size = pattern.canvas_length
        self.canvas = np.full(request.canvas_tokens(max_model_len, pattern), vocabulary.mask_id, np.int32)
        self._start = 0  # of the canvas in work, a canvas position
        self._text_start = 0  # text from here on is still to be encoded, an absolute position; of the prompt by pages
        self._found: tuple[Ints, Ints, Floats] | None = None  # by the last step
        self._step = self._unchanged = 0  # of the canvas in work
        self._tokens = self._first_tokens()

    def admit(self, lease: Lease, holding: Holding, limits: Limits) -> None:
        self.lease, self.holding = lease, holding
        everything = Holding(holding.slots, (*lease.numbers, *holding.pages))
        self.layout = CanvasLayout(everything, self.source)

    def plan(self, prompt_end: int | None = None) -> PlannedRequest:
        start = self.prompt_length + self._start
        text_start = self._text_start if self.steps else min(self._begin(), start)
        if prompt_end is not None and prompt_end < start:
            rows = (self.layout.encoded(text_start, prompt_end, self.steps),)
            window = ComputeRange(text_start, prompt_end, prompt_end, drives=False)
            return self._planned(window, rows, prompt_end, chunk=True)
        temperature = self._denoiser.temperature(self._step)
        text = self.canvas[text_start - self.prompt_length : self._start].copy() if self._start else None
        first = self._step == 0
        canvas = CanvasStep(self.steps, text_start, start, text, self._tokens, Denoising(temperature, first))
        window = ComputeRange(text_start, start, start, drives=False)
        return self._planned(window, self.layout.rows(canvas), prompt_end)

    def _planned(
        self, window: ComputeRange, rows: tuple[Row, ...], prompt_end: int | None, chunk: bool = False
    ) -> PlannedRequest:
        spans = tuple([span for row in rows for span in row.spans])
        tokens = sum([row.tokens for row in rows])
        prompt_tokens = 0 if prompt_end is None else window.end - window.start
        extent = RequestExtent(window.start, window.end, window.end, window.end)
        return make(PlannedRequest, (self, window, extent, rows, spans, tokens, tokens, 0, prompt_tokens, chunk))

    def open_tokens(self) -> int:
        return len(self.canvas) - self._start

    def take(self, spans: tuple[Span, ...], result: StepResult, part: slice, decided: Commits | None) -> Ints | None:
        if result.measured is None:
            raise RuntimeError("a step has no entropies")
        self._found = result.tokens[part], result.proposals[part], -result.measured[part]
        return None

    def advance(self, planned: PlannedRequest, status: RequestStatus | None) -> LaneEvents | None:
        if planned.prompt_chunk:
            self._advance_prompt(planned)
            return None
        step, self.steps = self.steps, self.steps + 1
        self.computed_tokens += planned.tokens
        self._text_start = planned.window.end
        if self.lease is not None and (not step or self.lease.may_grow(planned.extent.frontier)):
            self._share_pages(self.lease, planned.window, planned.extent.frontier)
        if self._found is None:
            raise RuntimeError("a step has no tokens of its canvas")
        self._denoise(step, *self._found)
        return None

    def _denoise(self, step: int, likeliest: Ints, drawn: Ints, entropies: Floats) -> None:
        """Take in what a step has found."""
        here = slice(self._start, self._start + len(likeliest))
        same = self._step > 0 and np.array_equal(likeliest, self.canvas[here])
        self._unchanged = self._unchanged + 1 if same else 0
        self.canvas[here] = likeliest
        if self._denoiser.done(self._step, self._unchanged, entropies):
            self._finish_canvas(here.stop)
            return
        self._step += 1
        renoised = self._random(here.start, here.stop, step, RENOISED)
        self._tokens = np.where(self._denoiser.accepted(entropies), drawn, renoised).astype(np.int32)

    def _finish_canvas(self, end: int) -> None:
        start, self._start = self._start, end
        self.frontier = min(end, self.request.max_tokens)
        if self.end_at == NO_END:
            self.end_at = self._first_end(start)
        self._step = self._unchanged = 0
        if self._ending() is None:
            self._tokens = self._first_tokens()

    def _first_tokens(self) -> Ints:
        end = min(self._start + self._size, len(self.canvas))
        return self._random(self._start, end, self.steps, INITIAL)

    def _random(self, start: int, end: int, step: int, purpose: int) -> Ints:
        positions = np.arange(self.prompt_length + start, self.prompt_length + end)
        size = len(self._vocabulary.classes)
        return random_tokens(self.request.sampling.seed, positions, step, purpose, size)

    def _ending(self) -> Outcome | None:
        if self.end_at < self.frontier:
            return Outcome.STOP
        return Outcome.LENGTH if self._start >= len(self.canvas) else None

    def _committed(self) -> Ints:
        """The canvas as it would be if it were done now."""
        known = self._start if self._step == 0 else min(self._start + self._size, len(self.canvas))
        shown = self.canvas[: min(known, self.request.max_tokens)]
        ends = np.flatnonzero(self._vocabulary.is_end[shown])
        return shown[: int(ends[0]) if len(ends) else len(shown)].copy()
