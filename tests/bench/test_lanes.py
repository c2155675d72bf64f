"""The moving picture of the lanes has a frame for each forward, and text that does not move."""

from __future__ import annotations

from pathlib import Path

from PIL import Image

from asynclane.bench.report.lanes import MARGIN, WIDTH, arrange, fonts, write
from asynclane.server.engine.messages import Usage
from asynclane.server.llm import CompletionOutput
from asynclane.server.text.lanes import Commit, LaneEvent, LaneView


def event(step: int, lanes: tuple[LaneView, ...], *commits: tuple[int, str]) -> LaneEvent:
    return LaneEvent(step, (0, 8), False, lanes, tuple(Commit(*commit) for commit in commits))


def test_each_forward_is_a_frame(tmp_path: Path) -> None:
    whole = LaneView(0, None, "generate", 0, 4, "forked", (None,) * 4)
    parts = (
        LaneView(0, None, "refine", 0, 2, "finished", (None,) * 2),
        LaneView(1, 0, "generate", 2, 4, "finished", (None,) * 2),
    )
    events = (event(0, (whole,), (1, " day."), (6, "")), event(1, parts, (0, "One"), (2, " Then"), (3, " two.")))
    answer = CompletionOutput(0, "One day. Then two.", (1, 2, 3, 4), "stop", Usage(4), None, events, None)
    write(tmp_path / "lanes.webp", "A question", answer)
    with Image.open(tmp_path / "lanes.webp") as picture:
        assert (picture.width, getattr(picture, "n_frames", 1)) == (WIDTH, 2)


def test_lines_break_before_words_and_at_line_breaks() -> None:
    font, _ = fonts()
    cells = arrange(["One", " word", "s", "\nNext", *[" again"] * 40], font)
    assert [cell.y for cell in cells[:3]] == [cells[0].y] * 3
    assert (cells[3].x, cells[3].text) == (MARGIN, "Next")
    assert cells[3].y > cells[0].y
    assert all(cell.x >= MARGIN and cell.x + cell.width <= WIDTH - MARGIN for cell in cells)
