"""Over real sockets: a client that leaves frees its requests, and OpenAI's own SDK reads the answers."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import openai
import pytest

from asynclane.server import errors
from asynclane.server.engine.messages import Delta

from ...support.fake_engine import SCRIPT, FakeEngine
from ...support.http import CHAT, CONTEXT

SOON_S = 5


async def leave_after(url: str, engine: FakeEngine, body: dict[str, Any], answers: int, begun: bool = True) -> None:
    """Sends a request by hand, waits until all its answers are at work, and hangs up. A stream has headers once it has
    `begun`."""
    host, _, port = url.removeprefix("http://").partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    content = json.dumps(body).encode()
    head = "POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
    writer.write(f"{head}content-length: {len(content)}\r\n\r\n".encode() + content)
    await writer.drain()
    async with asyncio.timeout(SOON_S):
        while len(engine.answers) < answers:
            await asyncio.sleep(0.005)
        for answer in engine.answers:
            await answer.waits.wait()
        if body.get("stream") and begun:
            assert b"200 OK" in await reader.readline()
    writer.close()
    await writer.wait_closed()


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("begun", [(), (Delta("a"), Delta("b"))], ids=["before the first token", "in the middle"])
async def test_a_client_that_leaves_frees_all_its_answers(live: Any, n: int, stream: bool, begun: Any) -> None:
    engine = FakeEngine([*begun, None])
    async with live(engine) as url:
        await leave_after(url, engine, {**CHAT, "stream": stream, "n": n}, answers=n, begun=bool(begun))
        async with asyncio.timeout(SOON_S):
            for answer in engine.answers:
                await answer.left.wait()


async def test_other_clients_do_not_notice(live: Any) -> None:
    engine = FakeEngine([Delta("a"), None], SCRIPT)
    async with live(engine) as url, httpx.AsyncClient(base_url=url) as other:
        await leave_after(url, engine, {**CHAT, "stream": True}, answers=1)
        response = await other.post("/v1/chat/completions", json=CHAT)
    assert response.json()["choices"][0]["message"]["content"] == "Hello wörld"


async def test_deltas_arrive_as_they_come_and_not_at_the_end(live: Any) -> None:
    engine = FakeEngine([Delta("first"), None])
    async with live(engine) as url, httpx.AsyncClient(base_url=url) as client, asyncio.timeout(SOON_S):
        async with client.stream("POST", "/v1/chat/completions", json={**CHAT, "stream": True}) as response:
            async for line in response.aiter_lines():
                if "first" in line:
                    break
        await engine.answers[0].left.wait()


async def test_a_connection_serves_one_request_after_another(live: Any) -> None:
    async with live() as url, httpx.AsyncClient(base_url=url) as client:
        for stream in (True, False, True, False):
            assert (await client.post("/v1/chat/completions", json={**CHAT, "stream": stream})).status_code == 200


@pytest.fixture
def sdk(live: Any) -> Any:
    class Sdk:
        def __init__(self, engine: FakeEngine | None = None, **settings: Any) -> None:
            self.server = live(engine, **settings)

        async def __aenter__(self) -> openai.AsyncOpenAI:
            url = await self.server.__aenter__()
            self.client = openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="key", max_retries=0)
            return self.client

        async def __aexit__(self, *exc: object) -> None:
            await self.client.close()
            await self.server.__aexit__(*exc)

    return Sdk


ASK: dict[str, Any] = {"model": "tiny-llada", "messages": [{"role": "user", "content": "Hi"}]}


async def test_the_sdk_reads_an_answer(sdk: Any) -> None:
    async with sdk(api_key="key") as client:
        answer = await client.chat.completions.create(**ASK, extra_body={"decoder": "asynclane", "max_lanes": 2})
        text = await client.completions.create(model="tiny-llada", prompt="Hi")
        models = await client.models.list()
        model = await client.models.retrieve("tiny-llada")
    assert answer.choices[0].message.content == text.choices[0].text == "Hello wörld"
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage.completion_tokens_details.forwards == 2
    assert [one.id for one in models.data] == [model.id] == ["tiny-llada"]
    assert model.max_model_len == CONTEXT


async def test_the_sdk_reads_a_stream(sdk: Any) -> None:
    async with sdk() as client:
        stream = await client.chat.completions.create(**ASK, stream=True, n=2, stream_options={"include_usage": True})
        chunks = [chunk async for chunk in stream]
    texts = ["", ""]
    for chunk in chunks:
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
    assert texts == ["Hello wörld"] * 2
    assert chunks[-1].usage.completion_tokens == 6


@pytest.mark.parametrize(
    ("engine", "fields", "kind", "param"),
    [
        (FakeEngine(), {"temperature": 3}, openai.BadRequestError, "temperature"),
        (
            FakeEngine(),
            {"tools": [{"type": "function", "function": {"name": "f"}}]},
            openai.BadRequestError,
            "tools",
        ),
        (FakeEngine(), {"model": "gpt-4o"}, openai.NotFoundError, "model"),
        (FakeEngine(errors.Overloaded("full")), {}, openai.RateLimitError, None),
        (FakeEngine(errors.EngineFailure("x")), {}, openai.InternalServerError, None),
        (FakeEngine(errors.Draining()), {}, openai.InternalServerError, None),
    ],
)
async def test_the_sdk_raises_the_error_that_its_users_know(
    sdk: Any, engine: FakeEngine, fields: Any, kind: type[openai.APIStatusError], param: str | None
) -> None:
    async with sdk(engine) as client:
        with pytest.raises(kind) as caught:
            await client.chat.completions.create(**{**ASK, **fields})
    assert caught.value.param == param


async def test_the_sdk_raises_an_error_in_a_stream(sdk: Any) -> None:
    engine = FakeEngine([Delta("a"), errors.EngineFailure("the step failed")])
    async with sdk(engine) as client:
        stream = await client.chat.completions.create(**ASK, stream=True)
        with pytest.raises(openai.APIError, match="the step failed"):
            async for _ in stream:
                pass


async def test_closing_the_sdks_stream_frees_the_answer(sdk: Any) -> None:
    engine = FakeEngine([Delta("a"), None])
    async with sdk(engine) as client:
        stream = await client.chat.completions.create(**ASK, stream=True)
        async for chunk in stream:
            if chunk.choices[0].delta.content == "a":
                break
        await stream.close()
        async with asyncio.timeout(SOON_S):
            await engine.answers[0].left.wait()
