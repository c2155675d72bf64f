"""Measures what the path to the replicas costs: bytes of a chunk, and nginx's processor time for chunks and requests.

Usage: python -m asynclane.bench.capacity.proxy [--json bench/results/proxy.json]
It runs deploy/nginx/asynclane.conf with one worker, without TLS and with it, in front of a stand-in that streams events
of the server's size at a fixed pace, and in front of a server of the embedded model. The processor time is the
kernel's count for the worker, so other load on the machine changes it little. Needs nginx and openssl.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import shutil
import socket
import ssl
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..load.output import above_zero, check_outputs, finish, positive, program, table
from ..serving.server import Server, started

CONF = Path(__file__).resolve().parents[2] / "deploy" / "nginx" / "asynclane.conf"
HOST = "127.0.0.1"
MAIN = """
{user}
daemon off;
worker_processes 1;
pid {folder}/nginx.pid;
error_log {folder}/error.log warn;
events {{ worker_connections 8192; }}
http {{
    access_log off;
    keepalive_requests 1000000; # clients keep their connections
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    include {folder}/asynclane.conf;
}}
"""
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
PROMPT_BYTES = 3600  # of 808 tokens, the mean of mixed requests
STORY = "Tell me a short story about Mia and a fox at the park."


@dataclass(frozen=True, slots=True)
class Target:
    """An address, and whether it is reached through TLS."""

    port: int
    tls: ssl.SSLContext | None = None


def post(body: dict[str, Any]) -> bytes:
    data = json.dumps(body).encode()
    return (
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
        b"content-length: %d\r\n\r\n%b" % (len(data), data)
    )


def story(max_tokens: int) -> bytes:
    """A chat of the embedded model that does not end early."""
    body = {"model": "tiny-llada", "messages": [{"role": "user", "content": STORY}], "max_tokens": max_tokens}
    return post({**body, "ignore_eos": True, "stream": True})


def stand_in_event(size: int) -> bytes:
    data = b"data: " + b"x" * (size - 8) + b"\n\n"
    return b"%x\r\n%b\r\n" % (len(data), data)


class StandIn(asyncio.Protocol):
    """Answers each request with so many events at a pace; without a pause all at once, as one whole response."""

    def __init__(self, event: bytes, events: int, pause_s: float) -> None:
        self._event, self._events, self._pause_s = event, events, pause_s
        self._transport: asyncio.Transport | None = None
        self._read, self._wanted = b"", -1
        self._task: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        if self._task is not None:
            self._task.cancel()

    def data_received(self, data: bytes) -> None:
        self._read += data
        head, end, body = self._read.partition(b"\r\n\r\n")
        found = re.search(rb"content-length: (\d+)", head, re.IGNORECASE)
        if end and len(body) >= (int(found[1]) if found else 0):
            self._read = b""
            self._task = asyncio.get_running_loop().create_task(self._answer())

    async def _answer(self) -> None:
        assert self._transport is not None
        if not self._pause_s:
            self._transport.write(HEAD + self._event * self._events + b"0\r\n\r\n")
            return
        self._transport.write(HEAD)
        for _ in range(self._events):
            await asyncio.sleep(self._pause_s)
            self._transport.write(self._event)
        self._transport.write(b"0\r\n\r\n")


class Reader(asyncio.Protocol):
    """A client that sends a request again and again, and counts what comes."""

    def __init__(self, body: bytes) -> None:
        self.events = self.answers = self.bytes = self.reads = 0
        self.failure = ""
        self._body, self._end = body, b""
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.write(self._body)

    def data_received(self, data: bytes) -> None:
        assert self._transport is not None
        self.bytes += len(data)
        self.reads += 1
        if data.startswith(b"HTTP/1.1 ") and data[9:12] != b"200":
            self.failure = data[:40].decode(errors="replace").splitlines()[0]
        self.events += data.count(b"\n\n")
        self._end = (self._end + data)[-7:]
        if self._end.endswith(b"\r\n0\r\n\r\n"):
            self.answers += 1
            self._end = b""
            self._transport.write(self._body)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()


async def load(target: Target, body: bytes, streams: int, warm_up_s: float, seconds: float, pid: int) -> dict[str, Any]:
    """Keep streams on a target, and return what came and the processor time of a process meanwhile."""
    loop = asyncio.get_running_loop()
    readers = [Reader(body) for _ in range(streams)]
    name = None if target.tls is None else HOST
    for reader in readers:
        await loop.create_connection(
            lambda one=reader: one,
            HOST,
            target.port,
            ssl=target.tls,
            server_hostname=name,
        )
    await asyncio.sleep(warm_up_s)
    before, busy_s, begun_s = _sums(readers), processor_s(pid), time.monotonic()
    await asyncio.sleep(seconds)
    after, busy_s, wall_s = _sums(readers), processor_s(pid) - busy_s, time.monotonic() - begun_s
    for reader in readers:
        reader.close()
    if failures := {reader.failure for reader in readers} - {""}:
        raise ValueError(f"not all requests were answered: {failures}")
    events, answers, received, reads = (now - then for now, then in zip(after, before, strict=True))
    return {
        "streams": streams,
        "seconds": round(wall_s, 2),
        "events": events,
        "answers": answers,
        "bytes": received,
        "reads": reads,
        "processor_s": round(busy_s, 4),
    }


def _sums(readers: Sequence[Reader]) -> tuple[int, int, int, int]:
    return (
        sum(one.events for one in readers),
        sum(one.answers for one in readers),
        sum(one.bytes for one in readers),
        sum(one.reads for one in readers),
    )


def processor_s(pid: int) -> float:
    """Return the seconds that a process has computed, by the kernel's count in nanoseconds."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9


