"""A client process: some streams of a load, each a connection that sends its next request when its answer has ended.

`run` starts it and talks to it in lines. The first line in is a `Job`; `go` starts the streams, and `stop` lets the
answers that have begun be the last. Out come `ready`, `round N` when every stream has had N answers, and one line with
all answers. It reads the socket itself, with little more than a search for line breaks, since a client library takes
ten times as long for a chunk, and would be measured instead of the server.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Self

from .load import Load

PAUSE_S = 0.1  # after a failure
MOST_LINE = 2**20


@dataclass(frozen=True, slots=True)
class Job:
    """The streams of a client process, by number; each pauses for `pause_s` between an answer and its next request."""

    host: str
    port: int
    load: Load
    streams: tuple[int, ...]
    timeout_s: float
    pause_s: float = 0.0

    def to_line(self) -> bytes:
        return json.dumps(asdict(self)).encode() + b"\n"

    @classmethod
    def from_line(cls, line: bytes) -> Self:
        fields = json.loads(line)
        return cls(**{**fields, "load": Load.from_json(fields["load"]), "streams": tuple(fields["streams"])})


@dataclass(slots=True)
class Reply:
    """A streamed response, as it is read. `times` are those at which text came, by the clock of `feed`. One read may
    bring several chunks: it is one time."""

    times: list[float] = field(default_factory=list)
    usage: Mapping[str, Any] | None = None
    failure: str | None = None
    ended: bool = False
    _status: int | None = None
    _complete: bool = False
    _rest: bytes = b""

    def feed(self, data: bytes, now_s: float) -> None:
        data = self._rest + data
        if self._status is None:
            head, end, data = data.partition(b"\r\n\r\n")
            if not end:
                self._rest = head
                return
            self._status = int(head[9:12])
        if self._status != 200:
            self.failure, self.ended = f"HTTP {self._status}", True
            return
        # The server sends whole events as chunks of the body, so their sizes stand between events.
        *events, self._rest = data.split(b"\n\n")
        brought = False
        for one in events:
            brought |= self._read(one)
        if brought:
            self.times.append(now_s)
        self.ended = self._complete and self._rest.endswith(b"0\r\n\r\n")

    def _read(self, one: bytes) -> bool:
        """Take one event, and return whether it has text."""
        if b'"text":"' in one:
            return b'"text":""' not in one
        if b"data: [DONE]" in one:
            self._complete = True
        elif b'"usage":{' in one:
            self.usage = json.loads(one[one.index(b"data: ") + 6 :])["usage"]
        elif b"event: error" in one:
            self.failure = "an error in the stream"
        return False


class Connection(asyncio.Protocol):
    """A connection that is kept for one request after another, and opened again after a failure."""

    def __init__(self, host: str, port: int) -> None:
        self._host, self._port = host, port
        self._transport: asyncio.Transport | None = None
        self._reply = Reply()
        self._end: asyncio.Future[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._reply.feed(data, time.monotonic())
        if self._reply.ended:
            self._finish()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        if not self._reply.ended:
            self._reply.failure = self._reply.failure or "connection lost"
            self._finish()

    async def post(self, body: bytes, timeout_s: float) -> Reply:
        loop = asyncio.get_running_loop()
        self._reply, self._end = Reply(), loop.create_future()
        try:
            async with asyncio.timeout(timeout_s):
                if self._transport is None:
                    await loop.create_connection(lambda: self, self._host, self._port)
                assert self._transport is not None
                self._transport.write(
                    b"POST /v1/completions HTTP/1.1\r\nhost: %b:%d\r\ncontent-type: application/json\r\n"
                    b"content-length: %d\r\n\r\n%b" % (self._host.encode(), self._port, len(body), body)
                )
                await self._end
        except TimeoutError:
            self._reply.failure = "timed out"
        except OSError:
            self._reply.failure = "connection failed"
        if self._reply.failure is not None:
            self.close()
        return self._reply

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()
            self._transport = None

    def _finish(self) -> None:
        if self._end is not None and not self._end.done():
            self._end.set_result(None)


class Client:
    """The streams of one process, and all their answers."""

    def __init__(self, job: Job) -> None:
        self.answers: list[dict[str, Any]] = []
        self.stopping = False
        self._job = job
        self._reached: dict[int, int] = {}  # how many streams have had so many answers

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            for stream in self._job.streams:
                group.create_task(self._stream(stream))

    async def _stream(self, stream: int) -> None:
        connection = Connection(self._job.host, self._job.port)
        number = 0
        while not self.stopping:
            body = json.dumps(self._job.load.body(stream, number)).encode()
            started_s = time.monotonic()
            reply = await connection.post(body, self._job.timeout_s)
            self.answers.append(record(reply, started_s, time.monotonic()))
            number += 1
            self._note(number)
            pause_s = self._job.pause_s if reply.failure is None else PAUSE_S
            if pause_s:
                await asyncio.sleep(pause_s)
        connection.close()

    def _note(self, number: int) -> None:
        self._reached[number] = self._reached.get(number, 0) + 1
        if self._reached[number] == len(self._job.streams):
            say(f"round {number}")


def record(reply: Reply, started_s: float, ended_s: float) -> dict[str, Any]:
    """Return an answer as plain data, in seconds of the system's monotonic clock, which all processes share."""
    failure = reply.failure
    if failure is None and reply.usage is None:
        failure = "no usage"
    answer: dict[str, Any] = {"start_s": started_s, "end_s": ended_s, "times": reply.times, "failure": failure}
    if failure is not None or reply.usage is None:
        return answer
    work = reply.usage.get("completion_tokens_details") or {}
    return answer | {
        "tokens": reply.usage["completion_tokens"],
        "prompt_tokens": reply.usage["prompt_tokens"],
        "cached_tokens": (reply.usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0),
        "forwards": work.get("forwards", 0),
        "computed": work.get("computed_tokens", 0),
    }


def say(line: str) -> None:
    print(line, flush=True)


async def serve_job() -> None:
    loop = asyncio.get_running_loop()
    lines = asyncio.StreamReader(MOST_LINE)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    client = Client(Job.from_line(await lines.readline()))
    say("ready")
    await lines.readline()  # go
    busy_s, started_s = time.process_time(), time.monotonic()
    running = asyncio.create_task(client.run())
    await lines.readline()  # stop, or the end of whoever started it
    client.stopping = True
    busy_s, started_s = time.process_time() - busy_s, time.monotonic() - started_s
    await running
    say(json.dumps({"cpu_share": busy_s / started_s, "answers": client.answers}))


if __name__ == "__main__":
    asyncio.run(serve_job())
