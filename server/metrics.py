"""Prometheus metrics, in a registry of their own, so that two servers in a process do not mix.

The engine and the front ends call these methods with plain data; each call is a handful of additions. A front end in
another process has `frontend.counts.Relay` instead, which sends its counts to the engine: `/metrics` is one for all.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Protocol

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Gauge, Histogram, Metric, generate_latest
from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

from ..scheduler import Load, RequestStats
from .engine.messages import AnswerTimes, Counts
from .logs import lines_dropped

CONTENT_TYPE = CONTENT_TYPE_LATEST

STEP_SECONDS = (0.0005, 0.001, 0.002, 0.004, 0.006, 0.008, 0.01, 0.015, 0.02, 0.03, 0.05, 0.1, 0.2, 0.5, 1.0, 5.0)
WAIT_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
QUEUE_SECONDS = (0.001, 0.005, *WAIT_SECONDS)
GAP_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.1, 0.2, 0.5, 1.0, 2.5, 5.0, 10.0)
TOKEN_SECONDS = (0.0005, 0.001, 0.002, 0.004, 0.006, 0.008, 0.01, 0.015, 0.02, 0.03, 0.05, 0.1, 0.5)
TOKENS = (0.5, 1, 1.5, 2, 3, 4, 6, 8, 12, 16, 32)
ROW_TOKENS = (16, 32, 64, 128, 192, 256, 384, 512, 1024, 2048, 4096, 8192)
COUNTS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192)
SHARES = (0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 1.0)


@dataclass(frozen=True, slots=True)
class StepReport:
    """One step: positions computed, positions it might have computed, answer tokens that became final, and its time:
    `device_s` of the device's work, `host_s` between this work and the work before."""

    row_tokens: int
    budget_tokens: int
    committed: int
    host_s: float
    device_s: float


class AnswerMetrics(Protocol):
    """Metrics as the readers of answers use them."""

    def chunk_read(self, gap_s: float) -> None:
        """There is more of an answer's text, so long after the text before it."""
        ...

    def answer_read(self, answer: AnswerTimes) -> None:
        """There is all of an answer."""
        ...


class FrontEndMetrics(Protocol):
    """Metrics as the HTTP layer uses them."""

    def http_response(self, status: int) -> None: ...

    async def scrape(self) -> bytes:
        """All metrics in Prometheus' text format."""
        ...


class LogCollector(Collector):
    """The log's own count, read when metrics are scraped: the log is older than all metrics."""

    def __init__(self) -> None:
        self.elsewhere = 0  # in other processes

    def collect(self) -> Iterator[CounterMetricFamily]:
        dropped = self.elsewhere + lines_dropped()
        yield CounterMetricFamily("asynclane_log_lines_dropped", "Log lines that nobody read in time", dropped)


class Gaps(Collector):
    """A histogram of the times between chunks. There are many: adding one takes 0.3 us, a quarter of what a `Histogram`
    of the library takes, and a front end can send its counts to the engine."""

    def __init__(self) -> None:
        self._counts = [0] * (len(GAP_SECONDS) + 1)
        self._total_s = 0.0

    def observe(self, gap_s: float) -> None:
        self._counts[bisect_left(GAP_SECONDS, gap_s)] += 1
        self._total_s += gap_s

    def take(self) -> tuple[tuple[int, ...], float]:
        """The counts by bucket since the last call, none if all are 0, and the sum."""
        counts, total_s = self._counts, self._total_s
        self._counts, self._total_s = [0] * len(counts), 0.0
        return tuple(counts) if any(counts) else (), total_s

    def add(self, counts: Sequence[int], total_s: float) -> None:
        """Add what another one has taken."""
        for bucket, count in enumerate(counts):
            self._counts[bucket] += count
        self._total_s += total_s

    def collect(self) -> Iterator[HistogramMetricFamily]:
        bounds = [*map(str, GAP_SECONDS), "+Inf"]
        buckets = [*zip(bounds, map(float, accumulate(self._counts)), strict=True)]
        yield HistogramMetricFamily(
            "asynclane_chunk_gap_seconds", "Between two chunks of an answer's text", buckets, self._total_s
        )


class Processes(Collector):
    """The standard metrics of processes, of the engine's and of the front ends', by the label `process`."""

    def __init__(self) -> None:
        self._engine = ProcessCollector(registry=None)
        self._front_ends: dict[str, ProcessCollector] = {}

    def follow(self, front_ends: Mapping[str, int]) -> None:
        """`front_ends` are the numbers of their processes by name."""
        self._front_ends = {
            name: ProcessCollector(pid=lambda number=number: number, registry=None)  # type: ignore[misc]
            for name, number in front_ends.items()
        }

    def collect(self) -> Iterator[Metric]:
        found: dict[str, Metric] = {}
        for process, collector in {"engine": self._engine, **self._front_ends}.items():
            for family in collector.collect():
                merged = found.setdefault(family.name, Metric(family.name, family.documentation, family.type))
                for sample in family.samples:
                    merged.add_sample(sample.name, {"process": process}, sample.value)
        yield from found.values()


