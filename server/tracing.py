"""Traces: a span for each generation, and what it waited for, exported by OpenTelemetry's SDK.

Names are those of OpenTelemetry's conventions for generative AI. Only a server that exports traces imports this module,
which needs the extra `otel`. No text of a prompt or an answer enters a span.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator, Sequence
from urllib.parse import urlsplit

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.trace import Span, SpanKind, StatusCode, Tracer, format_span_id, format_trace_id, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from opentelemetry.util.types import AttributeValue
from starlette.datastructures import Headers
from starlette.types import Scope

from .engine.messages import Usage
from .http.request_log import RequestRecord
from .settings import installed_version

SERVICE = "asynclane"
FLUSH_S = 2.0  # at the end, for the spans that wait
OPERATIONS = {  # by the end of the path
    "/v1/chat/completions": "chat",
    "/v1/messages": "chat",
    "/v1/completions": "text_completion",
    "/v1/fim/completions": "text_completion",
    "/v1/responses": "chat",
}
PARENT = ("traceparent", "tracestate")  # W3C trace context
EXPORTER_LOG = logging.getLogger("opentelemetry.exporter.otlp.proto.http.trace_exporter")
QUEUE_LOG = logging.getLogger("opentelemetry.sdk._shared_internal")


class Tracing:
    """The spans of a process. A thread exports them in batches, from a queue that drops the oldest when it is full: no
    request waits for a collector. The sampler, the service's name and all else are those of the SDK's variables."""

    def __init__(self, url: str, model: str) -> None:
        resource = Resource.create({SERVICE_VERSION: installed_version()})
        if str(resource.attributes[SERVICE_NAME]).startswith("unknown_service"):
            resource = resource.merge(Resource({SERVICE_NAME: SERVICE}))
        self._exporter = ReportedExporter(OTLPSpanExporter(endpoint=url), url)
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(self._exporter))
        self._tracer = self._provider.get_tracer(SERVICE, installed_version())
        self._model = model
        self._parents = TraceContextTextMapPropagator()

    def begin(self, scope: Scope, request_id: str, record: RequestRecord) -> GenerationSpan | None:
        """The span of a request that is just being recorded; None if it wants no generation."""
        path = scope["path"].rstrip("/")
        found = [(end, name) for end, name in OPERATIONS.items() if path.endswith(end)]
        if not found or scope["method"] != "POST":
            return None
        (route, operation), headers = found[0], Headers(scope=scope)
        began_ns = time.time_ns() - _ns(record.age_s)
        span = self._tracer.start_span(
            f"{operation} {self._model}",
            context=self._parents.extract({name: headers[name] for name in PARENT if name in headers}),
            kind=SpanKind.SERVER,
            attributes={
                "gen_ai.operation.name": operation,
                "gen_ai.provider.name": SERVICE,
                "gen_ai.request.model": self._model,
                "http.request.method": "POST",
                "http.route": route,
                "asynclane.request_id": request_id,
            },
            start_time=began_ns,
        )
        return GenerationSpan(self._tracer, span, began_ns)

    def close(self) -> None:
        """Export the spans that wait, for `FLUSH_S` at most."""
        # The SDK's own limit is 30 s, and cannot be chosen.
        closing = threading.Thread(target=self._provider.shutdown, name="traces", daemon=True)
        closing.start()
        closing.join(FLUSH_S)
        self._exporter.close_log()


class GenerationSpan:
    """Implements `request_log.Span`."""

    def __init__(self, tracer: Tracer, span: Span, began_ns: int) -> None:
        context = span.get_span_context()
        self.ids = {"trace_id": format_trace_id(context.trace_id), "span_id": format_span_id(context.span_id)}
        self._tracer = tracer
        self._span = span
        self._began_ns = began_ns

    def end(self, record: RequestRecord) -> None:
        """End the span, and make those of the parts of a request that has been answered."""
        ended_s = record.age_s
        if self._span.is_recording():
            parent = set_span_in_context(self._span)
            for name, begin_s, end_s in _parts(record, ended_s):
                part = self._tracer.start_span(name, context=parent, start_time=self._at(begin_s))
                part.end(self._at(max(begin_s, end_s)))
            self._span.set_attributes(dict(_attributes(record)))
            if record.outcome == "aborted":
                self._span.add_event("client left", timestamp=self._at(ended_s))
            elif record.outcome == "failed":  # a refusal is no error of the server, by the conventions for HTTP
                kind, message = record.error or (str(record.status), "")
                self._span.set_status(StatusCode.ERROR, message.encode(errors="replace").decode() or kind)
        self._span.end(self._at(ended_s))

    def _at(self, seconds: float) -> int:
        return self._began_ns + _ns(seconds)


def _parts(record: RequestRecord, ended_s: float) -> Iterator[tuple[str, float, float]]:
    """The names of parts with their seconds of begin and end. Of several answers, the first that was served counts. A
    request that ended before any text came has no parts: only the engine knows how far it was."""
    if record.submitted_s is not None and record.usages:
        first = min(record.usages.values(), key=lambda usage: usage.queue_s)
        began_s = record.submitted_s + first.queue_s
        yield "queue", record.submitted_s, began_s
        if first.stats.forwards:
            yield "first forward", began_s, began_s + first.first_forward_s
    if record.first_text_s is not None:
        finished_s = None if record.outcome in ("aborted", "failed") else record.finished_s
        yield "stream", record.first_text_s, ended_s if finished_s is None else finished_s


def _attributes(record: RequestRecord) -> Iterator[tuple[str, AttributeValue]]:
    yield "http.response.status_code", record.status
    yield "asynclane.outcome", record.outcome
    if record.error is not None or record.status >= 400:
        yield "error.type", record.error[0] if record.error is not None else str(record.status)
    if record.prompt_tokens is not None:
        yield "gen_ai.usage.input_tokens", record.prompt_tokens
    if (options := record.options) is not None:
        yield "gen_ai.request.max_tokens", options.max_tokens
        yield "gen_ai.request.temperature", options.temperature
        yield "gen_ai.request.top_p", options.top_p
        yield "gen_ai.request.stream", record.streamed
        if options.top_k:
            yield "gen_ai.request.top_k", options.top_k
        if options.presence_penalty:
            yield "gen_ai.request.presence_penalty", options.presence_penalty
        if options.frequency_penalty:
            yield "gen_ai.request.frequency_penalty", options.frequency_penalty
        if record.choices > 1:
            yield "gen_ai.request.choice.count", record.choices
    if record.usages:
        usage = Usage.total(record.usages.values())
        yield "gen_ai.usage.output_tokens", usage.completion_tokens
        yield "gen_ai.usage.cache_read.input_tokens", usage.stats.cached_tokens
        yield "asynclane.forwards", usage.stats.forwards
    if record.streamed and record.first_text_s is not None:
        yield "gen_ai.response.time_to_first_chunk", record.first_text_s
    if record.finishes:
        yield "gen_ai.response.finish_reasons", [reason for _, reason in sorted(record.finishes.items())]


def _ns(seconds: float) -> int:
    return int(seconds * 1e9)


class ReportedExporter(SpanExporter):
    """Logs when spans begin to be lost, and when they arrive again. The SDK would log each attempt of each batch."""

    def __init__(self, exporter: SpanExporter, url: str) -> None:
        self._exporter = exporter
        parts = urlsplit(url)
        self._url = parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()  # no password in the log
        self._failing = False
        self._thread: threading.Thread | None = None  # that exports
        EXPORTER_LOG.addFilter(self._report)
        QUEUE_LOG.addFilter(self._passes)

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self._thread = threading.current_thread()
        result = self._exporter.export(spans)
        if self._failing and result is SpanExportResult.SUCCESS:
            self._failing = False
            logging.getLogger(__name__).info("spans reach %s again", self._url)
        return result

    def shutdown(self) -> None:
        self._exporter.shutdown()

    def close_log(self) -> None:
        QUEUE_LOG.removeFilter(self._passes)  # the other stays: a thread that has not ended by now still writes lines

    def _report(self, record: logging.LogRecord) -> bool:
        """Log the first reason in place of the exporter's lines."""
        if threading.current_thread() is not self._thread:  # of another exporter
            return True
        if not self._failing and record.levelno >= logging.WARNING:
            self._failing = True
            logging.getLogger(__name__).warning("spans do not reach %s: %s", self._url, record.getMessage())
        return False

    def _passes(self, record: logging.LogRecord) -> bool:
        """Leave out that the queue is full, once the reason has been logged."""
        return not self._failing
