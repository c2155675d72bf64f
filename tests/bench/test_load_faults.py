"""`asynclane bench` when things go wrong: nothing that was measured is lost, and nothing false is reported."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from asynclane.bench.load import output as report
from asynclane.bench.load import run as load
from asynclane.bench.load.loops import Failure, Sample
from asynclane.bench.load.plan import Level
from asynclane.bench.load.tally import sum_up
from asynclane.clients import Usage
from asynclane.server.cli import main as cli

from ..support.other_server import ANSWER, TEXT, Reply, other_server, stream
from ..support.processes import ASYNCLANE, started

WARMUP = 2
ERROR = {"id": "1", "error": {"message": "boom"}}


def bench(url: str, *argv: str) -> list[str]:
    return ["bench", "--url", url, "--requests", "3", "--warmup", str(WARMUP), "--tasks", "list", *argv]


def answered(number: int) -> tuple[int, str]:
    return 200, ANSWER


def measured(capsys: Any, reply: Reply, *argv: str) -> tuple[int, dict[str, Any], str]:
    """The exit code, the figures of the only load, and all that was shown."""
    with other_server(lambda number: answered(number) if number < WARMUP else reply(number)) as url:
        code = cli.main(bench(url, "--concurrency", "1", *argv))
    captured = capsys.readouterr()
    return code, json.loads(captured.out.splitlines()[-1])["loads"][0], captured.out + captured.err


@pytest.mark.parametrize(
    ("text", "failed", "tokens"),
    [
        (ANSWER, 0, 6),
        (stream(TEXT, ERROR), 3, 0),
        (stream(TEXT, {"object": "error", "message": "boom"}), 3, 0),
        (stream(TEXT, {"choices": [], "usage": {"completion_tokens": -5}}), 3, 0),
        (stream(TEXT, {"choices": [], "usage": {"prompt_tokens": None, "completion_tokens": None}}), 0, None),
        ("<html>", 3, 0),
    ],
)
def test_what_a_server_sends_is_counted_as_what_it_is(capsys: Any, text: str, failed: int, tokens: int | None) -> None:
    code, figures, _ = measured(capsys, lambda number: (200, text))
    assert (code, figures["failed"], figures["answer_tokens"]) == (int(failed > 0), failed, tokens)


def test_what_a_server_says_reaches_the_terminal_as_plain_lines(capsys: Any) -> None:
    body = json.dumps({"error": {"message": "x\n" * 5000 + "\x1b[31mred", "code": "a\n\x1b]0;b\x07"}})
    _, figures, shown = measured(capsys, lambda number: (500, body))
    assert "\x1b" not in shown
    assert "\x07" not in shown
    assert shown.count("\n") < 20
    assert max(map(len, shown.splitlines())) < 1500
    assert figures["failures"] == {"500 a ]0;b": 3}


# --- What is complete is kept


def test_ctrl_c_shows_the_loads_that_are_complete(tmp_path: Path) -> None:
    out = tmp_path / "load.json"

    def slow(number: int) -> tuple[int, str]:
        time.sleep(0 if number < WARMUP + 3 else 3)
        return 200, ANSWER

    with other_server(slow) as url:
        argv = bench(url, "--concurrency", "1,2,4", "--json", str(out))
        with started([*ASYNCLANE, *argv], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            assert process.stderr is not None
            for line in process.stderr:
                if line.startswith("[2/3]"):
                    break
            time.sleep(0.3)
            process.send_signal(signal.SIGINT)
            shown, complaints = process.communicate(timeout=20)
    assert process.returncode == 130
    assert "Traceback" not in complaints
    figures = json.loads(shown.splitlines()[-1])
    assert figures == json.loads(out.read_text(encoding="utf-8"))
    assert [load["completed"] for load in figures["loads"]] == [3]
    assert figures["not_measured"] == ["2 at once", "4 at once"]
    assert "Not measured: 2 at once" in shown


def test_a_picture_that_fails_comes_behind_the_figures(
    capsys: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: Any) -> None:
        raise OSError("the disk is full")

    monkeypatch.setattr(load, "draw_load", fail)
    out = tmp_path / "load.json"
    with other_server(answered) as url:
        argv = ["--concurrency", "1", "--plot", str(tmp_path / "load.png"), "--json", str(out)]
        assert cli.main(bench(url, *argv)) == 2
    captured = capsys.readouterr()
    assert json.loads(captured.out.splitlines()[-1]) == json.loads(out.read_text(encoding="utf-8"))
    assert "the disk is full" in captured.err


# --- What cannot work is refused before


@pytest.mark.parametrize(
    ("flag", "name", "message"),
    [
        ("--plot", "load.jpg", "load.jpg should end with .png"),
        ("--json", "", "Is a directory"),
        ("--plot", "folder.png", "Is a directory"),
        ("--json", "nowhere/load.json", "no folder"),
        ("--json", "x" * 300, "File name too long"),
    ],
)
def test_an_output_that_cannot_be_written_is_told_before_anything_is_asked(
    capsys: Any, tmp_path: Path, flag: str, name: str, message: str
) -> None:
    (tmp_path / "folder.png").mkdir()
    assert cli.main(["bench", "--url", "http://127.0.0.1:1", flag, str(tmp_path / name)]) == 2
    complaint = capsys.readouterr().err
    assert message in complaint
    assert complaint.count("\n") == 1


def test_outputs_that_can_be_written_are_left_as_they_are(tmp_path: Path) -> None:
    old, new = tmp_path / "old.json", tmp_path / "new.PNG"
    old.write_text("old", encoding="utf-8")
    assert report.missing_output(new, old) is None
    assert [path.name for path in tmp_path.iterdir()] == ["old.json"]
    assert old.read_text(encoding="utf-8") == "old"


def test_what_is_the_servers_to_judge_is_sent(tmp_path: Path, capsys: Any) -> None:
    file = tmp_path / "prompts.txt"
    file.write_text('{"prompt": 5, "stream_options": null}\n', encoding="utf-8")
    with other_server(answered) as url:
        argv = ["bench", "--url", url, "--requests", "1", "--concurrency", "1", "--prompts", str(file)]
        assert cli.main(argv) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["loads"][0]["completed"] == 1


@pytest.mark.parametrize("url", ["http://user:s3cret@127.0.0.1:1", "http://user:s3cret@127.0.0.1:99999"])
def test_a_password_in_the_url_is_not_shown(url: str, capsys: Any) -> None:
    assert cli.main(["bench", "--url", url]) == 2
    complaint = capsys.readouterr().err
    assert "127.0.0.1" in complaint
    assert "s3cret" not in complaint


# --- Times


def test_a_first_request_that_fails_is_told_and_passed_over(capsys: Any) -> None:
    with other_server(lambda number: (503, "") if number == 0 else (200, ANSWER)) as url:
        assert cli.main(bench(url, "--concurrency", "1")) == 0
    captured = capsys.readouterr()
    assert captured.err.count("A first request, which is not counted, failed: 503") == 1
    assert json.loads(captured.out.splitlines()[-1])["loads"][0]["completed"] == 3


def test_thoughts_count_in_the_time_per_token_as_they_do_in_usage(capsys: Any) -> None:
    usage = {"choices": [], "usage": {"completion_tokens": 2}}
    thought = {"choices": [{"delta": {"reasoning_content": "hm", "content": None}}]}
    _, figures, _ = measured(capsys, lambda number: (200, stream(thought, thought, usage)))
    assert figures["first_text_s"] is None
    assert figures["per_output_token_s"] is not None
    sample = Sample(0.0, 6.0, 5.0, 1.0, Usage(completion_tokens=11))
    lost = Sample(0.0, 6.0, 5.0, 1.0, failure=Failure("timed out", "x"))
    result = sum_up(Level(concurrency=1), [sample, lost], 9.0, None)
    assert (result.first_text, result.per_token) == ((5.0, 5.0, 5.0), (0.5, 0.5, 0.5))
