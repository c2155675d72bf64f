"""Random faults at every state of a request: the application, its engine, and a device that follows a script.

Whatever happens to one request, every other gets its own answer, and nothing is left afterwards. `make test` has 1,000
faults, `make chaos` 20,000. Faults of whole processes are in tests/e2e.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field
from functools import partial
from operator import itemgetter
from typing import Any, NoReturn

import pytest

from asynclane.models.checkpoint.registry import EMBEDDED
from asynclane.scheduler import Halving, Limits, Scheduler, StepCost, StepPlan, StepResult
from asynclane.scheduler.decoding.commit.host.localleap import LocalLeap
from asynclane.scheduler.decoding.lane_tree import Role
from asynclane.scheduler.request import State
from asynclane.scheduler.sequence import Sequence
from asynclane.server.app import ModelCard, create_app
from asynclane.server.engine.device import Device
from asynclane.server.engine.engine import Engine
from asynclane.server.frontend.client import EngineClient
from asynclane.server.metrics import Metrics
from asynclane.server.presets import DecoderLine
from asynclane.server.settings import Settings
from asynclane.server.structured.grammar import GrammarConstraint, Grammars
from asynclane.server.text.detokenizer import Detokenizer
from asynclane.server.text.tokenizer import Tokenizer

from ..support.fakes import Panic, ScriptedExecutor, raising
from ..support.scale import ALL
from .measure import memory_mb

MANY = os.environ.get("CHAOS") == "all"
FAULTS = 20_000 if MANY else 500
BATCH, CALM = 30, 6  # requests that do harm, and others beside them
LIMITS = Limits(slots=10, pages=48, page_size=16, step_tokens=320, max_model_len=256, max_queue=24)
ANSWERS = [f"{word} fish. Two fish, and {word} birds.\nAnd so on, and so on." for word in ("One", "Red", "No", "Old")]
WAYS: list[dict[str, Any]] = [
    {},
    {"decoder": "llada"},
    {"decoder": "fast-dllm"},
    {"rule": "ccd"},
    {"siblings": "isolated", "max_lanes": 2},
    {"guided_choice": ANSWERS},
]
FIRST, WORDS, POISON = 300, 1000, 299  # token ids: prompts have WORDS from FIRST on, and answers never POISON

# The fields of a request, and the code of the error that it may get for them.
KINDS: dict[str, tuple[dict[str, Any], str]] = {
    "calm": ({}, ""),
    "leaves": ({}, ""),
    "leaves in its body": ({}, ""),
    "is cancelled": ({}, ""),
    "reads slowly": ({"stream": True}, ""),
    "reads nothing": ({"stream": True}, ""),
    "start fails": ({}, ""),
    "step fails": ({}, ""),
    "step panics": ({}, ""),
    "rule fails": ({"rule": "localleap"}, "engine_failure"),
    "grammar fails": ({"guided_regex": r"(.|\n)*"}, "engine_failure"),
    "text fails": ({}, "engine_failure"),
    "takes all pages": ({"n": 3, "max_tokens": 200}, ""),
    "wants too much": ({"max_tokens": 255}, "context_length_exceeded"),
    "is late": ({"timeout": 0.05}, "request_timeout"),
    "clock jumps": ({}, ""),
}
DEVICE = ("start fails", "step fails", "step panics")
POISONED = ("grammar fails", "text fails")
LEAVING = ("leaves", "leaves in its body", "is cancelled", "reads nothing")


@dataclass(eq=False)
class Client:
    number: int
    kind: str
    body: dict[str, Any]
    status: int = 0
    received: bytearray = field(default_factory=bytearray)
    struck: asyncio.Event = field(default_factory=asyncio.Event)  # its harm is done

    async def send(self, app: Any) -> None:
        """Hand the request to the application, as a server of HTTP does."""
        content = json.dumps(self.body).encode()
        parts = iter([(content[:20], True), (content[20:], False)][: 1 if self.kind == "leaves in its body" else 2])

        async def receive() -> dict[str, Any]:
            for part, more in parts:
                return {"type": "http.request", "body": part, "more_body": more}
            await (self.struck.wait() if self.kind in LEAVING else asyncio.Event().wait())
            return {"type": "http.disconnect"}

        async def take(message: dict[str, Any]) -> None:
            self.status = message.get("status", self.status)
            self.received += message.get("body", b"")
            if self.kind.startswith("reads"):
                await self.struck.wait()

        self.status = 0
        self.received.clear()
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(content)).encode())]
        scope = {"type": "http", "method": "POST", "path": "/v1/completions", "query_string": b"", "headers": headers}
        await app({**scope, "client": (f"10.0.0.{self.number % 3}", 1)}, receive, take)

    @property
    def result(self) -> str:
        """The texts of all choices, or the code of the error."""
        if self.body["stream"] and self.status == 200:
            found = [json.loads(line[6:]) for line in self.received.decode().splitlines() if line.startswith("data: {")]
        else:
            found = [json.loads(self.received or "{}")]
        texts = [""] * self.body["n"]
        for part in found:
            if "error" in part:
                return str(part["error"]["code"])
            for choice in part.get("choices", ()):
                texts[choice["index"]] += choice["text"]
        return "|".join(texts)


class Turns(Executor):
    """The device's thread without a thread: a call takes some turns of the event loop, so that a seed is one course."""

    def __init__(self, seed: int) -> None:
        self._draw = random.Random(seed).randrange
        self._calls: set[asyncio.Task[None]] = set()

    def submit(self, call: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()

        async def answer() -> None:
            for _ in range(self._draw(24)):
                await asyncio.sleep(0)
            try:
                future.set_result(call(*args, **kwargs))
            except BaseException as error:  # noqa: BLE001 - the engine decides
                future.set_exception(error)

        task = asyncio.create_task(answer())
        self._calls.add(task)
        task.add_done_callback(self._calls.discard)
        return future


class House:
    """An engine whose device gives each prompt its own answer, and fails on command."""

    def __init__(self, text: Tokenizer, depth: int, answers: dict[str, str]) -> None:
        self.text = text
        self.rng = random.Random(depth)
        self.scripts = [[*text.encode(answer), *[min(text.end_ids)] * 256] for answer in ANSWERS]
        self.inner = ScriptedExecutor(self._propose, LIMITS.max_model_len)
        self.inner.mask = text.mask_id
        halving = Halving(StepCost([1, 1000], [0.001, 1.0])) if depth > 1 else None
        self.scheduler = Scheduler(LIMITS, text.vocabulary, halving=halving)
        self.metrics, grammars = Metrics(LIMITS.pages), Grammars(text)
        device = Device(Turns(depth), self._start, depth)
        self.engine = Engine(self.scheduler, device, text, grammars, self.metrics, DecoderLine("asynclane"))
        card = ModelCard("tiny", LIMITS.max_model_len, {}, "asynclane")
        settings = Settings(max_queue=LIMITS.max_queue)
        client = EngineClient(text, self.metrics)
        client.join(self.engine)
        self.app = create_app(client, text, settings, self.metrics, card, grammars=grammars)
        self.clock_s = 0.0
        self.steps = self.failed = 0
        self.faults: list[str] = []  # of the next steps
        self.clients: dict[int, Client] = {}  # by number, those of now
        self.number = 0
        self.owners: dict[int, Client] = {}  # by slot
        self.agenda: list[tuple[int, asyncio.Future[None]]] = []
        self.doomed: set[Client] = set()  # their step failed
        self.answers = answers  # those of requests alone, by script and body
        self.seen: Counter[tuple[str, str]] = Counter()  # faults, and the states of the requests that they met

    def at(self, step: int) -> asyncio.Future[None]:
        """Done in that step, or before if nothing else happens."""
        moment = asyncio.get_running_loop().create_future()
        self.agenda.append((step, moment))
        self.agenda.sort(key=itemgetter(0))
        return moment

    def _come(self) -> None:
        _, moment = self.agenda.pop(0)
        if not moment.done():
            moment.set_result(None)

    def _start(self, plan: StepPlan) -> Callable[[], StepResult]:
        self.steps += 1
        while self.agenda and self.agenda[0][0] <= self.steps:
            self._come()
        self.owners |= {placement.slot: self.owner(placement.prompt) for placement in plan.placements}
        if not self.faults or self.failed == 2:  # a third in a row would be the end
            self.failed = 0
            return partial(self.inner.execute, plan)
        self.inner.place(plan)  # the requests that live on
        self.failed += 1
        fault, carried = self.faults.pop(), {self.owners[row.slot] for row in plan.rows}
        self.doomed |= carried
        for client in carried:  # some leave just now
            if client.kind in LEAVING:
                client.struck.set()

        def fail() -> NoReturn:
            for client in carried:
                self._see(fault, client)
            raise Panic if fault == "step panics" else RuntimeError

        return fail() if fault == "start fails" else fail

    def owner(self, prompt: Any) -> Client:
        return self.clients[int(prompt[1] - FIRST) * WORDS + int(prompt[2] - FIRST)]

    def _propose(self, slot: int, position: int) -> tuple[int, float]:
        client, place = self.owners[slot], position - 3
        token = self.scripts[client.body["prompt"][0] - FIRST][place]
        return POISON if client.kind in POISONED and place == 9 else token, (place * 7919 % 101) / 100

    def sequences(self, client: Client) -> list[Sequence]:
        """Those of its choices that are not over."""
        alive = [*self.scheduler.waiting.values(), *self.scheduler.running.values()]
        return [sequence for sequence in alive if self.owner(sequence.request.prompt) is client]

    def _see(self, fault: str, client: Client) -> None:
        for sequence in self.sequences(client):
            refining = any(lane.role is Role.REFINE for lane in sequence.tree.live)
            states = {sequence.state.value, *["refining"] * refining, *["streaming"] * (client.status == 200)}
            self.seen.update((fault, state) for state in states)

    def draw(self, kind: str) -> tuple[int, dict[str, Any]]:
        """One of the scripts, and a body."""
        draw, fields = self.rng.choice, KINDS[kind][0]
        way = {} if {"rule", "guided_regex", "n"} & fields.keys() else draw(WAYS)
        size = {"max_tokens": draw([40, 56, 100]), "n": draw([1, 1, 2]), "stream": draw([False, True])}
        return self.rng.randrange(len(ANSWERS)), {**size, **way, **fields}

    def client(self, kind: str, script: int, body: dict[str, Any]) -> Client:
        self.number += 1
        prompt = [FIRST + script, FIRST + self.number // WORDS, FIRST + self.number % WORDS]
        client = self.clients[self.number] = Client(self.number, kind, {"model": "tiny", **body, "prompt": prompt})
        return client

    async def serve(self, client: Client) -> None:
        await self.at(self.steps + self.rng.randrange(80))
        sent = asyncio.create_task(self._send(client))
        await self.at(self.steps + self.rng.randrange(20))
        self._see(client.kind, client)
        if client.kind in DEVICE:
            self.faults.append(client.kind)
        elif client.kind == "clock jumps":
            self.clock_s = self.rng.uniform(-1e6, 1e6)
        elif client.kind == "is cancelled":
            sent.cancel()
        client.struck.set()
        await asyncio.wait({sent})
        if not sent.cancelled():
            sent.result()
        left = {sequence.state for sequence in self.sequences(client)}
        assert left <= {State.LEAVING}, "only a step in flight may still have it"

    async def _send(self, client: Client) -> None:
        """The client comes again as long as the queue is full."""
        await client.send(self.app)
        while client.status == 429 and not (client.kind in LEAVING and client.struck.is_set()):
            await self.at(self.steps + 8)
            await client.send(self.app)

    async def run(self, *clients: Client) -> None:
        """Serve clients, and look at what is left."""
        self.doomed.clear()
        self.inner.plans.clear()
        served = asyncio.gather(*map(self.serve, clients))
        async with asyncio.timeout(60):
            while not served.done() or not self.scheduler.idle:
                steps = self.steps
                for _ in range(20):
                    await asyncio.sleep(0)
                if steps == self.steps:
                    if self.agenda:
                        self._come()
                    await asyncio.sleep(0.0005)  # for a deadline, or a grammar
        await served
        self.scheduler.check_integrity()
        assert self.scheduler.pages.used == self.scheduler.slots.used == 0
        assert not self.engine._answers
        assert not self.engine._reserved
        assert self.engine.health.ready
        gauged = [family for family in self.metrics.registry.collect() if family.type == "gauge"]
        families = [family for family in gauged if family.name.startswith("asynclane_")]  # not those of the process
        gauges = {sample.name: sample.value for family in families for sample in family.samples}
        assert not any(gauges[name] for name in gauges if name not in UNRELATED), gauges
        self.clients.clear()

    async def check(self, client: Client, alone: House) -> None:
        """A client got the error that it may get, or its answer `alone`; some of it if it has left."""
        result = client.result
        if result and result in (KINDS[client.kind][1], "engine_failure" if client in self.doomed else None):
            self.seen[client.kind, result] += 1
        elif client.kind in LEAVING and client.status != 200:
            self.seen[client.kind, "left"] += 1
        else:
            right = await alone.answer(client)
            whole = result == "|".join([right] * client.body["n"])
            assert whole or client.kind in LEAVING, (client, right)
            assert all(right.startswith(part) for part in result.split("|")), (client, right)
            self.seen[client.kind, "answered" if whole else "left"] += 1

    async def answer(self, client: Client) -> str:
        """The answer to the same request, with nobody beside it."""
        script = client.body["prompt"][0] - FIRST
        body = {**client.body, "n": 1, "stream": False}
        body = {name: value for name, value in body.items() if name not in ("prompt", "timeout")}
        key = json.dumps((script, body))
        if key not in self.answers:
            only = self.client("calm", script, body)
            await self.run(only)
            self.answers[key] = only.result
            assert only.result.startswith(ANSWERS[script])
        return self.answers[key]


UNRELATED = ("asynclane_kv_pages", "asynclane_engine_up", "asynclane_last_step_age_seconds")


class JumpingClock:
    """The module `time` for the server."""

    def __init__(self, house: House) -> None:
        self._house = house

    def __getattr__(self, name: str) -> Any:
        clock = getattr(time, name)
        return (lambda: clock() + self._house.clock_s) if name in ("time", "monotonic", "perf_counter") else clock


@pytest.fixture(scope="module")
def answers() -> dict[str, str]:
    return {}


@pytest.fixture(params=[1, 2] if MANY or ALL else [2], ids="{}-in-flight".format)
def house(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, answers: dict[str, str]) -> Iterator[House]:
    """With parts that fail for those requests that want it, and with clocks that jump."""
    house = House(Tokenizer(EMBEDDED / "tiny-llada"), request.param, answers)
    accept, feed, choose = GrammarConstraint.accept, Detokenizer.feed, LocalLeap.choose

    def some_accepted(constraint: GrammarConstraint, token: int, room: int) -> bool:
        return raising(RuntimeError())() if token == POISON else accept(constraint, token, room)

    def some_text(text: Detokenizer, ids: list[int]) -> str:
        return raising(Panic())() if POISON in ids else feed(text, ids)

    monkeypatch.setattr(GrammarConstraint, "accept", some_accepted)
    monkeypatch.setattr(Detokenizer, "feed", some_text)
    monkeypatch.setattr(
        LocalLeap, "choose", lambda rules, view: choose(rules, view) if (view.steps < 2).all() else 1 / 0
    )
    for name, module in list(sys.modules.items()):
        if name.startswith("asynclane.server.") and getattr(module, "time", None) is time:
            monkeypatch.setattr(module, "time", JumpingClock(house))
    logging.disable()  # pytest would keep every traceback, with all that it refers to
    yield house
    logging.disable(logging.NOTSET)


@pytest.mark.faults
async def test_random_faults_concern_nobody_else_and_leave_nothing(house: House) -> None:
    alone, harmful, sizes = House(house.text, 1, house.answers), [kind for kind in KINDS if kind != "calm"], []
    await house.engine.start()
    await alone.engine.start()
    weights = [2 if kind in DEVICE else 4 for kind in harmful]
    for _ in range(-(-FAULTS // 2 // BATCH)):
        kinds = [*house.rng.choices(harmful, weights, k=BATCH), *["calm"] * CALM]
        clients = [house.client(kind, *house.draw(kind)) for kind in kinds]
        await house.run(*clients)
        for client in clients:
            await house.check(client, alone)
        clients.clear()
        sizes.append(memory_mb(os.getpid()))
    await asyncio.wait_for(house.engine.stop(), 10)
    await asyncio.wait_for(alone.engine.stop(), 10)
    usual = {kind: code or ("left" if kind in LEAVING else "answered") for kind, (_, code) in KINDS.items()}
    assert all(house.seen[kind, result] for kind, result in usual.items()), house.seen
    assert {"waiting", "running", "stepping", "leaving", "refining", "streaming"} <= {state for _, state in house.seen}
    assert sizes[-1] < 1.05 * sizes[len(sizes) // 2]
