"""Spans of real servers, in one process and with a front end of its own."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import pytest

from ..support.collector import PARENT_ID, TRACE_ID, TRACEPARENT, Collector, collecting
from ..support.scale import LONG
from ..support.servers import PARIS, SLOW, Server, aborted, slow_body, start_server, stop_server, wait_for

CHAT = "/v1/chat/completions"
ABSENT = "http://127.0.0.1:9"


@contextmanager
def tracing_server(*flags: str, **environ: str) -> Iterator[Server]:
    server = start_server(*flags, environ={"OTEL_BSP_SCHEDULE_DELAY": "100", **environ})
    try:
        yield server
    finally:
        stop_server(server)


@pytest.fixture(scope="module", params=[pytest.param(0, marks=LONG), 1], ids=["one process", "a front end"])
def traced(request: pytest.FixtureRequest) -> Iterator[tuple[Server, Collector]]:
    flags = "--frontends", str(request.param), "--log-format", "json", "--otlp-endpoint"
    with collecting() as collector, tracing_server(*flags, collector.url, OTEL_SERVICE_NAME="chat-eu") as server:
        yield server, collector


@pytest.mark.parametrize("stream", [True, False])
def test_the_parts_of_an_answer_follow_each_other(traced: tuple[Server, Collector], stream: bool) -> None:
    server, collector = traced
    body = {"model": "tiny-llada", "messages": [{"role": "user", "content": PARIS}], "max_tokens": 24, "stream": stream}
    request_id = f"answer-{stream}"
    before_ns = time.time_ns()
    headers = {"traceparent": TRACEPARENT, "x-request-id": request_id}
    assert httpx.post(server.url + CHAT, json=body, headers=headers, timeout=60).status_code == 200
    after_ns = time.time_ns()
    root, parts = collector.request(request_id)
    assert (root.name, root.trace_id, root.parent_id) == ("chat tiny-llada", TRACE_ID, PARENT_ID)
    assert root.resource["service.name"] == "chat-eu"
    queue, forward, streamed = (parts[name] for name in ("queue", "first forward", "stream"))
    times = [before_ns, root.start_ns, queue.start_ns, queue.end_ns, forward.end_ns, streamed.start_ns]
    assert times == sorted(times)
    assert queue.end_ns == forward.start_ns < forward.end_ns
    assert streamed.start_ns <= streamed.end_ns <= root.end_ns <= after_ns + 10**8  # the client has it a bit earlier
    assert root.attributes["gen_ai.request.max_tokens"] == 24
    assert root.attributes["gen_ai.response.finish_reasons"] in (["stop"], ["length"])
    assert root.attributes["gen_ai.usage.output_tokens"] > 0
    wait_for(lambda: any(f'"request_id": "{request_id}"' in line for line in server.log))
    (line,) = [line for line in server.log if f'"request_id": "{request_id}"' in line]
    assert f'"trace_id": "{TRACE_ID}", "span_id": "{root.span_id}"' in line


def test_a_refused_request_is_a_span_alone(traced: tuple[Server, Collector]) -> None:
    server, collector = traced
    body = {"model": "tiny-llada", "prompt": "One", "temperature": 9}
    headers = {"traceparent": TRACEPARENT, "x-request-id": "refused"}
    assert httpx.post(f"{server.url}/v1/completions", json=body, headers=headers).status_code == 400
    root, parts = collector.request("refused")
    assert (root.name, root.parent_id, root.failed, parts) == ("text_completion tiny-llada", PARENT_ID, False, {})
    assert root.attributes["error.type"] == "invalid_value"


def test_a_client_that_leaves_in_a_stream_is_an_event(traced: tuple[Server, Collector]) -> None:
    server, collector = traced
    before, headers = aborted(server.url), {"x-request-id": "aborted"}
    with httpx.stream("POST", server.url + CHAT, json=slow_body(stream=True), headers=headers, timeout=60) as response:
        next(response.iter_lines())
    wait_for(lambda: aborted(server.url) > before)
    root, parts = collector.request("aborted")
    assert (root.events, root.attributes["asynclane.outcome"], root.failed) == (["client left"], "aborted", False)
    assert parts["queue"].end_ns <= parts["first forward"].end_ns <= root.end_ns


@LONG
@pytest.mark.parametrize("frontends", [pytest.param("0", marks=SLOW), "1"])
def test_spans_that_wait_are_sent_before_a_process_ends(frontends: str) -> None:
    body = {"model": "tiny-llada", "prompt": "One", "max_tokens": 4}
    with collecting() as collector:
        environ = {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.url, "OTEL_BSP_SCHEDULE_DELAY": "600000"}
        with tracing_server("--frontends", frontends, **environ) as server:
            assert httpx.post(f"{server.url}/v1/completions", json=body, timeout=60).status_code == 200
            assert not collector.spans
        assert "text_completion tiny-llada" in {span.name for span in collector.spans}
        assert server.process.returncode == 0


@SLOW
def test_a_collector_that_is_away_is_one_line_of_the_log() -> None:
    """From a front end; the tests of the server have it from one process."""
    body = {"model": "tiny-llada", "prompt": "One", "max_tokens": 4}
    with tracing_server("--frontends", "1", "--otlp-endpoint", ABSENT) as server:
        for _ in range(5):
            assert httpx.post(f"{server.url}/v1/completions", json=body, timeout=60).status_code == 200
        wait_for(lambda: any("spans do not reach" in line for line in server.log))
        began = time.monotonic()
    assert time.monotonic() - began < 15
    assert server.process.returncode == 0
    assert len([line for line in server.log if "spans do not reach" in line or "opentelemetry" in line]) == 1
