"""`bench.serving` reads streams as they are, counts what happened between two moments, and starts a server."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from asynclane.bench.load.output import json_line
from asynclane.bench.report.serving import offline_bound, read_serving, serving_section, step_ms
from asynclane.bench.report.tables import section
from asynclane.bench.serving.load import LANES, Load, Quota
from asynclane.bench.serving.picture import main as picture
from asynclane.bench.serving.run import long_prompts, main, repeatable
from asynclane.bench.serving.streams import Job, Reply, record
from asynclane.bench.serving.tally import Scrape, beside, figures, gaps, read_metrics, spread_ms
from asynclane.scheduler import AttentionPattern, resolve
from asynclane.server.metrics import Metrics, StepReport

from ..support.other_server import ANSWER, other_server
from ..support.scale import LONG

LOAD = Load("equal", 2, (200, 200), (256, 256), LANES, "tiny-llada")
USAGE = {
    "prompt_tokens": 7,
    "completion_tokens": 4,
    "prompt_tokens_details": {"cached_tokens": 3},
    "completion_tokens_details": {"forwards": 2, "computed_tokens": 20},
}


# --- Requests


def test_a_request_repeats_and_no_two_prompts_begin_alike() -> None:
    bodies = [LOAD.body(stream, number) for stream in (0, 1) for number in (0, 1)]
    assert bodies[0] == LOAD.body(0, 0)
    assert len({tuple(body["prompt"][:16]) for body in bodies}) == 4
    assert {(len(body["prompt"]), body["max_tokens"], body["steps"]) for body in bodies} == {(200, 256, 72)}
    again = replace(LOAD, repeats=True)
    assert again.body(1, 0) == again.body(1, 5) != again.body(0, 5)


def test_with_a_cache_each_forward_commits_one_token() -> None:
    """So that caches which do not go with `steps` are compared with others at the same number of forwards."""
    quota = Quota("fast-dllm", 16, 16, cache="focus")
    assert quota.params(64) == {"cache": "focus", "threshold": 1.0}
    pattern = AttentionPattern(block_size=16, selects=True)
    for cache in ("focus", "prefix"):
        resolve("fast-dllm", replace(quota, cache=cache).params(64), 64, pattern)
    with pytest.raises(ValueError, match="--cache goes with --forwards 16, as many as a block has tokens"):
        replace(quota, forwards=8).params(64)


def test_mixed_lengths_stay_in_their_ranges_and_each_block_has_its_forwards() -> None:
    load = Load("mixed", 1, (16, 1600), (32, 400), Quota("fast-dllm", 4, 2), "m")
    bodies = [load.body(0, number) for number in range(50)]
    assert {len(body["prompt"]) for body in bodies} <= set(range(16, 1601))
    assert len({body["max_tokens"] for body in bodies} & set(range(32, 401))) > 25
    assert all(body["steps"] == 2 * -(-body["max_tokens"] // 4) for body in bodies)
    job = Job("127.0.0.1", 80, load, (0, 3), 5.0)
    assert Job.from_line(job.to_line()) == job


# --- Beside long prompts


def test_gaps_beside_a_long_prompt_are_those_that_it_touches() -> None:
    steady = {"times": [0.0, 0.01, 0.02, 0.05, 0.09, 0.1, 0.11], "start_s": 0.0}
    long = {"times": [0.06, 0.2], "start_s": 0.03, "prompt_tokens": 16_000, "failure": None}
    unfinished = {"times": [], "start_s": 0.105, "end_s": 1.5, "failure": "timed out"}
    found = beside([steady], [long, unfinished], 0.0, 1.0)
    assert found is not None
    assert (found["prompts"], found["prompt_tokens"], found["first_text_ms"]["p50"]) == (1, 16_000, 30.0)
    assert found["gap_ms"]["max"] == pytest.approx(40)
    assert found["gap_ms"]["p50"] == pytest.approx(30)  # of 10, which the unfinished prompt touches, 30 and 40
    assert found["quiet_gap_ms"]["max"] == pytest.approx(10)
    assert found["p99_over_quiet_p50"] == 4.0
    assert beside([steady], [unfinished], 0.0, 1.0) is None
    assert beside([steady], [{**long, "start_s": -0.1}], 0.0, 1.0) is None  # begun before


def test_long_prompts_are_for_equal_answers_and_never_repeat(capsys: pytest.CaptureFixture[str]) -> None:
    repeated = replace(LOAD, repeats=True)
    long = long_prompts(repeated, 16_000)
    assert long is not None
    assert (long.streams, long.prompt_tokens, long.repeats) == (1, (16_000, 16_000), False)
    assert long_prompts(replace(LOAD, name="mixed"), 16_000) is None
    with pytest.raises(SystemExit):
        main(["--mixed", "2", "--beside", "100"])
    assert "--beside is for --levels" in capsys.readouterr().err


# --- Streams


def response(*events: Any, end: bytes = b"data: [DONE]\n\n") -> bytes:
    chunks = [b"data: " + json.dumps(event, separators=(",", ":")).encode() + b"\n\n" for event in events]
    body = b"".join(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in [*chunks, end])
    return b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n" + body + b"0\r\n\r\n"


def text(piece: str) -> dict[str, Any]:
    return {"choices": [{"index": 0, "text": piece}], "usage": None}


WHOLE = response(text("a"), text(""), text('b\n\n"'), {"choices": [], "usage": USAGE})


def test_a_stream_that_is_split_anywhere_reads_the_same() -> None:
    first, second = (WHOLE.index(b"\n\n", WHOLE.index(text)) + 2 for text in (b'"text":"a"', b'"text":"b'))
    for cut in range(1, len(WHOLE)):
        reply = Reply()
        reply.feed(WHOLE[:cut], 1.0)
        assert not reply.ended
        reply.feed(WHOLE[cut:], 2.0)
        assert (reply.ended, reply.usage, reply.failure) == (True, USAGE, None)
        assert set(reply.times) <= {1.0, 2.0}
        assert reply.times == ([1.0, 2.0] if first <= cut < second else [1.0] if cut >= second else [2.0])


def test_text_that_comes_byte_by_byte_has_a_time_for_each_chunk() -> None:
    reply = Reply()
    for at in range(len(WHOLE)):
        reply.feed(WHOLE[at : at + 1], float(at))
    assert len(reply.times) == 2, "the empty text and the usage are no chunks"
    assert record(reply, 0.0, 9.0) == {
        "start_s": 0.0,
        "end_s": 9.0,
        "times": reply.times,
        "failure": None,
        "tokens": 4,
        "prompt_tokens": 7,
        "cached_tokens": 3,
        "forwards": 2,
        "computed": 20,
    }


@pytest.mark.parametrize(
    ("data", "failure"),
    [
        (b"HTTP/1.1 429 Too Many Requests\r\n\r\n", "HTTP 429"),
        (response(text("a"), end=b'event: error\ndata: {"error":{}}\n\n'), "an error in the stream"),
        (response(text("a")), "no usage"),
    ],
)
def test_what_is_no_complete_answer_is_a_failure(data: bytes, failure: str) -> None:
    reply = Reply()
    reply.feed(data, 1.0)
    assert record(reply, 0.0, 1.0)["failure"] == failure


# --- Sums


def answer(start_s: float, end_s: float, **fields: Any) -> dict[str, Any]:
    times = [start_s + 0.5, end_s - 0.25, end_s]
    work = {"tokens": 100, "forwards": 50, "computed": 500, "prompt_tokens": 200, "cached_tokens": 0}
    return {"start_s": start_s, "end_s": end_s, "times": times, "failure": None, **work, **fields}


def scrapes() -> tuple[Scrape, Scrape]:
    """Those at 10 and 14 s, between which the device computed for 3 s."""
    metrics = Metrics()
    before = read_metrics(metrics.exposition().decode(), 10.0, {5: 1.0, 7: 1.0, 8: 2.0})
    for _ in range(100):
        metrics.observe_step(StepReport(row_tokens=40, budget_tokens=0, committed=4, host_s=0.01, device_s=0.03))
    return before, read_metrics(metrics.exposition().decode(), 14.0, {5: 4.0, 7: 2.0, 8: 2.01})


def test_rates_are_those_between_two_moments() -> None:
    """Two whole answers, a half one before, and a half one after: it has not ended, so it has no forward's time."""
    answers = [answer(8, 12), answer(12, 14), answer(10, 12), answer(12, 16), answer(1, 9)]
    found = figures(LOAD, answers, *scrapes())
    assert (found["answers"], found["tokens_per_s"], found["tokens_per_forward"]) == (3, 75.0, 2.0)
    assert found["forward_ms"] == pytest.approx(1e3 * (4 + 2 + 2) / 150, abs=1e-3)
    assert found["positions_per_forward"] == 6.0
    assert (found["device_busy"], found["host_share"], found["steps"]) == (0.75, 0.25, 100)
    assert (found["step_ms"], found["host_ms"], found["positions_per_step"]) == (30.0, 10.0, 40.0)
    assert found["bound_tokens_per_s"] == pytest.approx(400 / 3, abs=0.05)
    assert found["share_of_bound"] == pytest.approx(75 / (400 / 3))
    assert found["device_forward_ms"] == pytest.approx(1e3 * 3 * 2 / 150), "two streams share its steps"
    assert found["first_text_ms"]["max"] == 500.0
    assert found["graph_captures"] == [None, None]
    assert found["server_cpu_shares"] == [0.75, 0.25], "the third process only waits"


