"""The engine: one asyncio loop that launches steps, takes in their results and hands out what they brought."""

from __future__ import annotations

import asyncio
import itertools
import logging
import math
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress

import numpy as np

from ...scheduler import (
    AS_LISTED,
    DeviceLost,
    Load,
    Outcome,
    ParamError,
    Preferences,
    QueueFull,
    Request,
    RuleMaker,
    Sampling,
    Scheduler,
    Scoring,
    StepPlan,
    StepResult,
    Update,
    resolve,
    scoring_decoder,
    scoring_room,
    with_rows,
)
from .. import errors
from ..metrics import Metrics, StepReport
from ..presets import DecoderLine
from ..structured.grammar import Grammars
from ..text.tokenizer import Tokenizer
from .answer import EngineAnswer
from .device import TICK_S, Device, Waiter, Watchdog
from .messages import (
    ENGINE_FAILED,
    Abort,
    AnswerOptions,
    Counts,
    Exposition,
    Failure,
    Fault,
    Free,
    FromEngine,
    Grammar,
    Health,
    Reserve,
    Reserved,
    Scrape,
    Serving,
    Submit,
    ToEngine,
)
from .port import Port
from .queue_rate import QueueRate

LATE = Failure(Fault.DRAINING, "the server is shutting down, and there was no time to finish this answer")
ENDED = "the engine's loop ended unasked"


