"""One answer on both sides of the seam: `EngineAnswer` makes messages of what the scheduler reports, `AnswerStream`
reads them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Self

from ...scheduler.request import Outcome
from ...scheduler.scheduler import Update
from ...scheduler.sequence import Sequence
from .. import errors
from ..metrics import RequestReport
from ..text.detokenizer import AnswerText
from ..text.lanes import Watcher
from ..text.logprobs import LogprobReader
from ..text.tokenizer import Tokenizer
from .messages import AnswerOptions, Delta, Failure, Fault, Finish, Usage

FINISH = {Outcome.STOP: Finish.STOP, Outcome.LENGTH: Finish.LENGTH}
ENGINE_FAILED = Failure(Fault.ENGINE, "the engine failed while it computed this answer")

Send = Callable[[Delta | Failure], None]


class EngineAnswer:
    """A running request in the engine: its text so far, its log-probabilities and its lane events."""

    def __init__(self, sequence: Sequence, options: AnswerOptions, text: Tokenizer, send: Send) -> None:
        self.sequence = sequence
        self.send = send
        self._text = AnswerText(text, options.stop, options.stop_ids, placed=options.ranks is not None)
        self._watcher = Watcher(sequence.canvas, text) if options.watch else None
        self._reader = None if sequence.scorebook is None else LogprobReader(sequence.scorebook, text)
        self._token_ids: list[int] = []
        self._sent = 0  # tokens
        self._arrived = time.perf_counter()
        self._first_text_s: float | None = None

    def take(self, update: Update) -> Outcome | None:
        """Send what a step brought. Returns how the answer has ended, or None: a stop string ends it here."""
        if update.outcome is Outcome.FAILED:
            guide = update.sequence.guide
            failed = guide is not None and guide.failed
            self.send(Failure(Fault.PARAMETER, guide.problem, guide.name) if guide and failed else ENGINE_FAILED)
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
        lanes = None if self._watcher is None else self._watcher.look(update.frame)
        scores = () if self._reader is None else self._reader.read(self._token_ids, self._text.take_places())
        if outcome is not None or text or lanes or scores:
            finish = None if outcome is None else FINISH[outcome]
            fresh = tuple(self._token_ids[self._sent :])
            self._sent = len(self._token_ids)
            self.send(Delta(text, finish, self._usage(), lanes, scores, fresh))
        return outcome

    def cost(self) -> RequestReport:
        sequence, tree = self.sequence, self.sequence.tree
        return RequestReport(
            seconds=time.perf_counter() - self._arrived,
            first_text_s=self._first_text_s,
            tokens=len(self._token_ids),
            forwards=sequence.steps,
            forks=tree.forks,
            cancelled_lanes=tree.cancelled,
            refreshes=sequence.refreshes,
            reused_refreshes=sequence.reused_refreshes,
            prompt_tokens=sequence.prompt_length if sequence.steps else 0,
            cached_tokens=sequence.cached_tokens,
        )

    def _usage(self) -> Usage:
        sequence, tree = self.sequence, self.sequence.tree
        return Usage(
            completion_tokens=len(self._token_ids),
            forwards=sequence.steps,
            computed_tokens=sequence.computed_tokens,
            lanes=tree.born,
            forks=tree.forks,
            refreshes=sequence.refreshes,
            cached_tokens=sequence.cached_tokens,
        )


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
        case Fault.ENGINE:
            return errors.EngineFailure(failure.message)
