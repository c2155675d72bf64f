"""Metrics of a real server: each name is scraped after traffic, and its value has moved."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from ..support.servers import SLOW, STORY, idle, start_server, stop_server, wait_for

MODEL = "tiny-sdar"  # whose prompts are cached
Labels = frozenset[tuple[str, str]]
Scrape = dict[tuple[str, Labels], float]

# Samples that have grown after traffic, with some of their labels.
GROWING = [
    "asynclane_queue_seconds_count",
    "asynclane_queue_seconds_sum",
    "asynclane_chunk_gap_seconds_count",
    "asynclane_chunk_gap_seconds_sum",
    "asynclane_request_forwards_sum",
    "asynclane_request_answer_tokens_sum",
    "asynclane_prefix_cache_query_tokens_total",
    "asynclane_prefix_cache_hit_tokens_total",
    "process_cpu_seconds_total process=engine",
    "vllm:prefix_cache_queries_total",
    "vllm:prefix_cache_hits_total",
    "vllm:prompt_tokens_total",
    "vllm:generation_tokens_total",
    "vllm:time_to_first_token_seconds_count",
    "vllm:time_to_first_token_seconds_sum",
    "vllm:time_to_first_token_seconds_bucket le=+Inf",
    "vllm:inter_token_latency_seconds_count",
    "vllm:inter_token_latency_seconds_sum",
    "vllm:inter_token_latency_seconds_bucket le=+Inf",
    "vllm:e2e_request_latency_seconds_count",
    "vllm:e2e_request_latency_seconds_sum",
    "vllm:e2e_request_latency_seconds_bucket le=+Inf",
    "vllm:request_queue_time_seconds_count",
    "vllm:request_queue_time_seconds_sum",
    "vllm:request_queue_time_seconds_bucket le=+Inf",
    "vllm:request_success_total finished_reason=stop",
    "vllm:request_success_total finished_reason=length",
    "vllm:request_success_total finished_reason=abort",
]
# Gauges that are 0 while the server is idle, and were above it meanwhile.
RISING = [
    "asynclane_positions_in_flight",
    "asynclane_running_requests",
    "asynclane_queue_depth",
    "vllm:num_requests_running",
    "vllm:num_requests_waiting",
    "vllm:kv_cache_usage_perc",
]
# Gauges that never have the value 0, and counters that a CPU leaves at 0.
STEADY = [
    "asynclane_engine_up",
    "asynclane_last_step_age_seconds",
    "process_resident_memory_bytes process=engine",
    "process_start_time_seconds process=engine",
    "process_open_fds process=engine",
]
ZERO_ON_A_CPU = ["asynclane_graph_captures_total", "asynclane_kernels_compiled_total"]


class Seen(NamedTuple):
    """Scrapes before, during and after traffic."""

    front_ends: int
    before: Scrape
    during: list[Scrape]
    after: Scrape

    @property
    def all(self) -> list[Scrape]:
        return [self.before, *self.during, self.after]


def scrape(url: str) -> Scrape:
    families = text_string_to_metric_families(httpx.get(f"{url}/metrics", timeout=30).text)
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in families
        for sample in family.samples
    }


def value(found: Scrape, wanted: str) -> float:
    """The sample with a name and labels; those of vLLM have the model's name too."""
    name, *labels = wanted.split()
    given = dict(label.split("=") for label in labels)
    if name.startswith("vllm:"):
        given["model_name"] = MODEL
    return found[name, frozenset(given.items())]


def give_work(url: str) -> None:
    """Answers of each end, more at once than may run, some as streams and from the same prompt; and a client that
    leaves."""
    chat = {"model": MODEL, "messages": [{"role": "user", "content": STORY}]}
    bodies: list[dict[str, Any]] = [
        {**chat, "max_tokens": 4},
        *[{**chat, "max_tokens": 100, "seed": seed, "stream": seed % 2 == 0} for seed in range(5)],
    ]
    with httpx.Client(base_url=url, timeout=120) as http:
        with ThreadPoolExecutor(len(bodies)) as pool:
            done = pool.map(lambda body: http.post("/v1/chat/completions", json=body).status_code, bodies)
        assert set(done) == {200}
        long = {**chat, "max_tokens": 200, "stop": ["no such text"], "ignore_eos": True, "stream": True}
        with http.stream("POST", "/v1/chat/completions", json=long) as left:
            next(left.iter_lines())


