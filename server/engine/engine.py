"""The engine: one asyncio loop that launches steps, takes in their results and hands out what they brought."""

from __future__ import annotations

import asyncio
import itertools
import logging
import math
import time
from collections import deque
from typing import NamedTuple, Self

from ...scheduler import (
    Outcome,
    ParamError,
    QueueFull,
    Request,
    RequestStats,
    Scheduler,
    StepPlan,
    Update,
)
from .. import errors
from ..metrics import Metrics, RequestReport, StepReport
from ..text.detokenizer import AnswerText
from ..text.lanes import Watcher
from ..text.logprobs import LogprobReader
from ..text.tokenizer import Tokenizer
from .device import Device, Waiter
from .messages import AnswerOptions, Delta, Finish, Usage
from .requests import request_of

FINISH = {Outcome.STOP: Finish.STOP, Outcome.LENGTH: Finish.LENGTH}
RETRY_AFTER_S = 1


class Engine:
    """Lives on one event loop: `start`, then `submit` from that loop, then `stop`."""

    def __init__(self, scheduler: Scheduler, device: Device, text: Tokenizer, metrics: Metrics, decoder: str) -> None:
        """`decoder` is for requests that name none."""
        self._scheduler = scheduler
        self._device = device
        self._text = text
        self._metrics = metrics
        self._decoder = decoder
        self._ids = itertools.count()
        self._answers: dict[int, EngineAnswer] = {}
        self._work = asyncio.Event()
        self._loop: asyncio.Task[None] | None = None
        self._draining = False

    @property
    def ready(self) -> bool:
        return self._loop is not None and not self._loop.done() and not self._draining

    async def start(self) -> None:
        self._loop = asyncio.create_task(self._run(), name="engine")

    async def drain(self, timeout_s: float) -> None:
        """Refuses new requests and lets the others finish; those that have not after `timeout_s` are told so."""
        self._draining = True
        self._work.set()
        if self._loop is None:
            return
        _, late = await asyncio.wait({self._loop}, timeout=None if timeout_s == math.inf else timeout_s)
        for answer in list(self._answers.values()) if late else []:
            answer.fail(errors.Draining("the server is shutting down, and there was no time to finish this answer"))
            self.abort(answer.id)

    async def stop(self) -> None:
        """Waits for what runs and is queued, then ends the loop."""
        await self.drain(timeout_s=math.inf)
        if self._loop is not None:
            await self._loop
        self._device.worker.shutdown()

    def submit(self, prompt: list[int], options: AnswerOptions) -> EngineAnswer:
        if not self.ready:
            raise errors.Draining("the server is shutting down")
        limit = self._scheduler.limits.max_model_len
        behind = len(options.suffix)
        if len(prompt) + options.max_tokens + behind > limit:
            raise errors.ContextLengthExceeded(limit, len(prompt), options.max_tokens, suffix_tokens=behind)
        if not 0 <= options.temperature < math.inf:
            raise errors.InvalidValue("temperature", f"must be a finite number from 0, not {options.temperature}")
        try:
            request = request_of(next(self._ids), prompt, options, self._decoder, self._scheduler.pattern)
            self._scheduler.add(request)
        except ParamError as error:
            raise errors.InvalidValue(error.param, str(error)) from None
        except QueueFull as error:
            raise errors.Overloaded(str(error), retry_after_s=RETRY_AFTER_S) from None
        text = AnswerText(self._text, options.stop, options.stop_ids, placed=options.ranks is not None)
        watcher = Watcher(self._text) if options.watch else None
        reader = None if options.ranks is None else LogprobReader(self._text)
        answer = EngineAnswer(self, request, text, Extras(watcher, reader))
        self._answers[request.id] = answer
        self._observe_load()
        self._work.set()
        return answer

    def abort(self, request_id: int) -> None:
        """The client left: what the request holds is free now, or when the step in flight ends."""
        answer = self._answers.pop(request_id, None)
        if answer is not None and (ended := self._scheduler.end(request_id, Outcome.ABORTED)) is not None:
            self._metrics.request_aborted(ended.state.value, answer.cost(ended.stats))
            self._observe_load()

    async def _run(self) -> None:
        try:
            await self._steps()
        except Exception:
            logging.getLogger(__name__).exception("the engine has died")
            raise
        finally:  # nobody may wait for an engine that has ended, for whatever reason
            for answer in self._answers.values():
                answer.fail()

    async def _steps(self) -> None:
        """Launch what can be planned, hand out what the last step brought while the device computes, then take in the
        next."""
        flights: deque[tuple[StepPlan, Waiter]] = deque()
        updates: list[Update] = []
        started = time.perf_counter()
        while True:
            while len(flights) < self._device.depth and (plan := self._scheduler.plan()) is not None:
                flights.append((plan, self._device.launch(plan)))
            if lost := self._scheduler.lost():
                self._deliver(lost)
                self._observe_load()
            self._deliver(updates)
            if not flights:
                updates = []
                if self._scheduler.idle:
                    if self._draining:
                        return
                    self._work.clear()
                    await self._work.wait()
                    started = time.perf_counter()
                continue
            launched, waiter = flights.popleft()
            try:
                result = await self._device.collect(waiter)
                updates = self._scheduler.commit(result)
            except Exception:
                # Whatever went wrong, it concerns the requests of this step and no other.
                logging.getLogger(__name__).exception("a step failed")
                self._metrics.step_failed()
                updates = self._scheduler.fail()
                self._observe_load()
                started = time.perf_counter()
                continue
            step_s, started = time.perf_counter() - started, time.perf_counter()
            committed = sum(len(update.tokens) for update in updates)
            # Two clocks: what they disagree on is no time of the host's.
            self._observe(launched, committed, result.device_s, max(0.0, step_s - result.device_s))

    def _deliver(self, updates: list[Update]) -> None:
        for update in updates:
            answer = self._answers.get(update.request_id)
            if answer is None:
                continue
            try:
                outcome = answer.take(update)
            except Exception:
                logging.getLogger(__name__).exception("a text could not be decoded")
                answer.fail()
                outcome = Outcome.FAILED
            if outcome is not None:
                self._scheduler.end(update.request_id, outcome)
                del self._answers[update.request_id]
                self._metrics.request_ended(outcome.value, answer.cost(update.stats))

    def _observe_load(self) -> None:
        load = self._scheduler.load()
        self._metrics.observe_load(load.waiting, load.running, load.pages_used, load.pages_kept)

    def _observe(self, plan: StepPlan, committed: int, device_s: float, host_s: float) -> None:
        load = self._scheduler.load()
        self._metrics.observe_step(
            StepReport(
                row_tokens=plan.tokens,
                budget_tokens=self._scheduler.limits.step_tokens,
                committed=committed,
                host_s=host_s,
                device_s=device_s,
                queued=load.waiting,
                running=load.running,
                refine_lanes=load.refine_lanes,
                generate_lanes=load.generate_lanes,
                pages_used=load.pages_used,
                pages_kept=load.pages_kept,
            )
        )


