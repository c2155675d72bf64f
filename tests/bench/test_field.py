"""Every decoder on every embedded model: who enters, who is ahead."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from asynclane.bench.eval.interval import Interval
from asynclane.bench.quality.__main__ import main
from asynclane.bench.quality.field import Entry, Run, Standing, entrants, frontier, page, read
from asynclane.bench.quality.sweep import MODELS
from asynclane.bench.quality.workers import Job, Terms
from asynclane.bench.report import RESULTS
from asynclane.bench.report.plot import COSTS
from asynclane.scheduler.decoding.registry import DECODERS


def entry(name: str, accuracy: float, calls: float, problems: int = 400) -> Entry:
    return Entry(name, problems, accuracy, Interval(0.0, 1.0), calls, tokens_per_call=16.0, computed_per_token=5.0)


def run(decoder: str, device: str, problems: int, accuracy: float, wall_s: float, seed: int = 777) -> Run:
    return {
        "model": "tiny-llada",
        "decoder": decoder,
        "device": device,
        "problems": problems,
        "seed": seed,
        "batch": 16,
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
    calls, _ = COSTS
    entries = [entry("slow", 0.95, 9), entry("fast", 0.9, 4), entry("worse", 0.89, 5), entry("dearer", 0.9, 6)]
    assert [ahead.decoder for ahead in frontier(entries, calls)] == ["fast", "slow"]
    assert [ahead.decoder for ahead in frontier([entry("a", 0.9, 4), entry("b", 0.95, 4)], calls)] == ["b"]
    assert Standing.of([*entries, entry("lucky", 1.0, 3, problems=20)]).ahead == Standing.of(entries).ahead


@pytest.mark.parametrize("model", MODELS)
def test_every_decoder_enters_or_is_refused_with_a_reason(model: str) -> None:
    taken, refused = entrants(model)
    assert {*DECODERS} <= {*taken, *refused}
    assert not {*taken} & {*refused}
    assert all(refused.values())


def test_all_measures_tabulates_and_draws(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And what has been measured can be shown again."""
    monkeypatch.setattr("asynclane.bench.quality.field.DECODERS", {"asynclane": DECODERS["asynclane"]})
    monkeypatch.setattr("asynclane.bench.quality.field.COMBINATIONS", ("asynclane:threshold=0.9",))
    out, plot, tables = tmp_path / "field.json", tmp_path / "field.png", tmp_path / "field.md"
    options = ["--models", "tiny-llada", "--problems", "1", "--processes", "1", "--json", str(out), "--plot", str(plot)]
    assert main(["--all", *options]) == 0
    runs = json.loads(out.read_text(encoding="utf-8"))["runs"]
    decoders = ["asynclane", "asynclane:threshold=0.9"]
    assert [(run["model"], run["decoder"]) for run in runs] == [("tiny-llada", decoder) for decoder in decoders]
    assert plot.read_bytes().startswith(b"\x89PNG")
    shown = capsys.readouterr().out
    assert "ahead in" in shown
    assert main(["--all", "--again", str(out), "--page", str(tables)]) == 0
    again = capsys.readouterr().out
    *_, figures = shown.splitlines()
    assert shown.removesuffix(figures + "\n") == again.removesuffix(again.splitlines()[-1] + "\n")
    assert all((run["problems"], run["seed"], run["batch"], run["device"]) == (1, 777, 16, "cpu") for run in runs)
    assert json.loads(figures)["runs"] == json.loads(again.splitlines()[-1])["runs"] == runs
    assert shown.split("\n\n")[0].split("\n", 1)[1] in tables.read_text(encoding="utf-8")


