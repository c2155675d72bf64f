"""The live view redraws a terminal, and writes one line for each step to anything else."""

from __future__ import annotations

import io
import re
from typing import Any

import pytest

from asynclane.server.cli.terminal import LiveView, Screen
from asynclane.server.settings import color_allowed, cursor_moves
from asynclane.server.text.lanes import Commit, LaneEvent, LaneView


class Terminal(io.StringIO):
    """Keeps what a terminal would show. It knows what the view may use: line feeds, up, erase below, colours."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self._width = width
        self.lines = [""]
        self.row = 0
        self.colors = 0

    def write(self, text: str) -> int:
        for part in re.findall(r"\x1b\[[0-9;]*[A-Za-z]|.|\n", text):
            if part.endswith("A") and part.startswith("\x1b"):
                self.row -= int(part[2:-1])
                assert self.row >= 0, "above the top of the screen"
            elif part == "\x1b[J":
                self.lines = [*self.lines[: self.row], ""]
            elif part.startswith("\x1b"):
                assert part.endswith("m")
                self.colors += 1
            elif part == "\n":
                self.row += 1
                self.lines += [""] * (self.row + 1 - len(self.lines))
            elif part != "\r":
                self.lines[self.row] += part
                assert len(self.lines[self.row]) <= self._width, "the terminal would break this line"
        return len(text)

    @property
    def shown(self) -> str:
        return "\n".join(self.lines)


def lane(*tokens: str | None, start: int = 0, **more: Any) -> LaneView:
    return LaneView(
        **{"id": 0, "parent": None, "role": "generate", "fate": "live", **more},
        start=start,
        end=start + len(tokens),
        tokens=tokens,
    )


EVENTS = [
    LaneEvent(0, (-4, 6), False, (lane("One", None, None),), (Commit(0, "One"), Commit(4, " red"))),
    LaneEvent(1, (0, 6), True, (lane("One", " fish", ".\n"),), (Commit(1, " fish"), Commit(2, ".\n"))),
    LaneEvent(2, (3, 6), False, (lane("Two", " red", start=3, id=1),), (Commit(3, "Two"),)),
]
ANSWER = "One fish.\nTwo red"


def draw(screen: Screen) -> Terminal:
    out = Terminal(screen.width)
    view = LiveView(out, screen)
    for event in EVENTS:
        view.show(event)
    view.finish(ANSWER)
    return out


@pytest.mark.parametrize("width", [20, 33, 80])
@pytest.mark.parametrize("height", [4, 24])
@pytest.mark.parametrize("color", [False, True])
def test_the_last_frame_is_the_answer(width: int, height: int, color: bool) -> None:
    out = draw(Screen(width, height, redraw=True, color=color))
    assert out.shown == f"{ANSWER}\n"
    assert bool(out.colors) is color


def test_a_frame_shows_the_canvas_with_its_open_positions() -> None:
    out = Terminal(80)
    view = LiveView(out, Screen(redraw=True, color=True))
    view.show(EVENTS[0])
    assert out.lines[0] == "step 0: computed -4..6, 2 committed (1 drafts) | lanes 0 generate 0..3"
    assert "One··· red" in out.shown.replace("\n", "")
    view.show(EVENTS[1])
    assert out.lines[0].startswith("step 1: refreshed 0..6, 2 committed | lanes")
    assert "One fish.\n· red" in out.shown


def test_lines_for_a_pipe_hold_no_control_characters_whatever_the_model_says() -> None:
    out = io.StringIO()
    view = LiveView(out, Screen())
    view.show(LaneEvent(0, (0, 1), False, (lane("\x1b[2J\r\x07"),), (Commit(0, "\x1b[2J\r\x07"),)))
    view.finish("\x1b[2J\x9b1m\u202e.\tÜ 猫\n")
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e]", out.getvalue())
    assert out.getvalue().endswith(".\tÜ 猫\n\n")


class Tty(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_only_a_terminal_is_drawn_on() -> None:
    assert not Screen.of(io.StringIO(), cursor=True, color=True).redraw
    assert not Screen.of(Tty(), cursor=False, color=True).redraw
    assert Screen.of(Tty(), cursor=True, color=True) == Screen(redraw=True, color=True)


@pytest.mark.parametrize(
    ("environ", "redraw", "color"),
    [
        ({"TERM": "xterm"}, True, True),
        ({"TERM": "xterm", "NO_COLOR": "1"}, True, False),
        ({"TERM": "dumb"}, False, False),
    ],
)
def test_no_color_is_respected(environ: dict[str, str], redraw: bool, color: bool) -> None:
    screen = Screen.of(Tty(), cursor=cursor_moves(environ), color=color_allowed(environ))
    assert (screen.redraw, screen.color) == (redraw, color)
