"""Endpoints for operators, and the metrics that they scrape."""

from __future__ import annotations

import os
from typing import Any, cast

import httpx
import pytest

from asynclane.models.exec.runner import GraphCounts
from asynclane.scheduler import Load, Outcome, RequestStats
from asynclane.server.app import ModelCard, create_app
from asynclane.server.engine.messages import AnswerSource, AnswerTimes, Counts, Health
from asynclane.server.metrics import GAP_SECONDS, DeviceCounts, Gaps, Metrics, StepReport
from asynclane.server.settings import Settings
from asynclane.server.text.tokenizer import Tokenizer
from asynclane.server.vllm_names import CacheConfig, WithVllmNames

from ...support.fake_engine import FakeEngine
from ...support.http import CHAT, CONTEXT, CREATED, PARAMS, error_of


async def test_the_models_say_how_long_a_context_and_which_decoders(api: Any) -> None:
    async with api() as client:
        listed = (await client.http.get("/v1/models")).json()
        single = (await client.http.get("/v1/models/tiny-llada")).json()
    assert listed == {"object": "list", "data": [single]}
    assert single["id"] == "tiny-llada"
    assert single["max_model_len"] == 256
    assert single["created"] == CREATED
    assert single["decoders"] == {"asynclane": PARAMS}
    assert single["default_decoder"] == "asynclane"


async def test_each_name_of_the_model_is_listed_and_answers(text: Tokenizer) -> None:
    card = ModelCard("one", CONTEXT, {"asynclane": PARAMS}, "asynclane", CREATED, aliases=("org/two",))
    app = create_app(cast(AnswerSource, FakeEngine()), text, Settings(), Metrics(), card)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as http:
        listed = (await http.get("/v1/models")).json()["data"]
        assert [each["id"] for each in listed] == ["one", "org/two"]
        assert (await http.get("/v1/models/org/two")).json() == listed[1]
        for given, named in (({}, "one"), ({"model": "one"}, "one"), ({"model": "org/two"}, "org/two")):
            answer = (await http.post("/v1/chat/completions", json={**CHAT, "model": None, **given})).json()
            assert answer["model"] == named
        refused = error_of(await http.post("/v1/chat/completions", json={**CHAT, "model": "two"}), 404)
    assert "this server has 'one', 'org/two'" in refused["message"]


async def test_defaults_of_decoding_parameters_can_be_sent_back(api: Any) -> None:
    """A whole number with a fraction would be refused."""
    async with api() as client:
        shown = (await client.http.get("/v1/models")).text
    assert all(f'"{default}' in shown for default in ('max_lanes":4,', 'settle":true,', 'threshold":0.95,'))
    assert '"lookahead":"canvas"' in shown


@pytest.mark.parametrize("name", ["other", "org/other"])
async def test_another_model_is_not_found(api: Any, name: str) -> None:
    async with api() as client:
        assert error_of(await client.http.get(f"/v1/models/{name}"), 404)["code"] == "model_not_found"


@pytest.mark.parametrize("path", ["/v1/models/", "/health/", "/v1/models/tiny-llada/", "//"])
async def test_a_slash_at_the_end_of_a_path_changes_nothing(api: Any, path: str) -> None:
    """Without a redirect, in which the prefix of a proxy would be lost."""
    async with api() as client:
        with_slash, without = [await client.http.get(form) for form in (path, path.rstrip("/") or "/")]
    assert with_slash.status_code == 200
    assert with_slash.content == without.content


async def test_a_path_that_is_not_there_lists_those_that_are(api: Any) -> None:
    async with api() as client:
        message = error_of(await client.http.get("/v1/nowhere"), 404)["message"]
    assert "there are /, /openapi.json, /v1/chat/completions" in message


async def test_a_server_that_drains_lives_but_is_not_ready(api: Any) -> None:
    engine = FakeEngine()
    async with api(engine) as client:
        assert (await client.http.get("/ready")).status_code == 200
        engine.health = Health(ready=False)
        assert (await client.http.get("/ready")).status_code == 503
        assert (await client.http.get("/health")).status_code == 200


async def test_a_server_whose_engine_has_failed_says_so_to_all_probes(api: Any) -> None:
    engine = FakeEngine()
    engine.health = Health(ready=False, failure="the device is lost")
    async with api(engine) as client:
        for path in ("/ready", "/health"):
            response = await client.http.get(path)
            assert (response.status_code, response.json()) == (503, {"status": "failed: the device is lost"})
            assert (await client.http.head(path)).status_code == 503


async def test_the_version_is_reported(api: Any) -> None:
    async with api() as client:
        assert (await client.http.get("/version")).json()["version"]


async def test_request_ids_are_echoed_or_made(api: Any) -> None:
    async with api() as client:
        echoed = await client.http.get("/health", headers={"x-request-id": "abc-1"})
        made = [await client.http.get("/health") for _ in range(2)]
        refused = await client.http.get("/health", headers={"x-request-id": "x" * 129})
    assert echoed.headers["x-request-id"] == "abc-1"
    assert len({response.headers["x-request-id"] for response in made}) == 2
    assert len(refused.headers["x-request-id"]) == 32


