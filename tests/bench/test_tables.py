"""The figures of docs/performance.md are those of the results, and the plot can be drawn without a GPU."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from asynclane.bench.kernels.cases import LLADA, Peaks
from asynclane.bench.kernels.run import figures
from asynclane.bench.kernels.token_cases import commit, predict
from asynclane.bench.report.tables import BEGIN, END, main, rewritten, section
from asynclane.bench.steps.offline import Load
from asynclane.bench.steps.roofline import limit_ms, step_work
from asynclane.bench.steps.roofline import main as roofline

ROOT = Path(__file__).parents[2]
PEAKS = Peaks(2.5e12, read_bytes_per_s=2.4e12, matrix_operations_per_s=7.5e14, fp8_operations_per_s=1.5e15)
HEAD = {"card": "Card", "date": "2026-01-02T03:04:05+00:00", "versions": {"torch": "2.11.0"}}


def write_runs(folder: Path) -> None:
    steps = [
        {"load": load, "tokens": tokens, "ours_ms": tokens / 8, "reference_ms": tokens / 4, "ratio": 0.5}
        for load, tokens in (("32", 32), ("64", 64), ("mixed", 2944))
    ]
    run = {"shape": "llada-8b", "keys": 512, "steps": steps, **HEAD}
    (folder / "offline-llada-8b.json").write_text(json.dumps(run), encoding="utf-8")
    entries: list[dict[str, Any]] = [
        figures(predict(LLADA, 2048), PEAKS, 0.25, 50.0, {"softmax, max": 2.0, "other": None}),
        figures(commit(32, 8), PEAKS, 0.004, None, {}),
    ]
    whole = {"peaks": PEAKS._asdict(), "kernels": entries, **HEAD}
    (folder / "kernels.json").write_text(json.dumps(whole), encoding="utf-8")


def test_the_page_holds_what_the_results_say() -> None:
    text = (ROOT / "docs" / "performance.md").read_text(encoding="utf-8")
    made = section(ROOT / "bench" / "results")
    assert made
    assert text == rewritten(text, made), "run `python -m asynclane.bench.report.tables --write docs/performance.md`"


def test_tables_of_steps_and_kernels(tmp_path: Path) -> None:
    write_runs(tmp_path)
    made = section(tmp_path)
    assert "| 64 | 8.00 | 16.00 | 0.50 |" in made
    assert "| 2944: 30 rows of 64 and a prefill of 1024 | 368.00 |" in made
    assert "| predict | 2048 x 126464 | 250.0 | 50000.0 | 2000.0 (softmax, max) | 0.12 | 2072 | - | 83 % |" in made
    assert "| commit | 8 x 32 positions | 4.0 | - | - | - |" in made
    assert "a copy moves 2500 GB/s, half of it read and half written, and a sum reads 2400\nGB/s" in made
    assert "750 TFLOP/s in bfloat16 and 1500 in FP8" in made
    (tmp_path / "kernels.json").unlink()
    assert "kernel" not in section(tmp_path), "what was not measured is left out"


def test_a_number_format_is_that_of_weights_and_of_keys_and_values(tmp_path: Path) -> None:
    write_runs(tmp_path)
    plain = {"quantization": None, "deterministic": False}  # as runs were before keys and values had a format
    sizes = dict.fromkeys(("weights_bytes", "peak_reserved_bytes", "requests", "max_tokens"), 2**30)
    lines = []
    for name, accuracy, more in (("", 0.9, {}), ("-fp8-cache", 0.8, {"kv_cache_dtype": "fp8"})):
        run = {**plain, **more, **sizes, "reserved_over_stated": 1.01, **HEAD}
        (tmp_path / f"memory{name}.json").write_text(json.dumps(run), encoding="utf-8")
        lines.append(json.dumps({**plain, **more, "decoders": [{"accuracy": accuracy}]}))
    (tmp_path / "quality-numerics.jsonl").write_text("\n".join(lines), encoding="utf-8")
    assert "| (default) | 0.900 | 1.00 |" in section(tmp_path)
    assert "| `--kv-cache-dtype fp8` | 0.800 | 1.00 |" in section(tmp_path)


def test_only_the_part_between_the_comments_is_written(tmp_path: Path) -> None:
    write_runs(tmp_path)
    readme = tmp_path / "README.md"
    readme.write_text(f"above\n{BEGIN}\nold\n{END}\nbelow\n", encoding="utf-8")
    for _ in range(2):
        assert main(["--results", str(tmp_path), "--write", str(readme)]) == 0
        assert readme.read_text(encoding="utf-8") == f"above\n{BEGIN}\n{section(tmp_path)}\n{END}\nbelow\n"


@pytest.mark.parametrize("text", ["", f"{END}\n{BEGIN}\n", f"{BEGIN}\n{BEGIN}\n{END}"])
def test_a_file_without_the_comments_is_left_as_it_is(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_runs(tmp_path)
    readme = tmp_path / "README.md"
    readme.write_text(text, encoding="utf-8")
    with pytest.raises(SystemExit, match="2"):
        main(["--results", str(tmp_path), "--write", str(readme)])
    assert "there must be one line" in capsys.readouterr().err
    assert readme.read_text(encoding="utf-8") == text


@pytest.mark.parametrize("program", [main, roofline])
def test_missing_results_are_told(program: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        program(["--results", str(tmp_path)])
    assert "offline-*.json" in capsys.readouterr().err


def test_a_step_reads_its_weights_and_multiplies_by_them() -> None:
    work = step_work("llada-8b", Load("64", ((64, 512),)))
    layer = 4096 * (4 * 4096 + 3 * 12288)
    head = 126464 * 4096
    assert work.moved_bytes == 2 * (32 * layer + head)
    assert work.operations == 32 * (2 * 64 * layer + 4 * 64 * 512 * 4096) + 2 * 64 * head


def test_the_limit_is_flat_while_weights_are_read_and_then_grows_with_the_positions() -> None:
    few, more, many, most = (limit_ms("llada-8b", tokens, 512, PEAKS) for tokens in (32, 64, 1024, 2048))
    assert few == more == pytest.approx(2 * 7.5e9 / 2.5e12 * 1e3, rel=0.01)
    assert most == pytest.approx(2 * many)


def test_the_plot_is_drawn_from_files_of_one_card(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_runs(tmp_path)
    assert roofline(["--results", str(tmp_path)]) == 0
    assert (tmp_path / "roofline.png").read_bytes().startswith(b"\x89PNG")
    path = tmp_path / "kernels.json"
    path.write_text(path.read_text(encoding="utf-8").replace('"Card"', '"Other"'), encoding="utf-8")
    with pytest.raises(SystemExit, match="2"):
        roofline(["--results", str(tmp_path)])
    assert "different cards: Card, Other" in capsys.readouterr().err
