"""Spans of requests: names, parents, times and status, in a collector and in the log. No request waits for it."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any, cast

import httpx
import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from asynclane.scheduler import RequestStats
from asynclane.server import errors
from asynclane.server.app import create_app
from asynclane.server.engine.messages import AnswerSource, Delta, Finish, Usage
from asynclane.server.logs import FORMATS
from asynclane.server.metrics import Metrics
from asynclane.server.schema.responses import ModelCard
from asynclane.server.settings import Settings
from asynclane.server.text.tokenizer import Tokenizer
from asynclane.server.tracing import EXPORTER_LOG, FLUSH_S, QUEUE_LOG, ReportedExporter, Tracing

from ..support.collector import NOT_SAMPLED, PARENT_ID, TRACE_ID, TRACEPARENT, WAIT_S, Collector, Span, collecting
from ..support.fake_engine import SCRIPT, FakeEngine
from ..support.http import CHAT, CONTEXT, CREATED, PARAMS, Api, serving

ANSWERED = Usage(3, RequestStats(forwards=2, cached_tokens=16), queue_s=0.25, first_forward_s=0.5)
ENDED = [Delta("a"), Delta("b", Finish.LENGTH, ANSWERED)]
ABSENT = "http://127.0.0.1:9/v1/traces"  # nobody listens there


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """Spans have time to arrive on a machine that is busy, unless a test is about that time."""
    if "collector" in request.fixturenames:
        monkeypatch.setattr("asynclane.server.tracing.FLUSH_S", WAIT_S)


@pytest.fixture
def collector() -> Iterator[Collector]:
    with collecting() as collector:
        yield collector


@contextmanager
def traces_to(url: str) -> Iterator[Tracing]:
    tracing = Tracing(url, "tiny-llada")
    try:
        yield tracing
    finally:
        tracing.close()


def app_of(text: Tokenizer, engine: FakeEngine, tracing: Tracing, **settings: Any) -> Any:
    card = ModelCard("tiny-llada", CONTEXT, {"asynclane": PARAMS}, "asynclane", CREATED)
    source = cast(AnswerSource, engine)
    return create_app(source, text, Settings(**settings), Metrics(), card, tracing=tracing)


@asynccontextmanager
async def traced(text: Tokenizer, engine: FakeEngine, url: str, **settings: Any) -> AsyncIterator[Api]:
    with traces_to(url) as tracing:
        app = app_of(text, engine, tracing, **settings)
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as http:
            yield Api(http)


async def spans_of(text: Tokenizer, script: Any, collector: Collector, fields: Any, **headers: str) -> list[Span]:
    async with traced(text, FakeEngine(script), f"{collector.url}/v1/traces") as client:
        await client.http.post("/v1/chat/completions", json={**CHAT, **fields}, headers=headers)
    return collector.spans


@pytest.mark.parametrize("stream", [False, True])
async def test_an_answer_is_a_span_with_its_parts(text: Tokenizer, collector: Collector, stream: bool) -> None:
    fields = {"stream": stream, "temperature": 0.5, "top_k": 7, "max_tokens": 9, "n": 2}
    before_ns = time.time_ns()
    await spans_of(text, ENDED, collector, fields, traceparent=TRACEPARENT, **{"x-request-id": "id-1"})
    after_ns = time.time_ns()
    root, parts = collector.request("id-1")
    assert (root.name, root.server, root.trace_id, root.parent_id) == ("chat tiny-llada", True, TRACE_ID, PARENT_ID)
    assert (root.failed, root.events) == (False, [])
    assert before_ns - 10**7 < root.start_ns < root.end_ns < after_ns + 10**7
    attributes = dict(root.attributes)
    assert attributes.pop("gen_ai.usage.input_tokens") > 5
    assert (attributes.pop("gen_ai.response.time_to_first_chunk", None) is not None) is stream
    assert attributes == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "asynclane",
        "gen_ai.request.model": "tiny-llada",
        "gen_ai.request.max_tokens": 9,
        "gen_ai.request.temperature": 0.5,
        "gen_ai.request.top_p": 1.0,
        "gen_ai.request.top_k": 7,
        "gen_ai.request.choice.count": 2,
        "gen_ai.request.stream": stream,
        "gen_ai.response.finish_reasons": ["length", "length"],
        "gen_ai.usage.output_tokens": 6,
        "gen_ai.usage.cache_read.input_tokens": 32,
        "asynclane.forwards": 4,
        "asynclane.request_id": "id-1",
        "asynclane.outcome": "length",
        "http.request.method": "POST",
        "http.route": "/v1/chat/completions",
        "http.response.status_code": 200,
    }
    assert set(parts) == {"queue", "first forward", "stream"}
    queue, forward = parts["queue"], parts["first forward"]
    assert root.start_ns <= queue.start_ns
    assert queue.end_ns == forward.start_ns
    assert queue.end_ns - queue.start_ns == pytest.approx(0.25e9, abs=1e3)
    assert forward.end_ns - forward.start_ns == pytest.approx(0.5e9, abs=1e3)
    assert parts["stream"].start_ns <= parts["stream"].end_ns <= root.end_ns
    assert root.resource["service.name"] == "asynclane"


ENDS: dict[str, tuple[Any, dict[str, Any], tuple[int, str, str | None, bool]]] = {
    "refused": (SCRIPT, {"temperature": 9}, (400, "refused", "invalid_value", False)),
    "of another model": (SCRIPT, {"model": "x"}, (404, "refused", "model_not_found", False)),
    "overloaded": (errors.Overloaded("full"), {}, (429, "refused", "overloaded", False)),
    "late": ([errors.TimedOut("no complete answer")], {}, (408, "refused", "request_timeout", False)),
    "failed": ([errors.EngineFailure("the engine failed")], {}, (500, "failed", "engine_failure", True)),
    "draining": ([errors.Draining()], {}, (503, "failed", "draining", True)),
    "a fault": ([RuntimeError("hunter2")], {}, (500, "failed", "RuntimeError", True)),
    "in the middle": (
        [Delta("a", None, ANSWERED), errors.EngineFailure("the engine failed")],
        {"stream": True},
        (200, "failed", "engine_failure", True),
    ),
}


@pytest.mark.parametrize(("script", "fields", "expected"), ENDS.values(), ids=list(ENDS))
async def test_an_error_is_the_status_of_its_span_and_a_refusal_is_not(
    text: Tokenizer, collector: Collector, script: Any, fields: dict[str, Any], expected: tuple[Any, ...]
) -> None:
    await spans_of(text, script, collector, fields, **{"x-request-id": "id-2"})
    root, parts = collector.request("id-2")
    shown = [root.attributes.get(name) for name in ("http.response.status_code", "asynclane.outcome", "error.type")]
    assert (*shown, root.failed) == expected
    assert root.parent_id == ""
    assert bool(root.message) is root.failed
    assert "hunter2" not in str(root)
    assert set(parts) == ({"queue", "first forward", "stream"} if expected[0] == 200 else set())


async def test_a_key_that_is_missing_is_a_refusal(text: Tokenizer, collector: Collector) -> None:
    async with traced(text, FakeEngine(), f"{collector.url}/v1/traces", api_key="secret") as client:
        await client.http.post("/v1/chat/completions/", json=CHAT, headers={"x-request-id": "id-3"})
    root, _ = collector.request("id-3")
    assert (root.attributes["error.type"], root.failed) == ("401", False)


async def test_only_generations_have_spans(text: Tokenizer, collector: Collector) -> None:
    async with traced(text, FakeEngine(), f"{collector.url}/v1/traces") as client:
        for path in ("/health", "/ready", "/metrics", "/v1/models", "/version", "/nowhere", "/v1/chat/completions"):
            await client.http.get(path)
        await client.http.post("/tokenize", json={"prompt": "Hi"})
        await client.complete()
    assert [span.name for span in collector.spans if span.server] == ["text_completion tiny-llada"]
    assert collector.paths == {"/v1/traces"}


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_is_an_event(text: Tokenizer, collector: Collector, stream: bool) -> None:
    engine = FakeEngine([Delta("a", None, ANSWERED), None])
    content = json.dumps({**CHAT, "stream": stream}).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nx-request-id: id-4\r\ncontent-length: {len(content)}\r\n"
    with traces_to(f"{collector.url}/v1/traces") as tracing:
        async with serving(app_of(text, engine, tracing), Settings()) as port, asyncio.timeout(20):
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(f"{head}content-type: application/json\r\n\r\n".encode() + content)
            while not engine.answers:
                await asyncio.sleep(0.01)
            await engine.answers[0].waits.wait()
            writer.close()
            await engine.answers[0].left.wait()
    root, parts = collector.request("id-4")
    assert (root.events, root.failed, root.attributes["asynclane.outcome"]) == (["client left"], False, "aborted")
    assert set(parts) == {"queue", "first forward", "stream"}
    assert parts["stream"].end_ns == root.end_ns


@pytest.mark.parametrize("given", ["", "nonsense", f"00-{'0' * 32}-{PARENT_ID}-01", "00-\xff-b-01", f"{TRACEPARENT}x"])
async def test_a_traceparent_that_is_none_begins_a_trace(text: Tokenizer, collector: Collector, given: str) -> None:
    headers = {"traceparent": given.encode("latin-1"), "x-request-id": "id-5"}
    async with traced(text, FakeEngine(), f"{collector.url}/v1/traces") as client:
        answer = await client.http.post("/v1/chat/completions", json=CHAT, headers=cast(Any, headers))
    root, _ = collector.request("id-5")
    assert answer.status_code == 200
    assert root.parent_id == ""
    assert root.trace_id != TRACE_ID


async def test_a_parent_that_is_not_sampled_or_a_sampler_leaves_spans_out(
    text: Tokenizer, collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert await spans_of(text, ENDED, collector, {}, traceparent=NOT_SAMPLED) == []
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "always_off")
    assert await spans_of(text, ENDED, collector, {}, traceparent=TRACEPARENT) == []


async def test_the_service_has_the_name_that_the_environment_gives(
    text: Tokenizer, collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_SERVICE_NAME", "chat-eu")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=test")
    await spans_of(text, ENDED, collector, {})
    assert collector.spans[0].resource["service.name"] == "chat-eu"
    assert collector.spans[0].resource["deployment.environment.name"] == "test"


# --- The log


@contextmanager
def logged(form: str) -> Iterator[list[str]]:
    """The lines of the server's loggers during a block."""
    lines: list[str] = []
    logger, handler = logging.getLogger("asynclane"), logging.Handler()
    handler.setFormatter(FORMATS[form]())
    handler.emit = lambda record: lines.append(handler.format(record))  # type: ignore[method-assign]
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield lines
    finally:
        logger.setLevel(logging.NOTSET)
        logger.removeHandler(handler)


