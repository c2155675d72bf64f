"""Metrics under the names that vLLM has for them: routers, dashboards and autoscalers know those.

Nothing is counted twice: each sample of the server's own metrics is exposed once more, with the label `model_name`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

NAMES = {
    "vllm:num_requests_running": "asynclane_running_requests",
    "vllm:num_requests_waiting": "asynclane_queue_depth",
    "vllm:prefix_cache_queries": "asynclane_prefix_cache_query_tokens",
    "vllm:prefix_cache_hits": "asynclane_prefix_cache_hit_tokens",
    "vllm:prompt_tokens": "asynclane_prefix_cache_query_tokens",
    "vllm:generation_tokens": "asynclane_committed_tokens",
    "vllm:time_to_first_token_seconds": "asynclane_time_to_first_token_seconds",
    "vllm:inter_token_latency_seconds": "asynclane_chunk_gap_seconds",
    "vllm:e2e_request_latency_seconds": "asynclane_request_seconds",
    "vllm:request_queue_time_seconds": "asynclane_queue_seconds",
}
REASONS = {"stop": "stop", "length": "length", "aborted": "abort", "timeout": "abort", "failed": "error"}


@dataclass(frozen=True, slots=True)
class CacheConfig:
    """The cache of keys and values: so many pages of so many positions, whether prompts share them, and the setting of
    their type."""

    pages: int
    page_size: int
    prefix_sharing: bool
    dtype: str


class WithVllmNames(Collector):
    """The metrics of `source`, and those that vLLM has under its names as well."""

    def __init__(self, source: Collector, model_name: str, cache: CacheConfig) -> None:
        self._source = source
        self._model = {"model_name": model_name}
        self._cache = cache

    def collect(self) -> Iterator[Metric]:
        own = {family.name: family for family in self._source.collect()}
        yield from own.values()
        for name, source in NAMES.items():
            yield self._renamed(own[source], name)
        yield self._usage(own["asynclane_kv_pages_used"])
        yield self._cache_info()
        yield self._successes(own["asynclane_requests"])

    def _renamed(self, family: Metric, name: str) -> Metric:
        """The same samples, without the times at which they were created."""
        found = Metric(name, family.documentation, family.type)
        for sample in family.samples:
            ending = sample.name.removeprefix(family.name)
            if ending != "_created":
                found.add_sample(name + ending, sample.labels | self._model, sample.value)
        return found

    def _usage(self, used: Metric) -> Metric:
        share = sum(sample.value for sample in used.samples) / max(1, self._cache.pages)
        found = GaugeMetricFamily(
            "vllm:kv_cache_usage_perc", "Share of pages in use, from 0 to 1", labels=[*self._model]
        )
        found.add_metric([*self._model.values()], share)
        return found

    def _cache_info(self) -> Metric:
        labels = self._model | {
            "block_size": str(self._cache.page_size),
            "num_gpu_blocks": str(self._cache.pages),
            "enable_prefix_caching": str(self._cache.prefix_sharing),
            "cache_dtype": self._cache.dtype,
        }
        found = GaugeMetricFamily("vllm:cache_config_info", "Pages of keys and values; always 1", labels=[*labels])
        found.add_metric([*labels.values()], 1)
        return found

    def _successes(self, ended: Metric) -> Metric:
        totals = dict.fromkeys(REASONS.values(), 0.0)
        for sample in ended.samples:
            if sample.name.endswith("_total"):
                totals[REASONS[sample.labels["outcome"]]] += sample.value
        labels = ("finished_reason", *self._model)
        found = CounterMetricFamily("vllm:request_success", ended.documentation, labels=labels)
        for reason, total in totals.items():
            found.add_metric([reason, *self._model.values()], total)
        return found
