"""`asynclane bench` counts what happened, hides no failure, and ends when it said it would."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise, takewhile
from pathlib import Path
from typing import Any

import httpx
import pytest

from asynclane.bench.load import output as report
from asynclane.bench.load.loops import Failure, Prober, Sample, poisson, run_level
from asynclane.bench.load.plan import Bounds, Level, Plan, Target
from asynclane.bench.load.tally import Counters, read_counters, spread, sum_up
from asynclane.clients import NEVER, AsyncClient, Usage
from asynclane.server.cli import main as cli
from asynclane.server.metrics import Metrics, StepReport

from ..support.other_server import other_server, stream

TARGET = Target("http://test", None, None, chat=True, timeout_s=0.2)
BODY: dict[str, Any] = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4}


def plan(**fields: Any) -> Plan:
    given = {
        "bounds": Bounds(None, None),
        "levels": (),
        "bodies": (BODY,),
        "options": {},
        "stagger_s": 0.0,
        "warmup": 1,
    }
    return Plan(**{"target": TARGET, "deadline_s": 1.0, "seed": 1, "source": "test", **given, **fields})


# --- Loops: a server that takes its time, in this process


class Slow:
    """Answers after `seconds`; keeps how many were under way at once, and when each came."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.running = self.most = 0
        self.came: list[float] = []

    async def ask(self, body: Any, due_s: float) -> Sample:
        self.came.append(due_s)
        self.running += 1
        self.most = max(self.most, self.running)
        await asyncio.sleep(self.seconds)
        self.running -= 1
        return Sample(due_s, time.perf_counter(), due_s)


def run(server: Any, level: Level, **fields: Any) -> list[Sample]:
    done: list[None] = []
    samples = asyncio.run(run_level(server, plan(**fields), level, lambda: done.append(None)))
    assert len(done) == len(samples)
    return samples


def test_a_closed_loop_keeps_so_many_requests_under_way_for_four_rounds_if_nothing_bounds_it() -> None:
    server = Slow(0.01)
    assert len(run(server, Level(concurrency=4), bounds=Bounds(10, None))) == 10
    assert server.most == 4
    assert len(run(Slow(0), Level(concurrency=2))) == 32
    assert len(run(Slow(0), Level(concurrency=64))) == 256


def test_a_staggered_start_is_spread_out() -> None:
    """A busy machine may be late by some of it; without a stagger all would come at once."""
    server = Slow(1.0)
    run(server, Level(concurrency=4), bounds=Bounds(4, None), stagger_s=0.8)
    assert server.came[-1] - server.came[0] > 0.2


def test_an_open_loop_does_not_wait_for_answers() -> None:
    server = Slow(0.3)
    run(server, Level(rate=200.0), bounds=Bounds(20, None))
    assert server.most > 10


@pytest.mark.parametrize("level", [Level(concurrency=2), Level(rate=100.0)])
def test_no_request_starts_behind_the_duration(level: Level) -> None:
    server = Slow(0.02)
    started = time.perf_counter()
    samples = run(server, level, bounds=Bounds(None, 0.2))
    assert 2 < len(samples) < 60
    assert max(server.came) < started + 0.3
    assert time.perf_counter() - started < 1.0


def test_the_duration_also_limits_a_staggered_start() -> None:
    started = time.perf_counter()
    samples = run(Slow(0.02), Level(concurrency=4), bounds=Bounds(None, 0.2), stagger_s=30.0)
    assert len(samples) > 2
    assert time.perf_counter() - started < 5


def test_poisson_arrivals_have_the_rate_and_repeat_with_the_seed() -> None:
    def arrivals(seed: int) -> list[float]:
        return list(takewhile(lambda at: at < 1100.0, poisson(5.0, random.Random(seed), 100.0)))

    times = arrivals(3)
    gaps = [later - earlier for earlier, later in pairwise(times)]
    assert times[0] == 100.0
    assert len(times) == pytest.approx(5000, rel=0.05)
    # The gaps of a Poisson process vary as much as they are long.
    assert (sum((gap - 0.2) ** 2 for gap in gaps) / len(gaps)) ** 0.5 == pytest.approx(0.2, rel=0.1)
    assert arrivals(3) == times
    assert arrivals(4) != times


# --- Failures: each kind of them, through the real client


