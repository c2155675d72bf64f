"""The text of an answer is the same however its steps arrive, and ends where the engine ends it."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import numpy as np
import pytest

from asynclane.scheduler import Outcome, RequestStats, Scored, Update
from asynclane.server.engine.answer import EngineAnswer
from asynclane.server.engine.messages import AnswerOptions, AnswerTimes, Delta, Failed, Failure, Fault, Finish, Progress
from asynclane.server.engine.port import Port
from asynclane.server.errors import Draining
from asynclane.server.frontend.client import EngineClient
from asynclane.server.frontend.stream import AnswerReader, AnswerStream
from asynclane.server.text.detokenizer import AnswerText
from asynclane.server.text.tokenizer import Tokenizer

WORDS = "One fish.\nTwo ducks 🦆 日本語, and über 12 books; naïve 🦆🦆 end".split(" ")
OPTIONS: list[dict[str, Any]] = [
    {},
    {"stop": ("🦆", "12 b")},
    {"stop": ("end",)},
    {"stop_ids": True},
    {"stop": ("boo", "Two"), "stop_ids": True},
    {"ranks": 2},
    {"ranks": 0, "stop": (" and",)},
]


class Seen:
    """Metrics that keep what they are given."""

    def __init__(self) -> None:
        self.gaps: list[float] = []
        self.answers: list[AnswerTimes] = []

    def chunk_read(self, gap_s: float) -> None:
        self.gaps.append(gap_s)

    def answer_read(self, answer: AnswerTimes) -> None:
        self.answers.append(answer)


def steps(rng: random.Random, ids: list[int], ranks: int | None) -> list[Update]:
    """The ids of an answer in steps of random sizes."""
    found, at = [], 0
    while at < len(ids) or not found:
        size = rng.choice([0, 1, 1, 2, 5, 30])
        part = np.array(ids[at : at + size], np.int32)
        at += size
        scores = None
        if ranks is not None:
            columns = np.zeros((len(part), ranks), np.int32), np.zeros((len(part), ranks), np.float32)
            scores = Scored(-part.astype(np.float32), np.full(len(part), len(found), np.int32), *columns)
        outcome = Outcome.LENGTH if at >= len(ids) else None
        found.append(Update(1, part, outcome, RequestStats(forwards=len(found) + 1), scores=scores))
    return found


def sent(text: Tokenizer, options: AnswerOptions, updates: list[Update]) -> tuple[list[Progress], int]:
    """The messages of an engine, up to the end of the answer, and its count of tokens."""
    messages: list[Any] = []
    port = Port(lambda port, received: None, messages.extend)
    answer = EngineAnswer(port, 5, options, text)
    for update in updates:
        if answer.take(update, 0.0, 0.0) is not None:
            break
    port.flush()
    return messages, answer.completion_tokens


async def read(stream: AnswerStream) -> list[Delta]:
    async with stream:
        return [delta async for delta in stream]


@pytest.mark.parametrize("given", OPTIONS, ids=str)
@pytest.mark.parametrize("seed", range(4))
async def test_a_text_does_not_depend_on_how_steps_arrive(text: Tokenizer, given: dict[str, Any], seed: int) -> None:
    rng = random.Random(seed)
    ids = text.encode(" ".join(rng.choices(WORDS, k=20)), specials=False)
    stop_ids = (ids[15],) if given.get("stop_ids") else ()
    options = AnswerOptions(99, **{**given, "stop_ids": stop_ids})
    whole = AnswerText(text, options.stop, options.stop_ids)
    expected, used, stopped = whole.feed(ids)
    expected += whole.flush()
    finish = Finish.STOP if stopped or whole.stopped else Finish.LENGTH
    messages, tokens = sent(text, options, steps(rng, ids, options.ranks))
    assert tokens == used
    seen = Seen()
    aborts: list[bool] = []
    for slow in (False, True):  # a slow reader gets everything at once
        stream = AnswerStream(AnswerReader(text, options), aborts.append, seen)
        reader = asyncio.create_task(read(stream))
        for message in messages:
            stream.put(message)
            if not slow:
                await asyncio.sleep(0)
                await asyncio.sleep(0)
        deltas = await reader
        assert "".join(delta.text for delta in deltas) == expected
        assert [delta.finish for delta in deltas] == [*[None] * (len(deltas) - 1), finish]
        assert [token for delta in deltas for token in delta.token_ids] == ids[:used]
        last = deltas[-1].usage
        assert last is not None
        assert (last.completion_tokens, last.stats) == (used, messages[-1].stats)
        scores = [score for delta in deltas for score in delta.scores]
        if options.ranks is not None and not options.stop:
            assert [score.logprob for score in scores] == [-float(token) for token in ids]
        assert len(deltas) == 1 or not slow
    assert [time.completion_tokens for time in seen.answers] == [used] * 2


async def test_what_waits_for_a_slow_reader_takes_no_more_than_its_tokens(text: Tokenizer) -> None:
    stream = AnswerStream(AnswerReader(text, AnswerOptions(9999)), lambda failed: None, Seen())
    for number in range(1000):
        stream.put(Progress(1, np.array([300], np.int32).tobytes(), RequestStats(forwards=number)))
    assert len(stream._waiting) == 1
    assert len(stream._waiting[0][0].tokens) == 4000


@pytest.mark.parametrize("slow", [False, True])
async def test_a_usage_has_the_times_to_the_first_step_and_to_the_end_of_the_first_forward(
    text: Tokenizer, slow: bool
) -> None:
    messages: list[Any] = []
    answer = EngineAnswer(Port(lambda port, received: None, messages.extend), 5, AnswerOptions(9), text)
    ids, arrived = np.array(text.encode("Hi", specials=False), np.int32), answer._arrived
    steps = [(0, ids[:0], None), (1, ids, None), (2, ids, Outcome.LENGTH)]  # the first is a chunk of the prompt
    for number, (forwards, tokens, outcome) in enumerate(steps):
        update = Update(1, tokens, outcome, RequestStats(forwards=forwards))
        answer.take(update, arrived + 2 + number, arrived + 2.75 + number)
    answer.port.flush()
    assert len(messages) == 2
    stream = AnswerStream(AnswerReader(text, AnswerOptions(9)), lambda failed: None, Seen())
    usages = []
    for message in messages:
        stream.put(message)
        if not slow:
            usages.append((await anext(stream)).usage)
    usages += [delta.usage for delta in await read(stream)]
    times = [(usage.queue_s, usage.first_forward_s) for usage in usages if usage is not None]
    assert times == [pytest.approx((2.0, 1.75))] * (1 if slow else 2)


async def test_a_failure_comes_after_the_text_before_it(text: Tokenizer) -> None:
    stream = AnswerStream(AnswerReader(text, AnswerOptions(9)), lambda failed: None, Seen())
    stream.put(Progress(1, np.array(text.encode("Hi"), np.int32).tobytes(), RequestStats()))
    stream.put(Failed(1, Failure(Fault.DRAINING, "late")))
    assert (await anext(stream)).text == "Hi"
    with pytest.raises(Draining, match="late"):
        await anext(stream)
    with pytest.raises(StopAsyncIteration):
        await anext(stream)


async def test_the_times_between_texts_are_counted_but_not_steps_without_text(
    text: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A slow reader does not count: the times are those at which the text was there."""
    now, seen = 10.0, Seen()
    monkeypatch.setattr("time.perf_counter", lambda: now)
    stream = AnswerStream(AnswerReader(text, AnswerOptions(9)), lambda failed: None, seen)
    ids = text.encode("One fish. Two fish.", specials=False)
    steps = [(10.5, ids[:1]), (10.75, []), (11.5, ids[1:3]), (12.0, ids[3:])]
    for at, part in steps:
        now = at
        finish = Finish.LENGTH if part and part[-1] == ids[-1] and at == 12.0 else None
        stream.put(Progress(1, np.array(part, np.int32).tobytes(), RequestStats(), finish=finish))
        now = 99.0
        stream.read_now()
    assert seen.gaps == [1.0, 0.5]
    assert [(answer.first_text_s, answer.seconds) for answer in seen.answers] == [(0.5, 2.0)]


async def test_a_lost_connection_fails_all_that_wait_and_all_that_come(text: Tokenizer) -> None:
    client, messages, reasons = EngineClient(text, Seen()), [], []  # type: ignore[var-annotated]
    client.send, client.ended = messages.extend, reasons.append
    tasks = [asyncio.create_task(work) for work in (client.reserve("a"), client.exposition())]
    stream = client.submit([1], AnswerOptions(8))
    await asyncio.sleep(0)
    client.lose("gone")
    results = await asyncio.gather(
        *tasks, read(stream), read(client.submit([1], AnswerOptions(8))), client.exposition(), return_exceptions=True
    )
    assert [str(result) for result in results] == ["the engine has failed: gone"] * 5
    assert reasons == ["gone"]
    assert not client._streams
    assert not client._replies