def test_what_several_runs_found_is_shown_together(tmp_path: Path) -> None:
    """Answers come of the run with most problems, times of the last one on a CPU."""
    gpu = written(tmp_path / "gpu.json", run("asynclane", "cuda", 400, 0.9, 1.0))
    cpu = written(tmp_path / "cpu.json", run("asynclane", "cpu", 20, 0.8, 3.0))
    (one,) = read([cpu, gpu]).standings()["tiny-llada"].entries
    assert (one.accuracy, one.cpu_ms) == (0.9, 150.0)
    (untimed,) = read([gpu]).standings()["tiny-llada"].entries
    assert untimed.cpu_ms is None
    assert "- `bacd`: no blocks" in page(read([gpu]))
    assert "seed 777" in page(read([gpu]))
    assert "at once" not in page(read([gpu]))
    assert "16 at once" in page(read([cpu, gpu]))


def test_a_run_goes_on_where_it_was_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the part that can be measured; this model refuses tccf."""

    def measured(jobs: list[Job], terms: Terms, processes: int) -> list[tuple[Job, Run]]:
        return [(job, run(job.decoder, terms.device, terms.problems, 0.7, 1.0, terms.seed)) for job in jobs]

    monkeypatch.setattr("asynclane.bench.quality.field.measure_each", measured)
    out = written(tmp_path / "cut.json", run("asynclane", "cpu", 400, 0.9, 1.0))
    requested = [*"--models tiny-llada --resume --decoders asynclane fast-dllm tccf --json".split(), str(out)]
    assert main(["--all", *requested]) == 0
    runs = json.loads(out.read_text(encoding="utf-8"))["runs"]
    assert [(run["decoder"], run["accuracy"]) for run in runs] == [("asynclane", 0.9), ("fast-dllm", 0.7)]
    out.unlink()
    assert main(["--all", *requested, "--device", "cuda"]) == 0
    runs = json.loads(out.read_text(encoding="utf-8"))["runs"]
    assert [(run["decoder"], run["device"]) for run in runs] == [("asynclane", "cuda"), ("fast-dllm", "cuda")]


@pytest.mark.parametrize(
    ("requested", "said"),
    [
        ("--decoders asynclane fats-dllm", "fats-dllm"),
        ("--decoders tccf --models tiny-llada", "nothing to show"),
        ("--again NOTHING", "NOTHING"),
        ("--again text", "text is no file of --json"),
        ("--again seed-777 seed-778", "777, 778"),
        ("--again seed-777 --resume", "nothing to resume or to choose"),
        ("--resume --json other", "other is no file of --json"),
        ("--resume --json seed-777 --problems 20", "400 problems of seed 777"),
    ],
)
def test_what_cannot_be_shown_or_gone_on_with_is_refused_in_a_line(
    requested: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """And what a file holds is left as it is."""
    monkeypatch.chdir(tmp_path)
    Path("text").write_text("no JSON", encoding="utf-8")
    Path("other").write_text('{"decoders": []}', encoding="utf-8")
    for seed in (777, 778):
        written(Path(f"seed-{seed}"), run("asynclane", "cpu", 400, 0.9, 1.0, seed))
    before = {path: path.read_text(encoding="utf-8") for path in tmp_path.iterdir()}
    with pytest.raises(SystemExit, match="2"):
        main(["--all", *requested.split()])
    assert said in capsys.readouterr().err.splitlines()[-1]
    assert {path: path.read_text(encoding="utf-8") for path in tmp_path.iterdir()} == before


def test_the_page_of_all_figures_is_what_was_measured() -> None:
    """The page of the decoders that exist, made by `--again ... --page docs/quality.md`."""
    field = read([RESULTS / "field.json", RESULTS / "field-cpu.json"])
    assert (RESULTS.parents[1] / "docs" / "quality.md").read_text(encoding="utf-8") == page(field)
    for model in MODELS:
        taken, refused = entrants(model)
        # Lanes were measured with the former default, too.
        measured = {
            re.sub("[:,]stop_threshold=off$", "", run["decoder"]) for run in field.runs if run["model"] == model
        }
        assert measured <= {*taken}
        assert field.refused[model] == refused
