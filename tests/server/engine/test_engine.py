"""The engine keeps going whatever happens to one request: steps that fail, clients that leave, queues that fill."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import fields, replace
from functools import partial
from typing import Any

import pytest

from asynclane.scheduler import DeviceLost
from asynclane.scheduler.contract import StepPlan, StepResult
from asynclane.scheduler.decoding.commit.host.localleap import LocalLeap
from asynclane.scheduler.decoding.lane_tree import Lane, Role
from asynclane.scheduler.memory.pages import Limits
from asynclane.scheduler.request import State
from asynclane.scheduler.scheduler import Scheduler
from asynclane.scheduler.sequence import Sequence as Running
from asynclane.scheduler.step_cost import Halving, StepCost
from asynclane.server import errors
from asynclane.server.engine import messages
from asynclane.server.engine.device import Device, DeviceThread
from asynclane.server.engine.engine import Engine
from asynclane.server.engine.messages import Answer, AnswerOptions, Delta, Finish, Health, Usage
from asynclane.server.frontend.client import EngineClient
from asynclane.server.metrics import Metrics
from asynclane.server.presets import DecoderLine
from asynclane.server.structured.grammar import Grammars
from asynclane.server.text.detokenizer import AnswerText
from asynclane.server.text.tokenizer import Tokenizer

from ...support.fakes import FaultyExecutor, Panic, ScriptedExecutor, raising

LIMITS = Limits(slots=2, pages=32, page_size=16, step_tokens=512, max_model_len=256, max_queue=2)
ANSWER = "One fish. Two fish. Red fish. Blue fish. And so on, and so on."


class GatedExecutor:
    """A device that waits for permission before each step, and raises on demand."""

    def __init__(self, inner: ScriptedExecutor) -> None:
        self.inner = inner
        self.permits = threading.Semaphore(0)
        self.fail_next = False

    def execute(self, plan: StepPlan) -> StepResult:
        assert self.permits.acquire(timeout=10)
        if self.fail_next:
            self.fail_next = False
            raise RuntimeError("the device is on fire")
        return self.inner.execute(plan)

    def open(self) -> None:
        self.permits.release(100_000)


class Bench:
    """An engine over a scripted device that answers `ANSWER`, a few tokens a step."""

    def __init__(self, text: Tokenizer, depth: int) -> None:
        self.text = text
        self.depth = depth
        self.ids = [*text.encode(ANSWER), *[min(text.end_ids)] * 300]
        self.prompt = text.encode("Say something.")
        self.executor = GatedExecutor(ScriptedExecutor(self._propose, length=256))
        self.executor.inner.mask = text.mask_id
        halving = Halving(StepCost([1, 1000], [0.001, 1.0])) if depth > 1 else None
        self.scheduler = Scheduler(LIMITS, text.vocabulary, halving=halving)
        self.metrics = Metrics(LIMITS.pages)
        self.use(lambda plan: partial(self.executor.execute, plan))

    def use(self, start: Callable[[StepPlan], Callable[[], StepResult]], **options: Any) -> None:
        """An engine whose device has `start` and `options`."""
        device = Device(DeviceThread(), start, self.depth, **options)
        self.engine = Engine(
            self.scheduler, device, self.text, Grammars(self.text), self.metrics, DecoderLine("asynclane")
        )
        self.client = EngineClient(self.text, self.metrics)
        self.client.join(self.engine)

    def fail(self, faults: Sequence[BaseException | threading.Event | None], **options: Any) -> None:
        """An engine whose device has `faults` in its first steps."""
        faulty = FaultyExecutor(self.executor.inner, faults)
        self.use(lambda plan: partial(faulty.execute, plan), **options)

    def _propose(self, slot: int, position: int) -> tuple[int, float]:
        place = position - len(self.prompt)
        return self.ids[place], (place * 7919 % 101) / 100

    def ask(self, **options: object) -> Answer:
        given = AnswerOptions(**{"max_tokens": 64, **options})  # type: ignore[arg-type]
        return self.client.submit(self.prompt, given)

    @property
    def empty(self) -> bool:
        self.scheduler.check_integrity()
        return self.scheduler.idle and self.scheduler.pages.used == 0 and self.scheduler.slots.used == 0


@pytest.fixture(params=[1, 2], ids=["one-in-flight", "two-in-flight"])
def bench(text: Tokenizer, request: pytest.FixtureRequest) -> Bench:
    return Bench(text, request.param)


@asynccontextmanager
async def running(bench: Bench) -> AsyncIterator[Engine]:
    await bench.engine.start()
    try:
        yield bench.engine
    finally:
        bench.executor.open()
        await asyncio.wait_for(bench.engine.stop(), 10)


async def read(answer: Answer) -> list[Delta]:
    async with answer:
        return [delta async for delta in answer]


async def text_of(answer: Answer) -> str:
    return "".join(delta.text for delta in await read(answer))


async def until(condition: Callable[[], bool]) -> None:
    for _ in range(500):
        if condition():
            return
        await asyncio.sleep(0.005)
    raise AssertionError("it did not happen")


async def test_an_answer_streams_its_text_and_ends_with_a_reason_and_its_cost(bench: Bench) -> None:
    bench.executor.open()
    async with running(bench):
        deltas = await read(bench.ask())
    assert "".join(delta.text for delta in deltas) == ANSWER
    assert len([delta for delta in deltas if delta.text]) > 1
    assert [delta.finish for delta in deltas[:-1]] == [None] * (len(deltas) - 1)
    last = deltas[-1]
    assert last.finish is Finish.STOP
    assert last.usage is not None
    assert last.usage.completion_tokens == len(bench.text.encode(ANSWER))
    assert last.usage.stats.forwards == len(bench.executor.inner.plans)
    assert last.usage.stats.computed_tokens == sum(plan.tokens for plan in bench.executor.inner.plans)
    assert bench.empty


async def complete(bench: Bench, **options: object) -> tuple[str, Finish | None, Usage]:
    """One answer, from start to stop; nothing is left of it."""
    bench.executor.open()
    async with running(bench):
        deltas = await read(bench.ask(**options))
    assert bench.empty
    return "".join(delta.text for delta in deltas), deltas[-1].finish, deltas[-1].usage or Usage()


async def test_a_full_canvas_ends_with_length(bench: Bench) -> None:
    _, finish, usage = await complete(bench, max_tokens=5)
    assert (finish, usage.completion_tokens) == (Finish.LENGTH, 5)


@pytest.mark.parametrize("stop", ["Red", "fish. R", " fish. Two", "One"])
async def test_a_stop_string_ends_the_answer_before_it_and_cancels_all_after_it(bench: Bench, stop: str) -> None:
    text, finish, _ = await complete(bench, stop=(stop,))
    assert (text, finish) == (ANSWER[: ANSWER.index(stop)], Finish.STOP)


async def test_a_stop_token_ends_the_answer_before_it_and_is_not_counted(bench: Bench) -> None:
    red = bench.text.encode(" Red", specials=False)[0]
    text, finish, usage = await complete(bench, stop_ids=(red,))
    assert (text, finish) == (ANSWER[: ANSWER.index(" Red")], Finish.STOP)
    assert usage.completion_tokens == bench.ids.index(red)


async def test_a_stop_string_across_two_lanes_cancels_what_lies_after_it_and_frees_it(bench: Bench) -> None:
    """The first sentence is left open while the lane of the second goes on, so the string ends in another lane."""
    confidence = dict.fromkeys(range(3), 0.5)
    bench.executor.inner.propose = lambda slot, position: (
        bench.ids[position - len(bench.prompt)],
        confidence.get(position - len(bench.prompt), 0.97),
    )
    text, _, usage = await complete(bench, stop=("fish. Two",), params=(("later_threshold", "off"),))
    assert text == "One "
    assert usage.stats.forks > 0, "two lanes were at work"


async def test_a_step_that_raises_ends_only_the_requests_in_it(bench: Bench) -> None:
    async with running(bench):
        first, second = (asyncio.create_task(read(bench.ask())) for _ in range(2))
        await until(lambda: bench.scheduler.slots.used == 2)
        third = asyncio.create_task(read(bench.ask()))
        bench.executor.fail_next = True
        bench.executor.open()
        for lost in (first, second)[: 3 - bench.depth]:
            with pytest.raises(errors.EngineFailure):
                await lost
        for spared in (first, second, third)[3 - bench.depth :]:
            assert "".join(delta.text for delta in await spared) == ANSWER
        assert await text_of(bench.ask()) == ANSWER
    assert bench.empty


async def test_a_step_that_cannot_be_launched_ends_only_its_requests(text: Tokenizer) -> None:
    bench, refusals = Bench(text, depth=2), iter([True])

    def start(plan: StepPlan) -> Callable[[], StepResult]:
        if next(refusals, False):
            raise RuntimeError("no memory")
        return partial(bench.executor.execute, plan)

    bench.use(start)
    bench.executor.open()
    async with running(bench):
        first, second = (asyncio.create_task(read(bench.ask())) for _ in range(2))
        with pytest.raises(errors.EngineFailure):
            await first
        assert "".join(delta.text for delta in await second) == ANSWER
    assert bench.empty


async def test_a_commit_that_breaks_off_ends_only_its_requests(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.executor.open()
    async with running(bench):
        with monkeypatch.context() as broken:
            broken.setattr(Scheduler, "_predict_ends", lambda *args: 1 / 0)
            with pytest.raises(errors.EngineFailure):
                await read(bench.ask())
        assert await text_of(bench.ask()) == ANSWER
    assert bench.empty


@pytest.mark.faults
@pytest.mark.parametrize("method", ["choose", "replicas"])  # after a step, and while one is planned
@pytest.mark.parametrize("error", [RuntimeError(), Panic()], ids=repr)
async def test_a_rule_that_raises_ends_only_its_request(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, method: str, error: BaseException
) -> None:
    monkeypatch.setattr(LocalLeap, method, raising(error))
    bench.executor.open()
    async with running(bench):
        asked = bench.ask(params=(("rule", "localleap"),)), bench.ask()
        broken, whole = await asyncio.gather(*map(read, asked), return_exceptions=True)
    assert isinstance(broken, errors.EngineFailure)
    assert isinstance(whole, list)
    assert "".join(delta.text for delta in whole) == ANSWER
    assert bench.empty


@pytest.mark.faults
async def test_a_request_that_fails_while_it_is_planned_leaves_no_load(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No step follows that would report it."""
    monkeypatch.setattr(LocalLeap, "replicas", lambda *args: 1 / 0)
    bench.executor.open()
    async with running(bench):
        with pytest.raises(errors.EngineFailure):
            await read(bench.ask(params=(("rule", "localleap"),)))
        await until(lambda: b"asynclane_queue_depth 0.0" in bench.metrics.exposition())
        assert b"asynclane_running_requests 0.0" in bench.metrics.exposition()


