"""The engine's time to deliver an update: the work of its thread for one request of one step, from the scheduler's
update to the front end: `python -m asynclane.bench.steps.updates --requests 64`.

`link` sends to another process, `memory` to a front end in the same one, `memory and text` includes what that front end
does to make text of it; `stop strings` is `link` for answers that the engine must read.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import socket
import threading
import time
from collections.abc import Callable, Sequence

import numpy as np

from ...models.checkpoint.registry import find_model
from ...scheduler import RequestStats, Update
from ...server.engine.answer import EngineAnswer
from ...server.engine.messages import AnswerOptions, FromEngine, ToEngine
from ...server.engine.port import Port
from ...server.frontend.client import EngineClient
from ...server.link import Link
from ...server.metrics import Metrics
from ...server.text.tokenizer import Tokenizer

TEXT = "One morning Mia and the fox went to the park and saw a duck. "
STEPS, TOKENS, ROUNDS = 128, 2, 5

Send = Callable[[list[FromEngine]], None]
Steps = Sequence[Sequence[Update]]


def steps(text: Tokenizer, requests: int) -> Steps:
    """The updates of each step."""
    ids = np.array(text.encode(TEXT * 40, specials=False)[: STEPS * TOKENS], np.int32)
    stats = RequestStats(200, 0, 500, 9, 3, 1)
    parts = [ids[start : start + TOKENS] for start in range(0, len(ids), TOKENS)]
    return [[Update(number, part, None, stats) for number in range(requests)] for part in parts]


def seconds(work: Steps, text: Tokenizer, options: AnswerOptions, send: Send, read: Callable[[], object]) -> float:
    """The time of one update; `read` runs after each step."""
    port = Port(lambda port, messages: None, send)
    answers = [EngineAnswer(port, number, options, text) for number in range(len(work[0]))]
    began = time.perf_counter()
    for updates in work:
        for answer, update in zip(answers, updates, strict=True):
            answer.take(update, began, began)
        port.flush()
        read()
    return (time.perf_counter() - began) / len(work) / len(answers)


async def measure(text: Tokenizer, requests: int) -> dict[str, float]:
    """Microseconds of one update, the least of some rounds."""
    work, plain = steps(text, requests), AnswerOptions(512)
    ours, theirs = socket.socketpair()
    threading.Thread(target=_drain, args=[theirs], daemon=True).start()
    link: Link[FromEngine, ToEngine] = Link(ToEngine, lambda messages: None, lambda: None)
    await link.open(ours)

    def in_memory(reads: bool) -> float:
        client = EngineClient(text, Metrics())
        streams = [client.submit([1], plain) for _ in range(requests)]

        def read() -> None:
            for stream in streams if reads else ():
                stream.read_now()

        return seconds(work, text, plain, client.take, read)

    def nothing() -> None:
        """Nobody reads here."""

    watched = AnswerOptions(512, stop=("a duck sat", "the end"))
    cases: dict[str, Callable[[], float]] = {
        "link": lambda: seconds(work, text, plain, link.send, nothing),
        "memory": lambda: in_memory(False),
        "memory and text": lambda: in_memory(True),
        "stop strings": lambda: seconds(work, text, watched, link.send, nothing),
    }
    found = {name: round(1e6 * min(case() for _ in range(ROUNDS)), 2) for name, case in cases.items()}
    link.close()
    return found


def _drain(end: socket.socket) -> None:
    with end:
        while end.recv(1 << 20):
            pass


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=64)
    requests = parser.parse_args().requests
    text = Tokenizer(find_model("tiny-llada"))
    text.prepare()
    print(json.dumps({"requests": requests, "us_per_update": asyncio.run(measure(text, requests))}))


if __name__ == "__main__":
    main()
