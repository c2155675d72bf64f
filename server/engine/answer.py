"""One answer on both sides of the seam: `EngineAnswer` makes messages of what the scheduler reports, `AnswerStream`
reads them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Self

from ...scheduler import Outcome, RequestStats, Update
from .. import errors
from ..metrics import RequestReport
from ..text.detokenizer import AnswerText
from ..text.lanes import Watcher
from ..text.logprobs import LogprobReader, TokenLogprob
from ..text.tokenizer import Tokenizer
from .messages import AnswerOptions, Delta, Failure, Fault, Finish, Usage

FINISH = {Outcome.STOP: Finish.STOP, Outcome.LENGTH: Finish.LENGTH}
ENGINE_FAILED = Failure(Fault.ENGINE, "the engine failed while it computed this answer")

Send = Callable[[Delta | Failure], None]


class EngineAnswer:
    """A running request in the engine: its text so far, its log-probabilities and its lane events."""

    def __init__(self, options: AnswerOptions, text: Tokenizer, send: Send) -> None:
        self.send = send
        self.timer: asyncio.TimerHandle | None = None  # of its deadline
        self._text = AnswerText(text, options.stop, options.stop_ids, placed=options.ranks is not None)
        self._watcher = Watcher(text) if options.watch else None
        self._reader = None if options.ranks is None else LogprobReader(text)
        self._token_ids: list[int] = []
        self._sent = 0  # tokens
        self._arrived = time.perf_counter()
        self._first_text_s: float | None = None
        self._queue_s: float | None = None

    def take(self, update: Update, began: float) -> Outcome | None:
        """Send what a step that `began` then brought. Returns how the answer has ended, or None: a stop string ends it
        here."""
        if self._queue_s is None:
            self._queue_s = max(0.0, began - self._arrived)
        if update.outcome is Outcome.FAILED:
            failure = update.failure
            self.send(ENGINE_FAILED if failure is None else Failure(Fault.PARAMETER, failure.message, failure.param))
            return update.outcome
        ids = update.tokens.tolist()
        text, used, stopped = self._text.feed(ids)
        self._token_ids += ids[:used]
        if update.outcome is not None and not stopped:
            text += self._text.flush()
            stopped = self._text.stopped
        outcome = Outcome.STOP if stopped else update.outcome
        if self._first_text_s is None and text:
            self._first_text_s = time.perf_counter() - self._arrived
        lanes = None if self._watcher is None else self._watcher.look(update.lane_events)
        scores: tuple[TokenLogprob, ...] = ()
        if self._reader is not None:
            scores = self._reader.read(self._token_ids, self._text.take_places(), update.scores)
        if outcome is not None or text or lanes or scores:
            finish = None if outcome is None else FINISH[outcome]
            fresh = tuple(self._token_ids[self._sent :])
            self._sent = len(self._token_ids)
            usage = Usage(len(self._token_ids), update.stats, self._queue_s)
            self.send(Delta(text, finish, usage, lanes, scores, fresh))
        return outcome

    def report(self, stats: RequestStats) -> RequestReport:
        """The answer at its end, for metrics."""
        seconds = time.perf_counter() - self._arrived
        return RequestReport(Usage(len(self._token_ids), stats), seconds, self._first_text_s)


class AnswerStream:
    """An answer as the front end reads it, in one task. `abort` is called when the reader leaves."""

    def __init__(self, abort: Callable[[], None]) -> None:
        self._abort = abort
        self._messages: asyncio.Queue[Delta | Failure] = asyncio.Queue()
        self._over = False

    def put(self, message: Delta | Failure) -> None:
        self._messages.put_nowait(message)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._abort()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Delta:
        if self._over:
            raise StopAsyncIteration
        message = await self._messages.get()
        if isinstance(message, Failure):
            self._over = True
            raise error_of(message)
        self._over = message.finish is not None
        return message


def error_of(failure: Failure) -> errors.ApiError:
    """The HTTP error that a failure is."""
    match failure.fault:
        case Fault.PARAMETER:
            return errors.InvalidValue(failure.param, failure.message)
        case Fault.DRAINING:
            return errors.Draining(failure.message)
        case Fault.TIMEOUT:
            return errors.TimedOut(failure.message)
        case Fault.DOWN:
            return errors.EngineDown(failure.message)
        case Fault.ENGINE:
            return errors.EngineFailure(failure.message)