@pytest.mark.parametrize("form", ["text", "json"])
async def test_lines_of_a_request_carry_its_trace(text: Tokenizer, collector: Collector, form: str) -> None:
    with logged(form) as lines:
        script = [Delta("a"), RuntimeError("x")]
        given = {"traceparent": TRACEPARENT, "x-request-id": "id-6"}
        await spans_of(text, script, collector, {"stream": True}, **given)
        logging.getLogger("asynclane.test").info("after")
    root, _ = collector.request("id-6")
    failed, request, after = lines
    if form == "json":
        shown = [(json.loads(line)["trace_id"], json.loads(line)["span_id"]) for line in (failed, request)]
        assert shown == [(TRACE_ID, root.span_id)] * 2
        assert json.loads(request)["request_id"] == "id-6"
        assert not {"trace_id", "span_id"} & set(json.loads(after))
    else:
        ids = f" trace_id={TRACE_ID} span_id={root.span_id}"
        assert f" id-6 a stream failed{ids}\n" in failed
        assert f" asynclane.request id-6 request{ids} client=" in request
        assert "trace_id" not in after


# --- No collector


def reports(caplog: pytest.LogCaptureFixture) -> list[str]:
    names = ("asynclane.server.tracing", "opentelemetry")
    return [record.getMessage() for record in caplog.records if record.name.startswith(names)]


