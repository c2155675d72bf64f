"""Loads are simulated from recordings: tokens are conserved, and the curve decides which shape is best."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from asynclane.bench.quality.prose import kept_words
from asynclane.bench.steps import recordings as recorder
from asynclane.bench.steps.prefill import read_curve
from asynclane.bench.steps.recordings import RECORDINGS, Recording, dump, load
from asynclane.bench.steps.replay import Loop, Spell
from asynclane.bench.steps.simulate import CURVE, POINT, accuracy_of, as_accurate, compare, main
from asynclane.scheduler.decoding.params import DEFAULT_SHAPE, SHAPES, LaneShape
from asynclane.scheduler.request import RequestStats
from asynclane.scheduler.step_cost import AnswerCost, Budget, StepCost
from asynclane.server.engine.messages import AnswerOptions, Finish, LaneEvent, Usage

PROSE = RECORDINGS.with_name("recordings-prose.json.gz")
TOKENS, PROMPT = 96, 40
FLAT = StepCost([1, 2], [0.01, 0.01])
LINEAR = StepCost([0, 1000], [1e-9, 1.0])


def made_up(shape: LaneShape, tokens_a_forward: int) -> Recording:
    """Three answers of 96 tokens. A forward computes a lane, the look-ahead and what the one before committed."""
    forwards = TOKENS // tokens_a_forward
    positions = PROMPT + forwards * (sum(shape) + tokens_a_forward)
    return Recording(shape, 2.7, (AnswerCost(forwards, positions, PROMPT, TOKENS),) * 3)


# The farther, the more commits, and the more positions for each of them.
MADE_UP = tuple(made_up(shape, commits) for shape, commits in zip(SHAPES, (6, 4, 3, 2), strict=True))


@pytest.mark.parametrize("requests", [1, 3, 7])
def test_tokens_and_positions_are_conserved(requests: int) -> None:
    for recording in MADE_UP:
        answer = recording.answers[0]
        found = Loop(MADE_UP, LINEAR).run(requests, recording.shape, Spell(0, requests * 5))
        assert found.tokens == requests * 5 * TOKENS
        assert found.answers == {shape: requests * 5 * (shape == recording.shape) for shape in SHAPES}
        assert found.seconds == pytest.approx(5e-3 * requests * answer.positions, rel=1e-3)
        assert Loop(MADE_UP, FLAT).run(requests, recording.shape, Spell(0, requests * 5)).seconds == pytest.approx(
            5e-2 * answer.forwards
        )


def test_the_curve_decides_which_shape_is_best() -> None:
    spell = Spell(0, 60)
    assert compare(Loop(MADE_UP, FLAT), FLAT, 4, spell, SHAPES).best == DEFAULT_SHAPE
    assert compare(Loop(MADE_UP, LINEAR), LINEAR, 4, spell, SHAPES).best == LaneShape(4, 0)
    assert compare(Loop(MADE_UP, LINEAR), LINEAR, 4, spell, SHAPES[:2]).best == LaneShape(8, 8)


@pytest.mark.parametrize("cost", [FLAT, LINEAR])
def test_auto_finds_the_best_of_made_up_shapes(cost: StepCost) -> None:
    found = compare(Loop(MADE_UP, cost), cost, 16, Spell(1_000, 2_000), SHAPES)
    assert found.of_best > 0.97
    assert found.auto.usual == found.best


def test_a_shape_that_loses_more_than_a_point_is_not_the_best() -> None:
    scores = dict(zip(SHAPES, (0.90, 0.895, 0.89 - POINT, 0.5), strict=True))
    graded = [Recording(shape, 3 * score, MADE_UP[0].answers) for shape, score in scores.items()]
    assert as_accurate(graded) == SHAPES[:2]
    assert accuracy_of({SHAPES[0]: 30, SHAPES[3]: 10}, graded) == pytest.approx(0.80)


@pytest.mark.parametrize(("file", "requests", "least"), [(RECORDINGS, 64, 1.0), (PROSE, 1, 1.2), (PROSE, 64, 4.0)])
def test_auto_on_the_recordings_is_fast_and_loses_no_accuracy(file: Path, requests: int, least: float) -> None:
    recordings, cost = load(file), read_curve(CURVE)
    right = as_accurate(recordings)
    found = compare(Loop(recordings, cost), cost, requests, Spell(500, 600), right)
    assert found.of_best > 0.96
    assert found.over_default >= least - 0.01
    assert accuracy_of(found.auto.answers, recordings) > recordings[0].accuracy - POINT


def test_a_run_repeats_itself() -> None:
    recordings, cost = load(RECORDINGS), read_curve(CURVE)
    first, second = (Loop(recordings, cost).run(8, Budget(cost), Spell(20, 40)) for _ in range(2))
    assert first == second


@pytest.mark.parametrize("file", [RECORDINGS, PROSE])
def test_the_files_of_recordings(file: Path) -> None:
    recordings = load(file)
    assert DEFAULT_SHAPE in {recording.shape for recording in recordings}
    assert file.stat().st_size < 50_000
    assert len({len(recording.answers) for recording in recordings}) == 1


@dataclass(frozen=True)
class Echo:
    text: str
    usage: Usage
    finish: Finish = Finish.STOP
    lanes: Sequence[LaneEvent] = ()


class Engine:
    """Gives each message back as its answer, in one forward for each character."""

    def chat(self, prompts: Sequence[str], options: AnswerOptions) -> list[Echo]:
        assert dict(options.params) == {"block_length": 8, "lookahead": 0}
        replies = []
        for prompt in prompts:
            size = len(prompt)
            stats = RequestStats(prompt_tokens=5, cached_tokens=1, computed_tokens=20 * size, forwards=size)
            replies.append(Echo(prompt, Usage(size, stats)))
        return replies


def test_answers_are_recorded_with_their_cost_and_grade() -> None:
    found = recorder.record(Engine(), LaneShape(8, 0), [("abc", lambda text: text == "abc"), ("de", lambda text: 0.5)])
    assert found == Recording(LaneShape(8, 0), 1.5, (AnswerCost(3, 60, 4, 4), AnswerCost(2, 40, 4, 3)))
    assert found.accuracy == 0.75


def test_words_between_gaps_are_kept_in_their_order() -> None:
    assert kept_words("Fill: a _ b, c", "Fill: a x b, c") == 1
    assert kept_words("a _ b c", "c b a") == pytest.approx(1 / 3)
    assert kept_words("a b c d", "a c x d") == 0.75
    assert kept_words("a (_ b", "") == 0


def test_from_arguments_to_the_last_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    few, plot, file = tmp_path / "few.json", tmp_path / "blocks.png", tmp_path / "blocks.json"
    few.write_text(dump(MADE_UP, {"model": "few"}), encoding="utf-8")
    assert load(few) == MADE_UP
    flags = ["--requests", "1,2", "--warm-up", "5", "--answers", "5"]
    assert main([*flags, "--recordings", str(few), "--plot", str(plot), "--json", str(file)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[3:6]] == ["1", "2", "accuracy"]
    figures = json.loads(lines[-1])
    assert figures == json.loads(file.read_text(encoding="utf-8"))
    (simulation,) = figures["simulations"]
    assert [entry["requests"] for entry in simulation["loads"]] == [1, 2]
    assert simulation["accuracy"] == {"32+32": 0.9, "8+8": 0.9, "8+0": 0.9, "4+0": 0.9}
    assert plot.read_bytes().startswith(b"\x89PNG")
    with pytest.raises(SystemExit, match="2"):
        main([*flags, "--plot", str(plot), "--recordings", str(RECORDINGS), str(few)])
    assert "--plot draws one file" in capsys.readouterr().err
    few.write_text(dump(MADE_UP[:1], {}), encoding="utf-8")
    with pytest.raises(SystemExit, match="2"):
        main([*flags, "--recordings", str(few)])
    assert "8+8, 8+0, 4+0" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--problems", "0"], "must be within"),
        (["--shapes", "32"], "pairs as 32+32"),
        (["--shapes", "0+32"], "up to 256"),
        (["--model", "tiny-sdar"], "tiny-sdar needs --json"),
        (["--json", "no/such/file.json"], "no folder"),
        (["--model", "DIR", "--json", "x.json", "--problems", "2"], "must be within the 1 there are"),
        (["--model", "DIR", "--json", "x.json", "--problems", "1", "--first", "-1"], "must be within"),
    ],
)
def test_wrong_flags_of_recordings_are_refused_in_one_line(
    flags: list[str], said: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "reserved.json").write_text('[["package", "prompt"]]', encoding="utf-8")
    with pytest.raises(SystemExit, match="2"):
        recorder.main([str(tmp_path) if flag == "DIR" else flag for flag in flags])
    assert said in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--requests", "1,x"], "whole numbers"),
        (["--curve", "none.json"], "none.json"),
        (["--plot", "no/such/folder.png"], "no folder"),
    ],
)
def test_bad_arguments_are_refused_in_one_line(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(arguments)
    last = capsys.readouterr().err.splitlines()[-1]
    assert "error: " in last
    assert said in last


@pytest.mark.parametrize("text", ["", '{"steps": []}', '{"recordings": [{"shape": [64, 32]}]}', "[]"])
def test_bad_files_are_refused_in_one_line(text: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "bad.json"
    file.write_text(text, encoding="utf-8")
    for argument in ("--curve", "--recordings"):
        with pytest.raises(SystemExit, match="2"):
            main([argument, str(file)])
        assert "bad.json" in capsys.readouterr().err.splitlines()[-1]
