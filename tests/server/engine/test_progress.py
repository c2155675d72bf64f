"""The progress of a start, in a terminal and in a log."""

from __future__ import annotations

import io

import pytest

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


def test_a_terminal_has_bars(caplog: pytest.LogCaptureFixture) -> None:
    pytest.importorskip("rich")
    caplog.set_level("INFO")
    terminal = Terminal()
    with progress_of(terminal) as report:
        for done in range(3):
            report("capturing graphs", done, 2)
    assert "capturing graphs" in terminal.getvalue()
    assert "2/2" in terminal.getvalue()
    assert not caplog.records
