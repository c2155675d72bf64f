"""No body stops the server: it is read in time or refused, with a 4xx in OpenAI's shape that says what is wrong."""

from __future__ import annotations

import asyncio
import gc
import json
import threading
import time
import tracemalloc
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asynclane.server.errors import InvalidValue
from asynclane.server.http.body import parse, validated

from ...support.bombs import BOMBS
from ...support.fake_engine import FakeEngine
from ...support.http import CHAT, COMPLETION, CONTEXT, error_of
from ...support.scale import ALL, part

SOON_S = 5
JSON_KIND = {"content-type": "application/json"}
PATHS = {"/v1/chat/completions": CHAT, "/v1/completions": COMPLETION, "/tokenize": {"prompt": "Hi"}}
HEAD = "POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
WHOLE = json.dumps(CHAT).encode()


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    "more",
    ['"%s": null', '"%s": null, "temperature": 0', '"metadata": {"a": "1", "a": "1"}'],
    ids=["at the end", "in the middle", "deep"],
)
async def test_a_name_that_comes_twice_is_refused(api: Any, path: str, more: str) -> None:
    name = next(iter(PATHS[path]))
    async with api() as client:
        body = json.dumps(PATHS[path])[:-1] + "," + more.replace("%s", name) + "}"
        error = error_of(await client.raw(path, body), 400)
    assert error["code"] == "duplicate_parameter"
    assert error["param"] == ("a" if "metadata" in more else name)
    assert "more than once" in error["message"]


async def test_names_of_different_objects_may_be_the_same(api: Any) -> None:
    async with api() as client:
        response = await client.chat(messages=[CHAT["messages"][0]] * 3, metadata={"model": "x", "messages": "y"})
    assert response.status_code == 200