def test_failures_are_counted_and_a_load_without_answers_has_no_figures() -> None:
    lost = {"start_s": 11.0, "end_s": 12.0, "times": [], "failure": "timed out"}
    assert figures(LOAD, [answer(10, 12), lost], *scrapes())["failures"] == {"timed out": 1}
    with pytest.raises(ValueError, match="no answer ended at 2 streams"):
        figures(LOAD, [lost], *scrapes())


def test_gaps_lie_within_the_measurement_and_percentiles_are_measured() -> None:
    assert gaps([answer(0, 4), answer(4, 8)], 0.0, 7.8) == [3.25, 0.25, 3.25]
    assert spread_ms([n / 1000 for n in range(1, 1001)]) == {
        "p50": 500.0,
        "p90": 900.0,
        "p99": 990.0,
        "p99.9": 999.0,
        "max": 1000.0,
    }
    assert spread_ms([]) is None


def test_captured_graphs_are_read_where_the_server_counts_them() -> None:
    exposition = "asynclane_committed_tokens_total 4.0\nasynclane_graph_captures_total 12.0\n"
    assert read_metrics(exposition, 0.0).captures == 12
    for other in ("", "vllm_requests_total 5\n", "<html>"):
        with pytest.raises(ValueError, match="no counters of asynclane"):
            read_metrics(other, 0.0)