class Engine:
    """Lives on one event loop: `start`, then messages of the front ends that `connect`, then `stop`."""

    def __init__(
        self,
        scheduler: Scheduler,
        device: Device,
        text: Tokenizer,
        grammars: Grammars,
        metrics: Metrics,
        decoder: DecoderLine,
        makers: Mapping[str, RuleMaker] = AS_LISTED,
    ) -> None:
        """`decoder` is for requests that name none, `makers` are those of `resolve`. `death` has the reason once the
        engine has failed for good; its callbacks run in any thread."""
        self.death: Future[str] = Future()
        self._scheduler = scheduler
        self._device = device
        self._text = text
        self._grammars = grammars
        self._metrics = metrics
        self._decoder, self._makers = decoder, makers
        self._ids = itertools.count()
        self._ports: list[Port] = []
        self._answers: dict[int, EngineAnswer] = {}
        self._compiling: set[asyncio.Task[None]] = set()  # requests whose grammars are compiled
        self._reserved = Counter[str]()  # places in the queue, by client
        self._work = asyncio.Event()
        self._loop: asyncio.Task[None] | None = None
        self._draining = False
        self._since = 0.0  # when the last step ended, or the first request came
        self._rate = QueueRate()
        self._failed_steps = 0  # since one succeeded
        self._watchdog = Watchdog(lambda limit_s: self.fail(f"a step took longer than {limit_s:g} s"))
        self._began = 0.0  # when the step began whose updates are delivered
        self._unreported: tuple[StepPlan, StepResult, float, int] | None = None  # its seconds and commits, too
        metrics.count_positions(lambda: self.positions_in_flight)

    @property
    def health(self) -> Health:
        if self.death.done():
            return Health(ready=False, failure=self.death.result())
        ready = self._loop is not None and not self._loop.done() and not self._draining
        return Health(ready)

    @property
    def positions_in_flight(self) -> int:
        """Canvas positions that are still masked, of all requests that wait or run."""
        return self._scheduler.positions_in_flight

    @property
    def load(self) -> Load:
        return self._scheduler.load()

    def connect(self, send: Callable[[list[FromEngine]], None]) -> Port:
        """Connect a front end: `send` passes messages to it, and its own go to `Port.take`."""
        port = Port(self._receive, send)
        self._ports.append(port)
        port.post(self.health)
        port.flush()
        return port

    def disconnect(self, port: Port) -> None:
        """A front end has ended: so have its requests."""
        self._ports.remove(port)
        for number in list(port.requests.values()):
            self._give_up(number, "aborted")
        for place_id in list(port.places):
            self._free(port, place_id)

    def _wait_s(self) -> int:
        return self._rate.retry_after_s(len(self._scheduler.waiting), time.perf_counter())

    async def start(self) -> None:
        running = asyncio.get_running_loop()
        self._loop = loop = asyncio.create_task(self._run(), name="engine")

        def end_loop(death: Future[str]) -> None:
            logging.getLogger(__name__).critical("the engine has failed: %s", death.result())
            self._metrics.engine_up(False)
            with suppress(RuntimeError):  # the event loop is closed
                running.call_soon_threadsafe(loop.cancel)

        self.death.add_done_callback(end_loop)
        self._watchdog.start(min(TICK_S, self._device.step_timeout_s / 4))
        self._metrics.engine_up(True)
        self._announce()

    async def drain(self, timeout_s: float) -> None:
        """Refuse new requests and let the others finish; those that have not after `timeout_s` fail."""
        self._draining = True
        self._work.set()
        self._announce()
        if self._loop is None:
            return
        _, late = await asyncio.wait({self._loop}, timeout=None if timeout_s == math.inf else timeout_s)
        for number, answer in list(self._answers.items()) if late else []:
            answer.fail(LATE)
            self._give_up(number, "aborted")
            answer.port.flush()

    async def stop(self, timeout_s: float = math.inf) -> None:
        """Wait for all requests, then end the loop. A step that has not ended after `timeout_s` is given up."""
        await self.drain(timeout_s)
        if self._loop is not None and not self._loop.done():
            self.fail("a step did not end while the server was shutting down")
            await asyncio.wait({self._loop})
        self._device.worker.shutdown(wait=not self.death.done())

    def _announce(self) -> None:
        """Report the engine's health to all front ends."""
        for port in self._ports:
            port.post(self.health)
            port.flush()

    def _receive(self, port: Port, messages: Iterable[ToEngine]) -> None:
        """Take in messages of a front end."""
        for message in messages:
            match message:
                case Submit():
                    self._submit(port, message)
                case Abort():
                    if message.request_id in port.requests:
                        self._give_up(port.requests[message.request_id], "failed" if message.failed else "aborted")
                case Reserve():
                    self._reserve(port, message)
                case Free():
                    self._free(port, message.place_id)
                case Counts():
                    self._metrics.frontend_counted(message)
                case Scrape():
                    port.post(Exposition(message.scrape_id, self._metrics.exposition()))
                case Serving():
                    port.serving()
        port.flush()

    def _reserve(self, port: Port, message: Reserve) -> None:
        """Keep a place in the queue while the body of a request is read, which is refused late otherwise."""
        retry_after_s = None
        if self.health.ready:
            if self._scheduler.make_room(message.client, self._reserved):
                port.places[message.place_id] = message.client
                self._reserved[message.client] += 1
            else:
                retry_after_s = self._wait_s()
        port.post(Reserved(message.place_id, retry_after_s))

    def _free(self, port: Port, place_id: int) -> None:
        client = port.places.pop(place_id, None)
        if client is not None:
            self._reserved[client] -= 1
            if not self._reserved[client]:
                del self._reserved[client]

    def _expire(self, number: int, timeout_s: float) -> None:
        answer = self._answers[number]
        answer.fail(Failure(Fault.TIMEOUT, f"no complete answer within {timeout_s:g} seconds"))
        self._give_up(number, "timeout")
        answer.port.flush()

    def _give_up(self, number: int, outcome: str) -> None:
        """End a request. Its pages and lanes are free now, or when the step in flight ends."""
        if not self._forget(number):
            return
        ended = self._scheduler.end(number, Outcome.ABORTED)
        if ended is not None:
            self._metrics.request_aborted(ended.state.value, ended.stats, outcome)
            self._observe_load()

    def _forget(self, number: int) -> bool:
        """Return whether the request had an answer under way."""
        answer = self._answers.pop(number, None)
        if answer is not None:
            answer.port.requests.pop(answer.request_id, None)
            if answer.timer is not None:
                answer.timer.cancel()
        return answer is not None

    def _submit(self, port: Port, message: Submit) -> None:
        """Queue a request, or send the reason why it is refused. One whose grammar this process has not compiled waits
        for that first."""
        number = next(self._ids)
        answer = EngineAnswer(port, message.request_id, message.options, self._text)
        self._answers[number], port.requests[message.request_id] = answer, number
        grammar, timeout_s = message.options.grammar, message.options.timeout_s
        if timeout_s is not None:
            answer.timer = asyncio.get_running_loop().call_later(timeout_s, self._expire, number, timeout_s)
        if grammar is None or self._grammars.has(grammar):
            self._try_accept(number, message)
        else:
            compiling = asyncio.create_task(self._accept_later(number, message, grammar, port))
            self._compiling.add(compiling)
            compiling.add_done_callback(self._compiling.discard)

    async def _accept_later(self, number: int, message: Submit, grammar: Grammar, port: Port) -> None:
        try:
            await self._grammars.ready(grammar, message.options.client)
        except errors.INTERRUPTS:
            raise
        except BaseException as error:  # noqa: BLE001 - `_try_accept` raises it again, for its handlers
            self._try_accept(number, message, error)
        else:
            self._try_accept(number, message)
        port.flush()

    def _try_accept(self, number: int, message: Submit, problem: BaseException | None = None) -> None:
        answer = self._answers.get(number)
        if answer is None:  # its client has left, or its time was up, while its grammar was compiled
            return
        try:
            if problem is not None:
                raise problem
            self._accept(number, message)
        except errors.INTERRUPTS:
            raise
        except errors.ApiError as error:
            answer.fail(failure_of(error))
            self._forget(number)
        except BaseException:
            logging.getLogger(__name__).exception("a request could not be queued")
            answer.fail(Failure(Fault.ENGINE, "internal error"))
            self._forget(number)

    def _accept(self, number: int, message: Submit) -> None:
        """Raises `ApiError`."""
        if self.death.done():
            raise errors.EngineDown(self._down().message)
        if not self.health.ready:
            raise errors.Draining("the server is shutting down")
        options, prompt_tokens = message.options, len(message.prompt)
        limit, suffix_tokens = self._scheduler.limits.max_model_len, len(options.suffix)
        if options.scoring is None and prompt_tokens + options.max_tokens + suffix_tokens > limit:
            raise errors.ContextLengthExceeded(limit, prompt_tokens, options.max_tokens, suffix_tokens=suffix_tokens)
        if not 0 <= options.temperature < math.inf:
            raise errors.InvalidValue("temperature", f"must be a finite number from 0, not {options.temperature}")
        try:
            self._scheduler.add(self._request(number, message))
        except ParamError as error:
            raise errors.InvalidValue(error.param, str(error)) from None
        except QueueFull as error:
            raise errors.Overloaded(str(error), retry_after_s=self._wait_s()) from None
        self._observe_load()
        self._work.set()

    def _request(self, number: int, message: Submit) -> Request:
        """Raises `ParamError` and `InvalidValue`."""
        options, pattern = message.options, self._scheduler.pattern
        scoring, max_tokens = self._scoring(message), options.max_tokens
        if scoring is None:
            name, params = self._decoder.requested(options.decoder, dict(options.params))
            decoder = resolve(name, params, max_tokens, pattern, self._makers)
        else:
            decoder, max_tokens = scoring_decoder(scoring), scoring_room(scoring, pattern)
        return Request(
            id=number,
            prompt=np.array(message.prompt, np.int32),
            max_tokens=max_tokens,
            decoder=decoder,
            sampling=Sampling(options.temperature, options.top_p, options.seed, options.top_k, options.min_p),
            watched=options.watch,
            diffusing=options.diffusing,
            preferences=Preferences(
                presence=options.presence_penalty,
                frequency=options.frequency_penalty,
                repetition=options.repetition_penalty,
                bias=dict(options.logit_bias),
                ignore_end=options.ignore_end,
                min_tokens=options.min_tokens,
                stops=options.stop_ids if options.min_tokens else (),
            ),
            ranks=options.ranks,
            ranks_param=options.ranks_param,
            share_group=options.share_group,
            constraint=None if options.grammar is None else self._grammars.constraint(options.grammar),
            suffix=np.array(options.suffix, np.int32),
            template=self._template(options),
            cache_salt=options.cache_salt,
            client=options.client,
            weight=options.weight,
            bundle=options.bundle,
            scoring=scoring,
            candidates=np.array(options.candidates, np.int32),
        )

    def _template(self, options: AnswerOptions) -> np.ndarray | None:
        """The canvas of an answer of which some text is given."""
        canvas = [token for open_, ids in options.template for token in (*[self._text.mask_id] * open_, *ids)]
        return np.array(canvas, np.int32) if canvas else None

    def _scoring(self, message: Submit) -> Scoring | None:
        """The tokens that a message gives to be scored. Raises `ContextLengthExceeded` or `InvalidValue` if they do
        not fit with the masks that follow them."""
        given = message.options.scoring
        if given is None:
            return None
        limits, pattern = self._scheduler.limits, self._scheduler.pattern
        if pattern.canvas_length:
            param = given.param or "logprobs"
            raise errors.InvalidValue(param, f"{param}: this model gives no probabilities of given tokens")
        if pattern.autoregressive and given.samples:
            reason = "this model predicts the next token alone, and masks nothing: use 'chain'"
            raise errors.InvalidValue("likelihood", f"likelihood: {reason}")
        tokens, lengths = np.frombuffer(given.tokens, np.int32), np.array(given.lengths, np.int64)
        scoring = Scoring(tokens, lengths, given.sums, given.proposes, given.samples)
        prompt_tokens, longest = len(message.prompt), max(given.lengths)
        room = scoring_room(scoring, pattern)
        if prompt_tokens + room > limits.max_model_len:
            if given.param is None:
                raise errors.ContextLengthExceeded(
                    limits.max_model_len, prompt_tokens + longest, masks=room - longest, param="prompt"
                )
            masks = f", and the {room - longest} masks after them" if room > longest else ""
            reason = f"{prompt_tokens + longest} tokens of the prompt and of what is scored{masks}"
            raise errors.InvalidValue(
                given.param, f"{given.param}: {reason} exceed the context of {limits.max_model_len}: shorten them"
            )
        return with_rows(scoring, prompt_tokens, limits, pattern)

    def fail(self, reason: str) -> None:
        """Fail for good. From any thread; the first reason counts."""
        with suppress(InvalidStateError):
            self.death.set_result(reason)

    def _down(self) -> Failure:
        return Failure(Fault.DOWN, f"the engine has failed: {self.death.result()}")

    async def _run(self) -> None:
        try:
            await self._steps()
        except errors.INTERRUPTS:
            self.fail(ENDED)
            raise
        except BaseException:
            logging.getLogger(__name__).exception(ENDED)
            self.fail(ENDED)
        finally:  # nobody may wait for an engine that has ended, for whatever reason
            self._watchdog.close()
            self._metrics.engine_up(False)
            if self.death.done():
                self._announce()
                for answer in self._answers.values():
                    answer.fail(self._down())
                    answer.port.flush()

    async def _steps(self) -> None:
        """The loop: plan and launch steps, deliver what the last one brought while the device computes, then commit the
        next."""
        in_flight: deque[tuple[StepPlan, Waiter]] = deque()
        updates: list[Update] = []
        while not self.death.done():
            while len(in_flight) < self._device.depth and (plan := self._scheduler.plan()) is not None:
                in_flight.append((plan, self._device.launch(plan, self._watchdog)))
            launched = time.perf_counter()
            self._deliver(self._scheduler.lost() + updates)
            self._report()
            updates = []
            if in_flight:
                updates = await self._execute(*in_flight.popleft(), launched)
            elif self._scheduler.idle:
                if self._draining:
                    return
                self._watchdog.rest()
                self._work.clear()
                await self._work.wait()
                self._since = time.perf_counter()
                self._rate.begin(self._since)

    async def _execute(self, plan: StepPlan, waiter: Waiter, launched: float) -> list[Update]:
        """Wait for a step and commit it. `launched` is the time of the last launch: until then the device waits, if no
        other step is in flight. An error ends only the requests of this step, unless the device is lost or several
        steps have failed in a row."""
        self._watchdog.begin(self._device.step_timeout_s)
        self._began = self._since
        host_s = launched - self._since  # the device computes while updates are delivered
        try:
            result = await self._device.collect(plan, waiter)
            ended = time.perf_counter()
            updates = self._scheduler.commit(result)
        except errors.INTERRUPTS:
            raise
        except BaseException as error:
            logging.getLogger(__name__).exception("a step failed")
            self._metrics.step_failed()
            updates = self._scheduler.fail()
            self._failed_steps += 1
            if isinstance(error, DeviceLost):
                self.fail("the device is lost")
            elif self._failed_steps >= self._device.max_failed_steps:
                self.fail(f"{self._failed_steps} steps failed in a row")
            self._since = time.perf_counter()
        else:
            self._failed_steps = 0
            self._since = time.perf_counter()
            self._unreported = plan, result, self._since - self._began, self._committed(updates)
            if self._scheduler.halving is not None:
                self._scheduler.halving.observe(host_s + self._since - ended, plan.passed)
        return updates

    def _committed(self, updates: list[Update]) -> int:
        """The tokens of answers among those of a step."""
        answers = [(self._answers.get(update.request_id), len(update.tokens)) for update in updates]
        return sum(tokens if answer is None else answer.written(tokens) for answer, tokens in answers)

    def _report(self) -> None:
        """Count the last step, now that the next one is under way."""
        if self._unreported is None:
            return
        plan, result, step_s, committed = self._unreported
        self._unreported = None
        host_s = max(0.0, step_s - result.device_s)  # two clocks may disagree
        budget_tokens = self._scheduler.limits.step_tokens
        self._metrics.observe_step(StepReport(plan.tokens, budget_tokens, committed, host_s, result.device_s))

    def _deliver(self, updates: list[Update]) -> None:
        for update in updates:
            answer = self._answers.get(update.request_id)
            if answer is None:
                continue
            begins = answer.queue_s is None
            try:
                outcome = answer.take(update, self._began, self._since)
            except errors.INTERRUPTS:
                raise
            except BaseException:
                logging.getLogger(__name__).exception("a text could not be decoded")
                answer.fail(ENGINE_FAILED)
                outcome = Outcome.FAILED
            if begins and answer.queue_s is not None:
                self._metrics.request_began(answer.queue_s)
            if outcome is not None:
                self._scheduler.end(update.request_id, outcome)
                self._forget(update.request_id)
                self._rate.end(time.perf_counter())
                self._metrics.request_ended(outcome.value, answer.completion_tokens, update.stats)
        for port in self._ports:
            port.flush()
        if updates:
            self._observe_load()

    def _observe_load(self) -> None:
        self._metrics.observe_load(self.load)


def failure_of(error: errors.ApiError) -> Failure:
    """The message that makes a front end raise the same error."""
    match error:
        case errors.ContextLengthExceeded():
            return Failure(Fault.CONTEXT, error.message, error.param, lengths=error.lengths)
        case errors.InvalidValue():
            return Failure(Fault.PARAMETER, error.message, error.param)
        case errors.Overloaded():
            return Failure(Fault.OVERLOADED, error.message, retry_after_s=error.retry_after_s)
        case errors.Draining():
            return Failure(Fault.DRAINING, error.message)
        case errors.EngineDown():
            return Failure(Fault.DOWN, error.message)
        case _:
            return Failure(Fault.ENGINE, error.message)
