"""The progress of a start, in a terminal and in a log."""

from __future__ import annotations

import io

import pytest

from asynclane.server.engine import progress
from asynclane.server.engine.progress import progress_of


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_log_has_a_line_for_each_thing_that_is_done(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    with progress_of(io.StringIO()) as report:
        for what, total in (("compiling kernels", 3), ("capturing graphs", 2)):
            for done in range(total + 1):
                report(what, done, total)
    lines = [record.getMessage() for record in caplog.records]
    assert [line.split(" in ")[0] for line in lines] == ["compiling kernels: 3", "capturing graphs: 2"]


def test_a_log_has_lines_on_the_way_of_what_takes_long(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level("INFO")
    times = iter([0.0, 2.0, 6.0, 7.0, 11.0, 12.0])
    monkeypatch.setattr(progress.time, "perf_counter", lambda: next(times))
    with progress_of(io.StringIO()) as report:
        for done in range(6):
            report("loading tensors", done, 5)
    lines = [record.getMessage() for record in caplog.records]
    assert lines == ["loading tensors: 2 of 5", "loading tensors: 4 of 5", "loading tensors: 5 in 12.0 s"]


def test_a_terminal_has_a_bar_for_each_thing(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "QUICK_S", 0)
    caplog.set_level("INFO")
    terminal = Terminal()
    with progress_of(terminal) as report:
        for what in ("loading tensors", "capturing graphs"):
            for done in range(3):
                report(what, done, 2)
    for what in ("loading tensors: 100%", "capturing graphs: 100%"):
        assert what in terminal.getvalue()
    assert terminal.getvalue().count("2/2") == 2
    assert not caplog.records


def test_what_is_quick_has_no_bar() -> None:
    terminal = Terminal()
    with progress_of(terminal) as report:
        for done in range(3):
            report("loading tensors", done, 2)
    assert terminal.getvalue() == ""
