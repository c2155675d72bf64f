"""Operators see what the server is and does."""

from __future__ import annotations

from typing import Any

import pytest

from asynclane.scheduler import Load, RequestStats
from asynclane.server.engine.messages import Health, Usage
from asynclane.server.metrics import Metrics, RequestReport, StepReport

from ...support.fake_engine import FakeEngine
from ...support.http import PARAMS, error_of


async def test_the_models_say_how_long_a_context_and_which_decoders(api: Any) -> None:
    async with api() as client:
        listed = (await client.http.get("/v1/models")).json()
        single = (await client.http.get("/v1/models/tiny-llada")).json()
    assert listed == {"object": "list", "data": [single]}
    assert single["id"] == "tiny-llada"
    assert single["max_model_len"] == 256
    assert single["decoders"] == {"asynclane": PARAMS}
    assert single["default_decoder"] == "asynclane"


async def test_defaults_of_knobs_are_shown_as_the_knobs_take_them(api: Any) -> None:
    """Each can be sent back: a whole number with a fraction would be refused."""
    async with api() as client:
        shown = (await client.http.get("/v1/models")).text
    assert '"max_lanes":4,' in shown
    assert '"settle":true,' in shown
    assert '"threshold":0.95,' in shown
    assert '"lookahead":"canvas"' in shown


@pytest.mark.parametrize("name", ["other", "org/other"])
async def test_another_model_is_not_found(api: Any, name: str) -> None:
    async with api() as client:
        response = await client.http.get(f"/v1/models/{name}")
    assert response.status_code == 404
    assert error_of(response)["code"] == "model_not_found"


async def test_a_server_that_drains_lives_but_is_not_ready(api: Any) -> None:
    engine = FakeEngine()
    async with api(engine) as client:
        assert (await client.http.get("/ready")).status_code == 200
        engine.health = Health(ready=False)
        assert (await client.http.get("/ready")).status_code == 503
        assert (await client.http.get("/health")).status_code == 200


async def test_the_version_is_told(api: Any) -> None:
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
    async with api(FakeEngine([RuntimeError("x")])) as client:
        await client.chat(temperature=9)
        await client.chat()
        scraped = await client.http.get("/metrics")
    assert scraped.headers["content-type"].startswith("text/plain")
    assert 'asynclane_http_responses_total{status="400"} 1.0' in scraped.text
    assert 'asynclane_http_responses_total{status="500"} 1.0' in scraped.text


def value(metrics: Metrics, name: str, **labels: str) -> float | None:
    return metrics.registry.get_sample_value(f"asynclane_{name}", labels)


def test_a_step_moves_what_it_reports() -> None:
    metrics = Metrics(pages_total=100)
    step = StepReport(row_tokens=64, budget_tokens=128, committed=5, host_s=0.001, device_s=0.007)
    metrics.observe_step(step)
    metrics.observe_step(step)
    metrics.observe_load(Load(3, 2, refine_lanes=1, generate_lanes=2, pages_used=40, pages_kept=30, pages_total=100))
    assert value(metrics, "forwards_total") == 2
    assert value(metrics, "computed_tokens_total") == 128
    assert value(metrics, "committed_tokens_total") == 10
    assert value(metrics, "queue_depth") == 3
    assert value(metrics, "running_requests") == 2
    assert value(metrics, "live_lanes", role="refine") == 1
    assert value(metrics, "live_lanes", role="generate") == 2
    assert value(metrics, "kv_pages_used") == 40
    assert value(metrics, "kv_pages_kept") == 30
    assert value(metrics, "kv_pages") == 100
    assert value(metrics, "step_row_tokens_sum") == 128
    assert value(metrics, "step_budget_share_sum") == 1.0
    assert value(metrics, "step_seconds_count", part="host") == 2
    assert value(metrics, "step_seconds_sum", part="device") == pytest.approx(0.014)


def test_requests_are_counted_by_how_they_end() -> None:
    metrics = Metrics()
    stats = RequestStats(70, 48, 90, forwards=4, lanes=4, forks=1, cancelled_lanes=2, refreshes=1, reused_refreshes=1)
    metrics.request_ended("stop", RequestReport(Usage(11, stats), 1.2, first_text_s=0.2))
    metrics.request_ended("failed", RequestReport(Usage(), 1.0))
    metrics.request_aborted("waiting", RequestStats(forks=1, prompt_tokens=5))
    metrics.step_failed()
    assert value(metrics, "requests_total", outcome="stop") == 1
    assert value(metrics, "requests_total", outcome="failed") == 1
    assert value(metrics, "requests_total", outcome="aborted") == 1
    assert value(metrics, "aborts_total", state="waiting") == 1
    assert value(metrics, "step_failures_total") == 1
    assert value(metrics, "forks_total") == 2
    assert value(metrics, "cancelled_lanes_total") == 2
    assert value(metrics, "refreshes_total") == value(metrics, "reused_refreshes_total") == 1
    assert value(metrics, "prefix_cache_query_tokens_total") == 75
    assert value(metrics, "prefix_cache_hit_tokens_total") == 48
    assert value(metrics, "time_to_first_token_seconds_sum") == 0.2
    assert value(metrics, "time_per_output_token_seconds_sum") == pytest.approx(0.1)
    assert value(metrics, "tokens_per_forward_sum") == 2.75
    assert value(metrics, "request_seconds_count") == 2


def test_two_servers_in_a_process_do_not_mix() -> None:
    one, two = Metrics(), Metrics()
    one.step_failed()
    assert value(two, "step_failures_total") == 0
