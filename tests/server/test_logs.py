"""The log: one line for each record, whatever clients write, and never a reason to wait."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from asynclane.server import errors
from asynclane.server.engine.messages import Delta, Finish
from asynclane.server.logs import (
    REQUEST_ID,
    JsonFormat,
    QueuedHandler,
    Repeats,
    lines_dropped,
    logging_to,
    name_process,
)
from asynclane.server.metrics import Metrics

from ..support.fake_engine import SCRIPT, USAGE, FakeEngine
from ..support.http import CHAT

LOGGER = logging.getLogger("asynclane.test")


@contextmanager
def logged_to(path: Path, form: str = "json") -> Iterator[list[Any]]:
    """The lines of a block, after it: objects, or texts."""
    lines: list[Any] = []
    logging.getLogger("httpx").disabled = True  # the client's own lines
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    root = logging.getLogger()
    # pytest's own handlers would send the lines to the process that reports, which can read no lone surrogate.
    others, root.handlers = root.handlers, []
    with logging_to(descriptor, "info", form):
        yield lines
    root.handlers = others
    logging.getLogger("httpx").disabled = False
    os.close(descriptor)
    lines += [json.loads(line) if form == "json" else line for line in path.read_text().split("\n")[:-1]]


# --- The form of a line

NASTY = "a\nb\r\x1b[2J\u2028\x85\x00 status=200 \udc80\u202e"


@pytest.mark.parametrize("form", ["text", "json"])
def test_what_a_client_writes_is_one_line_and_moves_no_cursor(form: str, tmp_path: Path) -> None:
    with logged_to(tmp_path / "log", form) as lines:
        token = REQUEST_ID.set(NASTY)
        LOGGER.info("path %s", NASTY, extra={"fields": {"path": NASTY, "status": 404}})
        REQUEST_ID.reset(token)
        LOGGER.info("next")
    assert len(lines) == 2
    if form == "json":
        assert lines[0]["message"] == f"path {NASTY}"
        assert (lines[0]["request_id"], lines[0]["status"], lines[1]["request_id"]) == (NASTY, 404, "-")
    else:
        assert all(line.isprintable() for line in lines)
        assert re.match(r"\d{4}-\d\d-\d\dT[\d:.]{12}\+00:00 INFO asynclane\.test \"a\\nb", lines[0])
        fields = lines[0].rpartition(" path=")[2]
        assert fields.startswith('"')
        assert fields.endswith('" status=404'), "a value with a space is quoted"
        assert lines[1].endswith("INFO asynclane.test - next")


@pytest.mark.parametrize("form", ["text", "json"])
def test_a_traceback_cannot_pass_for_another_line(form: str, tmp_path: Path) -> None:
    with logged_to(tmp_path / "log", form) as lines:
        try:
            raise ValueError("x\n2026-01-01 INFO forged \x1b[2J")
        except ValueError:
            LOGGER.exception("failed")
    if form == "json":
        (line,) = lines
        assert "forged" in line["traceback"]
    else:
        assert lines[0].endswith(" failed")
        assert all(line.startswith("    ") and line.isprintable() for line in lines[1:])
        assert "forged" in lines[-1]


def test_a_warning_of_one_kind_is_logged_once_a_second_and_the_rest_counted() -> None:
    now, passed = [0.0], []
    repeats, form = Repeats(lambda: now[0]), JsonFormat()

    def log(level: int, message: str, number: int = 0) -> None:
        record = logging.LogRecord("x", level, "", 0, message, (number,), None)
        if repeats.filter(record):
            passed.append(form.entry(record)["message"])

    for now[0] in (0.0, 0.9, 1.1):
        for number in range(100):
            log(logging.WARNING, "refused %d", number)
        log(logging.INFO, "served %d")
    log(logging.ERROR, "another %d")
    assert passed == [
        *("refused 0", "served 0", "served 0"),
        *("refused 0 (199 more were left out)", "served 0", "another 0"),
    ]


def test_kinds_of_warnings_take_bounded_memory() -> None:
    repeats = Repeats(lambda: 0.0)
    for number in range(5000):
        repeats.filter(logging.LogRecord("x", logging.WARNING, "", 0, f"made up {number}", (), None))
    assert len(repeats._next_at) <= 1000


# --- One line for each request

PROMPT, ANSWER, KEY = "hunter2 is the prompt", "hunter2 is the answer", "hunter2-key"
ENDED = [Delta(ANSWER), Delta("", Finish.LENGTH, USAGE)]
REQUESTS: dict[str, tuple[Any, dict[str, Any], tuple[int, str]]] = {
    "whole": (ENDED, {}, (200, "length")),
    "streamed": (ENDED, {"stream": True}, (200, "length")),
    "choices": (SCRIPT, {"n": 2}, (200, "stop")),
    "refused": (SCRIPT, {"temperature": 9}, (400, "refused")),
    "overloaded": (errors.Overloaded("full"), {}, (429, "refused")),
    "failed": ([errors.EngineFailure("x")], {}, (500, "failed")),
    "a fault": ([RuntimeError("x")], {}, (500, "failed")),
    "failed in the middle": ([Delta("a"), errors.EngineFailure("x")], {"stream": True}, (200, "failed")),
}


@pytest.mark.parametrize(("script", "fields", "expected"), REQUESTS.values(), ids=list(REQUESTS))
@pytest.mark.parametrize("form", ["text", "json"])
async def test_a_request_is_one_line_without_texts_and_keys(
    api: Any, tmp_path: Path, script: Any, fields: dict[str, Any], expected: tuple[int, str], form: str
) -> None:
    body = {**CHAT, "messages": [{"role": "user", "content": PROMPT}], **fields}
    headers = {"authorization": f"Bearer {KEY}", "x-request-id": "id-1", "content-type": "application/json"}
    with logged_to(tmp_path / "log", form) as lines:
        async with api(FakeEngine(script), api_key=KEY) as client:
            url = f"/v1/chat/completions?key={KEY}"
            await client.http.post(url, content=json.dumps(body), headers=headers)
            for probe in ("/health", "/ready", "/metrics"):
                await client.http.get(probe)
    log = (tmp_path / "log").read_text()
    assert "hunter2" not in log
    status, outcome = expected
    if form == "text":
        (line,) = [line for line in lines if " asynclane.request id-1 " in line]
        assert f"method=POST path=/v1/chat/completions status={status} " in line
        assert line.endswith(f" outcome={outcome}")
        return
    (line,) = [line for line in lines if line["logger"] == "asynclane.request"]
    assert (line["status"], line["outcome"], line["request_id"]) == (*expected, "id-1")
    assert line["total_s"] >= line.get("first_text_s", 0)
    if outcome in ("stop", "length"):
        assert line["prompt_tokens"] > 5
        assert line["answer_tokens"] == USAGE.completion_tokens * fields.get("n", 1)
        assert line["queue_s"] == USAGE.queue_s


@pytest.mark.parametrize("stream", [False, True])
async def test_a_request_whose_client_leaves_is_aborted(live: Any, tmp_path: Path, stream: bool) -> None:
    engine = FakeEngine([Delta("a"), None])
    content = json.dumps({**CHAT, "stream": stream}).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {len(content)}\r\n"
    with logged_to(tmp_path / "log") as lines:
        async with live(engine) as url, asyncio.timeout(20):
            _, writer = await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]))
            writer.write(f"{head}content-type: application/json\r\n\r\n".encode() + content)
            while not engine.answers:
                await asyncio.sleep(0.01)
            writer.close()
            await engine.answers[0].left.wait()
    assert [line["outcome"] for line in lines if line["logger"] == "asynclane.request"] == ["aborted"]


async def test_lines_of_a_request_carry_its_id(api: Any, tmp_path: Path) -> None:
    with logged_to(tmp_path / "log") as lines:
        async with api(FakeEngine([Delta("a"), RuntimeError("x")])) as client:
            await client.http.post(
                "/v1/chat/completions", json={**CHAT, "stream": True}, headers={"x-request-id": "id-2"}
            )
    assert {line["message"]: line["request_id"] for line in lines} == {"a stream failed": "id-2", "request": "id-2"}


# --- Nobody reads


def test_a_log_that_nobody_reads_drops_counts_and_says_so_later(monkeypatch: pytest.MonkeyPatch) -> None:
    reader, writer = os.pipe()
    with logging_to(writer, "info", "text"):
        (handler,) = (one for one in logging.getLogger().handlers if isinstance(one, QueuedHandler))
        while not handler.dropped:
            LOGGER.info("x" * 1000)
        for _ in range(50):
            LOGGER.info("y")
        dropped = lines_dropped()
        assert dropped >= 1
        assert f"asynclane_log_lines_dropped_total {dropped:.1f}".encode() in Metrics().exposition()
        got = b""
        while b"log lines were dropped" not in got:
            got += os.read(reader, 2**16)
    os.close(writer)
    while more := os.read(reader, 2**16):
        got += more
    os.close(reader)
    reported = [int(number) for number in re.findall(rb"WARNING \S+ - (\d+) log lines were dropped", got)]
    assert sum(reported) <= lines_dropped() or reported[0] == dropped
    assert reported[0] <= dropped


def broken_pipe() -> int:
    reader, writer = os.pipe()
    os.close(reader)
    return writer


@pytest.mark.parametrize("open_log", [broken_pipe, lambda: os.open("/dev/full", os.O_WRONLY)], ids=["pipe", "disk"])
def test_a_log_whose_reader_has_left_or_whose_disk_is_full_is_counted_and_ends(open_log: Callable[[], int]) -> None:
    writer = open_log()
    with logging_to(writer, "info", "text"):
        for _ in range(10):
            LOGGER.info("x")
        (handler,) = (one for one in logging.getLogger().handlers if isinstance(one, QueuedHandler))
    os.close(writer)
    assert handler.dropped == 10


@pytest.mark.parametrize("form", ["text", "json"])
def test_lines_of_several_processes_have_their_names(form: str) -> None:
    reader, writer = os.pipe()
    with logging_to(writer, "info", form):
        logging.getLogger("a").info("before")
        name_process("frontend-1")
        logging.getLogger("a").info("after")
    os.close(writer)
    with open(reader) as lines:
        before, after = [line for line in lines.read().splitlines() if re.search(r"(before|after)", line)]
    assert "frontend-1" not in before
    assert (" INFO frontend-1 a - after" if form == "text" else '"process": "frontend-1"') in after
