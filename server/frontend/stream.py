"""One answer in a front end: its tokens become text here."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Self

import numpy as np

from ...scheduler import Scored
from .. import errors
from ..engine.messages import (
    ENGINE_FAILED,
    AnswerOptions,
    AnswerTimes,
    Delta,
    Failed,
    Failure,
    Fault,
    Progress,
    Scores,
    Usage,
)
from ..metrics import AnswerMetrics
from ..text.detokenizer import AnswerText
from ..text.lanes import Watcher, int32s
from ..text.logprobs import LogprobReader, TokenLogprob
from ..text.tokenizer import Tokenizer

MANY_BYTES = 4 * 100  # of tokens, whose text and scores take a millisecond


class AnswerReader:
    """Makes the text, the log-probabilities and the lane events of one answer."""

    def __init__(self, text: Tokenizer, options: AnswerOptions) -> None:
        # A stop token never comes: the engine ends the answer before it.
        self._text = AnswerText(
            text,
            options.stop,
            placed=options.ranks is not None,
            shown=options.shown,
            includes_stop=options.include_stop,
        )
        self._watcher = Watcher(text) if options.watch else None
        self._scores = None if options.ranks is None else LogprobReader(text)
        self._token_ids: list[int] = []
        self._sent = 0  # tokens
        self._options = options

    def read(self, progress: Progress) -> Delta | None:
        """The news of a step; None if there is nothing to show yet."""
        ids = int32s(progress.tokens)
        text, used, stopped = self._text.feed(ids)
        self._token_ids += ids[:used]
        if progress.finish is not None and not stopped:
            text += self._text.flush()
        lanes = None if self._watcher is None else self._watcher.look(progress.lanes)
        scores: Sequence[TokenLogprob] = ()
        if self._scores is not None:
            scored = None if progress.scores is None else _scored(progress.scores)
            scores = self._scores.read(self._token_ids, self._text.take_places(), scored)
        canvas = None if progress.canvas is None else tuple(int32s(progress.canvas))
        if progress.finish is None and not (text or lanes or scores) and canvas is None:
            return None
        fresh = tuple(self._token_ids[self._sent :])
        self._sent = len(self._token_ids)
        written = self._options.written(self._sent)
        usage = Usage(written, progress.stats, progress.queue_s, progress.first_forward_s)
        candidates = tuple(np.frombuffer(progress.candidate_logprobs, np.float64).tolist())
        stop = self._text.stop
        return Delta(text, progress.finish, usage, lanes, scores, fresh, stop, candidates, canvas=canvas)


class AnswerStream:
    """An answer as the HTTP layer reads it, in one task. `abort` is called when the reader leaves, with True if the
    text could not be made. The streams that share `turns` read many tokens in turns: between two of them the event loop
    looks after all others."""

    def __init__(
        self,
        reader: AnswerReader,
        abort: Callable[[bool], None],
        metrics: AnswerMetrics,
        turns: asyncio.Lock | None = None,
    ) -> None:
        self.complete = False  # the engine has sent all of it
        self._reader = reader
        self._abort = abort
        self._metrics = metrics
        self._turns = turns or asyncio.Lock()
        self._waiting: deque[tuple[Progress, float]] = deque()  # with their times
        self._failure: Failure | None = None
        self._news = asyncio.Event()
        self._over = self._broken = False
        self._began = time.perf_counter()
        self._first_text_s: float | None = None
        self._text_at = 0.0  # when the last text came

    def put(self, message: Progress | Failed) -> None:
        """Add what the engine has sent. A reader that is slow gets the steps since its last delta as one, unless lanes
        are watched: what waits takes no more memory than the answer."""
        self.complete = isinstance(message, Failed) or message.finish is not None
        if isinstance(message, Failed):
            self._failure = message.failure
        elif self._waiting and message.lanes is None:
            before, since = self._waiting.pop()
            self._waiting.append((_joined(before, message), since))
        else:
            self._waiting.append((message, time.perf_counter()))
        self._news.set()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._abort(self._broken)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Delta:
        while not self._over:
            while not self._waiting and self._failure is None:
                self._news.clear()
                await self._news.wait()
            if not self._waiting:
                self._over = True
                assert self._failure is not None
                raise error_of(self._failure)
            if len(self._waiting[0][0].tokens) <= MANY_BYTES:
                delta = self.read_now()
            else:
                async with self._turns:
                    delta = self.read_now()
                    await asyncio.sleep(0)
            if delta is not None:
                return delta
        raise StopAsyncIteration

    def read_now(self) -> Delta | None:
        """The text of what has come, if there is any."""
        return self._next(*self._waiting.popleft()) if self._waiting else None

    def _next(self, progress: Progress, at: float) -> Delta | None:
        try:
            delta = self._reader.read(progress)
        except errors.INTERRUPTS:
            raise
        except BaseException:  # a library in Rust raises its panics so
            logging.getLogger(__name__).exception("a text could not be decoded")
            self._over = self._broken = True
            raise error_of(ENGINE_FAILED) from None
        if delta is not None and delta.text:
            if self._first_text_s is None:
                self._first_text_s = at - self._began
            else:
                self._metrics.chunk_read(at - self._text_at)
            self._text_at = at
        if delta is not None and delta.finish is not None and delta.usage is not None:
            self._over = True
            self._metrics.answer_read(AnswerTimes(delta.usage.completion_tokens, at - self._began, self._first_text_s))
        return delta


def _joined(before: Progress, after: Progress) -> Progress:
    """Two steps of one answer as one."""
    scores = before.scores
    if scores is None or after.scores is None:
        scores = scores or after.scores
    else:
        scores = Scores(
            scores.logprobs + after.scores.logprobs,
            scores.steps + after.scores.steps,
            scores.ranked + after.scores.ranked,
            scores.ranked_logprobs + after.scores.ranked_logprobs,
            scores.ranks,
            scores.token_ranks + after.scores.token_ranks,
        )
    tokens = before.tokens + after.tokens
    return Progress(
        after.request_id,
        tokens,
        after.stats,
        after.queue_s,
        after.finish,
        before.lanes,
        scores,
        after.first_forward_s,
        after.candidate_logprobs,
        before.canvas if after.canvas is None else after.canvas,
    )


def _scored(scores: Scores) -> Scored:
    steps = np.frombuffer(scores.steps, np.int32)
    shape = len(steps), scores.ranks
    return Scored(
        np.frombuffer(scores.logprobs, np.float32),
        steps,
        np.frombuffer(scores.ranked, np.int32).reshape(shape),
        np.frombuffer(scores.ranked_logprobs, np.float32).reshape(shape),
        np.frombuffer(scores.token_ranks, np.int32) if scores.token_ranks else None,
    )


def error_of(failure: Failure) -> errors.ApiError:
    """The HTTP error that a failure is."""
    match failure.fault:
        case Fault.PARAMETER:
            return errors.InvalidValue(failure.param, failure.message)
        case Fault.CONTEXT:
            limit, prompt, answer, suffix, masks = failure.lengths or (0, 0, 0, 0, 0)
            return errors.ContextLengthExceeded(
                limit, prompt, answer, suffix_tokens=suffix, masks=masks, param=failure.param
            )
        case Fault.OVERLOADED:
            return errors.Overloaded(failure.message, retry_after_s=failure.retry_after_s)
        case Fault.DRAINING:
            return errors.Draining(failure.message)
        case Fault.TIMEOUT:
            return errors.TimedOut(failure.message)
        case Fault.DOWN:
            return errors.EngineDown(failure.message)
        case Fault.ENGINE:
            return errors.EngineFailure(failure.message)
