"""Every decoder on every embedded model: who enters, who is ahead."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from asynclane.bench.field import MODELS, Entry, entrants, frontier
from asynclane.bench.quality import main
from asynclane.scheduler.methods import METHODS


def entry(name: str, accuracy: float, calls: float) -> Entry:
    return Entry("tiny-llada", {"decoder": name, "accuracy": accuracy, "calls_per_problem": calls})


def test_a_frontier_holds_those_that_nobody_beats() -> None:
    entries = [entry("slow", 0.95, 9), entry("fast", 0.9, 4), entry("worse", 0.89, 5), entry("dearer", 0.9, 6)]
    assert [ahead.decoder for ahead in frontier(entries)] == ["fast", "slow"]
    assert [ahead.decoder for ahead in frontier([entry("a", 0.9, 4), entry("b", 0.95, 4)])] == ["b"]


@pytest.mark.parametrize("model", MODELS)
def test_every_decoder_enters_or_is_refused_with_a_reason(model: str) -> None:
    taken, refused = entrants(model)
    assert {*METHODS} <= {*taken, *refused}
    assert not {*taken} & {*refused}
    assert all(refused.values())


def test_all_measures_tabulates_and_draws(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("asynclane.bench.field.METHODS", {"asynclane": None})
    monkeypatch.setattr("asynclane.bench.field.COMBINATIONS", ())
    out, plot = tmp_path / "field.json", tmp_path / "field.png"
    options = ["--models", "tiny-llada", "--problems", "3", "--processes", "1", "--json", str(out), "--plot", str(plot)]
    assert main(["--all", *options]) == 0
    figures = json.loads(out.read_text(encoding="utf-8"))
    assert [each["decoder"] for each in figures["models"]["tiny-llada"]["decoders"]] == ["asynclane"]
    assert plot.read_bytes().startswith(b"\x89PNG")
    assert "frontier" in capsys.readouterr().out
