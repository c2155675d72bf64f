"""The project's own client against the real engine: what it streams is what it gets whole."""

from __future__ import annotations

import asyncio
import random
from typing import Any, NamedTuple

import pytest

from asynclane.clients import AsyncClient, Client
from asynclane.clients.types import Usage

from ..support.scale import part
from ..support.servers import Server

REQUESTS, AT_ONCE = 200, 48
WORDS = "Tom has 12 books. What is the capital of France? Write a Python function; über ducks 🦆 日本語 7 9".split()
DECODERS: tuple[dict[str, Any], ...] = ({}, {"decoder": "fast-dllm"}, {"decoder": "llada", "steps": 3})


class Call(NamedTuple):
    chat: bool
    prompt: Any
    options: dict[str, Any]


def random_request(r: random.Random) -> Call:
    """A short answer by any decoder, with any parameters or none."""
    chat, text = r.random() < 0.5, " ".join(r.choices(WORDS, k=r.randint(1, 8)))
    prompt = [{"role": "user", "content": text}] if chat else text
    options: dict[str, Any] = {"max_tokens": r.randint(1, 8), **r.choice(DECODERS)}
    if r.random() < 0.5:
        options |= {"temperature": r.choice([0.5, 1.0, 2.0]), "seed": r.randrange(1000), "top_p": r.choice([0.5, 1.0])}
        options |= r.choice([{}, {"top_k": r.choice([1, 20])}, {"min_p": 0.1}])
    if r.random() < 0.15:
        options["extra"] = {"guided_regex": r.choice(["[0-9]{2}", "yes|no", "[A-Z][a-z]{2,6}: [0-9]{2}"])}
        return Call(chat, prompt, options)
    if not chat and r.random() < 0.3:
        options["suffix"] = r.choice([" books.", " and 7 ducks"])
    if r.random() < 0.3:
        options["stop"] = r.choice([".", " the", "a", ["e", "\n"]])
    elif r.random() < 0.3:
        options["min_tokens"] = r.randint(1, options["max_tokens"])
    if r.random() < 0.2:
        options["n"] = 2
    if r.random() < 0.3:
        options |= {"presence_penalty": r.uniform(-2, 2), "frequency_penalty": r.uniform(-2, 2)}
    if r.random() < 0.2:
        options["logit_bias"] = {str(r.randrange(6, 1400)): r.choice([-100, -5, 5]) for _ in range(8)}
    if r.random() < 0.3:
        options["stop_token_ids"] = [r.randrange(6, 1400) for _ in range(40)]
    if r.random() < 0.1:
        options["ignore_eos"] = True
    if r.random() < 0.4:
        options |= {"logprobs": True, "top_logprobs": r.randint(0, 3)} if chat else {"logprobs": r.randint(0, 3)}
    return Call(chat, prompt, options)


Choices = dict[int, tuple[str, list[Any], str | None]]  # text, log-probabilities and finish reason of each


def scores_of(choice: Any) -> list[Any]:
    """One entry for each token, in either endpoint's form."""
    if choice.logprobs is None:
        return []
    chat: list[Any] | None = choice.logprobs.get("content")
    return list(zip(*choice.logprobs.values(), strict=True)) if chat is None else chat


async def whole(client: AsyncClient, call: Call) -> tuple[Choices, Usage | None]:
    answer = await (client.chat if call.chat else client.complete)(call.prompt, model="tiny-llada", **call.options)
    return {c.index: (c.text, scores_of(c), c.finish_reason) for c in answer.choices}, answer.usage


async def joined(client: AsyncClient, call: Call) -> tuple[Choices, Usage | None]:
    found: Choices = {}
    send = client.stream_chat if call.chat else client.stream_complete
    async with send(call.prompt, model="tiny-llada", **call.options) as stream:
        async for delta in stream:
            assert delta.text.encode().decode() == delta.text  # no half of a surrogate pair
            text, scores, end = found.get(delta.index, ("", [], None))
            found[delta.index] = (text + delta.text, scores + scores_of(delta), delta.finish_reason or end)
    return found, stream.usage


def test_random_requests_are_answered_the_same_streamed_whole_alone_and_batched(server: Server) -> None:
    calls = part(map(random_request, [random.Random(20)] * REQUESTS), 16)

    async def both(client: AsyncClient, limit: asyncio.Semaphore, call: Call) -> Choices:
        async with limit:
            (streamed, usage), (answer, counted) = await joined(client, call), await whole(client, call)
        assert streamed == answer, call
        assert usage is not None
        assert counted is not None
        assert usage.completion_tokens == counted.completion_tokens
        return answer

    async def run() -> None:
        limit = asyncio.Semaphore(AT_ONCE)
        async with AsyncClient(server.url) as client:
            answers = await asyncio.gather(*(both(client, limit, call) for call in calls))
            assert sum(any(text for text, _, _ in answer.values()) for answer in answers) > len(calls) / 2
            for call, answer in part(zip(calls, answers, strict=True), 5):
                assert (await whole(client, call))[0] == answer, call

    asyncio.run(run())


@pytest.fixture
def client(server: Server) -> Any:
    with Client(server.url) as client:
        yield client


def test_lane_events_are_read_from_the_real_engine(client: Client) -> None:
    question = "Write a Python function `count_even(numbers)` that returns the number of even numbers in a list."
    with client.stream_chat([{"role": "user", "content": question}], model="tiny-llada", lanes=True) as stream:
        deltas = list(stream)
    events = [delta.lanes for delta in deltas if delta.lanes is not None]
    assert [event.step for event in events] == list(range(len(events)))
    assert {lane.role for event in events for lane in event.lanes} == {"refine", "generate"}
    assert stream.usage is not None
    assert stream.usage.cost is not None
    assert len(events) == stream.usage.cost.forwards
    committed = sorted((commit.position, commit.text) for event in events for commit in event.commits)
    text = "".join(delta.text for delta in deltas)
    assert "".join(piece for _, piece in committed).startswith(text)