DEEP = {
    "brackets": b"[" * 100_000 + b"]" * 100_000,
    "braces": b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
    "in a field": b'{"model":"tiny-llada","metadata":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "in a known field": WHOLE[:-1] + b',"metadata":' + b'{"a":' * 600 + b"1" + b"}" * 601,
    "in a decoding parameter": WHOLE[:-1] + b',"steps":' + b"[" * 600 + b"]" * 600 + b"}",
    "in messages": b'{"model":"tiny-llada","messages":' + b"[" * 600 + b"]" * 600 + b"}",
    "in an unknown field": WHOLE[:-1] + b',"x":' + b"[" * 600 + b"]" * 600 + b"}",
    "in a prompt": b'{"model":"tiny-llada","prompt":' + b"[" * 600 + b"]" * 600 + b"}",
}


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("body", DEEP.values(), ids=list(DEEP))
async def test_a_body_that_nests_deep_is_refused(api: Any, path: str, body: bytes) -> None:
    async with api() as client:
        assert len(error_of(await client.raw(path, body), 400)["message"]) < 2000


NO_JSON_OBJECT = {
    "empty": b"",
    "cut": b"{",
    "a list": b"[]",
    "null": b"null",
    "a text": b'"text"',
    "a number": b"5",
    "a long number": b'{"seed": ' + b"9" * 5000 + b"}",
    "no UTF-8": b"\xff\xfe",
    "half a character": b'{"model": "\xf0\x9f"}',
    "Latin-1": '{"model": "é"}'.encode("latin-1"),
    "UTF-16": json.dumps(CHAT).encode("utf-16"),
    "UTF-32": json.dumps(CHAT).encode("utf-32-le"),
    "a surrogate": b'{"model": "\xed\xa0\x80"}',
    "overlong": b'{"model": "\xc0\xaf"}',
    "NUL": b"\x00",
    "gzip": b"\x1f\x8b\x08\x00",
    "deep": b"[" * 10_000,
}


@pytest.mark.parametrize("body", NO_JSON_OBJECT.values(), ids=list(NO_JSON_OBJECT))
async def test_a_body_that_is_no_json_object_is_refused(api: Any, body: bytes) -> None:
    async with api() as client:
        error = error_of(await client.raw("/v1/chat/completions", body), 400)
    assert (error["type"], error["code"], error["param"]) == ("invalid_request_error", "invalid_json", None)
    assert "Content-Type" not in error["message"], "the header was right"


@pytest.mark.parametrize("encoding", ["gzip", "br", "deflate, gzip", "identity", " Identity "])
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/tokenize", "/detokenize"])
async def test_a_compressed_body_is_refused_as_such(api: Any, path: str, encoding: str) -> None:
    async with api() as client:
        headers = {"content-type": "application/json", "content-encoding": encoding}
        response = await client.http.post(path, content=b"{}", headers=headers)
    if "dentity" in encoding:
        assert error_of(response, 400)["param"]
    else:
        assert error_of(response, 415)["code"] == "unsupported_encoding"
        assert encoding in error_of(response)["message"]


@pytest.mark.parametrize(
    ("body", "place"),
    [
        (b'{"model": }', "line 1 column 11 (char 10)"),
        (b'{"model": "tiny-llada",\n "messages": [}', "line 2 column 15 (char 38)"),
        (b"{'model': 1}", "line 1 column 2 (char 1)"),
        (b'{"model": "tiny-llada"', "line 1 column 23 (char 22)"),
    ],
    ids=["no value", "no item", "single quotes", "no end"],
)
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/tokenize", "/detokenize"])
async def test_the_error_about_invalid_json_has_the_place(api: Any, path: str, body: bytes, place: str) -> None:
    async with api() as client:
        error = error_of(await client.raw(path, body), 400)
    assert (error["code"], error["param"]) == ("invalid_json", None)
    assert error["message"].startswith("the body is not valid JSON: ")
    assert error["message"].endswith(place)


NUMBERS = [2**70, -(2**70), -1, 1.5e308, 10**400, 5e-324, -0.0, 2**31, 2**63 - 1]


@pytest.mark.parametrize(
    "name",
    "temperature top_p top_k min_p seed n max_tokens min_tokens presence_penalty frequency_penalty logprobs"
    " steps block_length threshold".split(),
)
async def test_a_number_of_any_size_is_honoured_or_refused_by_name(api: Any, name: str) -> None:
    async with api() as client:
        for number in NUMBERS:
            response = await client.raw("/v1/completions", json.dumps({**COMPLETION, name: number}))
            assert response.status_code in (200, 400), response.text
            if response.status_code == 400:
                assert error_of(response)["param"] == name


@pytest.mark.parametrize("stop", ["x" * 100_000, ["a", "x" * 100_000], "\N{DUCK}" * 50_000])
async def test_a_stop_string_longer_than_any_answer_is_refused_in_short(api: Any, stop: Any) -> None:
    async with api() as client:
        error = error_of(await client.chat(stop=stop), 400)
    assert error["param"].startswith("stop.")
    assert len(error["message"]) < 400


@pytest.mark.parametrize(
    "kind",
    ["text/plain", "multipart/form-data; boundary=x", "application/x-www-form-urlencoded", "json", "", "\xff"],
)
@pytest.mark.parametrize("path", PATHS)
async def test_the_error_about_a_wrong_content_type_names_the_right_one(api: Any, path: str, kind: str) -> None:
    headers = {"content-type": kind.encode("latin-1")}
    async with api() as client:
        response = await client.http.post(path, content=json.dumps(PATHS[path]), headers=headers)
    assert "application/json" in error_of(response, 400)["message"]


@pytest.mark.parametrize("kind", ["application/json; charset=utf-8", "APPLICATION/JSON", "application/problem+json"])
async def test_json_by_its_other_names_is_welcome(api: Any, kind: str) -> None:
    async with api() as client:
        assert (await client.raw("/v1/chat/completions", WHOLE, kind)).status_code == 200


@pytest.mark.parametrize("method", ["GET", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "BREW"])
async def test_a_wrong_method_gets_405_with_the_right_one(api: Any, method: str) -> None:
    async with api() as client:
        for path in PATHS:
            response = await client.http.request(method, path)
            assert method in error_of(response, 405)["message"]
            assert response.headers["allow"] == "POST"


async def test_every_get_has_its_head(api: Any) -> None:
    async with api() as client:
        for path in ("/health", "/ready", "/version", "/metrics", "/v1/models", "/v1/models/tiny-llada", "/"):
            assert (await client.http.head(path)).status_code == 200, path
        assert (await client.http.head("/v1/completions")).status_code == 405
        assert (await client.http.head("/v1/models/another")).status_code == 404


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)
NAMES = st.sampled_from([*CHAT, "stop", "n", "logit_bias", "seed", "tools", "stream", "stream_options", "steps"])


def test_whatever_a_field_holds_the_answer_is_a_200_or_a_4xx_in_openais_shape(build: Any) -> None:
    app = build()

    async def ask(path: str, fields: dict[str, Any]) -> httpx.Response:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as http:
            return await http.post(path, content=json.dumps({**PATHS[path], **fields}), headers=JSON_KIND)

    @settings(max_examples=60 if ALL else 30, deadline=None)
    @given(path=st.sampled_from([*PATHS]), fields=st.dictionaries(NAMES | st.text(), JSON, max_size=3))
    def check(path: str, fields: dict[str, Any]) -> None:
        response = asyncio.run(ask(path, fields))
        assert response.status_code in (200, 400, 404), response.text
        if response.status_code != 200:
            error_of(response)

    check()


