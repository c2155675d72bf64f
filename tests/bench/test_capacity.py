"""The simulated fleet is queueing theory's where that has closed forms, and loses no request."""

from __future__ import annotations

import asyncio
import heapq
import json
import shutil
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

from asynclane.bench.capacity.curve import Replica, point, read, replica
from asynclane.bench.capacity.fleet import KINDS, Fleet, Lengths, Request, percentile, poisson
from asynclane.bench.capacity.proxy import HOST, StandIn, certificate, load, nginx, post, stand_in_event
from asynclane.bench.capacity.run import Goal, Size, attempt, closed_loop, highest, main
from asynclane.bench.report.capacity import capacity_section
from asynclane.bench.serving.run import MIXED_ANSWER, MIXED_PROMPT
from asynclane.scheduler.step_cost import StepCost

from ..support.scale import ALL, part

ROUND_S = 0.01
FLAT = StepCost([0, 1], [ROUND_S, ROUND_S])  # a step takes as long with any number of positions
ONE_ROUND = Lengths((1, 1), (1, 1))


def made_up(cost: StepCost = FLAT, slots: int = 1, chunk: int | None = None) -> Replica:
    """A forward commits one token, and computes one position."""
    return Replica("made up", cost, slots, 1.0, 1.0, 1, chunk)


def run(one: Replica, count: int, kind: str, requests: list[Request]) -> list[Request]:
    """Return the requests in the order in which they ended."""
    ended: list[Request] = []
    fleet = Fleet(one, count, kind, on_end=ended.append)
    for request in requests:
        fleet.arrive(request)
    fleet.finish()
    assert fleet.running == 0
    return ended


def waits(requests: list[Request], service_s: float) -> list[float]:
    return [request.end_s - request.arrived_s - service_s for request in requests]


@pytest.mark.parametrize("load", part([0.3, 0.7], 2))
def test_one_slot_of_equal_requests_is_m_d_1(load: float) -> None:
    ended = run(made_up(), 1, "random", poisson(load / ROUND_S, 50_000, ONE_ROUND, 1))
    expected = load * ROUND_S / (2 * (1 - load))
    assert fmean(waits(ended, ROUND_S)) == pytest.approx(expected, rel=0.05)


def test_a_random_router_makes_each_replica_a_queue_of_its_own() -> None:
    ended = run(made_up(), 5, "random", poisson(5 * 0.6 / ROUND_S, 50_000, ONE_ROUND, 2))
    assert fmean(waits(ended, ROUND_S)) == pytest.approx(0.6 * ROUND_S / (2 * 0.4), rel=0.05)


def test_least_work_is_one_queue_before_all_replicas() -> None:
    """Kiefer and Wolfowitz: whoever comes first goes to the server that is free first, here to within a round."""
    count, rounds = 4, 50
    requests = poisson(0.8 * count / (rounds * ROUND_S), 5_000, Lengths((1, 1), (rounds, rounds)), 3)
    run(made_up(), count, "least positions", requests)
    free, expected = [0.0] * count, []
    for request in requests:
        begins_s = max(request.arrived_s, heapq.heappop(free))
        expected.append(begins_s - request.arrived_s)
        heapq.heappush(free, begins_s + rounds * ROUND_S)
    found = waits(requests, rounds * ROUND_S)
    assert fmean(found) == pytest.approx(fmean(expected), rel=0.05)
    assert percentile(found, 0.99) == pytest.approx(percentile(expected, 0.99), rel=0.1)


def test_rounds_that_take_as_long_as_they_have_requests_share_the_processor() -> None:
    """M/G/1 with processor sharing: the mean time is that of the service over what is left of the load."""
    one = made_up(StepCost([0, 1000], [1e-12, 1000 * ROUND_S]), slots=1000, chunk=10**6)
    ended = run(one, 1, "random", poisson(0.5 / (30 * ROUND_S), 20_000, Lengths((0, 0), (10, 50)), 4))
    assert fmean(waits(ended, 0.0)) == pytest.approx(30 * ROUND_S / (1 - 0.5), rel=0.05)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("chunk", [None, 64])