class GraphCounts(Protocol):
    """Graphs captured, and steps of which a part ran without one."""

    @property
    def captures(self) -> int: ...

    @property
    def eager_steps(self) -> int: ...


@dataclass(frozen=True, slots=True)
class DeviceCounts:
    """Functions that read the device's own counts: of graphs, and of kernels that were compiled."""

    graphs: Callable[[], GraphCounts]
    compiled: Callable[[], int]


class DeviceCollector(Collector):
    """The device's own counts, read when metrics are scraped."""

    def __init__(self, counts: DeviceCounts) -> None:
        self._counts = counts

    def collect(self) -> Iterator[CounterMetricFamily]:
        counts, compiled = self._counts.graphs(), self._counts.compiled()
        yield CounterMetricFamily("asynclane_kernels_compiled", "GPU kernels compiled, not found in a cache", compiled)
        yield CounterMetricFamily("asynclane_graph_captures", "CUDA graphs captured", counts.captures)
        yield CounterMetricFamily(
            "asynclane_steps_without_graph", "Steps of a GPU of which a part ran without a graph", counts.eager_steps
        )


class Metrics:
    def __init__(self, pages_total: int = 0, device: DeviceCounts | None = None) -> None:
        self.registry = registry = CollectorRegistry()
        self.exposed: Collector = registry
        self._log, self._gaps, self._processes = LogCollector(), Gaps(), Processes()
        for collector in (self._log, self._gaps, self._processes):
            registry.register(collector)
        if device is not None:
            registry.register(DeviceCollector(device))

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"asynclane_{name}", text, labels, registry=registry)

        def gauge(name: str, text: str, *labels: str) -> Gauge:
            return Gauge(f"asynclane_{name}", text, labels, registry=registry)

        def histogram(name: str, text: str, buckets: tuple[float, ...], *labels: str) -> Histogram:
            return Histogram(f"asynclane_{name}", text, labels, registry=registry, buckets=buckets)

        self._responses = counter("http_responses", "HTTP responses by status", "status")
        self._requests = counter("requests", "Answers that ended, by outcome", "outcome")
        self._aborts = counter("aborts", "Answers that were given up, by the state they were in", "state")
        self._step_failures = counter("step_failures", "Steps that raised an error")
        self._forwards = counter("forwards", "Steps of the model")
        self._computed = counter("computed_tokens", "Positions computed")
        self._committed = counter("committed_tokens", "Answer tokens that became final")
        self._forks = counter("forks", "Lanes forked at a delimiter")
        self._cancelled = counter("cancelled_lanes", "Lanes cancelled after an end or a stop string")
        self._refreshes = counter("refreshes", "Rows that recomputed cached positions")
        self._reused = counter("reused_refreshes", "Refreshes whose logits drove their step, at no extra forward")
        self._prompts = counter("prefix_cache_query_tokens", "Prompt tokens of answers that ran")
        self._cached = counter("prefix_cache_hit_tokens", "Prompt tokens whose keys and values were cached")
        self._queued = gauge("queue_depth", "Requests that wait")
        self._running = gauge("running_requests", "Requests that run")
        self._positions = gauge("positions_in_flight", "Canvas positions still masked of requests that wait or run")
        self._pages_used = gauge("kv_pages_used", "Pages of keys and values in use")
        self._pages_kept = gauge("kv_pages_kept", "Unused pages, kept for prompts that begin with their tokens")
        gauge("kv_pages", "Pages of keys and values in all").set(pages_total)
        self._row_tokens = histogram("step_row_tokens", "Positions of one step", ROW_TOKENS)
        self._budget_share = histogram("step_budget_share", "Positions of a step over its budget", SHARES)
        self._per_forward = histogram("tokens_per_forward", "Answer tokens per forward, by request", TOKENS)
        self._request_forwards = histogram("request_forwards", "Forwards of an answer that ended", COUNTS)
        self._answer_tokens = histogram("request_answer_tokens", "Answer tokens of an answer that ended", COUNTS)
        self._queue_s = histogram("queue_seconds", "From arrival to the first step", QUEUE_SECONDS)
        self._first_token = histogram("time_to_first_token_seconds", "Until the first text", WAIT_SECONDS)
        self._per_token = histogram("time_per_output_token_seconds", "Between tokens", TOKEN_SECONDS)
        self._end_to_end = histogram("request_seconds", "From arrival to the last token", WAIT_SECONDS)
        self._frontends = gauge("frontends", "Front-end processes that serve; 0 if the engine's process does")
        self._up = gauge("engine_up", "1 while the engine computes steps or waits for requests, 0 once it has ended")
        age = gauge("last_step_age_seconds", "Since the last step that succeeded, or since the start")
        self._stepped = time.monotonic()
        age.set_function(lambda: time.monotonic() - self._stepped)
        # Children are looked up once: `labels` takes a lock and a dictionary.
        lanes = gauge("live_lanes", "Lanes that are being decoded, by role", "role")
        self._refine_lanes, self._generate_lanes = lanes.labels("refine"), lanes.labels("generate")
        seconds = histogram("step_seconds", "Time of a step, by who spent it", STEP_SECONDS, "part")
        self._host_s, self._device_s = seconds.labels("host"), seconds.labels("device")

    def exposition(self) -> bytes:
        return generate_latest(self.exposed)

    async def scrape(self) -> bytes:
        """As a front end in the engine's process does."""
        return self.exposition()

    def http_response(self, status: int, count: int = 1) -> None:
        self._responses.labels(str(status)).inc(count)

    def chunk_read(self, gap_s: float) -> None:
        """See `AnswerMetrics`."""
        self._gaps.observe(gap_s)

    def answer_read(self, answer: AnswerTimes) -> None:
        """See `AnswerMetrics`."""
        tokens, first_text_s = answer.completion_tokens, answer.first_text_s
        self._end_to_end.observe(answer.seconds)
        if first_text_s is not None:
            self._first_token.observe(first_text_s)
            if tokens > 1:
                self._per_token.observe((answer.seconds - first_text_s) / (tokens - 1))

    def frontend_counted(self, counts: Counts) -> None:
        """A front end in another process has seen this."""
        for status, count in counts.responses:
            self.http_response(status, count)
        for answer in counts.answers:
            self.answer_read(answer)
        self._gaps.add(counts.gaps, counts.gaps_s)
        self._log.elsewhere += counts.lines_dropped

    def observe_frontends(self, serving: Mapping[str, int]) -> None:
        """The numbers of the processes of the front ends that serve, by name."""
        self._frontends.set(len(serving))
        self._processes.follow(serving)

    def count_positions(self, positions_in_flight: Callable[[], int]) -> None:
        """Call this function when metrics are scraped, on the event loop of the engine."""
        self._positions.set_function(positions_in_flight)

    def observe_step(self, step: StepReport) -> None:
        self._stepped = time.monotonic()
        self._forwards.inc()
        self._computed.inc(step.row_tokens)
        self._committed.inc(step.committed)
        self._row_tokens.observe(step.row_tokens)
        if step.budget_tokens:
            self._budget_share.observe(step.row_tokens / step.budget_tokens)
        self._host_s.observe(step.host_s)
        self._device_s.observe(step.device_s)

    def observe_load(self, load: Load) -> None:
        """After each step, and when a request arrives or leaves."""
        self._queued.set(load.waiting)
        self._running.set(load.running)
        self._refine_lanes.set(load.refine_lanes)
        self._generate_lanes.set(load.generate_lanes)
        self._pages_used.set(load.pages_used)
        self._pages_kept.set(load.pages_kept)

    def engine_up(self, up: bool) -> None:
        """From any thread."""
        self._up.set(up)

    def step_failed(self) -> None:
        self._step_failures.inc()

    def request_began(self, queue_s: float) -> None:
        """A request has had its first step, before which it waited so long."""
        self._queue_s.observe(queue_s)

    def request_ended(self, outcome: str, tokens: int, stats: RequestStats) -> None:
        """`outcome` is stop, length or failed; the answer has so many `tokens`."""
        self._requests.labels(outcome).inc()
        if stats.forwards:
            self._per_forward.observe(tokens / stats.forwards)
            self._request_forwards.observe(stats.forwards)
            self._answer_tokens.observe(tokens)
        self._count_work(stats)

    def request_aborted(self, state: str, stats: RequestStats, outcome: str = "aborted") -> None:
        """The client left, or its time is up (timeout); `state` is that of its request: waiting, running and so on."""
        self._requests.labels(outcome).inc()
        self._aborts.labels(state).inc()
        self._count_work(stats)

    def _count_work(self, stats: RequestStats) -> None:
        self._forks.inc(stats.forks)
        self._cancelled.inc(stats.cancelled_lanes)
        self._refreshes.inc(stats.refreshes)
        self._reused.inc(stats.reused_refreshes)
        self._prompts.inc(stats.prompt_tokens)
        self._cached.inc(stats.cached_tokens)
