"""Counts what operators watch, in a registry of its own, so that two servers in a process do not mix.

The engine calls these methods with plain numbers; each is a handful of additions.
"""

from __future__ import annotations

from dataclasses import dataclass

from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    generate_latest,
)

CONTENT_TYPE = CONTENT_TYPE_LATEST

STEP_SECONDS = (
    0.0005,
    0.001,
    0.002,
    0.004,
    0.006,
    0.008,
    0.01,
    0.015,
    0.02,
    0.03,
    0.05,
    0.1,
    0.2,
    0.5,
    1.0,
    5.0,
)
WAIT_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
TOKEN_SECONDS = (0.0005, 0.001, 0.002, 0.004, 0.006, 0.008, 0.01, 0.015, 0.02, 0.03, 0.05, 0.1, 0.5)
TOKENS = (0.5, 1, 1.5, 2, 3, 4, 6, 8, 12, 16, 32)
ROW_TOKENS = (16, 32, 64, 128, 192, 256, 384, 512, 1024, 2048, 4096, 8192)
SHARES = (0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 1.0)


@dataclass(frozen=True, slots=True)
class StepReport:
    """One step: what it computed and brought, what is alive after it, and how long it took.

    `committed` are answer tokens that became final in this step; the counts below it are the state behind it.
    `device_s` is the device's work, `host_s` all that came between it and the work before.
    """

    row_tokens: int
    budget_tokens: int
    committed: int
    host_s: float
    device_s: float
    queued: int = 0
    running: int = 0
    refine_lanes: int = 0
    generate_lanes: int = 0
    pages_used: int = 0
    pages_kept: int = 0


@dataclass(frozen=True, slots=True)
class RequestReport:
    """One request at its end; times since its arrival. Of the `prompt_tokens` of one that has run, others had computed
    `cached_tokens`."""

    seconds: float
    first_text_s: float | None = None
    tokens: int = 0
    forwards: int = 0
    forks: int = 0
    cancelled_lanes: int = 0
    refreshes: int = 0
    reused_refreshes: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0


class Metrics:
    def __init__(self, pages_total: int = 0) -> None:
        self.registry = registry = CollectorRegistry()

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"asynclane_{name}", text, labels, registry=registry)

        def gauge(name: str, text: str, *labels: str) -> Gauge:
            return Gauge(f"asynclane_{name}", text, labels, registry=registry)

        def histogram(name: str, text: str, buckets: tuple[float, ...], *labels: str) -> Histogram:
            return Histogram(f"asynclane_{name}", text, labels, registry=registry, buckets=buckets)

        self._responses = counter("http_responses", "HTTP responses by status", "status")
        self._requests = counter("requests", "Answers that ended, by outcome", "outcome")
        self._aborts = counter("aborts", "Answers whose client left, by the state they were in", "state")
        self._step_failures = counter("step_failures", "Model calls that raised an error")
        self._forwards = counter("forwards", "Model calls")
        self._computed = counter("computed_tokens", "Positions computed")
        self._committed = counter("committed_tokens", "Answer tokens that became final")
        self._forks = counter("forks", "Lanes forked at a delimiter")
        self._cancelled = counter("cancelled_lanes", "Lanes cancelled behind an end or a stop string")
        self._refreshes = counter("refreshes", "Rows that computed cached positions anew")
        self._reused = counter("reused_refreshes", "Refreshes whose logits drove their step, at no extra call")
        self._prompts = counter("prefix_cache_query_tokens", "Prompt tokens of answers that ran")
        self._cached = counter("prefix_cache_hit_tokens", "Those whose keys and values were there already")
        self._queued = gauge("queue_depth", "Requests that wait")
        self._running = gauge("running_requests", "Requests that run")
        self._pages_used = gauge("kv_pages_used", "Pages of keys and values in use")
        self._pages_kept = gauge("kv_pages_kept", "Pages in no use, kept for prompts that begin with their tokens")
        gauge("kv_pages", "Pages of keys and values in all").set(pages_total)
        self._row_tokens = histogram("step_row_tokens", "Positions of one model call", ROW_TOKENS)
        self._budget_share = histogram("step_budget_share", "Positions of a call over its budget", SHARES)
        self._per_forward = histogram("tokens_per_forward", "Answer tokens per model call, by request", TOKENS)
        self._first_token = histogram("time_to_first_token_seconds", "Until the first text", WAIT_SECONDS)
        self._per_token = histogram("time_per_output_token_seconds", "Between tokens", TOKEN_SECONDS)
        self._end_to_end = histogram("request_seconds", "From arrival to the last token", WAIT_SECONDS)
        # Children are looked up once: `labels` takes a lock and a dictionary.
        lanes = gauge("live_lanes", "Lanes that are being decoded, by role", "role")
        self._refine_lanes, self._generate_lanes = lanes.labels("refine"), lanes.labels("generate")
        seconds = histogram("step_seconds", "Time of a step, by who spent it", STEP_SECONDS, "part")
        self._host_s, self._device_s = seconds.labels("host"), seconds.labels("device")

    def exposition(self) -> bytes:
        return generate_latest(self.registry)

    def http_response(self, status: int) -> None:
        self._responses.labels(str(status)).inc()

    def observe_step(self, step: StepReport) -> None:
        self._forwards.inc()
        self._computed.inc(step.row_tokens)
        self._committed.inc(step.committed)
        self._refine_lanes.set(step.refine_lanes)
        self._generate_lanes.set(step.generate_lanes)
        self._row_tokens.observe(step.row_tokens)
        if step.budget_tokens:
            self._budget_share.observe(step.row_tokens / step.budget_tokens)
        self._host_s.observe(step.host_s)
        self._device_s.observe(step.device_s)
        self.observe_load(step.queued, step.running, step.pages_used, step.pages_kept)

    def observe_load(self, queued: int, running: int, pages_used: int, pages_kept: int = 0) -> None:
        """For changes between steps: a request that arrives, or leaves."""
        self._queued.set(queued)
        self._running.set(running)
        self._pages_used.set(pages_used)
        self._pages_kept.set(pages_kept)

    def step_failed(self) -> None:
        self._step_failures.inc()

    def request_ended(self, outcome: str, report: RequestReport) -> None:
        """`outcome` is stop, length or failed."""
        self._requests.labels(outcome).inc()
        self._end_to_end.observe(report.seconds)
        if report.forwards:
            self._per_forward.observe(report.tokens / report.forwards)
        if report.first_text_s is not None:
            self._first_token.observe(report.first_text_s)
            if report.tokens > 1:
                self._per_token.observe((report.seconds - report.first_text_s) / (report.tokens - 1))
        self._count_work(report)

    def request_aborted(self, state: str, report: RequestReport) -> None:
        """The client left; `state` is where its request was: waiting, running and so on."""
        self._requests.labels("aborted").inc()
        self._aborts.labels(state).inc()
        self._count_work(report)

    def _count_work(self, report: RequestReport) -> None:
        self._forks.inc(report.forks)
        self._cancelled.inc(report.cancelled_lanes)
        self._refreshes.inc(report.refreshes)
        self._reused.inc(report.reused_refreshes)
        self._prompts.inc(report.prompt_tokens)
        self._cached.inc(report.cached_tokens)