@contextmanager
def nginx(upstream: int, folder: Path, tls: bool) -> Iterator[tuple[Target, int]]:
    """Run the shipped file in front of an address, and yield nginx's own and the number of its worker process."""
    port = _free_port()
    conf = CONF.read_text(encoding="utf-8").replace("server 127.0.0.1:8000 ", f"server {HOST}:{upstream} ")
    if tls:
        conf = conf.replace("/etc/nginx/tls/", f"{folder}/").replace("listen 443 ssl;", f"listen {HOST}:{port} ssl;")
    else:
        conf = re.sub(r" *ssl_certificate.*\n", "", conf).replace("listen 443 ssl;", f"listen {HOST}:{port};")
    (folder / "asynclane.conf").write_text(conf, encoding="utf-8")
    user = "user root;" if os.getuid() == 0 else ""  # its workers would be of a user that cannot read the folder
    (folder / "nginx.conf").write_text(MAIN.format(folder=folder, user=user), encoding="utf-8")
    command = ["nginx", "-p", str(folder), "-e", str(folder / "error.log"), "-c", str(folder / "nginx.conf")]
    process = subprocess.Popen(command)
    try:
        worker = _worker(process, port)
        trusted = ssl.create_default_context(cafile=folder / "tls.crt") if tls else None
        yield Target(port, trusted), worker
    finally:
        process.terminate()
        process.wait()


def _worker(process: subprocess.Popen[bytes], port: int) -> int:
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    for _ in range(200):
        if process.poll() is not None:
            raise ValueError("nginx did not start")
        with socket.socket() as probe:
            if not probe.connect_ex((HOST, port)) and (found := children.read_text().split()):
                return int(found[0])
        time.sleep(0.02)
    raise ValueError("nginx does not answer")


def certificate(folder: Path) -> None:
    subprocess.run(
        f"openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=test"
        f" -addext subjectAltName=IP:{HOST} -keyout {folder}/tls.key -out {folder}/tls.crt".split(),
        check=True,
        capture_output=True,
    )


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind((HOST, 0))
        return int(listener.getsockname()[1])