@pytest.mark.faults
async def test_an_answer_that_ended_in_a_commit_that_breaks_off_fails(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    report, fail, failures = Running.report, Scheduler._fail, itertools.count()

    def break_second(sequence: Running, events: Any) -> Any:
        if sequence.id:
            raise RuntimeError("a bug")
        return report(sequence, events)

    def break_first(scheduler: Scheduler, sequence: Running) -> Any:
        if next(failures) == 0:
            raise RuntimeError("a bug")
        return fail(scheduler, sequence)

    monkeypatch.setattr(Running, "report", break_second)
    monkeypatch.setattr(Scheduler, "_fail", break_first)  # so it cannot end alone
    bench.executor.open()
    async with running(bench):
        done = await asyncio.gather(read(bench.ask(max_tokens=1)), read(bench.ask()), return_exceptions=True)
    assert [type(result) for result in done] == [errors.EngineFailure] * 2
    assert bench.empty


@pytest.mark.parametrize("error", [RuntimeError(), Panic()], ids=repr)
async def test_a_text_that_cannot_be_decoded_ends_only_its_request(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    bench.executor.open()
    async with running(bench):
        with monkeypatch.context() as broken:
            broken.setattr(AnswerText, "feed", raising(error))
            with pytest.raises(errors.EngineFailure):
                await read(bench.ask())
        assert await text_of(bench.ask()) == ANSWER
    assert bench.empty


async def assert_dead(bench: Bench, reason: str) -> None:
    """Nobody is left waiting, nobody can come, and `stop` has an end."""
    assert bench.engine.health == Health(ready=False, failure=reason)
    assert bench.client.health == bench.engine.health
    with pytest.raises(errors.EngineDown, match=f"^the engine has failed: {reason}$"):
        await read(bench.ask())
    assert bench.metrics.registry.get_sample_value("asynclane_engine_up") == 0
    await asyncio.wait_for(bench.engine.stop(), 10)


BROKEN, NEVER = RuntimeError("the device is on fire"), threading.Event()


@pytest.mark.parametrize(
    ("faults", "options", "reason"),
    [
        ([BROKEN] * 3, {}, "3 steps failed in a row"),
        ([Panic()] * 3, {}, "3 steps failed in a row"),
        ([BROKEN] * 2, {"max_failed_steps": 2}, "2 steps failed in a row"),
        ([None, None, DeviceLost()], {}, "the device is lost"),
        ([None, NEVER], {"step_timeout_s": 0.5}, "a step took longer than 0.5 s"),
        ([asyncio.CancelledError()], {}, "the engine's loop ended unasked"),
    ],
    ids=["failing", "panics", "few may fail", "lost", "hangs", "loop ends"],
)
async def test_an_engine_that_fails_for_good_informs_all_and_takes_nobody(
    bench: Bench, faults: list[BaseException | threading.Event | None], options: dict[str, Any], reason: str
) -> None:
    bench.fail(faults, **options)
    await bench.engine.start()
    assert bench.metrics.registry.get_sample_value("asynclane_engine_up") == 1
    ends: list[BaseException] = []
    while bench.engine.health.failure is None:  # two run and two wait, until a step fails
        ends += await asyncio.gather(*(read(bench.ask()) for _ in range(4)), return_exceptions=True)
    assert {type(end) for end in ends} <= {errors.EngineFailure, errors.EngineDown}
    assert errors.EngineDown in {type(end) for end in ends}
    await assert_dead(bench, reason)


@pytest.mark.parametrize("error", [RuntimeError(), Panic()], ids=repr)
async def test_a_loop_that_raises_ends_like_a_device(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    await bench.engine.start()
    monkeypatch.setattr(Scheduler, "plan", raising(error))
    with pytest.raises(errors.EngineDown):
        await read(bench.ask())
    await assert_dead(bench, "the engine's loop ended unasked")


async def test_steps_that_fail_now_and_then_are_survived(bench: Bench) -> None:
    bench.fail([BROKEN, Panic(), None] * 3)
    bench.executor.open()
    async with running(bench):
        for _ in range(8):  # requests of one step at most fail with it
            await asyncio.gather(read(bench.ask(max_tokens=1)), return_exceptions=True)
        assert await text_of(bench.ask()) == ANSWER
        assert bench.engine.health.ready
    assert bench.empty


async def test_a_stop_gives_up_a_step_that_hangs(bench: Bench) -> None:
    bench.fail([NEVER])
    await bench.engine.start()
    reader = asyncio.create_task(read(bench.ask()))
    await until(lambda: bench.scheduler.slots.used == 1)
    await asyncio.wait_for(bench.engine.stop(timeout_s=0.1), 10)
    with pytest.raises(errors.Draining):
        await reader
    await assert_dead(bench, "a step did not end while the server was shutting down")


@pytest.mark.parametrize("steps", [0, 1, 3])
async def test_leaving_during_a_step_frees_lanes_and_pages_when_it_ends(bench: Bench, steps: int) -> None:
    async with running(bench):
        for _ in range(steps):
            bench.executor.permits.release()
        computed = [(steps, State.STEPPING)]  # so many steps are committed, and another is in flight
        async with bench.ask():
            await until(lambda: [(s.steps, s.state) for s in bench.scheduler.running.values()] == computed)
        assert bench.scheduler.pages.used  # the device may still write there
        bench.executor.permits.release(1)
        await until(lambda: bench.empty)
        assert len(bench.executor.inner.plans) == steps + 1


async def test_positions_in_flight_are_counted_when_metrics_are_scraped(bench: Bench) -> None:
    def positions() -> float | None:
        return bench.metrics.registry.get_sample_value("asynclane_positions_in_flight")

    async with running(bench):
        readers = [asyncio.create_task(read(bench.ask())) for _ in range(3)]
        await until(lambda: len(bench.scheduler.waiting) == 1)
        assert positions() == bench.engine.positions_in_flight == 3 * 64
        bench.executor.permits.release(2)
        await until(lambda: (positions() or 0) < 3 * 64)
        bench.executor.open()
        await asyncio.gather(*readers)
        assert positions() == 0


async def test_leaving_while_queued_takes_no_slot(bench: Bench) -> None:
    async with running(bench):
        readers = [asyncio.create_task(read(bench.ask())) for _ in range(2)]
        await until(lambda: bench.scheduler.slots.used == 2)
        async with bench.ask():
            assert len(bench.scheduler.waiting) == 1
        assert not bench.scheduler.waiting
        bench.executor.open()
        await asyncio.gather(*readers)
    assert bench.empty


async def test_a_full_queue_refuses_with_a_time_to_come_back(bench: Bench) -> None:
    async with running(bench):
        readers = [asyncio.create_task(read(bench.ask())) for _ in range(2)]
        await until(lambda: bench.scheduler.slots.used == 2)
        readers += [asyncio.create_task(read(bench.ask())) for _ in range(2)]
        await until(lambda: len(bench.scheduler.waiting) == 2)
        with pytest.raises(errors.Overloaded) as refused:
            await read(bench.ask())
        assert refused.value.retry_after_s >= 1
        with pytest.raises(errors.Overloaded, match=r"^the queue is full$") as refused:
            await bench.client.reserve("")
        assert refused.value.retry_after_s >= 1
        bench.executor.open()
        await asyncio.gather(*readers)
        (await bench.client.reserve("")).free()


async def test_a_request_whose_body_is_read_has_a_place_in_the_queue(bench: Bench) -> None:
    """As many as there are slots and places: with more, most would be refused after their bodies were read."""
    async with running(bench):
        places = [await bench.client.reserve("") for _ in range(2 + 2)]
        with pytest.raises(errors.Overloaded):
            await bench.client.reserve("")
        for place in places[:2]:
            place.free()
            place.free()
        readers = [asyncio.create_task(read(bench.ask())) for _ in range(2)]
        await until(lambda: bench.scheduler.slots.used == 2)
        with pytest.raises(errors.Overloaded):
            await bench.client.reserve("")
        places.append(await bench.client.reserve("bob"))  # its half of the two places
        with pytest.raises(errors.Overloaded):
            await bench.client.reserve("bob")
        for place in places:
            place.free()
        (await bench.client.reserve("")).free()
        bench.executor.open()
        await asyncio.gather(*readers)
    assert not bench.engine._reserved


@pytest.mark.parametrize("others", [0, 2], ids=["running", "waiting"])
async def test_an_answer_that_is_late_fails_and_frees_what_it_holds(bench: Bench, others: int) -> None:
    async with running(bench):
        readers = [asyncio.create_task(read(bench.ask())) for _ in range(others)]
        await until(lambda: bench.scheduler.slots.used == others)
        late = bench.ask(timeout_s=0.05)
        with pytest.raises(errors.TimedOut, match=r"no complete answer within 0\.05 seconds") as failed:
            await read(late)
        assert (failed.value.status, failed.value.param) == (408, "timeout")
        assert not bench.scheduler.waiting
        bench.executor.open()
        await asyncio.gather(*readers)
        await until(lambda: bench.empty)
    assert b'asynclane_requests_total{outcome="timeout"} 1.0' in bench.metrics.exposition()


async def test_an_answer_in_time_leaves_no_timer(bench: Bench) -> None:
    bench.executor.open()
    async with running(bench) as engine:
        answer = bench.ask(timeout_s=3600)
        (timer,) = [running.timer for running in engine._answers.values()]
        assert timer is not None
        assert await text_of(answer) == ANSWER
        assert timer.cancelled()


async def test_draining_finishes_what_runs_and_refuses_what_comes(bench: Bench) -> None:
    async with running(bench) as engine:
        reader = asyncio.create_task(read(bench.ask()))
        await until(lambda: bench.scheduler.slots.used == 1)
        stopping = asyncio.create_task(engine.stop())
        await asyncio.sleep(0)
        assert not engine.health.ready
        with pytest.raises(errors.Draining):
            await read(bench.ask())
        bench.executor.open()
        assert "".join(delta.text for delta in await reader) == ANSWER
        await stopping


@pytest.mark.parametrize(
    ("params", "param"),
    [
        ({"threshold": 1.5}, "threshold"),
        ({"block_length": 0}, "block_length"),
        ({"block_length": 2.5}, "block_length"),
        ({"max_lanes": True}, "max_lanes"),
        ({"cache": "magic"}, "cache"),
        ({"cache": "dual"}, "cache"),
        ({"threshold": 0.9, "factor": 1.0}, "factor"),
        ({"steps": 7, "block_length": 8}, "steps"),
        ({"no_such_parameter": 1}, "no_such_parameter"),
    ],
)
async def test_a_parameter_out_of_range_is_refused_by_name(bench: Bench, params: dict[str, object], param: str) -> None:
    with pytest.raises(errors.InvalidValue) as refused:
        await complete(bench, params=tuple(params.items()))
    assert refused.value.param == param
    assert bench.empty


async def test_an_unknown_decoder_is_refused_with_the_known_ones(bench: Bench) -> None:
    with pytest.raises(errors.InvalidValue, match="asynclane") as refused:
        await complete(bench, decoder="beam-search")
    assert refused.value.param == "decoder"


async def test_a_prompt_beyond_the_context_is_refused_with_both_numbers(bench: Bench) -> None:
    with pytest.raises(errors.ContextLengthExceeded, match="256"):
        await complete(bench, max_tokens=256)


GRAMMAR = messages.Grammar("guided_regex", 'start: "a"')
OPTIONS: dict[str, object] = {
    "max_tokens": 5,
    "temperature": 0.5,
    "top_p": 0.5,
    "seed": 3,
    "top_k": 2,
    "min_p": 0.1,
    "presence_penalty": 1.0,
    "frequency_penalty": 1.0,
    "repetition_penalty": 1.5,
    "logit_bias": ((3, 1.0),),
    "ignore_end": True,
    "min_tokens": 1,
    "grammar": GRAMMAR,
    "suffix": (7,),
    "ranks": 1,
    "ranks_param": "include",
    "share_group": "one",
    "cache_salt": "salt",
    "client": "alice",
    "weight": 2.0,
    "bundle": "one",
    "decoder": "llada",
    "params": (("threshold", 0.5),),
    "watch": True,
    "diffusing": True,
    "template": ((3, (9, 10)), (3, ())),
    "scoring": messages.GivenTokens(bytes(4), (1,)),
    "candidates": (9, 10),
}
NOT_OF_THE_SCHEDULER = {"stop", "include_stop", "stop_ids", "timeout_s", "shown"}


@pytest.mark.parametrize("error", [Panic("no such lexeme"), RuntimeError("a bug")])
async def test_a_request_whose_grammar_cannot_be_compiled_ends(
    bench: Bench, error: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench.engine._grammars, "_build", raising(error))
    async with running(bench):
        with pytest.raises(errors.EngineFailure):
            await asyncio.wait_for(read(bench.ask(grammar=replace(GRAMMAR, tried_bytes=1))), 10)
    assert bench.empty


async def test_the_time_of_an_answer_counts_while_its_grammar_is_compiled(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled = asyncio.Event()

    async def ready(*_: object) -> None:
        await compiled.wait()

    monkeypatch.setattr(bench.engine._grammars, "ready", ready)
    async with running(bench):
        with pytest.raises(errors.TimedOut):
            await asyncio.wait_for(read(bench.ask(grammar=GRAMMAR, timeout_s=0.05)), 10)
        compiled.set()
    assert bench.empty


async def test_every_option_reaches_the_scheduler(bench: Bench) -> None:
    def facts(**options: object) -> str:
        given = {"max_tokens": 8, **options}
        message = messages.Submit(0, (7, 8), AnswerOptions(**given))  # type: ignore[arg-type]
        request = bench.engine._request(0, message)
        decoder = request.decoder
        constraint = request.constraint and request.constraint.name
        shown = replace(request, constraint=None, decoder=None)  # type: ignore[arg-type]
        rule = decoder.rule.for_lane(Lane(0, None, Role.GENERATE, 0, 8, 8), True)
        return repr((shown, constraint, decoder.name, rule))

    await bench.engine._grammars.ready(GRAMMAR)
    assert {field.name for field in fields(AnswerOptions)} == {*OPTIONS, *NOT_OF_THE_SCHEDULER}
    for name, value in OPTIONS.items():
        assert facts(**{name: value}) != facts(), name
