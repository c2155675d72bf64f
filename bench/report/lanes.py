"""Draws how lanes write an answer, as an animated WebP with a frame for each forward.

Usage: python -m asynclane.bench.report.lanes FILE [--model tiny-llada] [--prompt TEXT]
Needs Pillow and the fonts of matplotlib, extra `bench`.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ...server.llm import LLM, CompletionOutput, SamplingParams
from ...server.text.lanes import LaneEvent

if TYPE_CHECKING:
    from PIL.Image import Image
    from PIL.ImageDraw import ImageDraw
    from PIL.ImageFont import FreeTypeFont

PROMPT = "Tell me a short story about a fox."
WIDTH, MARGIN, LINE, BAR = 1200, 36, 46, 14  # pixels
FRAME_MS, LAST_MS = 750, 4000
PAPER, INK, SOFT, OPEN, FRESH = "#fbfaf7", "#22201c", "#666057", "#d9d4c9", "#0b6e5f"
BAND = {"generate": "#c6dbf7", "refine": "#fbd9ae"}
EDGE = {"generate": "#1f5fbf", "refine": "#a35200"}


@dataclass(frozen=True, slots=True)
class Cell:
    """The place of one position: it has the width of its final text from the start, so that nothing moves."""

    text: str
    x: float
    y: int
    width: float


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m asynclane.bench.report.lanes")
    parser.add_argument("file", type=Path)
    parser.add_argument("--model", default="tiny-llada")
    parser.add_argument("--prompt", default=PROMPT)
    args = parser.parse_args(argv)
    with LLM(args.model) as llm:
        (output,) = llm.chat([{"role": "user", "content": args.prompt}], SamplingParams(lanes=True), use_tqdm=False)
    write(args.file, args.prompt, output.outputs[0])
    print(f"{args.file}: {len(output.outputs[0].lanes)} forwards, {args.file.stat().st_size / 1000:.0f} kB")
    return 0


def write(path: Path, prompt: str, answer: CompletionOutput) -> None:
    """Write the animation of an answer that was recorded with its lanes."""
    first, *others = frames(prompt, answer)
    times = [FRAME_MS] * len(others) + [LAST_MS]
    first.save(path, append_images=others, save_all=True, duration=times, loop=0, lossless=True, method=6)


def frames(prompt: str, answer: CompletionOutput) -> Iterator[Image]:
    from PIL import Image, ImageDraw

    font, small = fonts()
    length = answer.usage.completion_tokens
    texts = {commit.position: commit.text for event in answer.lanes for commit in event.commits}
    cells = arrange([texts.get(position, "") for position in range(length)], font)
    height = cells[-1].y + LINE + 150
    committed: set[int] = set()
    for event in answer.lanes:
        fresh = {commit.position for commit in event.commits if commit.position < length}
        committed |= fresh
        image = Image.new("RGB", (WIDTH, height), PAPER)
        canvas = ImageDraw.Draw(image)
        canvas.text((MARGIN, 28), prompt, SOFT, small)
        bands(canvas, event, cells)
        for position, cell in enumerate(cells):
            if position not in committed:
                canvas.rounded_rectangle((cell.x + 4, cell.y + 10, cell.x + cell.width - 4, cell.y + 28), 4, OPEN)
            else:
                canvas.text((cell.x, cell.y + 2), cell.text, FRESH if position in fresh else INK, font)
        footer(canvas, event, len(committed), length, height - 116, small)
        yield image


def bands(canvas: ImageDraw, event: LaneEvent, cells: Sequence[Cell]) -> None:
    """Colour the positions of each lane, and mark where it starts."""
    for lane in event.lanes:
        for cell in cells[lane.start : lane.end]:
            canvas.rectangle((cell.x, cell.y, cell.x + cell.width, cell.y + LINE - 8), BAND[lane.role])
        for cell in cells[lane.start : lane.start + 1]:
            canvas.rectangle((cell.x, cell.y, cell.x + 3, cell.y + LINE - 8), EDGE[lane.role])


def footer(canvas: ImageDraw, event: LaneEvent, committed: int, length: int, y: int, font: FreeTypeFont) -> None:
    """Draw the legend, and how far lanes and a decoder of one token a forward have come."""
    forwards = event.step + 1
    x = float(MARGIN)
    for colour, words in (
        (BAND["refine"], "refine lane"),
        (BAND["generate"], "generate lane"),
        (OPEN, "open position"),
        (FRESH, "committed in this forward"),
    ):
        canvas.rounded_rectangle((x, y + 3, x + 26, y + 21), 4, colour)
        canvas.text((x + 36, y), words, SOFT, font)
        x += 76 + font.getlength(words)
    canvas.text((WIDTH - MARGIN, y), f"forward {forwards}", INK, font, anchor="ra")
    start = MARGIN + 290
    for row, (words, done) in enumerate((("lanes", committed), ("one token a forward", min(forwards, length)))):
        top = y + 42 + 32 * row
        canvas.text((MARGIN, top - 6), f"{words}", SOFT, font)
        canvas.rounded_rectangle((start, top, WIDTH - MARGIN - 110, top + BAR), 4, OPEN)
        end = start + (WIDTH - MARGIN - 110 - start) * done / length
        canvas.rectangle((start, top, end, top + BAR), EDGE["generate"] if row == 0 else SOFT)
        canvas.text((WIDTH - MARGIN, top - 6), f"{done} of {length}", INK, font, anchor="ra")


def arrange(texts: Sequence[str], font: FreeTypeFont) -> list[Cell]:
    """Place the texts of all positions in lines that break before a word."""
    cells: list[Cell] = []
    x, y = float(MARGIN), 84
    for number, text in enumerate(texts):
        word = text
        for following in texts[number + 1 :]:
            if following.startswith((" ", "\n")):
                break
            word += following
        if (text.startswith(" ") and x + font.getlength(word) > WIDTH - MARGIN) or text.startswith("\n"):
            x, y, text = float(MARGIN), y + LINE, text.lstrip()
        width = max(font.getlength(text), 6.0)
        cells.append(Cell(text.strip("\n"), x, y, width))
        x += width
    return cells


def fonts() -> tuple[FreeTypeFont, FreeTypeFont]:
    """Load the fonts that matplotlib contains, so that the picture is the same on every machine."""
    from matplotlib import get_data_path
    from PIL import ImageFont

    folder = Path(get_data_path()) / "fonts" / "ttf"
    return ImageFont.truetype(folder / "DejaVuSans.ttf", 26), ImageFont.truetype(folder / "DejaVuSans.ttf", 21)


if __name__ == "__main__":
    raise SystemExit(main())