def reply(status: int = 200, text: str = "", **more: Any) -> Any:
    return lambda request: httpx.Response(status, text=text, **more)


def refuse_connection(request: httpx.Request) -> httpx.Response:
    raise httpx.ConnectError("refused")


class Endless(httpx.AsyncByteStream):
    async def __aiter__(self) -> Any:
        while True:
            yield b": still here\n\n"
            await asyncio.sleep(0.01)


@pytest.mark.parametrize(
    ("server", "kind"),
    [
        (reply(429, '{"error": {"message": "full", "code": "overloaded"}}'), "429 overloaded"),
        (reply(502, "<html>"), "502"),
        (refuse_connection, "connection failed"),
        (reply(200, 'data: {"choices": []}\n\n'), "stream broke off"),
        (lambda request: httpx.Response(200, stream=Endless()), "timed out"),
    ],
)
def test_a_failure_is_counted_by_its_kind(server: Callable[[httpx.Request], httpx.Response], kind: str) -> None:
    async def ask() -> Sample:
        async with AsyncClient("http://test", transport=httpx.MockTransport(server), retry=NEVER) as client:
            return await Prober(client, TARGET, "m").ask(BODY, time.perf_counter())

    sample = asyncio.run(ask())
    assert sample.failure is not None
    assert sample.failure.kind == kind
    assert sample.failure.message


# --- Sums


def sample(due_s: float, first_s: float, end_s: float, tokens: int | None = 5) -> Sample:
    usage = None if tokens is None else Usage(prompt_tokens=1000, completion_tokens=tokens)
    return Sample(due_s, end_s, first_s, first_s, usage)


def test_percentiles_are_times_that_were_seen() -> None:
    assert spread([float(n) for n in range(100, 0, -1)]) == (50.0, 90.0, 99.0)
    assert spread([3.0]) == (3.0, 3.0, 3.0)
    assert spread([]) is None


def test_answer_tokens_alone_are_counted_and_failures_are_not() -> None:
    lost = Sample(1.0, 3.0, 2.0, failure=Failure("timed out", "x"))
    result = sum_up(Level(concurrency=2), [sample(0, 1, 2), sample(0, 1, 4), lost], 2.0, None)
    assert (result.completed, result.failed, result.failures) == (2, 1, {"timed out": 1})
    assert (result.wall_s, result.tokens, result.tokens_per_s) == (4.0, 10, 2.5)
    assert (result.requests_per_s, result.goodput_per_s) == (0.5, 0.25)
    assert result.first_text == (1.0, 1.0, 1.0)
    assert result.per_token == (0.25, 0.75, 0.75)
    assert result.end_to_end == (2.0, 4.0, 4.0)


def test_without_usage_there_is_no_token_rate_and_where_all_failed_no_time() -> None:
    result = sum_up(Level(concurrency=1), [sample(0, 1, 2), sample(0, 1, 2, tokens=None)], 9.0, None)
    assert (result.tokens, result.tokens_per_s, result.tokens_per_forward) == (None, None, None)
    assert result.requests_per_s == 1.0
    result = sum_up(Level(rate=1.0), [Sample(0.0, 1.0, failure=Failure("503", "x"))], 9.0, None)
    assert (result.completed, result.first_text, result.end_to_end, result.tokens_per_s) == (0, None, None, 0.0)


def test_tokens_per_forward_come_from_the_servers_own_counters() -> None:
    metrics = Metrics()
    before = read_counters(metrics.exposition().decode())
    metrics.observe_step(StepReport(row_tokens=60, budget_tokens=0, committed=12, host_s=0.1, device_s=0.1))
    metrics.observe_step(StepReport(row_tokens=30, budget_tokens=0, committed=6, host_s=0.1, device_s=0.1))
    after = read_counters(metrics.exposition().decode())
    assert before == Counters(0, 0, 0)
    assert after is not None
    result = sum_up(Level(concurrency=1), [sample(0, 1, 2)], 9.0, after.since(before))
    assert (result.tokens_per_forward, result.computed_per_token) == (9.0, 5.0)
    assert [read_counters(text) for text in ("", "vllm_requests_total 5\n", "<html>")] == [None] * 3, "not ours"


# --- The command against another server that speaks OpenAI's API


