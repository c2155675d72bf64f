"""The project's own client against the real engine: what it streams is what it gets whole."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from asynclane.clients import (
    Answer,
    AsyncClient,
    AsyncStream,
    Client,
    StatusError,
)
from asynclane.clients.types import Usage

from ..support.scale import part
from ..support.servers import Server

REQUESTS, AT_ONCE = 200, 48
WORDS = "Tom has 12 books. What is the capital of France? Write a Python function; über ducks 🦆 日本語 7 9".split()
DECODERS: tuple[dict[str, Any], ...] = ({}, {"decoder": "fast-dllm"}, {"decoder": "llada", "steps": 3})


def random_request(r: random.Random) -> tuple[bool, str, dict[str, Any]]:
    """Whether it is a chat, the prompt, and options: short answers by every decoder, with any parameters or none."""
    chat = r.random() < 0.5
    options: dict[str, Any] = {"max_tokens": r.randint(1, 8), **r.choice(DECODERS)}
    if r.random() < 0.5:
        options |= {"temperature": r.choice([0.5, 1.0, 2.0]), "seed": r.randrange(1000), "top_p": r.choice([0.5, 1.0])}
        options |= r.choice([{}, {"top_k": r.choice([1, 20])}, {"min_p": 0.1}])
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
    return chat, " ".join(r.choices(WORDS, k=r.randint(1, 8))), options


Told = tuple[str, list[Any], str | None]  # a choice's text, its scores, and why it ended


def scores_of(choice: Any) -> list[Any]:
    """One entry for each token, in either endpoint's form."""
    if choice.logprobs is None:
        return []
    chat: list[Any] | None = choice.logprobs.get("content")
    return list(zip(*choice.logprobs.values(), strict=True)) if chat is None else chat


async def joined(stream: AsyncStream) -> tuple[dict[int, Told], Usage | None]:
    told: dict[int, Told] = {}
    async with stream:
        async for delta in stream:
            assert delta.text.encode().decode() == delta.text  # no half of a surrogate pair
            text, scores, end = told.get(delta.index, ("", [], None))
            told[delta.index] = (text + delta.text, scores + scores_of(delta), delta.finish_reason or end)
    return told, stream.usage


def test_deltas_join_to_the_whole_answer_for_random_requests(server: Server) -> None:
    r = random.Random(20)
    requests = part((random_request(r) for _ in range(REQUESTS)), 2)

    async def both(client: AsyncClient, limit: asyncio.Semaphore, request: tuple[bool, str, dict[str, Any]]) -> int:
        chat, prompt, options = request
        options = {"model": "tiny-llada", **options}
        messages: Any = [{"role": "user", "content": prompt}]
        async with limit:
            if chat:
                told, usage = await joined(client.stream_chat(messages, **options))
                whole = await client.chat(messages, **options)
            else:
                told, usage = await joined(client.stream_complete(prompt, **options))
                whole = await client.complete(prompt, **options)
        assert told == {c.index: (c.text, scores_of(c), c.finish_reason) for c in whole.choices}, options
        assert usage is not None
        assert whole.usage is not None
        assert usage.completion_tokens == whole.usage.completion_tokens
        return sum(len(text) for text, _, _ in told.values())

    async def all_of_them() -> list[int]:
        limit = asyncio.Semaphore(AT_ONCE)
        async with AsyncClient(server.url) as client:
            return await asyncio.gather(*(both(client, limit, request) for request in requests))

    lengths = asyncio.run(all_of_them())
    assert sum(length > 0 for length in lengths) > len(requests) / 2


@pytest.fixture
def client(server: Server) -> Any:
    with Client(server.url) as client:
        yield client


def test_an_answer_tells_what_it_took(client: Client) -> None:
    answer: Answer = client.chat([{"role": "user", "content": "What is the capital of France?"}], model="tiny-llada")
    assert answer.text == "The capital of France is Paris."
    assert answer.usage is not None
    assert answer.usage.cost is not None
    assert answer.usage.cost.forwards >= 1


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


def test_a_refusal_of_the_real_server_names_what_is_wrong(client: Client) -> None:
    with pytest.raises(StatusError) as caught:
        client.complete("Hi", model="tiny-llada", temperature=9.0)
    assert (caught.value.status, caught.value.param) == (400, "temperature")
    assert caught.value.request_id
    with pytest.raises(StatusError) as caught:
        client.model("another")
    assert (caught.value.status, caught.value.code) == (404, "model_not_found")
