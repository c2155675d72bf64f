"""The picture of settings over the load, readable in a README."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from ..load.output import COLOURS, SHAPES, save_picture


def draw_curves(
    requests: Sequence[int], fixed: Mapping[str, Sequence[float]], auto: Sequence[float], path: Path
) -> None:
    """Draw tokens per second relative to the best shape that loses no accuracy, over concurrent requests, as a PNG at
    `path`.

    Needs matplotlib, extra `bench`.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4.8), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    for number, (name, values) in enumerate(fixed.items()):
        shape, colour = SHAPES[number % len(SHAPES)], COLOURS[number % (len(COLOURS) - 1)]
        axes.plot(requests, values, marker=shape, color=colour, linewidth=1, alpha=0.8, label=name)
    axes.plot(requests, auto, color=COLOURS[-1], linewidth=2.5, label="auto")
    axes.set_xscale("log", base=2)
    axes.set_xticks(requests, list(map(str, requests)))
    axes.set_xlabel("concurrent requests")
    axes.set_ylabel("tokens per second over the best accurate shape's")
    axes.grid(alpha=0.3)
    axes.legend(frameon=False, ncols=2)
    save_picture(figure, path)
