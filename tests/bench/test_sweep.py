"""Many decoders side by side, and AsyncLane without its parts: from arguments to the last line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from asynclane.bench.quality.ablations import ABLATIONS
from asynclane.bench.quality.ablations import main as ablations
from asynclane.bench.quality.run import parse_decoder
from asynclane.bench.quality.sweep import main, read_decoders

SWEEPS = Path(__file__).parents[2] / "bench" / "sweeps"


def test_a_sweep_measures_each_line_as_quality_would(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, out = tmp_path / "sweep.txt", tmp_path / "sweep.json"
    file.write_text("# two of them\nasynclane\n\nfast-dllm:block_length=16 # short blocks\n", encoding="utf-8")
    assert main([str(file), "--problems", "3", "--processes", "1", "--json", str(out)]) == 0
    figures = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert figures == json.loads(out.read_text(encoding="utf-8"))
    assert [entry["decoder"] for entry in figures["decoders"]] == ["asynclane", "fast-dllm:block_length=16"]
    assert all(entry["calls_per_problem"] > 1 for entry in figures["decoders"])


@pytest.mark.parametrize("path", sorted(SWEEPS.glob("*.txt")), ids=lambda path: path.name)
def test_every_written_sweep_can_still_be_run(path: Path) -> None:
    assert len(read_decoders(path)) > 1


def test_every_ablation_differs_from_the_full_decoder_in_its_params() -> None:
    params = [parse_decoder(ablation.decoder, 256) for ablation in ABLATIONS]
    assert len({(choice.name, *sorted(choice.params.items())) for choice in params}) == len(ABLATIONS)


@pytest.mark.parametrize("line", ["nothing", "asynclane:threshold=2", "asynclane:threshold", "tccf"])
def test_a_line_that_is_no_decoder_of_the_model_is_refused_at_once(
    line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "sweep.txt"
    file.write_text(line, encoding="utf-8")
    with pytest.raises(SystemExit, match="2"):
        main([str(file), "--model", "tiny-sdar"])  # which takes tccf, but has no `</think>`
    assert line in capsys.readouterr().err


def test_a_file_of_comments_and_a_seed_that_is_kept_are_refused_at_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "sweep.txt"
    file.write_text("# nothing\n", encoding="utf-8")
    for arguments, wanted in (([], "no line with a decoder"), (["--seed", "1000"], "from 0 to 999")):
        with pytest.raises(SystemExit, match="2"):
            main([str(file), *arguments])
        assert wanted in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--json", "--plot"])
def test_results_that_could_not_be_written_are_told_before_measuring(
    option: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        ablations([option, "no/such/folder.png"])
    assert "no folder" in capsys.readouterr().err
