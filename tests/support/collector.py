"""An OpenTelemetry collector in this process: takes spans over HTTP, and keeps them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span as SpanMessage
from opentelemetry.proto.trace.v1.trace_pb2 import Status

WAIT_S = 40  # a machine may be busy
TRACE_ID, PARENT_ID = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
TRACEPARENT = f"00-{TRACE_ID}-{PARENT_ID}-01"
NOT_SAMPLED = f"00-{TRACE_ID}-{PARENT_ID}-00"


@dataclass(frozen=True, slots=True)
class Span:
    name: str
    trace_id: str
    span_id: str
    parent_id: str
    server: bool
    start_ns: int
    end_ns: int
    failed: bool
    message: str
    events: list[str]
    attributes: dict[str, Any]
    resource: dict[str, Any]


class Collector:
    def __init__(self, url: str) -> None:
        self.url = url
        self.spans: list[Span] = []
        self.paths: set[str] = set()

    def take(self, path: str, body: bytes) -> None:
        request = ExportTraceServiceRequest()
        request.ParseFromString(body)
        self.paths.add(path)
        for resource in request.resource_spans:
            about = values(resource.resource.attributes)
            self.spans += [_span(span, about) for scope in resource.scope_spans for span in scope.spans]

    def wait(self, found: Callable[[list[Span]], bool]) -> list[Span]:
        """The spans, once they are as they should be."""
        deadline = time.monotonic() + WAIT_S
        while not found(self.spans):
            assert time.monotonic() < deadline, self.spans
            time.sleep(0.02)
        return self.spans

    def request(self, request_id: str) -> tuple[Span, dict[str, Span]]:
        """The span of a request, and its parts by name."""
        (root,) = self.wait(lambda spans: any(_is_of(span, request_id) for span in spans)) and [
            span for span in self.spans if _is_of(span, request_id)
        ]
        parts = [span for span in self.spans if span.parent_id == root.span_id]
        assert all(part.trace_id == root.trace_id and not part.server for part in parts)
        assert len({part.name for part in parts}) == len(parts)
        return root, {part.name: part for part in parts}


@contextmanager
def collecting(port: int = 0) -> Iterator[Collector]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            collector.take(self.path, self.rfile.read(int(self.headers["content-length"])))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *args: Any) -> None:
            """No lines on stderr."""

    with ThreadingHTTPServer(("127.0.0.1", port), Handler) as server:
        collector = Collector(f"http://127.0.0.1:{server.server_port}")
        thread = threading.Thread(target=server.serve_forever, args=[0.02], daemon=True)
        thread.start()
        try:
            yield collector
        finally:
            server.shutdown()
            thread.join()


def values(pairs: Any) -> dict[str, Any]:
    return {pair.key: _value(pair.value) for pair in pairs}


def _value(value: AnyValue) -> Any:
    kind = value.WhichOneof("value")
    assert kind is not None
    return [_value(one) for one in value.array_value.values] if kind == "array_value" else getattr(value, kind)


def _span(span: SpanMessage, resource: dict[str, Any]) -> Span:
    return Span(
        span.name,
        span.trace_id.hex(),
        span.span_id.hex(),
        span.parent_span_id.hex(),
        span.kind == SpanMessage.SPAN_KIND_SERVER,
        span.start_time_unix_nano,
        span.end_time_unix_nano,
        span.status.code == Status.STATUS_CODE_ERROR,
        span.status.message,
        [event.name for event in span.events],
        values(span.attributes),
        resource,
    )


def _is_of(span: Span, request_id: str) -> bool:
    return span.attributes.get("asynclane.request_id") == request_id
