"""Front ends in processes of their own: the same answers as from one process, and each may be killed at any moment."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import sys
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from random import Random
from threading import Event
from typing import Any

import httpx
import pytest

from ..support.processes import ASYNCLANE, started
from ..support.scale import LONG, part
from ..support.servers import (
    PARIS,
    SLOW,
    STORY,
    TOM,
    WAIT_S,
    Server,
    front_ends,
    gauge,
    idle,
    slow_body,
    start_server,
    stop_server,
    wait_for,
)

FAILING = str(Path(__file__).parents[1] / "support" / "failing_server.py")
EXIT_S = 40  # 10 are promised, but a machine may be busy
CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
BODIES: list[tuple[str, dict[str, Any]]] = [
    (CHAT, {"messages": [{"role": "user", "content": PARIS}], "max_tokens": 12}),
    (CHAT, {"messages": [{"role": "user", "content": STORY}], "max_tokens": 20, "stop": [" the ", "fox"]}),
    (CHAT, {"messages": [{"role": "user", "content": STORY}], "max_tokens": 12, "logprobs": True, "top_logprobs": 2}),
    (CHAT, {"messages": [{"role": "user", "content": TOM}], "max_tokens": 10, "n": 3, "temperature": 1.0, "seed": 7}),
    (
        CHAT,
        {"messages": [{"role": "user", "content": TOM}], "response_format": {"type": "json_object"}, "max_tokens": 12},
    ),
    (CHAT, {"messages": [{"role": "user", "content": TOM}], "guided_regex": "[a-z]{3} [0-9]{2}"}),
    (TEXT, {"prompt": "One morning Mia", "max_tokens": 20, "logprobs": 1, "echo": True, "decoder": "llada"}),
    (TEXT, {"prompt": ["One morning", "Tom has"], "max_tokens": 12, "stop_token_ids": [300, 301, 302]}),
    (TEXT, {"prompt": "One", "max_tokens": 12, "temperature": 9}),
    (TEXT, {"prompt": "One", "max_tokens": 12, "decoder": "nonsense"}),
    (TEXT, {"prompt": "One", "max_tokens": 12, "cache": "dual"}),
    (TEXT, {"prompt": "One", "max_tokens": 100_000}),
]


@pytest.fixture(scope="module")
def apart() -> Iterator[Server]:
    server = start_server("--frontends", "2", "--grammar-timeout-s", "1")
    try:
        yield server
    finally:
        stop_server(server)


def content(url: str, path: str, body: dict[str, Any]) -> Any:
    """A response without what differs between two of the same request."""
    response = httpx.post(url + path, json={"model": "tiny-llada", **body}, timeout=60)
    if not response.headers["content-type"].startswith("text/event-stream"):
        found = response.json()
        return response.status_code, {name: found[name] for name in found if name not in ("id", "created")}
    texts: dict[int, str] = {}
    rest: list[Any] = []
    for line in response.text.splitlines():
        if line.startswith("data: {"):
            chunk = json.loads(line[6:])
            rest.append(chunk.get("usage"))
            for choice in chunk["choices"]:
                index = choice["index"]
                texts[index] = texts.get(index, "") + (
                    choice.get("text") or choice.get("delta", {}).get("content") or ""
                )
                rest += [choice["finish_reason"], choice.get("lanes")]
                rest += (choice.get("logprobs") or {}).get("content") or []
    return response.status_code, texts, [part for part in rest if part is not None]


@pytest.mark.parametrize(("path", "body"), part(BODIES, 2))
def test_answers_are_those_of_one_process(server: Server, apart: Server, path: str, body: dict[str, Any]) -> None:
    streamed = {**body, "stream": True, "stream_options": {"include_usage": True, "include_lanes": path == CHAT}}
    if "logprobs" in body or body.get("n", 1) > 1 or isinstance(body.get("prompt"), list):
        streamed["stream_options"] = {"include_usage": True}  # choices come in any order
    with ThreadPoolExecutor() as pool:
        for one in (body, streamed):
            alone = content(server.url, path, one)
            several = list(pool.map(lambda _, sent=one: content(apart.url, path, sent), range(2)))
            if "stream" in one and (body.get("n", 1) > 1 or isinstance(body.get("prompt"), list)):
                alone, several = alone[:2], [found[:2] for found in several]
            assert several == [alone] * 2


def send(url: str, pool: ThreadPoolExecutor, count: int, **fields: Any) -> list[Future[httpx.Response]]:
    """So many answers that take long, every second one streamed."""
    bodies = [slow_body(**{"stream": bool(at % 2), "max_tokens": 200, **fields}) for at in range(count)]
    return [pool.submit(httpx.post, url + CHAT, json=body, timeout=EXIT_S) for body in bodies]


def test_a_front_end_that_is_killed_is_replaced_and_the_others_notice_nothing(apart: Server) -> None:
    first = front_ends(apart.process.pid)
    asked = slow_body(max_tokens=24)
    with ThreadPoolExecutor() as pool:
        alone = httpx.post(apart.url + CHAT, json=asked, timeout=EXIT_S).json()["choices"]
        answers = [pool.submit(httpx.post, apart.url + CHAT, json=asked, timeout=EXIT_S) for _ in range(4)]
        wait_for(lambda: gauge(apart.url, "running_requests") == 4)
        os.kill(first[0], signal.SIGKILL)
        done = [answer.result() if answer.exception() is None else None for answer in answers]
    assert {type(answer.exception()) for answer in answers} <= {type(None), httpx.RemoteProtocolError, httpx.ReadError}
    assert [found.json()["choices"] for found in done if found is not None] == [alone] * sum(map(bool, done))
    wait_for(lambda: gauge(apart.url, "frontends") == 2)
    assert idle(apart.url)
    assert len({*first, *front_ends(apart.process.pid)}) == 3
    assert any("has ended (signal 9), and is replaced" in line for line in apart.log)


@SLOW
def test_front_ends_may_be_killed_at_any_moment() -> None:
    """Each answer that is whole is the right one, and nothing is left."""
    server, random, over = start_server("--frontends", "3"), Random(1), Event()
    bodies = [slow_body(max_tokens=24, stream=stream) for stream in (False, True)]
    names = [b"frontend-1", b"frontend-2", b"frontend-3"] * 4  # one alone may die five times
    random.shuffle(names)

    def ask(body: dict[str, Any]) -> list[Any]:
        found = []
        while not over.is_set():
            with suppress(httpx.TransportError):
                found.append(content(server.url, CHAT, body))
        return found

    try:
        alone = [content(server.url, CHAT, body) for body in bodies]
        with ThreadPoolExecutor() as pool:
            users = [[pool.submit(ask, body) for _ in range(3)] for body in bodies]
            for name in names:
                time.sleep(random.uniform(0, 2))
                for child in front_ends(server.process.pid):
                    if name in Path(f"/proc/{child}/cmdline").read_bytes().split(b"\0"):
                        os.kill(child, signal.SIGKILL)
            over.set()
        for right, some in zip(alone, users, strict=True):
            answers = [answer for user in some for answer in user.result()]
            assert answers == [right] * len(answers)
            assert answers
        wait_for(lambda: len(front_ends(server.process.pid)) == 3 and gauge(server.url, "frontends") == 3)
        wait_for(lambda: idle(server.url))
    finally:
        stop_server(server)
    assert sum("has ended (signal 9), and is replaced" in line for line in server.log) > len(names) / 2
    assert "Traceback" not in "".join(server.log)


@SLOW
@pytest.mark.parametrize("broken", ["ann:", None])
def test_a_front_end_that_is_replaced_has_the_keys_of_the_others(tmp_path: Path, broken: str | None) -> None:
    file = tmp_path / "keys"
    file.write_text("ann:k1")
    server = start_server("--frontends", "1", "--api-key-file", str(file))

    def status(key: str) -> int:
        return httpx.get(f"{server.url}/v1/models", headers={"authorization": f"Bearer {key}"}).status_code

    try:
        file.write_text("bob:k2")
        server.process.send_signal(signal.SIGHUP)
        wait_for(lambda: status("k2") == 200)
        if broken is None:
            file.unlink()
        else:
            file.write_text(broken)
        (first,) = front_ends(server.process.pid)
        os.kill(first, signal.SIGKILL)
        wait_for(lambda: not alive(first) and front_ends(server.process.pid) != [])
        assert [httpx.get(f"{server.url}/health", timeout=WAIT_S).status_code, status("k2"), status("k1")] == [
            200,
            200,
            401,
        ]
        assert server.process.poll() is None
    finally:
        stop_server(server)


@SLOW
def test_a_server_without_standard_streams_serves() -> None:
    """As some supervisors start it. Its log goes nowhere, so the port has to be known."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    closed = ["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh"]
    with started([*closed, *ASYNCLANE, "serve", "--port", port, "--frontends", "1"]) as process:
        url = f"http://127.0.0.1:{port}"
        wait_for(lambda: process.poll() is not None or answers(f"{url}/ready"))
        assert httpx.get(f"{url}/health", timeout=WAIT_S).status_code == 200
        process.terminate()
        assert process.wait(EXIT_S) == 0


