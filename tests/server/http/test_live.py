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
from asynclane.server.structured.grammar import Grammars

from ...support.fake_engine import SCRIPT, FakeEngine
from ...support.http import CHAT, error_of
from ...support.scale import part
from ...support.schema_bombs import ENDLESS, HUGE_ENUM

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


async def test_a_client_that_leaves_gives_up_its_format(live: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, left = asyncio.Event(), asyncio.Event()

    async def compile_for_ever(*_: object) -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            left.set()

    monkeypatch.setattr(Grammars, "compile", compile_for_ever)
    async with live() as url, httpx.AsyncClient(base_url=url) as client, asyncio.timeout(SOON_S):
        body = {**CHAT, "guided_regex": "a"}
        post = asyncio.create_task(client.post("/v1/chat/completions", json=body, timeout=None))
        await begun.wait()
        post.cancel()
        await left.wait()


async def test_schemas_that_take_too_long_are_refused_while_others_are_answered(live: Any) -> None:
    async with live(grammar_timeout_s=0.5) as url, httpx.AsyncClient(base_url=url, timeout=None) as client:

        async def post(**fields: Any) -> httpx.Response:
            return await client.post("/v1/chat/completions", json={**CHAT, **fields})

        bombs = [asyncio.create_task(post(guided_json=schema)) for schema in part(ENDLESS.values(), 3)]
        answered = await post(response_format={"type": "json_object"})
        assert answered.status_code == 200
        assert not all(bomb.done() for bomb in bombs)
        for bomb in bombs:
            error = error_of(await bomb, 400)
            assert error["param"] == "guided_json"
            assert error["message"] == "guided_json: this schema takes longer than 0.5 s to compile"
        assert (await post(guided_json=HUGE_ENUM)).status_code == 200


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
