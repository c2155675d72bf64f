"""An answer's lanes in the terminal while it is computed. A pipe or a plain terminal gets one line for each step."""

from __future__ import annotations

import os
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TextIO

from ..text.lanes import LaneEvent, LaneView

OPEN = "·"
LINE_BREAK = "⏎"
TAB = 4
CONTROL = ("Cc", "Cf", "Cs", "Zl", "Zp")  # categories of Unicode
HARMLESS = "\n\t\u200c\u200d"  # the last two join letters, and emoji
UNSAFE = "\N{REPLACEMENT CHARACTER}"
RESET, NEW, DRAFT = "\x1b[0m", "1;7", "3;4;7"
LANE_COLORS = ("36", "33", "35", "32", "34", "31")
ERASE_BELOW = "\x1b[J"
WIDTH, HEIGHT = 80, 24  # if the terminal does not report them


@dataclass(frozen=True, slots=True)
class Screen:
    """The size in cells. Without `redraw` it is a pipe, a file, or a terminal whose cursor cannot move back."""

    width: int = WIDTH
    height: int = HEIGHT
    redraw: bool = False
    color: bool = False

    @classmethod
    def of(cls, out: TextIO, *, cursor: bool, color: bool) -> Screen:
        if not (cursor and out.isatty()):
            return cls()
        try:
            width, height = os.get_terminal_size(out.fileno())
        except OSError:
            width, height = WIDTH, HEIGHT
        return cls(width or WIDTH, height or HEIGHT, redraw=True, color=color)


@dataclass(frozen=True, slots=True)
class Cell:
    """A character of the canvas, with its style in SGR codes."""

    char: str
    style: str = ""

    @property
    def width(self) -> int:
        if unicodedata.category(self.char) in ("Mn", "Me", "Cf"):
            return 0
        return 2 if unicodedata.east_asian_width(self.char) in "WF" else 1


class LiveView:
    """Call `show` at every step, then `finish`, which leaves the answer and nothing else."""

    def __init__(self, out: TextIO, screen: Screen) -> None:
        self._out = out
        self._screen = screen
        self._canvas: dict[int, str] = {}
        self._drawn = 0  # lines on the screen

    def show(self, event: LaneEvent) -> None:
        self._canvas |= {commit.position: commit.text for commit in event.commits}
        if not self._screen.redraw:
            canvas = "".join(cell.char for cell in self._cells(event)).replace("\n", LINE_BREAK)
            self._write(f"{_about(event)} | {canvas}\n")
            return
        # A line that has left the screen cannot be drawn again; lanes work towards the end of the canvas.
        room = self._screen.height - 1
        about = self._wrapped(_plain(_about(event)))[: max(1, room // 2)]
        lines = about + self._wrapped(self._cells(event))[-max(1, room - len(about)) :]
        self._erase()
        self._write("".join(f"{line}\n" for line in lines))
        self._drawn = len(lines)

    def finish(self, text: str) -> None:
        if self._screen.redraw:
            self._erase()
        else:
            self._write("\n")
        self._write(_safe(text) + "\n")

    def _erase(self) -> None:
        if self._drawn:
            self._write(f"\x1b[{self._drawn}A\r{ERASE_BELOW}")
            self._drawn = 0

    def _cells(self, event: LaneEvent) -> Iterator[Cell]:
        """The canvas after the step, up to the last known position."""
        new = {commit.position for commit in event.commits}
        known = [*self._canvas, *(lane.end - 1 for lane in event.lanes)]
        for position in range(max(known, default=-1) + 1):
            style = _style(event.lane_at(position), position in new) if self._screen.color else ""
            yield from _plain(self._canvas.get(position, OPEN), style)

    def _wrapped(self, cells: Iterator[Cell]) -> list[str]:
        """Lines that fit the width: the terminal's own line breaks could not be counted."""
        lines, used, style = [""], 0, ""
        for cell in cells:
            if cell.char == "\n" or used + cell.width > self._screen.width:
                lines[-1] += RESET if style else ""
                lines.append("")
                used, style = 0, ""
            if cell.char == "\n":
                continue
            if cell.style != style:
                lines[-1] += (RESET if style else "") + (f"\x1b[{cell.style}m" if cell.style else "")
                style = cell.style
            lines[-1] += cell.char
            used += cell.width
        lines[-1] += RESET if style else ""
        return lines

    def _write(self, text: str) -> None:
        self._out.write(text)
        self._out.flush()


def _safe(text: str) -> str:
    """Replace control characters: a model's text may contain them, and none may reach the terminal."""
    return "".join(UNSAFE if unicodedata.category(char) in CONTROL and char not in HARMLESS else char for char in text)


def _plain(text: str, style: str = "") -> Iterator[Cell]:
    return (Cell(char, style) for char in _safe(text).expandtabs(TAB))


def _style(lane: LaneView | None, new: bool) -> str:
    if lane is None:
        return DRAFT if new else ""
    color = LANE_COLORS[lane.id % len(LANE_COLORS)]
    return f"{NEW};{color}" if new else color


def _about(event: LaneEvent) -> str:
    lanes = ", ".join(
        f"{lane.id} {lane.role} {lane.start}..{lane.end}" + ("" if lane.fate == "live" else f" {lane.fate}")
        for lane in event.lanes
    )
    drafts = f" ({len(event.drafts)} drafts)" if event.drafts else ""
    computed = f"{'refreshed' if event.refresh else 'computed'} {event.computed[0]}..{event.computed[1]}"
    return f"step {event.step}: {computed}, {len(event.commits)} committed{drafts} | lanes {lanes or 'none'}"
