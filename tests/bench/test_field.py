"""Every decoder on every embedded model: who enters, who is ahead."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from asynclane.bench.field import Entry, Run, entrants, frontier, page, read
from asynclane.bench.quality import main
from asynclane.bench.sweep import MODELS
from asynclane.bench.workers import Job, Terms, measure_each
from asynclane.scheduler.methods import METHODS


def entry(name: str, accuracy: float, calls: float, problems: int = 400) -> Entry:
    return Entry({"decoder": name, "problems": problems, "accuracy": accuracy, "calls_per_problem": calls})


def run(decoder: str, device: str, problems: int, accuracy: float, wall_s: float) -> Run:
    return {
        "model": "tiny-llada",
        "decoder": decoder,
        "device": device,
        "problems": problems,
        "wall_s": wall_s,
        "accuracy": accuracy,
        "interval_95": [0.5, 1.0],
        "calls_per_problem": 5.0,
        "tokens_per_call": 16.0,
        "computed_tokens_per_answer_token": 5.0,
    }


def written(path: Path, *runs: Run) -> Path:
    path.write_text(json.dumps({"runs": runs, "refused": {"tiny-llada": {"bacd": "no blocks"}}}), encoding="utf-8")
    return path


def test_a_frontier_holds_those_that_nobody_beats() -> None:
    entries = [entry("slow", 0.95, 9), entry("fast", 0.9, 4), entry("worse", 0.89, 5), entry("dearer", 0.9, 6)]
    assert [ahead.decoder for ahead in frontier(entries)] == ["fast", "slow"]
    assert [ahead.decoder for ahead in frontier([entry("a", 0.9, 4), entry("b", 0.95, 4)])] == ["b"]
    assert frontier([*entries, entry("lucky", 1.0, 3, problems=20)]) == frontier(entries)


@pytest.mark.parametrize("model", MODELS)
def test_every_decoder_enters_or_is_refused_with_a_reason(model: str) -> None:
    taken, refused = entrants(model)
    assert {*METHODS} <= {*taken, *refused}
    assert not {*taken} & {*refused}
    assert all(refused.values())


def test_all_measures_tabulates_and_draws(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And what has been measured can be shown again."""
    monkeypatch.setattr("asynclane.bench.field.METHODS", {"asynclane": None})
    monkeypatch.setattr("asynclane.bench.field.COMBINATIONS", ("asynclane:threshold=0.9",))
    out, plot, page = tmp_path / "field.json", tmp_path / "field.png", tmp_path / "field.md"
    options = ["--models", "tiny-llada", "--problems", "3", "--processes", "1", "--json", str(out), "--plot", str(plot)]
    assert main(["--all", *options]) == 0
    runs = json.loads(out.read_text(encoding="utf-8"))["runs"]
    assert [(run["model"], run["decoder"]) for run in runs] == [
        ("tiny-llada", "asynclane"),
        ("tiny-llada", "asynclane:threshold=0.9"),
    ]
    assert plot.read_bytes().startswith(b"\x89PNG")
    shown = capsys.readouterr().out
    assert "ahead in" in shown
    assert main(["--all", "--again", str(out), "--page", str(page)]) == 0
    assert capsys.readouterr().out == shown
    assert shown.strip().split("\n", 1)[1] in page.read_text(encoding="utf-8")


def test_what_several_runs_found_is_shown_together(tmp_path: Path) -> None:
    """Answers come of the run with most problems, times of the last one on a CPU."""
    gpu = written(tmp_path / "gpu.json", run("asynclane", "cuda", 400, 0.9, 1.0))
    cpu = written(tmp_path / "cpu.json", run("asynclane", "cpu", 20, 0.8, 3.0))
    (one,) = read([cpu, gpu]).entries("tiny-llada")
    assert (one.accuracy, one.cpu_ms) == (0.9, 150.0)
    (untimed,) = read([gpu]).entries("tiny-llada")
    assert untimed.cpu_ms is None
    assert "- `bacd`: no blocks" in page(read([gpu]))


def test_a_run_goes_on_where_it_was_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With what is left of what was asked for; this model refuses tccf."""

    def measured(jobs: list[Job], terms: Terms, processes: int) -> list[tuple[Job, Run]]:
        return [(job, run(job.decoder, terms.device, terms.problems, 0.7, 1.0)) for job in jobs]

    monkeypatch.setattr("asynclane.bench.field.measure_each", measured)
    out = written(tmp_path / "cut.json", run("asynclane", "cpu", 400, 0.9, 1.0))
    asked = ["--models", "tiny-llada", "--decoders", "asynclane", "fast-dllm", "tccf", "--json", str(out), "--resume"]
    assert main(["--all", *asked]) == 0
    runs = json.loads(out.read_text(encoding="utf-8"))["runs"]
    assert [(run["decoder"], run["accuracy"]) for run in runs] == [("asynclane", 0.9), ("fast-dllm", 0.7)]


def test_a_process_that_fails_is_told_with_its_decoder(capfd: pytest.CaptureFixture[str]) -> None:
    jobs = [Job("tiny-llada", "asynclane:threshold=2")]
    with pytest.raises(RuntimeError, match="asynclane:threshold=2 on tiny-llada"):
        list(measure_each(jobs, Terms(1, 777, 1, "cpu"), 1))
    assert "threshold" in capfd.readouterr().err