async def test_a_collector_that_is_away_is_one_line_and_slows_nobody(
    text: Tokenizer, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "20")
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "8")  # full at once
    monkeypatch.setenv("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "4")
    with caplog.at_level(logging.INFO):
        async with traced(text, FakeEngine(), ABSENT.replace("//", "//user:hunter2@")) as client:
            for _ in range(30):
                began = time.monotonic()
                assert (await client.chat()).status_code == 200
                assert time.monotonic() - began < 5
                await asyncio.sleep(0.01)
            began = time.monotonic()
    assert time.monotonic() - began < FLUSH_S + 3
    (line,) = reports(caplog)
    assert line.startswith(f"spans do not reach {ABSENT}: ")
    assert "refused" in line
    assert "hunter2" not in line


class Inner(SpanExporter):
    """Writes lines as OpenTelemetry's exporter does, in the thread that exports."""

    def __init__(self) -> None:
        self.works = False

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        if self.works:
            return SpanExportResult.SUCCESS
        EXPORTER_LOG.warning("Transient error %s, retrying", "refused")
        EXPORTER_LOG.error("Failed to export")
        return SpanExportResult.FAILURE


def test_spans_that_are_lost_and_spans_that_arrive_again_are_a_line_each(caplog: pytest.LogCaptureFixture) -> None:
    inner = Inner()
    exporter, other = (ReportedExporter(inner, f"http://{host}/v1/traces") for host in ("c", "other"))
    with caplog.at_level(logging.INFO):
        for number, inner.works in enumerate((True, False, False, True, True, False)):
            exporter.export([])
            QUEUE_LOG.warning(f"queue full: {number}")  # equal messages would be left out
    lost = "spans do not reach http://c/v1/traces: Transient error refused, retrying"
    again = "spans reach http://c/v1/traces again"
    assert reports(caplog) == ["queue full: 0", lost, again, "queue full: 3", "queue full: 4", lost]
    for one in (exporter, other):
        one.close_log()
    QUEUE_LOG.warning("queue full: 6")
    assert reports(caplog)[-1] == "queue full: 6"


async def test_a_collector_that_hangs_keeps_no_process_from_ending(text: Tokenizer) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        async with traced(text, FakeEngine(), f"http://127.0.0.1:{silent.getsockname()[1]}/v1/traces") as client:
            assert (await client.chat()).status_code == 200
            began = time.monotonic()
        assert time.monotonic() - began < FLUSH_S + 3