# --- Pages


STEPS = [{"load": n, "tokens": int(n), "ours_ms": ms} for n, ms in (("32", 5.0), ("128", 6.0), ("256", 8.0))]


def test_a_step_between_two_sizes_lies_on_a_straight_line() -> None:
    assert [step_ms(STEPS, n) for n in (1, 32, 80, 192, 256, 257)] == [5.0, 5.0, 5.5, 7.0, 8.0, None]
    assert step_ms([], 32) is None
    found = {"positions_per_forward": 6.0, "streams": 32, "tokens_per_forward": 2.0}
    assert offline_bound({"offline": STEPS}, found) == (7.0, pytest.approx(64 / 0.007))


def test_the_page_and_the_picture_are_made_from_results(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = figures(LOAD, [answer(10, 12), answer(12, 14)], *scrapes()) | {"clients": 1, "client_cpu_share": 0.02}
    quota = {"decoder": "asynclane", "block": 32, "forwards": 9}
    head = {"shape": "llada-8b", "model": "llada-8b", "arguments": "--shape llada-8b", "card": "Card"}
    line = json_line({**head, "loads": [found | {"quota": quota}]})
    (tmp_path / "serving-llada-8b.json").write_text(line, encoding="utf-8")
    made = section(tmp_path)
    assert "## Over HTTP" in made
    assert "| equal, 2 | 50 | 133 | 0.38 | 2.00 | 40.00 | 60.00 | 0.75 | 6.0 | - | - | - |" in made
    assert "serving.png" not in made
    (tmp_path / "offline-llada-8b.json").write_text(json.dumps({"steps": STEPS}), encoding="utf-8")
    assert "| 6.0 | 5.00 | 800 | 0.06 |" in serving_section(read_serving(tmp_path))
    assert picture(["--results", str(tmp_path)]) == 0
    assert (tmp_path / "serving.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(SystemExit, match="2"):
        picture(["--results", str(tmp_path / "none")])
    assert "has no serving-*.json" in capsys.readouterr().err


# --- The program


@LONG
def test_a_server_is_started_measured_and_ended(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "serving.json"
    argv = ["--levels", "1,3", "--prompt-tokens", "16", "--max-tokens", "32", "--warm-up", "1", "--rounds", "1"]
    argv += ["--seconds", "0.5", "--clients", "2", "--json", str(out), "--plot", str(tmp_path / "serving.png")]
    assert main([*argv, "--", "--max-queue", "7"]) == 0
    shown = capsys.readouterr().out
    run = json.loads(shown.splitlines()[-1])
    assert run == json.loads(out.read_text(encoding="utf-8"))
    alone, three = run["loads"]
    assert run["arguments"].endswith("--seconds 0.5 --clients 2 -- --max-queue 7")
    assert (alone["streams"], alone["clients"], three["streams"], three["clients"]) == (1, 1, 3, 2)
    assert 1 < alone["tokens_per_forward"] <= 32 / 9 * 4, "up to four lanes"
    for found in run["loads"]:
        assert found["failures"] == {}
        assert 0 < found["device_busy"] < 1.3, "a step that began before counts as a whole"
        assert found["share_of_bound"] == pytest.approx(found["device_busy"], rel=0.5)
        assert 0 < found["device_forward_ms"] < 1.5 * found["forward_ms"]
        assert found["gap_ms"]["p50"] <= found["gap_ms"]["max"]
        assert found["client_cpu_share"] < 0.7
        assert found["server_cpu_shares"][0] > 0.1
    assert (tmp_path / "serving.png").is_file()


def test_the_arguments_that_are_shown_leave_written_files_out() -> None:
    assert repeatable(["--json", "a.json", "--levels", "1,2", "--plot", "--json"]) == "--levels 1,2"


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--levels", "0"], "must be whole numbers from 1"),
        (["--url", "nowhere"], "'nowhere' is no http://HOST:PORT"),
        (["--url", "http://127.0.0.1:1"], "no asynclane server at http://127.0.0.1:1"),
        (["--server", "sh -c 'echo broken; exit 1'"], "the server did not start: broken"),
        (["--json", "nowhere/a.json"], "no folder nowhere"),
        (["--shape", "x", "--url", "http://127.0.0.1:1"], "not allowed with"),
        pytest.param(["--shape", "nosuch"], "no checkpoint of nosuch", marks=LONG),
    ],
)
def test_what_cannot_be_measured_is_one_line_and_exit_code_2(
    argv: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(argv)
    shown = capsys.readouterr().err.splitlines()
    assert message in shown[-1]
    assert not [line for line in shown if "Traceback" in line]


def test_another_server_has_no_times_of_a_device(capsys: pytest.CaptureFixture[str]) -> None:
    with other_server(lambda number: (200, ANSWER)) as url, pytest.raises(SystemExit, match="2"):
        main(["--url", url, "--levels", "1"])
    assert "no asynclane server" in capsys.readouterr().err.splitlines()[-1]