@settings(max_examples=150 if ALL else 50, deadline=None)
@given(st.binary(max_size=40) | JSON.map(lambda tree: json.dumps(tree).encode()))
def test_any_bytes_are_json_or_an_error_that_is_ours(body: bytes) -> None:
    try:
        parse(body)
    except InvalidValue:
        return
    assert json.loads(body) is not Ellipsis  # Python's own reader agrees that it is JSON


# --- Bombs -------------------------------------------------------------------------------------------------------

BOMB_BYTES = 70_000
BYTES_PER_BYTE = 64  # of memory, for a body that is read
BOMB_S = 1.0  # of a processor; each takes some milliseconds


@pytest.mark.parametrize("name", part(BOMBS, 2))
async def test_a_bomb_is_refused_at_the_price_of_its_bytes(api: Any, name: str) -> None:
    path, make = BOMBS[name]
    body = make(BOMB_BYTES)
    async with api() as client:
        await client.raw(path, b"{}")  # whatever is made once
        gc.freeze()  # as `asynclane serve` does
        tracemalloc.start()
        started_s = time.process_time()
        try:
            response = await client.raw(path, body)
            taken_s, (_, peak_bytes) = time.process_time() - started_s, tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
            gc.unfreeze()
    error = error_of(response, 400)
    assert len(error["param"] or "") <= 256
    assert len(error["message"]) <= 4000
    assert peak_bytes < BYTES_PER_BYTE * len(body)
    assert taken_s < BOMB_S


@pytest.mark.parametrize(
    ("item", "count", "refused"),
    [
        ("1", 500_000, False),
        ("1", 500_002, True),
        ("{}", 9_998, False),
        ("[]", 10_000, True),
        ('""', 50_001, True),
    ],
)
def test_a_body_of_more_values_than_any_request_needs_is_not_parsed(item: str, count: int, refused: bool) -> None:
    body = f'{{"x":[{",".join([item] * count)}]}}'.encode()
    if refused:
        with pytest.raises(InvalidValue) as caught:
            parse(body)
        assert caught.value.code == "too_many_values"
    else:
        assert len(parse(body)["x"]) == count


@pytest.mark.parametrize("text", ['[{"', "\\", '"[', '\\\\"{', '"', "[,"])
def test_characters_in_texts_are_no_values(text: str) -> None:
    content = text * 60_000
    assert parse(json.dumps({"x": content}).encode()) == {"x": content}


async def test_a_large_body_is_read_in_a_thread_and_a_small_one_is_not(api: Any, monkeypatch: Any) -> None:
    threads = []

    def watched(model: Any, body: bytes) -> Any:
        threads.append(threading.current_thread())
        return validated(model, body)

    monkeypatch.setattr("asynclane.server.http.body.validated", watched)
    async with api() as client:
        for size in (0, 100_000):
            assert (await client.raw("/v1/chat/completions", WHOLE + b" " * size)).status_code == 200
    assert [thread is threading.main_thread() for thread in threads] == [True, False]


async def test_a_fault_of_the_server_while_it_reads_is_none_of_the_body(api: Any, monkeypatch: Any) -> None:
    def broken(model: Any, body: bytes) -> Any:
        raise RuntimeError("a bug")

    monkeypatch.setattr("asynclane.server.http.body.validated", broken)
    async with api() as client:
        assert error_of(await client.chat(), 500)["code"] == "engine_failure"


async def test_the_limit_of_a_body_follows_the_context(api: Any) -> None:
    limit = 2**20 + 32 * CONTEXT
    async with api() as client:
        assert (await client.raw("/v1/chat/completions", WHOLE.ljust(limit))).status_code == 200
        error = error_of(await client.raw("/v1/chat/completions", WHOLE.ljust(limit + 1)), 413)
    assert str(limit) in error["message"]


# --- Over a socket -------------------------------------------------------------------------------------------


async def open_and_send(url: str, head: str, first: bytes = b"") -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, _, port = url.removeprefix("http://").partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(head.encode() + b"\r\n" + first)
    await writer.drain()
    return reader, writer


