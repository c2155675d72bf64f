"""Pictures of accuracy over cost, readable in a README."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol

from ..eval.interval import Interval
from ..load.output import COLOURS, SHAPES, save_picture

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WIDE = 8  # figures further apart than this factor are drawn on a logarithmic axis


class Point(Protocol):
    """The figures of a decoder that are drawn: a `tally.Tally`, or read from a file."""

    @property
    def decoder(self) -> str: ...
    @property
    def accuracy(self) -> float: ...
    @property
    def interval(self) -> Interval: ...
    @property
    def calls_per_problem(self) -> float: ...
    @property
    def computed_per_token(self) -> float: ...


class Cost(NamedTuple):
    """The cost of an answer: a word for it, the label of its axis, and the figure."""

    name: str
    label: str
    of: Callable[[Point], float]


COSTS = (
    Cost("calls", "model calls per problem", lambda point: point.calls_per_problem),
    Cost("computed", "computed tokens per answer token", lambda point: point.computed_per_token),
)


def draw(tallies: Sequence[Point], title: str, path: Path) -> None:
    """Draw accuracy with its interval over each cost, as a PNG at `path`.

    Needs matplotlib, extra `bench`: it is imported here, so that measuring works without. Not pyplot, which keeps
    figures in globals and looks for a display.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4.8), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    all_axes = figure.subplots(1, len(COSTS), sharey=True)
    for axes, cost in zip(all_axes, COSTS, strict=True):
        _panel(axes, tallies, cost)
    all_axes[0].set_ylabel("accuracy, 95 % interval")
    figure.suptitle(f"{title} (higher and further left is better)", fontsize=11)
    handles, labels = all_axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=min(3, len(labels)), frameon=False)
    save_picture(figure, path)


def _panel(axes: Axes, tallies: Sequence[Point], cost: Cost) -> None:
    for number, tally in enumerate(tallies):
        low, high = tally.interval
        axes.errorbar(
            cost.of(tally),
            tally.accuracy,
            yerr=[[max(0.0, tally.accuracy - low)], [max(0.0, high - tally.accuracy)]],
            fmt=SHAPES[number % len(SHAPES)],
            color=COLOURS[number % len(COLOURS)],
            markersize=8,
            capsize=4,
            label=tally.decoder,
        )
    _scale(axes, tallies, cost)


def _scale(axes: Axes, points: Sequence[Point], cost: Cost) -> None:
    values = [cost.of(point) for point in points]
    low, high = min(values), max(values)
    if 0 < WIDE * low < high:
        axes.set_xscale("log", subs=[])
        axes.set_xticks([step * 10**power for power in range(-2, 7) for step in (1, 2, 5)])
        axes.set_xlim(low / 1.4, high * 1.4)
    else:
        axes.set_xlim(0, 1.1 * max(high, 1.0))
    axes.xaxis.set_major_formatter("{x:g}")
    axes.set_xlabel(cost.label)
    axes.grid(alpha=0.3)


def draw_field(fields: Mapping[str, tuple[Sequence[Point], Mapping[Cost, Sequence[Point]]]], path: Path) -> None:
    """Draw many decoders, a row for each model. A line goes through the best by each cost, which are numbered, with
    their names beside it. AsyncLane's are filled, the others hollow.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(14, 4.4 * len(fields)), dpi=110, layout="constrained")
    FigureCanvasAgg(figure)
    widths = (*(1.0 for _ in COSTS), 0.85)
    grid = figure.subplots(len(fields), len(COSTS) + 1, squeeze=False, width_ratios=widths)
    for line, (model, (points, ahead)) in zip(grid, fields.items(), strict=True):
        *panels, side = line
        named = list(dict.fromkeys(point.decoder for those in ahead.values() for point in those))
        for axes, (cost, those) in zip(panels, ahead.items(), strict=True):
            _scatter(axes, points, cost)
            _frontier(axes, those, cost, named)
        panels[0].set_ylabel(f"{model}: accuracy")
        _names(side, named)
    save_picture(figure, path)


def _scatter(axes: Axes, points: Sequence[Point], cost: Cost) -> None:
    for point in points:
        ours = point.decoder.startswith("asynclane")
        style, colour, fill = ("o", COLOURS[1], "full") if ours else ("s", COLOURS[0], "none")
        axes.plot(cost.of(point), point.accuracy, style, color=colour, fillstyle=fill, markersize=6)
    axes.margins(y=0.08)
    _scale(axes, points, cost)


def _frontier(axes: Axes, ahead: Sequence[Point], cost: Cost, named: Sequence[str]) -> None:
    places = [(cost.of(point), point.accuracy) for point in ahead]
    axes.step([x for x, _ in places], [y for _, y in places], where="post", color="0.6", zorder=0)
    for turn, (point, place) in enumerate(zip(ahead, places, strict=True)):  # in three columns: many are neighbours
        number = str(1 + named.index(point.decoder))
        away = (-10 - 14 * (turn % 3), 4 + 3 * (turn % 3))
        line = {"arrowstyle": "-", "lw": 0.4}
        axes.annotate(number, place, away, textcoords="offset points", ha="right", fontsize=8, arrowprops=line)


def _names(axes: Axes, named: Sequence[str]) -> None:
    """Write the names of a row's numbers, and the meaning of its signs."""
    lines = [
        textwrap.fill(f"{n} {name.replace(',', ', ')}", 52, subsequent_indent="   ") for n, name in enumerate(named, 1)
    ]
    signs = "filled: AsyncLane's lanes; hollow: others"
    axes.text(0, 1, "\n".join([signs, *lines]), va="top", fontsize=8.5, transform=axes.transAxes)
    axes.axis("off")