@pytest.fixture(scope="module", params=[pytest.param(0, marks=SLOW), 1], ids=["one-process", "one-front-end"])
def seen(request: pytest.FixtureRequest) -> Iterator[Seen]:
    flags = ["--model", MODEL, "--max-num-seqs", "2", "--threads", "1"]
    server = start_server(*flags, "--frontends", str(request.param))
    try:
        before, during = scrape(server.url), []
        with ThreadPoolExecutor(1) as pool:
            work = pool.submit(give_work, server.url)
            while not work.done():
                during.append(scrape(server.url))
                time.sleep(0.05)
        work.result()
        wait_for(lambda: value(scrape(server.url), "vllm:request_success_total finished_reason=abort") > 0)
        wait_for(lambda: idle(server.url))
        yield Seen(request.param, before, during, scrape(server.url))
    finally:
        stop_server(server)


@pytest.mark.parametrize("name", GROWING)
def test_a_counter_grows(seen: Seen, name: str) -> None:
    values = [value(found, name) for found in seen.all]
    assert values == sorted(values)
    assert values[-1] > values[0]


@pytest.mark.parametrize("name", RISING)
def test_a_gauge_rises_and_falls(seen: Seen, name: str) -> None:
    values = [value(found, name) for found in seen.all]
    assert values[0] == values[-1] == 0
    assert max(values) > 0
    assert max(values) <= 1 or "perc" not in name


@pytest.mark.parametrize("name", STEADY)
def test_a_gauge_has_a_value(seen: Seen, name: str) -> None:
    assert min(value(found, name) for found in seen.all) > 0


@pytest.mark.parametrize("name", ZERO_ON_A_CPU)
def test_a_counter_of_gpus_is_there(seen: Seen, name: str) -> None:
    assert value(seen.after, name) == 0


def test_the_age_of_the_last_step_moves(seen: Seen) -> None:
    ages = [value(found, "asynclane_last_step_age_seconds") for found in seen.all]
    assert min(ages[1:]) < ages[0]


def test_the_cache_is_described_by_labels(seen: Seen) -> None:
    (found,) = [dict(labels) for name, labels in seen.after if name == "vllm:cache_config_info"]
    pages = int(value(seen.after, "asynclane_kv_pages"))
    assert found == {
        "model_name": MODEL,
        "block_size": "16",
        "num_gpu_blocks": str(pages),
        "enable_prefix_caching": "True",
        "cache_dtype": "auto",
    }


def test_each_process_has_metrics(seen: Seen) -> None:
    expected = {"engine", *(f"frontend-{number + 1}" for number in range(seen.front_ends))}
    for name in ("process_cpu_seconds_total", "process_resident_memory_bytes"):
        assert {dict(labels)["process"] for found, labels in seen.after if found == name} == expected


def test_both_names_of_a_metric_have_one_value(seen: Seen) -> None:
    for found in seen.all:
        for ours, theirs in (
            ("asynclane_running_requests", "vllm:num_requests_running"),
            ("asynclane_committed_tokens_total", "vllm:generation_tokens_total"),
            ("asynclane_chunk_gap_seconds_sum", "vllm:inter_token_latency_seconds_sum"),
        ):
            assert value(found, ours) == value(found, theirs)


def test_the_tables_have_all_of_vllm_s_names(seen: Seen) -> None:
    listed = {"vllm:cache_config_info", *(name.split()[0] for name in (*GROWING, *RISING))}
    scraped = {name for name, _ in seen.after}
    assert {name for name in scraped if name.startswith("vllm:")} == {one for one in listed if one.startswith("vllm:")}