async def answer_of(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> tuple[int, dict[str, Any]]:
    """The status, and the body as JSON, of a connection that the server closes."""
    async with asyncio.timeout(SOON_S):
        head, _, body = (await reader.read()).partition(b"\r\n\r\n")
    writer.close()
    await writer.wait_closed()
    return int(head.split()[1]), json.loads(body)


async def test_a_body_that_comes_byte_by_byte_is_read(live: Any) -> None:
    async with live() as url:
        reader, writer = await open_and_send(url, f"{HEAD}connection: close\r\ncontent-length: {len(WHOLE)}\r\n")
        for at in range(len(WHOLE)):
            writer.write(WHOLE[at : at + 1])
            await writer.drain()
            await asyncio.sleep(0.001)
        status, body = await answer_of(reader, writer)
    assert status == 200
    assert body["choices"][0]["message"]["content"] == "Hello wörld"


@pytest.mark.parametrize("frame", ["content-length: 1000\r\n", "transfer-encoding: chunked\r\n"])
@pytest.mark.parametrize("first", [b"", b'5\r\n{"mod\r\n'], ids=["at once", "midway"])
async def test_a_client_that_stops_sending_gets_408_in_time_and_others_are_served_meanwhile(
    live: Any, frame: str, first: bytes
) -> None:
    engine = FakeEngine()
    async with live(engine, body_timeout_s=0.3) as url, httpx.AsyncClient(base_url=url) as other:
        reader, writer = await open_and_send(url, HEAD + frame, first)
        assert (await other.post("/v1/chat/completions", json=CHAT)).status_code == 200
        status, body = await answer_of(reader, writer)
    assert status == 408
    assert body["error"]["code"] == "request_timeout"
    assert "0.3 seconds" in body["error"]["message"]
    assert len(engine.prompts) == 1


async def test_a_body_that_comes_too_slowly_gets_408(live: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr("asynclane.server.http.limits.GRACE_S", 0.1)
    async with live(min_body_bytes_per_s=10**9) as url:
        status, body = await answer_of(*await open_and_send(url, f"{HEAD}content-length: 1000\r\n", WHOLE[:20]))
    assert (status, body["error"]["code"]) == (408, "request_timeout")
    assert "slower than 1000000000 bytes" in body["error"]["message"]


async def test_unfinished_bodies_share_a_total_that_leaves_small_ones_alone(live: Any) -> None:
    head = f"{HEAD}content-length: 300000\r\n"
    async with live(max_unread_bytes=300_000) as url, httpx.AsyncClient(base_url=url) as other:
        unfinished = [await open_and_send(url, head, b" " * 100_000) for _ in range(5)]
        answers = [asyncio.create_task(answer_of(*connection)) for connection in unfinished]
        done, _ = await asyncio.wait(answers, timeout=SOON_S, return_when=asyncio.FIRST_COMPLETED)
        assert {answer.result()[0] for answer in done} == {429}
        assert (await other.post("/v1/chat/completions", json=CHAT)).status_code == 200
        for (_, writer), answer in zip(unfinished, answers, strict=True):
            answer.cancel()
            writer.close()
        while True:  # those that left give their share back
            response = await other.post("/v1/chat/completions", content=WHOLE.ljust(250_000), headers=JSON_KIND)
            if response.status_code == 200:
                break
            assert int(response.headers["retry-after"]) >= 1


async def test_unfinished_bodies_of_one_client_leave_the_others_their_share(live: Any, monkeypatch: Any) -> None:
    monkeypatch.setenv("FORWARDED_ALLOW_IPS", "*")
    async with live(max_unread_bytes=400_000) as url, httpx.AsyncClient(base_url=url) as http:
        head = f"{HEAD}x-forwarded-for: 192.0.2.1\r\ncontent-length: 390000\r\n"
        writers = [(await open_and_send(url, head, b" " * 195_000))[1] for _ in range(2)]

        async def status(client: str) -> int:
            headers = {**JSON_KIND, "x-forwarded-for": client}
            return (await http.post("/v1/chat/completions", content=WHOLE.ljust(150_000), headers=headers)).status_code

        async with asyncio.timeout(SOON_S):
            while await status("192.0.2.1") != 429:  # until both were counted
                pass
        assert await status("192.0.2.2") == 200
        for writer in writers:
            writer.close()


async def test_nothing_holds_the_bytes_of_a_body_while_its_answer_runs(live: Any) -> None:
    engine, body = FakeEngine([None]), WHOLE.ljust(10**6)
    async with live(engine) as url, asyncio.timeout(SOON_S):
        tracemalloc.start()
        try:
            _, writer = await open_and_send(url, f"{HEAD}content-length: {len(body)}\r\n", body)
            while not engine.answers:
                await asyncio.sleep(0.01)
            await engine.answers[0].waits.wait()
            gc.collect()
            held, most = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
            writer.close()
    assert most > len(body)
    assert held < len(body) / 2


UNREAD = {
    "a route without a body": ("POST /health", {}, 405),
    "a method without one": ("PUT /v1/chat/completions", {}, 405),
    "a path that does not exist": ("POST /nowhere", {}, 404),
    "a wrong key": ("POST /v1/chat/completions", {"api_key": "k"}, 401),
    "a GET": ("GET /version", {}, 200),
}


@pytest.mark.parametrize(("line", "settings", "status"), UNREAD.values(), ids=list(UNREAD))
async def test_a_body_that_nobody_needs_is_not_waited_for(live: Any, line: str, settings: Any, status: int) -> None:
    async with live(**settings) as url:
        reader, writer = await open_and_send(url, f"{line} HTTP/1.1\r\nhost: x\r\ncontent-length: 1000\r\n", b"{")
        async with asyncio.timeout(SOON_S):
            assert (await reader.readline()).startswith(f"HTTP/1.1 {status} ".encode())
        writer.close()
        await writer.wait_closed()


async def test_while_the_queue_is_full_no_body_is_read(live: Any) -> None:
    engine = FakeEngine()
    engine.full = 7
    async with live(engine) as url, httpx.AsyncClient(base_url=url) as other:
        reader, writer = await open_and_send(url, f"{HEAD}content-length: 1000\r\n", b"{")
        async with asyncio.timeout(SOON_S):
            head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 429 ")
        assert b"retry-after: 7\r\n" in head
        assert (await other.post("/tokenize", json={"prompt": "Hi"})).status_code == 200
        writer.close()
        await writer.wait_closed()
    assert engine.prompts == []


async def test_a_client_that_leaves_while_it_sends_leaves_no_request(live: Any) -> None:
    engine = FakeEngine()
    async with live(engine) as url:
        _, writer = await open_and_send(url, f"{HEAD}content-length: {len(WHOLE)}\r\n", WHOLE[:20])
        writer.close()
        await writer.wait_closed()
        async with httpx.AsyncClient(base_url=url) as other:
            assert (await other.post("/v1/chat/completions", json=CHAT)).status_code == 200
    assert len(engine.prompts) == 1


async def test_a_body_in_chunks_is_read_up_to_the_limit(live: Any) -> None:
    async def chunks(size: int) -> AsyncIterator[bytes]:
        yield WHOLE[:-1]
        for _ in range(size // 1000):
            yield b" " * 1000
        yield b"}"

    async with live(max_body_bytes=50_000) as url, httpx.AsyncClient(base_url=url) as client:
        small = await client.post("/v1/chat/completions", content=chunks(40_000), headers=JSON_KIND)
        large = await client.post("/v1/chat/completions", content=chunks(60_000), headers=JSON_KIND)
    assert (small.status_code, large.status_code) == (200, 413)
    assert "50000" in error_of(large)["message"]


async def test_a_client_that_sends_far_too_much_still_reads_the_refusal(live: Any) -> None:
    """Most clients send a body to its end before they read; closing the door on them would lose the answer."""
    async with live(max_body_bytes=1000) as url, httpx.AsyncClient(base_url=url) as client:
        for _ in range(3):
            response = await client.post("/v1/chat/completions", content=b"x" * 8_000_000, headers=JSON_KIND)
            assert response.status_code == 413
            assert response.headers["connection"] == "close"


async def test_a_refusal_is_sent_before_the_rest_is_read(live: Any) -> None:
    async with live(max_body_bytes=1000) as url:
        reader, writer = await open_and_send(url, f"{HEAD}content-length: 5000\r\n", b"x" * 1500)
        async with asyncio.timeout(SOON_S):
            assert (await reader.readline()).startswith(b"HTTP/1.1 413 ")
        writer.close()
        await writer.wait_closed()


@pytest.mark.parametrize("length", ["-1", "abc", "99999999999999999999999", "1e3"])
async def test_a_content_length_that_is_none_closes_the_connection_and_no_more(live: Any, length: str) -> None:
    async with live() as url, httpx.AsyncClient(base_url=url) as other:
        reader, writer = await open_and_send(url, f"{HEAD}content-length: {length}\r\n", b"{}")
        async with asyncio.timeout(SOON_S):
            assert (await reader.read()).startswith(b"HTTP/1.1 4")
        writer.close()
        await writer.wait_closed()
        assert (await other.get("/health")).status_code == 200