async def test_responses_are_counted_by_status(api: Any) -> None:
    async with api(FakeEngine([RuntimeError("x")]), max_queue=77) as client:  # with counters of its own
        await client.chat(temperature=9)
        await client.chat()
        scraped = await client.http.get("/metrics")
    assert scraped.headers["content-type"].startswith("text/plain")
    assert 'asynclane_http_responses_total{status="400"} 1.0' in scraped.text
    assert 'asynclane_http_responses_total{status="500"} 1.0' in scraped.text


def values(metrics: Metrics, *names: str) -> list[float | None]:
    """Samples by name, with a label's value after a space."""
    labels = {"refine": "role", "generate": "role", "host": "part", "device": "part", "waiting": "state"}
    found = []
    for name in names:
        sample, _, label = name.partition(" ")
        given = {labels.get(label, "outcome"): label} if label else {}
        found.append(metrics.registry.get_sample_value(f"asynclane_{sample}", given))
    return found


def test_a_step_moves_what_it_reports() -> None:
    metrics = Metrics(pages_total=100)
    step = StepReport(row_tokens=64, budget_tokens=128, committed=5, host_s=0.001, device_s=0.007)
    metrics.observe_step(step)
    metrics.observe_step(step)
    metrics.observe_load(Load(3, 2, refine_lanes=1, generate_lanes=2, pages_used=40, pages_kept=30, pages_total=100))
    assert values(metrics, "forwards_total", "computed_tokens_total", "committed_tokens_total") == [2, 128, 10]
    assert values(metrics, "queue_depth", "running_requests") == [3, 2]
    assert values(metrics, "live_lanes refine", "live_lanes generate") == [1, 2]
    assert values(metrics, "kv_pages_used", "kv_pages_kept", "kv_pages") == [40, 30, 100]
    assert values(metrics, "step_row_tokens_sum", "step_budget_share_sum", "step_seconds_count host") == [128, 1.0, 2]
    assert values(metrics, "step_seconds_sum device") == [pytest.approx(0.014)]


def test_graphs_and_kernels_are_counted_by_the_device() -> None:
    counts = [GraphCounts(5, 0), GraphCounts(5, 7)]
    metrics = Metrics(device=DeviceCounts(lambda: counts[0], lambda: 10 * len(counts)))
    names = "graph_captures_total", "steps_without_graph_total", "kernels_compiled_total"
    assert values(metrics, *names) == [5, 0, 20]
    del counts[0]
    assert values(metrics, *names) == [5, 7, 10]
    assert values(Metrics(), *names) == [None, None, None]


def test_requests_are_counted_by_how_they_end() -> None:
    metrics = Metrics()
    stats = RequestStats(70, 48, 90, forwards=4, lanes=4, forks=1, cancelled_lanes=2, refreshes=1, reused_refreshes=1)
    metrics.request_ended("stop", 11, stats)
    metrics.answer_read(AnswerTimes(11, 1.2, first_text_s=0.2))
    metrics.request_began(0.3)
    metrics.request_ended("failed", 0, RequestStats())
    metrics.request_aborted("waiting", RequestStats(forks=1, prompt_tokens=5))
    metrics.step_failed()
    assert values(metrics, *(f"requests_total {end}" for end in ("stop", "failed", "aborted"))) == [1, 1, 1]
    assert values(metrics, "aborts_total waiting", "step_failures_total") == [1, 1]
    assert values(metrics, "forks_total", "cancelled_lanes_total") == [2, 2]
    assert values(metrics, "refreshes_total", "reused_refreshes_total") == [1, 1]
    assert values(metrics, "prefix_cache_query_tokens_total", "prefix_cache_hit_tokens_total") == [75, 48]
    assert values(metrics, "time_to_first_token_seconds_sum", "tokens_per_forward_sum") == [0.2, 2.75]
    assert values(metrics, "time_per_output_token_seconds_sum") == [pytest.approx(0.1)]
    assert values(metrics, "request_seconds_count", "queue_seconds_sum") == [1, 0.3]
    assert values(metrics, "request_forwards_sum", "request_answer_tokens_sum") == [4, 11]
    assert values(metrics, "request_forwards_count", "request_answer_tokens_count") == [1, 1]


def test_counts_of_front_ends_in_other_processes_are_added() -> None:
    metrics = Metrics()
    metrics.http_response(200)
    for _ in range(2):
        metrics.frontend_counted(Counts(((200, 3), (429, 1)), (AnswerTimes(5, 1.0, 0.5), AnswerTimes(0, 1.0)), 4))
    metrics.observe_frontends({"frontend-1": os.getpid(), "frontend-2": 2**22 + 1})
    text = metrics.exposition().decode()
    assert 'asynclane_http_responses_total{status="200"} 7.0' in text
    assert 'asynclane_http_responses_total{status="429"} 2.0' in text
    assert "asynclane_log_lines_dropped_total 8.0" in text
    assert values(metrics, "request_seconds_count", "time_to_first_token_seconds_sum", "frontends") == [4, 1.0, 2]


