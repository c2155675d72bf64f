"""The picture of rates and times as the load grows, readable in a README."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from .output import COLOURS, SHAPES, save_picture
from .tally import Result, Spread

if TYPE_CHECKING:
    from matplotlib.axes import Axes

TIMES: tuple[tuple[str, Callable[[Result], Spread | None]], ...] = (
    ("time to first text, s", lambda result: result.first_text),
    ("time per output token, s", lambda result: result.per_token),
    ("end to end, s", lambda result: result.end_to_end),
)


def draw_load(results: Sequence[Result], title: str, path: Path) -> None:
    """Draw rates and times over the load, as a PNG at `path`. Needs matplotlib, extra `bench`."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 7), dpi=130, layout="constrained")
    FigureCanvasAgg(figure)
    rates, *times = figure.subplots(2, 2).flat
    _draw_rates(rates, results)
    for axes, (label, measure) in zip(times, TIMES, strict=True):
        spreads = [measure(result) for result in results]
        for number, name in enumerate(Spread._fields):
            _curve(axes, results, [spread and spread[number] for spread in spreads], name, number)
        axes.set_ylabel(label)
        axes.legend(frameon=False)
    for axes in (rates, *times):
        axes.set_ylim(bottom=0)
        axes.set_xlabel("arrivals per second" if results[0].level.rate is not None else "concurrent requests")
        axes.grid(alpha=0.3)
    figure.suptitle(title, fontsize=11)
    save_picture(figure, path)


def _draw_rates(axes: Axes, results: Sequence[Result]) -> None:
    if any(result.tokens_per_s is not None for result in results):
        _curve(axes, results, [result.tokens_per_s for result in results], None, 3)
        axes.set_ylabel("answer tokens per second")
    else:
        _curve(axes, results, [result.requests_per_s for result in results], None, 3)
        axes.set_ylabel("requests per second")


def _curve(axes: Axes, results: Sequence[Result], values: Sequence[float | None], name: str | None, style: int) -> None:
    loads = [result.level.rate or result.level.concurrency or 0 for result in results]
    known = [(load, value) for load, value in sorted(zip(loads, values, strict=True)) if value is not None]
    axes.plot(
        [load for load, _ in known],
        [value for _, value in known],
        marker=SHAPES[style],
        color=COLOURS[style],
        label=name,
    )
    axes.set_xscale("log", base=2)
    axes.set_xticks(loads, [f"{load:g}" for load in loads])
    axes.minorticks_off()