def test_every_request_ends_once_after_its_forwards(kind: str, chunk: int | None) -> None:
    requests = poisson(60.0, 3_000, Lengths((1, 300), (1, 40)), 5)
    ended = run(made_up(slots=3, chunk=chunk), 4, kind, requests)
    assert len(ended) == len({id(request) for request in ended}) == len(requests)
    for request in ended:
        rounds = request.answer + (0 if chunk is None else -(-request.prompt // chunk))
        assert request.end_s - request.arrived_s >= rounds * ROUND_S - 1e-9
        assert request.arrived_s < request.first_s <= request.end_s


def test_positions_in_flight_are_back_at_none_when_all_have_ended() -> None:
    fleet = Fleet(made_up(slots=3, chunk=64), 2, "least positions")
    for request in poisson(50.0, 500, Lengths((1, 300), (1, 40)), 6):
        fleet.arrive(request)
    fleet.finish()
    assert abs(fleet._positions).max() < 1e-6


def test_prompts_share_the_chunk_of_a_round_and_streams_go_on_beside_them() -> None:
    linear = made_up(StepCost([0, 100], [1e-9, 1.0]), slots=8, chunk=100)
    stream = Request(0.0, 100, 4)
    first, second = Request(0.5, 150, 1), Request(0.6, 50, 1)
    run(linear, 1, "random", [stream, first, second])
    assert stream.first_s == pytest.approx(1.0 + 1.01)  # its prompt, and a forward beside 100 positions of another's
    assert first.first_s == pytest.approx(2.01 + 1.01 + 0.03)  # the chunk of the third round is whole: 50 and 50
    assert second.first_s == first.first_s


def test_a_router_by_requests_is_never_worse_than_chance() -> None:
    requests = [poisson(0.9 * 8 / ROUND_S, 20_000, ONE_ROUND, 7) for _ in KINDS]
    mean = {kind: fmean(waits(run(made_up(), 8, kind, some), 0.0)) for kind, some in zip(KINDS, requests, strict=True)}
    assert mean["least requests"] < mean["two choices"] < mean["random"]
    assert mean["round robin"] < mean["random"]


def test_the_search_finds_a_rate_to_within_two_percent() -> None:
    for guess in (0.01, 5.0, 3000.0):
        found = highest(guess, lambda rate: "in time" if rate <= 42 else None)
        assert found is not None
        assert found[0] == pytest.approx(42, rel=0.02)
        assert found[0] <= 42
    assert highest(1.0, lambda rate: None) is None


def test_a_rate_is_in_time_just_as_long_as_a_hundredth_is_late() -> None:
    size, goal = Size(2_000 if ALL else 1_000, 1), Goal("last", 1.0)
    one = made_up(StepCost([0, 10_000], [0.001, 1.0]), slots=64, chunk=512)
    found = highest(1.0, lambda rate: attempt(one, 1, "random", rate, goal, size, 8))
    assert found is not None
    rate, outcome = found
    assert outcome.last_p99_s <= 1.0
    assert outcome.requests == size.requests
    assert attempt(one, 1, "random", 1.1 * rate, goal, size, 8) is None


def level(streams: int, steps: int, positions: float, wall_s: float = 4.0, load: str = "equal") -> dict[str, Any]:
    """A load of two tokens a forward, each stream in each round of two steps, or of one if it is alone."""
    forwards = steps * streams / min(streams, 2)
    return {
        "load": load,
        "streams": streams,
        "wall_s": wall_s,
        "steps": steps,
        "tokens_per_s": 2 * forwards / wall_s,
        "tokens_per_forward": 2.0,
        "positions_per_forward": 4.0,
        "positions_per_step": positions,
        "first_text_ms": {"p99": 30.0},
        "chunks": forwards,
        "server_cpu_shares": [0.5, 0.2, 0.1],
    }


def serving(tmp_path: Path, *loads: dict[str, Any]) -> Path:
    head = {"benchmark": "serving", "shape": "sdar-8b", "model": "sdar-8b", "card": "Card", "date": "2026-01-02T03"}
    path = tmp_path / "serving-sdar-8b.json"
    path.write_text(json.dumps({**head, "loads": loads, "versions": {"torch": "2.11.0"}}), encoding="utf-8")
    return path


def test_a_point_is_a_round_of_all_streams() -> None:
    assert point(level(1, 800, 6.0)) == pytest.approx((6.0, 0.005))
    assert point(level(64, 400, 200.0)) == pytest.approx((400.0, 0.02))
    waiting = level(64, 400, 200.0) | {"tokens_per_s": 3200.0}  # half of the streams wait for their prompts
    assert point(waiting) == pytest.approx((400.0, 0.02))


def test_more_levels_are_used_where_there_are_some(tmp_path: Path) -> None:
    two, three = level(1, 800, 6.0), level(64, 400, 200.0)
    straight = replica(read(serving(tmp_path, two, three)))
    assert straight.round_s(203.0) == pytest.approx((0.005 + 0.02) / 2)
    assert straight.slots == 64
    bent = replica(read(serving(tmp_path, three, two, level(16, 600, 101.5))))
    assert bent.round_s(203.0) == pytest.approx(8.0 / 600)
    assert bent.chunk == 512


@pytest.mark.parametrize("text", ["", "[]", '{"benchmark": "load"}', '{"benchmark": "serving", "loads": []}'])
def test_another_file_is_refused_in_one_line(text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "other.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(SystemExit, match="2"):
        main([str(path)])
    assert "other.json is no result of bench.serving" in capsys.readouterr().err


def test_a_closed_loop_gives_the_rate_of_its_curve() -> None:
    one = made_up(StepCost([0, 1000], [0.005, 0.105]), slots=16, chunk=512)
    tokens_per_s, _ = closed_loop(one, 16, Lengths((0, 0), (200, 200)), 1)
    assert tokens_per_s == pytest.approx(16 / (0.005 + 0.0001 * 16), rel=0.03)


def test_the_program_writes_what_the_page_shows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    curve = serving(tmp_path, level(1, 800, 5.5), level(16, 936, 44.0), level(64, 400, 177.0))
    path = tmp_path / "capacity-sdar-8b.json"
    few = "--requests 300 --per-replica 20 --replicas 1,4 --deadlines 5,10 --first-text 1 --routers".split()
    assert main([str(curve), *few, "random,least requests", "--json", str(path)]) == 0
    shown = capsys.readouterr().out
    assert "measured at 1, 16, 64 streams" in shown
    found = json.loads(path.read_text(encoding="utf-8"))
    assert [(check["streams"], check["of_the_curve"]) for check in found["checks"]] == [
        (1, True),
        (16, False),
        (64, True),
    ]
    assert all(
        check["simulated_tokens_per_s"] == pytest.approx(check["tokens_per_s"], rel=0.1) for check in found["checks"]
    )
    assert [(row["replicas"], row["router"], row["deadline_s"]) for row in found["capacity"]] == [
        (1, "random", 5.0),
        (1, "random", 10.0),
        (1, "random", 1.0),
        (4, "random", 5.0),
        (4, "least requests", 5.0),
    ]
    command = [str(curve), *few, "random,least requests", "--json", str(path), "--resume"]
    path.write_text(json.dumps({**found, "capacity": found["capacity"][:4]}), encoding="utf-8")
    assert main(command) == 0
    assert json.loads(path.read_text(encoding="utf-8"))["capacity"] == found["capacity"]
    assert capsys.readouterr().err.count("requests/s") == 1
    with pytest.raises(SystemExit, match="2"):
        main([*command, "--seed", "1"])
    runs = [
        {"upstream": "stand-in", "answers_are": kind, "tls": tls, "events": 100, "answers": 50, "processor_s": 0.001}
        for kind in ("stream", "whole")
        for tls in (False, True)
    ]
    chunk = {"event_bytes_without_text": 200.0, "other_bytes": 700}
    proxy = {"proxy": "nginx/1", "date": "2026-01-02", "chunk": chunk, "runs": runs}
    made = capacity_section([found], [json.loads(curve.read_text(encoding="utf-8"))], proxy)
    rate = found["capacity"][-1]["requests_per_s"]
    assert f"| 4 | least requests | {rate:.1f} | {rate / 4:.1f} |" in made
    assert "| sdar-8b | equal, 16 | without |" in made
    chunks_per_s = rate * (sum(MIXED_ANSWER) / 2) / 2
    cores = (10 * chunks_per_s + 20 * rate) / 1e6
    assert f"| {chunks_per_s:.0f} |" in made
    assert f"| {cores:.2f} | {cores:.2f} |" in made
    assert "One worker of nginx with TLS is full at " in made
    assert f"prompts of {MIXED_PROMPT[0]} to {MIXED_PROMPT[1]} tokens" in made


@pytest.mark.skipif(not (shutil.which("nginx") and shutil.which("openssl")), reason="needs nginx and openssl")
@pytest.mark.parametrize("tls", [False, True])
def test_nginx_passes_on_each_event_and_its_processor_time_is_counted(tls: bool, tmp_path: Path) -> None:
    async def measure() -> dict[str, Any]:
        stand_in = await asyncio.get_running_loop().create_server(
            lambda: StandIn(stand_in_event(230), 10_000, 0.01), HOST, 0
        )
        async with stand_in:
            with nginx(stand_in.sockets[0].getsockname()[1], tmp_path, tls) as (target, worker):
                return await load(target, post({"messages": []}), 4, 0.2, 0.5, worker)

    certificate(tmp_path)
    found = asyncio.run(measure())
    assert found["events"] > 20
    assert found["bytes"] == found["events"] * len(stand_in_event(230))
    assert 0 < found["processor_s"] < found["seconds"]