def every_third_refused(number: int) -> tuple[int, str]:
    if number % 3 == 2:
        return 429, '{"error": {"message": "slow down", "code": "rate"}}'
    usage = {"prompt_tokens": 100, "completion_tokens": 2}
    return 200, stream({"choices": [{"text": "a", "delta": {"content": "a"}}]}, {"choices": [], "usage": usage})


@contextmanager
def limited_server() -> Iterator[tuple[str, list[tuple[str, Any]]]]:
    """A server that refuses every third request, and has neither metrics nor lanes; with its requests."""
    requests: list[tuple[str, Any]] = []
    with other_server(every_third_refused, requests=requests) as url:
        yield url, requests


def posted(requests: list[tuple[str, Any]]) -> list[tuple[str, Any]]:
    return [(path, body) for path, body in requests if body is not None]


def test_another_server_is_measured_and_its_failures_are_shown(tmp_path: Path, capsys: Any) -> None:
    png, out, prompts = tmp_path / "load.png", tmp_path / "load.json", tmp_path / "prompts.txt"
    prompts.write_text(
        '{"prompt": "One", "top_p": 1}\n\n{"prompt": "Two", "max_tokens": 3}\n{"messages": [], "seed": 4}\n'
    )
    with limited_server() as (url, requests):
        argv = ["bench", "--url", url, "--concurrency", "1,2", "--requests", "6", "--warmup", "1"]
        argv += ["--prompts", str(prompts), "--plot", str(png), "--json", str(out)]
        assert cli.main(argv) == 1
    shown = capsys.readouterr().out
    figures = json.loads(shown.splitlines()[-1])
    assert figures == json.loads(out.read_text(encoding="utf-8"))
    assert figures["options"] == {"max_tokens": 256, "temperature": 0.0}, "of all requests, not those of a line"
    assert [(load["concurrency"], load["completed"], load["failures"]) for load in figures["loads"]] == [
        (1, 4, {"429 rate": 2}),
        (2, 4, {"429 rate": 2}),
    ]
    assert [load["answer_tokens"] for load in figures["loads"]] == [8, 8]
    assert {load["tokens_per_forward"] for load in figures["loads"]} == {None}
    assert "Failed at 2 at once: 2 x 429 rate" in shown
    assert "slow down" in shown
    assert "No asynclane metrics there" in shown
    assert png.read_bytes().startswith(b"\x89PNG")
    bodies = posted(requests)
    assert all(path == "/v1/chat/completions" for path, _ in bodies)
    user = [{"role": "user", "content": "Two"}]
    assert [(body["messages"], body["max_tokens"]) for _, body in bodies[2:4]] == [(user, 3), ([], 256)]
    assert bodies[3][1]["seed"] == 4


def test_the_built_in_problems_are_asked_by_either_endpoint(capsys: Any) -> None:
    with limited_server() as (url, requests):
        argv = ["bench", "--url", f"{url}/v1", "--rate", "200", "--requests", "2", "--warmup", "1", "--completions"]
        assert cli.main([*argv, "--tasks", "list", "--knob", "threshold=0.5", "--decoder", "llada"]) == 1
    path, body = posted(requests)[1]
    assert path == "/v1/completions"
    assert (body["model"], body["decoder"], body["threshold"], body["temperature"]) == ("other", "llada", 0.5, 0.0)
    assert isinstance(body["prompt"], str)
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["loads"][0]["rate_per_s"] == 200.0


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--concurrency", "1,,0"], "must be whole numbers from 1"),
        (["--rate", "nan"], "must be a number above 0"),
        (["--rate", "1", "--concurrency", "1"], "not allowed with"),
        (["--knob", "steps"], "a parameter is NAME=VALUE"),
        (["--tasks", "chess"], "tasks must be some of math"),
        (["--seed", "1000"], "seed must be from 0 to 999"),
        (["--rate", "1", "--stagger", "1"], "--stagger is for --concurrency"),
        (["--prompts", "nowhere.txt"], "No such file"),
        (["--plot", "nowhere/load.png"], "no folder nowhere to write load.png to"),
        (["--url", "http://127.0.0.1:1"], "no server at http://127.0.0.1:1"),
        (["--url", "nonsense"], "nonsense"),
    ],
)
def test_what_cannot_be_measured_is_one_line_and_exit_code_2(argv: list[str], message: str, capsys: Any) -> None:
    try:
        code = cli.main(["bench", *argv])
    except SystemExit as refused:
        code = int(str(refused.code))
    assert code == 2
    captured = capsys.readouterr()
    assert message in captured.err
    assert (captured.out, captured.err.count("\n")) == ("", 1)


