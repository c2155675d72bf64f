"""Ten minutes of good and bad requests to one server: `python -m tests.chaos.soak --seconds 60`.

Prints the server's memory at each third, its metric series, and what went wrong. Exit code 1 if anything did, or if the
memory has grown by more than 5 % over the last half.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import time
from collections import Counter
from contextlib import suppress
from typing import Any

import httpx

from ..support.bombs import BOMBS, CHAT
from ..support.schema_bombs import ENDLESS
from ..support.servers import PARIS, STORY, TOM, Server, slow_body, start_server, stop_server
from .measure import memory_mb

USERS, EVERY_S, GROWTH = 8, 0.5, 1.05
BOMB_BYTES = 100_000


class Soak:
    """Users who do one thing after another, each drawn at random. `wrong` counts what must not happen."""

    def __init__(self, client: httpx.AsyncClient, seed: int) -> None:
        self.done, self.wrong = Counter[str](), Counter[str]()
        self._client = client
        self._rng = random.Random(seed)
        self._alone: dict[str, str] = {}  # answers, by question

    async def run(self, seconds: float) -> None:
        for question in (PARIS, TOM, STORY):
            self._alone[question] = self._content(await self._post(question))
        until = time.monotonic() + seconds
        async with asyncio.TaskGroup() as group:
            for _ in range(USERS):
                group.create_task(self._use(until))

    async def _use(self, until: float) -> None:
        kinds = [self.ask, self.ask, self.stream, self.leave, self.ask_for_json, self.throw, self.err, self.be_late]
        while time.monotonic() < until:
            do = self._rng.choice(kinds)
            try:
                await do(self._rng.choice([*self._alone]))
            except (httpx.HTTPError, ValueError, LookupError, AssertionError) as error:
                self.wrong[f"{do.__name__}: {type(error).__name__} {error}"[:300]] += 1
            self.done[do.__name__] += 1

    async def ask(self, question: str) -> None:
        response = await self._post(question, n=self._rng.choice([1, 3]))
        assert {choice["message"]["content"] for choice in response["choices"]} == {self._alone[question]}

    async def stream(self, question: str) -> None:
        async with self._client.stream("POST", CHAT, json=self._body(question, stream=True)) as response:
            events = [line[6:] async for line in response.aiter_lines() if line.startswith("data: {")]
        deltas = [json.loads(event)["choices"][0]["delta"] for event in events]
        assert "".join(delta.get("content") or "" for delta in deltas) == self._alone[question]

    async def leave(self, question: str) -> None:
        """Waiting, or in the middle of a stream."""
        body = slow_body(stream=True)
        with suppress(TimeoutError):
            async with asyncio.timeout(self._rng.uniform(0.01, 2)), self._client.stream("POST", CHAT, json=body):
                await asyncio.sleep(self._rng.uniform(0, 0.5))

    async def ask_for_json(self, question: str) -> None:
        json.loads(self._content(await self._post(question, response_format={"type": "json_object"})))

    async def throw(self, question: str) -> None:
        """A bomb."""
        if self._rng.random() < 0.2:
            schema = {**self._rng.choice([*ENDLESS.values()]), "title": str(self._rng.random())}
            await self._post(question, 400, guided_json=schema)
        else:
            path, build = self._rng.choice([*BOMBS.values()])
            headers = {"content-type": "application/json"}
            response = await self._client.post(path, content=build(BOMB_BYTES), headers=headers)
            assert response.status_code == 400, response.text

    async def err(self, question: str) -> None:
        mistakes: list[dict[str, Any]] = [{"temperature": 3}, {"x": 1}, {"decoder": "x"}]
        await self._post(question, 400, **self._rng.choice(mistakes))

    async def be_late(self, question: str) -> None:
        response = await self._client.post(CHAT, json=slow_body(timeout=0.05))
        assert response.status_code == 408, response.text

    def _body(self, question: str, **fields: Any) -> dict[str, Any]:
        message = {"role": "user", "content": question}
        return {"model": "tiny-llada", "messages": [message], "max_tokens": 64, **fields}

    async def _post(self, question: str, status: int = 200, **fields: Any) -> Any:
        response = await self._client.post(CHAT, json=self._body(question, **fields))
        assert response.status_code == status, response.text
        return response.json()

    def _content(self, response: Any) -> str:
        return str(response["choices"][0]["message"]["content"])


async def soak(server: Server, seconds: float, seed: int = 1) -> tuple[dict[str, Any], bool]:
    """The figures, and whether all is well."""
    sizes: list[float] = []
    series: list[int] = []

    async def watch(client: httpx.AsyncClient) -> None:
        while True:
            sizes.append(memory_mb(server.process.pid))
            lines = (await client.get("/metrics")).text.splitlines()
            series.append(sum(not line.startswith("#") for line in lines))
            await asyncio.sleep(EVERY_S)

    async with httpx.AsyncClient(base_url=server.url, timeout=60) as client:
        run, watching = Soak(client, seed), asyncio.create_task(watch(client))
        await run.run(seconds)
        watching.cancel()
    half = len(sizes) // 2
    figures = {
        "memory_mb": [round(sizes[(len(sizes) - 1) * third // 3]) for third in range(4)],
        "metric_series": [series[half], series[-1]],
        "done": run.done,
        "wrong": run.wrong,
    }
    return figures, not run.wrong and sizes[-1] <= GROWTH * sizes[half] and series[-1] <= GROWTH * series[half]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--frontends", default="0")
    arguments = parser.parse_args()
    server = start_server("--grammar-timeout-s", "0.2", "--frontends", arguments.frontends)
    try:
        figures, well = asyncio.run(soak(server, arguments.seconds, arguments.seed))
        print(json.dumps(figures))
        return int(not well or server.process.poll() is not None)
    finally:
        stop_server(server)


if __name__ == "__main__":
    sys.exit(main())