def answers(url: str) -> bool:
    try:
        return httpx.get(url, timeout=WAIT_S).status_code == 200
    except httpx.TransportError:
        return False


def test_the_metrics_are_those_of_all(apart: Server) -> None:
    def responses() -> float:
        found = re.search(r'http_responses_total{status="404"} (\S+)', httpx.get(f"{apart.url}/metrics").text)
        return float(found.group(1)) if found else 0.0

    before = responses()
    for _ in range(12):  # each is a connection, which any front end takes
        assert httpx.get(f"{apart.url}/nowhere").status_code == 404
    wait_for(lambda: responses() == before + 12)
    assert gauge(apart.url, "frontends") == 2


def test_a_client_that_leaves_frees_its_pages(apart: Server) -> None:
    with httpx.stream("POST", apart.url + CHAT, json=slow_body(stream=True), timeout=30) as response:
        next(response.iter_lines())
        wait_for(lambda: gauge(apart.url, "kv_pages_used") > 0)
    wait_for(lambda: idle(apart.url))


@LONG
def test_a_signal_lets_answers_finish_and_ends_all(apart: Server) -> None:
    """The last test of this server."""
    children = front_ends(apart.process.pid)
    with ThreadPoolExecutor() as pool:
        answers = send(apart.url, pool, 2, max_tokens=40)
        wait_for(lambda: gauge(apart.url, "running_requests") == 2)
        for process in (apart.process.pid, *children):  # as a terminal does
            os.kill(process, signal.SIGINT)
        wait_for(lambda: all(answer.done() for answer in answers))
        assert [answer.result().status_code for answer in answers] == [200, 200]
    assert apart.process.wait(EXIT_S) == 130
    wait_for(lambda: not any(map(alive, children)))


