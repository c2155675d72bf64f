"""Loads are simulated from recordings: tokens are conserved, and the curve decides which block length is best."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from asynclane.bench.steps import recordings as recorder
from asynclane.bench.steps.recordings import RECORDINGS, Call, Recording, dump, load
from asynclane.bench.steps.replay import Loop, Spell, Track
from asynclane.bench.steps.simulate import CURVE, compare, main, over_loads, read_curve
from asynclane.scheduler.decoding.params import BLOCK_LENGTHS
from asynclane.scheduler.step_cost import Budget, StepCost

TOKENS = 96
FLAT = StepCost([1, 2], [0.01, 0.01])
LINEAR = StepCost([0, 1000], [1e-9, 1.0])


def answer(step: int, positions: int) -> tuple[Call, ...]:
    """An answer of 96 tokens, `step` a call, each call over `positions` from the frontier on."""
    return tuple(
        Call(at, at, at + positions, tuple(range(at, min(at + step, TOKENS)))) for at in range(0, TOKENS, step)
    )


# The farther, the more commits, and the more positions for each of them.
MADE_UP = tuple(
    Recording(block_length, 9, 10, (answer(step, block_length),) * 3)
    for block_length, step in zip((32, 48, 64), (32, 40, 48), strict=True)
)


WHOLE = (*MADE_UP, Recording(40, 9, 10, (answer(36, 40),) * 3))


def test_a_track_holds_every_commit_of_its_calls_and_a_change_of_block_length_counts_no_token_twice() -> None:
    track = Track.of(answer(40, 96))
    assert (track.before, track.tokens) == ((0, 40, 80), TOKENS)
    assert [track.part(done)[1] for done in (0, 40, 80)] == [40, 40, 16]
    assert [part.positions for part in track.parts] == [96, 96, 96]
    assert track.part(32)[1] == 8  # the call that starts at 0 ends at 40
    assert track.part(39)[1] == 1
    assert track.part(TOKENS + 5)[1] == 1  # an answer that was shorter at this block length ends


@pytest.mark.parametrize(("block_length", "calls"), [(32, 3), (48, 3), (64, 2)])
def test_tokens_are_conserved(block_length: int, calls: int) -> None:
    for requests in (1, 3, 7):
        found = Loop(MADE_UP, LINEAR).run(requests, block_length, Spell(0, requests * 5))
        steps = found.steps[block_length]
        assert steps == 5 * calls  # every place ends an answer in as many steps as it has calls
        assert found.tokens == requests * 5 * TOKENS
        assert found.seconds == pytest.approx(steps * requests * block_length * 1e-3, rel=1e-3)


def test_recorded_tokens_are_conserved_and_a_run_repeats_itself() -> None:
    recordings = load(RECORDINGS)
    for recording in recordings:
        count = len(recording.answers)
        found = Loop(recordings, FLAT).run(1, recording.block_length, Spell(0, count))
        assert found.tokens == sum(len(call.committed) for calls in recording.answers for call in calls)
        assert found.steps[recording.block_length] == sum(map(len, recording.answers))
    cost = read_curve(CURVE)
    first, second = (Loop(recordings, cost).run(8, Budget(cost), Spell(20, 40)) for _ in range(2))
    assert first == second


def test_the_curve_decides_which_block_length_is_best() -> None:
    spell = Spell(0, 60)
    assert compare(Loop(MADE_UP, FLAT), FLAT, 4, spell).best == 64
    # 32 positions for 32 tokens against 48 for 40, and 64 for 48
    assert compare(Loop(MADE_UP, LINEAR), LINEAR, 4, spell).best == 32


@pytest.mark.parametrize("cost", [FLAT, LINEAR])
def test_adaptive_finds_the_best_of_made_up_block_lengths(cost: StepCost) -> None:
    found = compare(Loop(WHOLE, cost), cost, 16, Spell(2_000, 5_000))
    assert found.ratio > 0.95
    assert max(found.adaptive.steps, key=lambda block_length: found.adaptive.steps[block_length]) == found.best


def test_adaptive_on_the_recordings_stays_near_the_best_at_every_load() -> None:
    recordings, cost = load(RECORDINGS), read_curve(CURVE)
    loop = Loop(recordings, cost)
    found = [compare(loop, cost, n, Spell(max(400, 50 * n), max(600, 50 * n))) for n in (1, 8)]
    assert [c.requests for c in found if c.ratio < 0.97] == []
    assert min(over_loads(found).values()) > 0.97


def test_the_file_of_recordings() -> None:
    recordings = load(RECORDINGS)
    assert set(BLOCK_LENGTHS) <= {recording.block_length for recording in recordings}
    assert RECORDINGS.stat().st_size < 1_000_000
    for recording in recordings:
        for calls in recording.answers:
            positions = [position for call in calls for position in call.committed]
            assert len(set(positions)) == len(positions)  # nothing commits twice
            assert calls[0].frontier == 0
            assert calls[0].start < 0  # the prompt comes along
            for call in calls:
                assert max(call.committed) < call.end
    # No block length of the budget costs more than two points of accuracy.
    best = max(recording.accuracy for recording in recordings)
    assert [r.block_length for r in recordings if r.block_length in BLOCK_LENGTHS and r.accuracy < best - 0.02] == []


def test_from_arguments_to_the_last_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    plot, file = tmp_path / "blocks.png", tmp_path / "blocks.json"
    arguments = ["--requests", "1,2", "--warm-up", "5", "--answers", "5", "--plot", str(plot), "--json", str(file)]
    assert main(arguments) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[3:7]] == ["1", "2", "adaptive", "accuracy"]
    figures = json.loads(lines[-1])
    assert figures == json.loads(file.read_text(encoding="utf-8"))
    (simulation,) = figures["simulations"]
    assert [entry["requests"] for entry in simulation["loads"]] == [1, 2]
    assert plot.read_bytes().startswith(b"\x89PNG")


def test_recordings_of_two_models_are_compared_and_those_without_grades_have_no_accuracy(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    few = tuple(Recording(length, 0, 0, (answer(3, length),) * 3) for length in BLOCK_LENGTHS)
    file = tmp_path / "few.json"
    file.write_text(dump(few, {"model": "few"}), encoding="utf-8")
    assert load(file) == few
    flags = ["--requests", "1", "--warm-up", "5", "--answers", "5", "--recordings", str(RECORDINGS), str(file)]
    assert main(flags) == 0
    lines = capsys.readouterr().out.splitlines()
    figures = json.loads(lines[-1])
    graded, ungraded = figures["simulations"]
    assert [entry["recordings"] for entry in figures["simulations"]] == [RECORDINGS.name, "few.json"]
    assert figures["worst_of_best"] == min(graded["worst_of_best"], ungraded["worst_of_best"])
    assert set(graded["accuracy"]) == set(map(str, BLOCK_LENGTHS))
    assert ungraded["accuracy"] == {}
    assert sum(line.startswith("accuracy") for line in lines) == 1
    with pytest.raises(SystemExit, match="2"):
        main([*flags, "--plot", str(tmp_path / "two.png")])
    assert "--plot draws one file" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--problems", "9", "--graded", "8"], "--problems must be from 1 to 8"),
        (["--model", "tiny-sdar"], "tiny-sdar needs --json"),
        (["--json", "no/such/file.json"], "no folder"),
        (["--model", "DIR", "--json", "x.json", "--graded", "5"], "nothing grades"),
        (["--model", "DIR", "--json", "x.json", "--problems", "2"], "--problems must be from 1 to 1"),
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


@pytest.mark.parametrize("text", ["", '{"points": [[2, 1], [1, 1]]}', '{"recordings": [{"block_length": 64}]}', "[]"])
def test_bad_files_are_refused_in_one_line(text: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "bad.json"
    file.write_text(text, encoding="utf-8")
    for argument in ("--curve", "--recordings"):
        with pytest.raises(SystemExit, match="2"):
            main([argument, str(file)])
        assert "bad.json" in capsys.readouterr().err.splitlines()[-1]