class Extras(NamedTuple):
    """What some answers tell besides their text."""

    watcher: Watcher | None
    reader: LogprobReader | None


class EngineAnswer:
    """A running request as its reader sees it. Filled by the engine's loop, read by one task."""

    def __init__(self, engine: Engine, request: Request, text: AnswerText, extras: Extras) -> None:
        self._engine = engine
        self.id = request.id
        self._text = text
        self._extras = extras
        self._deltas: asyncio.Queue[Delta | errors.ApiError] = asyncio.Queue()
        self._over = False
        self._arrived = time.perf_counter()
        self._first_text_s: float | None = None
        self.token_ids: list[int] = []

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._engine.abort(self.id)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Delta:
        if self._over:
            raise StopAsyncIteration
        delta = await self._deltas.get()
        if isinstance(delta, errors.ApiError):
            self._over = True
            raise delta
        self._over = delta.finish is not None
        return delta

    def take(self, update: Update) -> Outcome | None:
        """Turn a step's tokens into text; says how the answer has ended, if it has."""
        if update.outcome is Outcome.FAILED:
            self.fail(None if update.failure is None else errors.InvalidValue(*update.failure))
            return update.outcome
        ids = update.tokens.tolist()
        text, used, stopped = self._text.feed(ids)
        self.token_ids += ids[:used]
        if update.outcome is not None and not stopped:
            text += self._text.flush()
            stopped = self._text.stopped
        outcome = Outcome.STOP if stopped else update.outcome
        if self._first_text_s is None and text:
            self._first_text_s = time.perf_counter() - self._arrived
        watcher, reader = self._extras
        lanes = None if watcher is None else watcher.look(update.lane_events)
        scores = () if reader is None else reader.read(self.token_ids, self._text.take_places(), update.scores)
        if outcome is not None or text or lanes or scores:
            finish = None if outcome is None else FINISH[outcome]
            self._deltas.put_nowait(Delta(text, finish, self._usage(update.stats), lanes, scores))
        return outcome

    def fail(self, error: errors.ApiError | None = None) -> None:
        """The answer ends here: by `error`, or by our own fault."""
        fault = "the engine failed while it computed this answer"
        self._deltas.put_nowait(error or errors.EngineFailure(fault))

    def cost(self, stats: RequestStats) -> RequestReport:
        return RequestReport(
            seconds=time.perf_counter() - self._arrived,
            first_text_s=self._first_text_s,
            tokens=len(self.token_ids),
            forwards=stats.forwards,
            forks=stats.forks,
            cancelled_lanes=stats.cancelled_lanes,
            refreshes=stats.refreshes,
            reused_refreshes=stats.reused_refreshes,
            prompt_tokens=stats.prompt_tokens,
            cached_tokens=stats.cached_tokens,
        )

    def _usage(self, stats: RequestStats) -> Usage:
        return Usage(
            completion_tokens=len(self.token_ids),
            forwards=stats.forwards,
            computed_tokens=stats.computed_tokens,
            lanes=stats.lanes,
            forks=stats.forks,
            refreshes=stats.refreshes,
            cached_tokens=stats.cached_tokens,
        )
