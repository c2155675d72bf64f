"""The comparison of `LLM` with the engine: the same work for both, in turn, and no figures of answers that differ."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from asynclane.bench.load.problems import problems
from asynclane.bench.steps.llm import compare, main

from ..support.scale import LONG


def test_both_answer_every_part_one_after_the_other() -> None:
    calls = list[tuple[str, int]]()

    def engine(prompts: Sequence[str]) -> list[str]:
        calls.append(("engine", len(prompts)))
        return list(prompts)

    def llm(prompts: Sequence[str]) -> list[str]:
        calls.append(("llm", len(prompts)))
        return list(prompts)

    parts = compare(engine, llm, problems(1, 5), 2)
    assert calls == [("engine", 2), ("llm", 2), ("llm", 2), ("engine", 2), ("engine", 1), ("llm", 1)]
    assert all(seconds >= 0 for part in parts for seconds in part)


def test_answers_that_differ_are_an_error() -> None:
    with pytest.raises(RuntimeError, match="the answers of part 0 differ"):
        compare(lambda prompts: ["a"], lambda prompts: ["b"], problems(1, 1), 1)


@LONG
def test_it_prints_the_times_of_both(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--problems", "4", "--part", "2", "--seed", "1", "--json", str(tmp_path / "out.json")]) == 0
    figures = json.loads((tmp_path / "out.json").read_text())
    assert json.loads(capsys.readouterr().out.splitlines()[-1]) == figures
    assert 0 < figures["engine_cpu_s"] < 60
    assert abs(figures["more_cpu_median"]) < 5
