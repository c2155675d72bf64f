"""Real servers on the embedded model, in a process of their own, as `asynclane serve` starts them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from .processes import ASYNCLANE, end, environment, start
from .warm import Forked, fork

START_S = 60
WAIT_S = 40  # a machine may be busy
PARIS = "What is the capital of France?"
TOM = "Tom has 12 books. Then he finds 8 books at the park. How many books does Tom have now?"
STORY = "Tell me a short story about Mia and a fox at the park."
SLOW = pytest.mark.skipif(
    os.environ.get("CHAOS") != "all" and "FRONTENDS" not in os.environ, reason="takes long: `make chaos` runs it"
)


@dataclass(frozen=True, slots=True)
class Server:
    url: str
    process: subprocess.Popen[str] | Forked
    log: list[str]
    reader: threading.Thread


def start_server(
    *flags: str,
    program: Sequence[str] = ASYNCLANE,
    environ: Mapping[str, str] | None = None,
    descriptors: int | None = None,
) -> Server:
    """With port 0 the system chooses one, which the log names. The process may have so many open `descriptors`. The
    variable `FRONTENDS` gives all servers of a run so many front ends. Without `--model` the model is tiny-llada. A
    server is forked from a process that has imported what it needs, unless something in `environ` or `descriptors`
    differs before its imports."""
    if "--model" not in flags:
        flags = "--model", "tiny-llada", *flags
    if "FRONTENDS" in os.environ and "--frontends" not in flags:
        flags = *flags, "--frontends", os.environ["FRONTENDS"]
    command, variables = [*program, "serve", "--port", "0", *flags], environment(**(environ or {}))
    process: subprocess.Popen[str] | Forked
    if sys.platform == "linux" and descriptors is None and "PYTHONPATH" not in (environ or {}):
        process = fork(command, variables)
    else:
        limited = [] if descriptors is None else ["sh", "-c", f'ulimit -n {descriptors}; exec "$@"', "sh"]
        process = start([*limited, *command], env=variables, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    assert process.stderr is not None
    log: list[str] = []
    for line in process.stderr:
        log.append(line)
        found = re.search(r"running on (http://127\.0\.0\.1:\d+)", line)
        if found:
            break
    else:
        end(process)
        raise AssertionError("the server did not start:\n" + "".join(log))
    reader = threading.Thread(target=log.extend, args=[process.stderr], daemon=True)
    reader.start()
    return Server(found.group(1), process, log, reader)


def stop_server(server: Server) -> None:
    """Kills it if it does not end by itself, which is a fault."""
    server.process.terminate()
    try:
        server.process.wait(timeout=20)
    finally:
        server.process.kill()
        server.reader.join(timeout=5)
        end(server.process)


@contextmanager
def ready_server(*flags: str) -> Iterator[Server]:
    """A server of an embedded model that accepts requests."""
    server = start_server(*flags)
    try:
        assert httpx.get(f"{server.url}/ready", timeout=START_S).status_code == 200
        yield server
    finally:
        stop_server(server)


def front_ends(process: int) -> list[int]:
    """The front-end processes of a server's process."""
    children = Path(f"/proc/{process}/task/{process}/children").read_text().split()
    return [int(child) for child in children if b"\0frontend-" in Path(f"/proc/{child}/cmdline").read_bytes()]


def gauge(url: str, name: str) -> float:
    lines = httpx.get(f"{url}/metrics").text.splitlines()
    return float(next(line.split()[-1] for line in lines if line.startswith(f"asynclane_{name} ")))


def idle(url: str) -> bool:
    return not any(gauge(url, name) for name in ("queue_depth", "running_requests", "kv_pages_used"))


def aborted(url: str) -> float:
    """No line yet means none."""
    found = re.search(r'requests_total{outcome="aborted"} (\S+)', httpx.get(f"{url}/metrics").text)
    return float(found.group(1)) if found else 0.0


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def chat(client: openai.OpenAI, question: str, **options: Any) -> Any:
    messages: Any = [{"role": "user", "content": question}]
    return client.chat.completions.create(model="tiny-llada", messages=messages, **options)


def text_of(client: openai.OpenAI, question: str, **options: Any) -> str:
    return str(chat(client, question, **options).choices[0].message.content)


def cost(done: Any, name: str) -> int:
    return int(done.usage.completion_tokens_details.model_extra[name])


def slow_body(**options: object) -> dict[str, object]:
    """A chat that takes hundreds of steps."""
    body = {"model": "tiny-llada", "messages": [{"role": "user", "content": STORY}], "max_tokens": 400}
    return {**body, "decoder": "llada", "early_stop": False, **options}