def test_a_plot_that_cannot_be_drawn_is_told_before_measuring_and_how_it_can(
    monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setattr(report, "find_spec", lambda name: None)
    assert cli.main(["bench", "--plot", "load.png"]) == 2
    reported = capsys.readouterr().err
    assert reported.count("\n") == 1
    assert "pip install --constraint constraints.txt '.[bench]'" in reported


@pytest.mark.parametrize("ending", ["/", "/v1"])
def test_metrics_are_found_at_any_form_of_the_url(ending: str) -> None:
    with limited_server() as (url, requests):
        cli.main(["bench", "--url", url + ending, "--concurrency", "1", "--requests", "1", "--warmup", "1"])
    assert [path for path, body in requests if body is None] == ["/v1/models", "/metrics", "/metrics"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"", "has no prompts"),
        (b"\xff", "is not UTF-8"),
        (b"One\n{oops\n", "line 2: not JSON"),
        (b'{"prompt": "\\ud800"}', "line 1: not JSON"),
        (b'{"prompt": "a", "top_p": NaN}', "line 1: not JSON"),
        (b'One\n{"prompt": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "line 2: not JSON"),
        (b'{"text": "a"}', "line 1: needs either 'prompt' or 'messages'"),
        *((b'One\n{"messages": %b}' % value, "line 2: 'messages'") for value in (b'"abc"', b"null")),
    ],
    ids=lambda value: str(value[:24]),
)
def test_a_bad_file_of_prompts_is_reported_by_line(text: bytes, message: str, tmp_path: Path, capsys: Any) -> None:
    file = tmp_path / "prompts.txt"
    file.write_bytes(text)
    assert cli.main(["bench", "--prompts", str(file)]) == 2
    complaint = capsys.readouterr().err
    assert f"{file}" in complaint
    assert message in complaint
    assert complaint.count("\n") == 1


def test_first_turns_of_a_file_in_sharegpts_form_are_sent(tmp_path: Path) -> None:
    def talk(*turns: tuple[str, str]) -> dict[str, Any]:
        return {"id": "x", "conversations": [{"from": who, "value": text} for who, text in turns]}

    file = tmp_path / "sharegpt.json"
    entries = [
        talk(("human", "One"), ("gpt", "two"), ("human", "three")),
        talk(("gpt", "I begin")),
        talk(("system", "Be brief"), ("user", "Why?"), ("gpt", "So")),
        talk(),
    ]
    file.write_text(json.dumps(entries))
    with limited_server() as (url, requests):
        argv = ["bench", "--url", url, "--dataset", str(file), "--concurrency", "1", "--requests", "2", "--warmup", "1"]
        assert cli.main(argv) in (0, 1)
    user = {"role": "user", "content": "One"}
    system = [{"role": "system", "content": "Be brief"}, {"role": "user", "content": "Why?"}]
    sent = [body["messages"] for _, body in posted(requests)]
    assert [user] in sent
    assert system in sent
    assert all(messages in ([user], system) for messages in sent)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is no JSON"),
        ("{}", "must be an array of conversations, not dict"),
        ('[{"text": "a"}]', "entry 1: needs 'conversations'"),
        ('[{"conversations": [{"from": "gpt", "value": "a"}]}]', "has no conversation that a human begins"),
    ],
)
def test_a_bad_file_of_conversations_is_one_line(text: str, message: str, tmp_path: Path, capsys: Any) -> None:
    file = tmp_path / "sharegpt.json"
    file.write_text(text)
    assert cli.main(["bench", "--dataset", str(file)]) == 2
    complaint = capsys.readouterr().err
    assert message in complaint
    assert complaint.count("\n") == 1


def test_a_server_that_refuses_all_first_requests_is_not_measured(capsys: Any) -> None:
    with other_server(lambda number: every_third_refused(2)) as url:
        assert cli.main(["bench", "--url", url, "--warmup", "1"]) == 2
    assert "429: slow down" in capsys.readouterr().err
