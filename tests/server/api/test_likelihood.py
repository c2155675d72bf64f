"""Answers beside others that score tokens for them: what is sent waits for the scores, and is one answer to clients."""

from __future__ import annotations

import math
import threading
from typing import Any

import pytest

from asynclane.server.api import generation
from asynclane.server.api.generation import FEW_SCORES
from asynclane.server.engine.messages import Delta, Finish
from asynclane.server.text.logprobs import Token, TokenLogprob

from ...support.fake_engine import SCRIPT, USAGE, FakeEngine, Step
from ...support.http import chunks_of, error_of

OPTIONS = ["Ada", "Bob"]


def scores(late: int) -> list[Step]:
    """The scores of both texts after so many empty steps."""
    return [*[Delta("")] * late, Delta("", Finish.LENGTH, USAGE, candidate_logprobs=(-3.0, -5.0))]


@pytest.mark.parametrize("late", [0, 9])
async def test_the_last_chunk_waits_for_the_scores(api: Any, late: int) -> None:
    engine = FakeEngine(SCRIPT, scores(late))
    streaming = {"stream": True, "stream_options": {"include_usage": True}}
    async with api(engine) as client:
        response = await client.chat(logprobs=True, guided_choice=OPTIONS, **streaming)
    *chunks, last = chunks_of(response)
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    assert [choice["finish_reason"] for choice in choices][-2:] == [None, "stop"]
    assert "".join(choice["delta"].get("content", "") for choice in choices) == "Hello wörld"
    ratio = math.exp(2)
    expected = [(OPTIONS[0], pytest.approx(ratio / (1 + ratio))), (OPTIONS[1], pytest.approx(1 / (1 + ratio)))]
    assert [(one["choice"], one["probability"]) for one in choices[-1]["choice_probabilities"]] == expected
    assert last["usage"]["completion_tokens"] == USAGE.completion_tokens
    assert last["usage"]["completion_tokens_details"]["forwards"] == 2 * USAGE.stats.forwards
    assert [options.scoring is None for options in engine.options] == [True, False]


async def test_answers_and_scores_share_the_queue(api: Any) -> None:
    engine = FakeEngine()
    async with api(engine, max_queue=5) as client:
        error = error_of(await client.complete(prompt=["a", "b", "c"], prompt_logprobs=0), 400)
    assert error["param"] == "prompt"
    assert "3 answers and 3 that score tokens" in error["message"]
    assert engine.prompts == []


async def test_tokens_that_are_scored_beside_answers_are_limited(api: Any) -> None:
    engine = FakeEngine()
    async with api(engine, max_request_tokens=20) as client:
        error = error_of(await client.complete(prompt=["a " * 12] * 2, max_tokens=1, prompt_logprobs=0), 400)
    assert error["param"] == "prompt"
    assert "tokens to score" in error["message"]
    assert engine.prompts == []


async def test_prompts_to_score_are_limited_too(api: Any) -> None:
    engine = FakeEngine()
    async with api(engine, max_request_tokens=20) as client:
        fields = {"prompt": ["a " * 12] * 2, "max_tokens": 0, "logprobs": 0, "echo": True}
        error = error_of(await client.complete(**fields), 400)
    assert error["param"] == "prompt"
    assert "at most 20" in error["message"]
    assert engine.prompts == []


@pytest.mark.parametrize(("count", "aside"), [(3, False), (FEW_SCORES + 1, True)])
async def test_many_log_probabilities_are_written_beside_the_event_loop(
    api: Any, count: int, aside: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And come out the same."""
    threads: list[str] = []
    write = generation._written

    def written(*given: Any) -> bytes:
        threads.append(threading.current_thread().name)
        return write(*given)

    monkeypatch.setattr(generation, "_written", written)
    score = TokenLogprob(Token("☃", "☃".encode(), 7), -1.5, 0, 0, ())
    engine = FakeEngine([Delta("Hi", Finish.STOP, USAGE, scores=(score,) * count)])
    async with api(engine) as client:
        response = await client.chat(logprobs=True)
    assert [threads[0] != threading.current_thread().name] == [aside]
    assert response.headers["content-type"] == "application/json"
    content = response.json()["choices"][0]["logprobs"]["content"]
    assert [(one["token"], one["logprob"]) for one in content] == [("☃", -1.5)] * count


async def test_a_failure_of_the_scores_is_one_of_the_answer(api: Any) -> None:
    engine = FakeEngine(SCRIPT, [RuntimeError("a bug")])
    async with api(engine) as client:
        assert (await client.chat(logprobs=True, guided_choice=OPTIONS)).status_code == 500
    assert all(answer.left.is_set() for answer in engine.answers)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("found", "expected"), [((math.nan, -5.0), [0, 1]), ((math.nan, math.nan), [0.5, 0.5]), ((-math.inf, -2), [0, 1])]
)
async def test_scores_that_broken_weights_give_are_no_probabilities(
    api: Any, found: tuple[float, float], expected: list[float], stream: bool
) -> None:
    engine = FakeEngine(SCRIPT, [Delta("", Finish.LENGTH, USAGE, candidate_logprobs=found)])
    async with api(engine) as client:
        response = await client.chat(logprobs=True, guided_choice=OPTIONS, stream=stream)
    assert response.status_code == 200
    last = (chunks_of(response) if stream else [response.json()])[-1]["choices"][0]
    assert [one["probability"] for one in last["choice_probabilities"]] == expected