def alive(process: int) -> bool:
    return Path(f"/proc/{process}").exists()


@SLOW
@pytest.mark.parametrize("fault", ["lost", "killed"])
def test_the_end_of_the_engine_is_known_by_all_and_ends_all(fault: str) -> None:
    program = ASYNCLANE if fault == "killed" else [sys.executable, "-P", FAILING, fault]
    server = start_server("--frontends", "1", program=program)
    children, reason = (
        front_ends(server.process.pid),
        {"lost": "the device is lost"}.get(fault, "its process has ended"),
    )
    try:
        with ThreadPoolExecutor() as pool:
            answers = send(server.url, pool, 2, max_tokens=800)
            if fault == "killed":
                wait_for(lambda: gauge(server.url, "running_requests") == 2)
                server.process.kill()
            whole, streamed = [answer.result() for answer in answers]
            began = time.monotonic()
            health = httpx.get(f"{server.url}/health")
        assert (whole.status_code, whole.json()["error"]["code"]) == (503, "engine_down")
        assert "engine_down" in streamed.text
        assert health.status_code == 503
        assert health.json()["status"].startswith(f"failed: {reason}")
        wait_for(lambda: not any(map(alive, children)))
        assert server.process.wait(EXIT_S) == (1 if fault == "lost" else -signal.SIGKILL)
        assert time.monotonic() - began < EXIT_S
    finally:
        server.process.kill()
        stop_server(server)


@SLOW
@pytest.mark.skipif(sys.platform != "linux", reason="needs prctl")
def test_a_front_end_that_is_stopped_does_not_keep_the_port_of_an_engine_that_is_killed() -> None:
    server = start_server("--frontends", "1")
    (child,) = front_ends(server.process.pid)
    try:
        os.kill(child, signal.SIGSTOP)
        server.process.kill()
        wait_for(lambda: is_free(httpx.URL(server.url).port))
        wait_for(lambda: not alive(child))
    finally:
        if alive(child):
            os.kill(child, signal.SIGKILL)
        stop_server(server)


def is_free(port: int | None) -> bool:
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--frontends", "-1"], "--frontends must be from 0 to 128, not -1"),
        (["--frontends", "128"], r"--frontends must be at most \d+ on \d+ cores, not 128"),
    ],
)
def test_a_start_that_cannot_be_is_one_line(flags: list[str], message: str) -> None:
    with started([*ASYNCLANE, "serve", "--port", "0", *flags], stderr=-1, stdout=-1) as process:
        out, err = process.communicate(timeout=EXIT_S)
    assert (process.returncode, out, err.count("\n")) == (2, "", 1)
    assert re.search(message, err)