def test_the_age_of_the_last_step_grows_until_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    metrics = Metrics()
    now = 130.0
    assert values(metrics, "last_step_age_seconds", "engine_up") == [30, 0]
    metrics.step_failed()
    assert values(metrics, "last_step_age_seconds") == [30]
    metrics.observe_step(StepReport(1, 1, 1, 0.0, 0.0))
    metrics.engine_up(True)
    now = 131.0
    assert values(metrics, "last_step_age_seconds", "engine_up") == [1, 1]


def gaps(metrics: Metrics) -> list[float | None]:
    """How many are in each bucket."""
    bounds = [*map(str, GAP_SECONDS), "+Inf"]
    return [metrics.registry.get_sample_value("asynclane_chunk_gap_seconds_bucket", {"le": bound}) for bound in bounds]


def test_gaps_between_chunks_are_counted_here_and_in_other_processes() -> None:
    metrics, front_end = Metrics(), Gaps()
    for gap_s in (0.0, 0.001, 0.0011, 3.0, 60.0):
        metrics.chunk_read(gap_s)
        front_end.observe(gap_s)
    counts, total_s = front_end.take()
    assert front_end.take() == ((), 0.0)
    metrics.frontend_counted(Counts(gaps=counts, gaps_s=total_s))
    metrics.frontend_counted(Counts())
    assert gaps(metrics) == [4, *[6] * 11, 8, 8, 10]
    assert values(metrics, "chunk_gap_seconds_count") == [10]
    assert values(metrics, "chunk_gap_seconds_sum") == [pytest.approx(2 * 63.0021)]


def test_processes_of_front_ends_are_among_the_metrics_while_they_serve() -> None:
    """One that has just ended has none."""
    metrics = Metrics()

    def processes(name: str) -> set[str]:
        families = {family.name: family for family in metrics.registry.collect()}
        return {sample.labels["process"] for sample in families[name].samples}

    metrics.observe_frontends({"frontend-1": os.getpid(), "frontend-2": 2**22 + 1})
    for name in ("process_resident_memory_bytes", "process_cpu_seconds", "process_open_fds"):
        assert processes(name) == {"engine", "frontend-1"}
    metrics.observe_frontends({})
    assert processes("process_resident_memory_bytes") == {"engine"}


def test_metrics_have_vllm_s_names_too_with_the_same_values() -> None:
    metrics = Metrics(pages_total=200)
    metrics.exposed = WithVllmNames(
        metrics.registry, 'a "model"', CacheConfig(200, 64, prefix_sharing=True, dtype="fp8")
    )
    for outcome in Outcome:
        metrics.request_ended(outcome.value, 9, RequestStats(prompt_tokens=70, cached_tokens=48, forwards=3))
    metrics.request_aborted("running", RequestStats(), "timeout")
    metrics.observe_load(Load(3, 2, refine_lanes=1, generate_lanes=2, pages_used=50, pages_kept=30, pages_total=200))
    metrics.observe_step(StepReport(row_tokens=64, budget_tokens=128, committed=5, host_s=0.001, device_s=0.007))
    metrics.chunk_read(0.015)
    text = metrics.exposition().decode()
    lines = {line for line in text.splitlines() if line.startswith("vllm:")}
    model = 'model_name="a \\"model\\""'
    labels = f'block_size="64",cache_dtype="fp8",enable_prefix_caching="True",{model},num_gpu_blocks="200"'
    assert {
        f"vllm:num_requests_waiting{{{model}}} 3.0",
        f"vllm:num_requests_running{{{model}}} 2.0",
        f"vllm:kv_cache_usage_perc{{{model}}} 0.25",
        f"vllm:cache_config_info{{{labels}}} 1.0",
        f"vllm:prompt_tokens_total{{{model}}} 280.0",
        f"vllm:prefix_cache_hits_total{{{model}}} 192.0",
        f"vllm:generation_tokens_total{{{model}}} 5.0",
        f'vllm:request_success_total{{finished_reason="abort",{model}}} 2.0',
        f'vllm:request_success_total{{finished_reason="error",{model}}} 1.0',
        f'vllm:inter_token_latency_seconds_bucket{{le="0.02",{model}}} 1.0',
        f"vllm:inter_token_latency_seconds_sum{{{model}}} 0.015",
    } <= lines
    assert "# TYPE vllm:prompt_tokens_total counter" in text
    assert "# TYPE vllm:inter_token_latency_seconds histogram" in text
    assert all(model in line for line in lines)
    assert not [line for line in lines if "_created" in line]
    assert "vllm:" not in Metrics().exposition().decode()
