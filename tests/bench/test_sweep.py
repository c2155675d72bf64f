"""Many decoders side by side, and AsyncLane without its parts: from arguments to the last line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from asynclane.bench.eval.decoders import parse_decoder
from asynclane.bench.quality.ablations import ABLATIONS, accepted
from asynclane.bench.quality.ablations import main as ablate
from asynclane.bench.quality.lane_figures import LaneFigures
from asynclane.bench.quality.sweep import main, read_decoders
from asynclane.bench.quality.workers import Job, Terms
from asynclane.server.engine.wiring import open_checkpoint

SWEEPS = Path(__file__).parents[2] / "bench" / "sweeps"


def test_a_sweep_measures_each_line_as_quality_would(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With given figures; `test_field` measures some in a process of their own."""

    def measured(jobs: list[Job], terms: Terms, processes: int) -> list[tuple[Job, dict[str, Any]]]:
        assert (terms.problems, processes) == (3, 1)
        same = {"accuracy": 0.5, "interval_95": (0.4, 0.6), "calls_per_problem": 10, "tokens_per_call": 4}
        return [(job, {"decoder": job.decoder, "computed_tokens_per_answer_token": 9, **same}) for job in jobs]

    monkeypatch.setattr("asynclane.bench.quality.sweep.measure_each", measured)
    file, out = tmp_path / "sweep.txt", tmp_path / "sweep.json"
    file.write_text("# two of them\nasynclane\n\nfast-dllm:block_length=16 # short blocks\n", encoding="utf-8")
    assert main([str(file), "--problems", "3", "--processes", "1", "--json", str(out)]) == 0
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert found == json.loads(out.read_text(encoding="utf-8"))
    assert [entry["decoder"] for entry in found["decoders"]] == ["asynclane", "fast-dllm:block_length=16"]
    assert all(entry["calls_per_problem"] == 10 for entry in found["decoders"])


@pytest.mark.parametrize("path", sorted(SWEEPS.glob("*.txt")), ids=lambda path: path.name)
def test_every_written_sweep_can_still_be_run(path: Path) -> None:
    assert len(read_decoders(path)) > 1


@pytest.mark.parametrize("decoder", ABLATIONS)
def test_every_ablation_differs_from_the_full_decoder_in_its_params(decoder: str) -> None:
    params = [parse_decoder(ablation.decoder, 256) for ablation in ABLATIONS[decoder]]
    assert len({(choice.name, *sorted(choice.params.items())) for choice in params}) == len(ABLATIONS[decoder])


def test_ablations_take_any_model_and_say_what_it_refuses(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder here; `tiny-sdar` sees no block after its own, so that it has no other form of some parts."""
    for decoder, ablations in ABLATIONS.items():
        assert len(accepted("tiny-llada", decoder)[0]) == len(ablations)
    folder = tmp_path / "mine"
    folder.symlink_to(open_checkpoint("tiny-sdar").directory)
    same = {"accuracy": 0.5, "interval_95": (0.4, 0.6), "calls_per_problem": 10, "tokens_per_call": 4, "problems": 3}
    rest = {"computed_tokens_per_answer_token": 9, "device": "cpu", "batch": 1, "wall_s": 1.0}
    lanes = LaneFigures(forks=6, pair_calls=2, lead=0.5, lane_calls=30, lanes=40, paired=4, paper_calls=36).json()

    def measured(jobs: list[Job], terms: Terms, processes: int) -> list[tuple[Job, dict[str, Any]]]:
        assert {job.model for job in jobs} == {str(folder)}
        assert terms.watch
        return [(job, {"decoder": job.decoder, **same, **rest, "lanes": lanes}) for job in jobs]

    monkeypatch.setattr("asynclane.bench.quality.sweep.measure_each", measured)
    assert ablate(["--model", str(folder), "--problems", "3"]) == 0
    out = capsys.readouterr().out
    found = json.loads(out.splitlines()[-1])
    assert found["model"] == str(folder)
    known = len(ABLATIONS["asynclane"])
    assert 0 < len(found["refused"]) < known == len(found["ablations"]) + len(found["refused"])
    assert "Refused:\n- " in out
    assert "10.00        12.00            9.00   2.00  +0.250  0.000    0.100" in out
    with pytest.raises(SystemExit, match="2"):
        ablate(["--model", str(folder), "--decoder", "asynclane-paper"])
    assert "takes none of them: decoder 'asynclane-paper" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="2"):
        ablate(["--model", "tiny-lada"])
    assert "did you mean 'tiny-llada'?" in capsys.readouterr().err


@pytest.mark.parametrize("line", ["nothing", "tccf", "# a comment"])
def test_a_line_that_is_no_decoder_of_the_model_is_refused_at_once(
    line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "sweep.txt"
    file.write_text(line, encoding="utf-8")
    with pytest.raises(SystemExit, match="2"):
        main([str(file), "--model", "tiny-sdar"])  # which takes tccf, but has no `</think>`
    assert ("no line with a decoder" if line.startswith("#") else line) in capsys.readouterr().err
