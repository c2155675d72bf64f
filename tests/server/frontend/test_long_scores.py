"""The scores of many long prompts come at once, and leave the event loop to the streams of others."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Callable, Iterable
from typing import Any

import httpx
import numpy as np

from asynclane.scheduler import RequestStats
from asynclane.server.app import ModelCard, create_app
from asynclane.server.engine.messages import (
    Finish,
    FromEngine,
    Health,
    Progress,
    Reserve,
    Reserved,
    Scores,
    Submit,
    ToEngine,
)
from asynclane.server.frontend.client import EngineClient
from asynclane.server.metrics import Metrics
from asynclane.server.settings import Settings
from asynclane.server.text.tokenizer import Tokenizer

from ...support.http import CREATED, PARAMS
from ...support.scale import ALL

PROMPTS, TOKENS, RANKS = 100 if ALL else 30, 900, 20
LONGEST_S = 0.1


class Engine:
    """Keeps what it is sent."""

    def __init__(self) -> None:
        self.submitted: list[Submit] = []

    def connect(self, send: Callable[[list[FromEngine]], None]) -> Engine:
        self.send = send
        send([Health(ready=True)])
        return self

    def take(self, messages: Iterable[ToEngine]) -> None:
        for message in messages:
            if isinstance(message, Reserve):
                self.send([Reserved(message.place_id, None)])
            elif isinstance(message, Submit):
                self.submitted.append(message)

    def score(self, tokens: np.ndarray) -> list[FromEngine]:
        """All scores of every request."""
        count = len(tokens)
        ranked = np.resize(np.arange(10, 1000, dtype=np.int32), (count, RANKS))
        logprobs = -np.ones((count, 1 + RANKS), np.float32)
        scores = Scores(
            logprobs[:, 0].tobytes(),
            np.zeros(count, np.int32).tobytes(),
            ranked.tobytes(),
            logprobs[:, 1:].tobytes(),
            RANKS,
            np.ones(count, np.int32).tobytes(),
        )
        stats = RequestStats(forwards=count)
        return [
            Progress(message.request_id, tokens.tobytes(), stats, 0.0, Finish.LENGTH, scores=scores)
            for message in self.submitted
        ]


async def test_streams_go_on_while_the_scores_of_many_long_prompts_are_read_and_written(text: Tokenizer) -> None:
    """Times are the CPU's, of all threads: other processes of the machine do not count."""
    engine, metrics = Engine(), Metrics(8)
    client = EngineClient(text, metrics)
    client.join(engine)
    card = ModelCard("tiny-llada", 2 * TOKENS, {"asynclane": PARAMS}, "asynclane", CREATED)
    app = create_app(client, text, Settings(), metrics, card)
    ids = (np.arange(TOKENS) % 1000 + 10).astype(np.int32)
    body: dict[str, Any] = {"prompt": [ids.tolist()] * PROMPTS, "echo": True, "logprobs": RANKS, "max_tokens": 0}
    gaps: list[float] = []

    async def another_stream() -> None:
        last = time.process_time()
        while True:
            await asyncio.sleep(0.001)
            now = time.process_time()
            gaps.append(now - last)
            last = now

    gc.collect()
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://test", timeout=None) as http:
        scored = asyncio.create_task(http.post("/v1/completions", json=body))
        while len(engine.submitted) < PROMPTS:
            await asyncio.sleep(0.01)
        stream = asyncio.create_task(another_stream())
        engine.send(engine.score(ids[1:]))
        response = await scored
        stream.cancel()
    choices = response.json()["choices"]
    assert len(choices) == PROMPTS
    for choice in choices:
        scores = choice["logprobs"]
        assert len(scores["tokens"]) == len(scores["top_logprobs"]) == TOKENS
        assert (scores["token_logprobs"][0], scores["token_logprobs"][-1]) == (None, -1.0)
    assert max(gaps) < LONGEST_S