async def chunk_bytes(server: Server) -> dict[str, Any]:
    """Return the bytes of a streamed chat, and of an event without its text, as the embedded server sends it."""
    reader, writer = await asyncio.open_connection(HOST, server.port, limit=2**22)
    writer.write(story(max_tokens=128))
    data = await asyncio.wait_for(reader.readuntil(b"0\r\n\r\n"), 60)
    writer.close()
    lines = [
        line
        for line in data.split(b"\n")
        if line.startswith(b"data: {") and b'"content":"' in line and b'"content":""' not in line
    ]
    texts = [json.loads(line[6:])["choices"][0]["delta"]["content"] for line in lines]
    framing = len(b"xxx\r\n") + len(b"\n\n") + len(b"\r\n")
    bare = [len(line) + framing - len(json.dumps(text)) + 2 for line, text in zip(lines, texts, strict=True)]
    return {
        "answer_bytes": len(data),
        "events": len(lines),
        "event_bytes_without_text": round(sum(bare) / len(bare), 1),
        "other_bytes": len(data) - sum(bare) - sum(len(json.dumps(text)) - 2 for text in texts),
    }


async def measure(options: argparse.Namespace, server: Server, folder: Path) -> tuple[dict[str, Any], list[Any]]:
    """Return the bytes of a chunk, and a row for each way of loading nginx."""
    loop = asyncio.get_running_loop()
    chunk = await chunk_bytes(server)
    event = stand_in_event(round(chunk["event_bytes_without_text"]) + 10)
    long = post({"messages": [{"role": "user", "content": "x" * PROMPT_BYTES}]})
    runs = []
    for tls in (False, True):
        for name, events, pause_s, streams in (
            ("stream", 400, options.streams / options.rate, options.streams),
            ("whole", 1, 0.0, 16),
        ):

            def answering(events: int = events, pause_s: float = pause_s) -> StandIn:
                return StandIn(event, events, pause_s)

            stand_in = await loop.create_server(answering, HOST, 0)
            port = stand_in.sockets[0].getsockname()[1]
            with nginx(port, folder, tls) as (target, worker):
                found = await load(target, long, streams, options.warm_up, options.seconds, worker)
            runs.append({"upstream": "stand-in", "answers_are": name, "tls": tls, **found})
            _say(runs[-1])
            stand_in.close()
        with nginx(server.port, folder, tls) as (target, worker):
            found = await load(target, story(400), 8, options.warm_up, options.seconds, worker)
        runs.append({"upstream": "embedded", "answers_are": "stream", "tls": tls, **found})
        _say(runs[-1])
    return chunk, runs


def main(argv: Sequence[str] | None = None) -> int:
    parser = build_parser()
    options = parser.parse_args(argv)
    check_outputs(parser, None, options.json)
    if missing := [name for name in ("nginx", "openssl") if shutil.which(name) is None]:
        parser.error(f"needs {' and '.join(missing)}")
    version = subprocess.run(["nginx", "-v"], capture_output=True, text=True, check=True).stderr.strip()
    with tempfile.TemporaryDirectory() as name, started(["--model", "tiny-llada"]) as server:
        certificate(Path(name))
        chunk, runs = asyncio.run(measure(options, server, Path(name)))
    head = ["upstream, answers", "TLS", "streams", "events/s", "answers/s", "us an event", "us an answer"]
    print(table(head, [_row(run) for run in runs]))
    finish({"benchmark": "proxy", "proxy": version.rpartition(" ")[2], "chunk": chunk, "runs": runs}, options.json)
    return 0


def _row(run: dict[str, Any]) -> list[str]:
    busy_us, whole = 1e6 * run["processor_s"], run["answers_are"] == "whole"
    return [
        f"{run['upstream']}, {run['answers_are']}",
        "yes" if run["tls"] else "no",
        str(run["streams"]),
        f"{run['events'] / run['seconds']:.0f}",
        f"{run['answers'] / run['seconds']:.0f}",
        "-" if whole else f"{busy_us / max(1, run['events']):.1f}",
        f"{busy_us / max(1, run['answers']):.0f}" if whole else "-",
    ]


def build_parser() -> argparse.ArgumentParser:
    parser = program("capacity.proxy", __doc__)
    parser.add_argument("--streams", type=positive, default=200, help="of the stand-in (default: %(default)s)")
    parser.add_argument("--rate", type=above_zero, default=5000.0, help="events a second of all (default: %(default)g)")
    parser.add_argument("--seconds", type=above_zero, default=8.0, help="of each measurement (default: %(default)g)")
    parser.add_argument("--warm-up", type=above_zero, default=1.5, help="seconds (default: %(default)g)")
    return parser


def _say(text: object) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    raise SystemExit(main())
