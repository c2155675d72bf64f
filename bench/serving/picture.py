"""The picture of token rates, beside what the device alone could give, and of gaps, over the number of streams.

Usage: python -m asynclane.bench.serving.picture [--results bench/results]
Reads the results of `serving`, so it needs no GPU, and writes serving.png beside them.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..load.output import COLOURS, SHAPES, check_outputs, save_picture
from ..report import RESULTS
from ..report.serving import PLOT, read_serving

if TYPE_CHECKING:
    from matplotlib.axes import Axes

GAPS = ("p50", "p99", "p99.9", "max")


def draw(runs: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Draw a row for each run, as a PNG at `path`. Needs matplotlib, extra `bench`."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 3.8 * len(runs)), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    for (rates, gaps), run in zip(figure.subplots(len(runs), 2, squeeze=False), runs, strict=True):
        levels = sorted((f for f in run["loads"] if f["load"] == "equal"), key=lambda f: f["streams"]) or run["loads"]
        _rates(rates, run["model"], levels)
        _gaps(gaps, levels)
    save_picture(figure, path)


def _rates(axes: Axes, model: str, levels: Sequence[Mapping[str, Any]]) -> None:
    _curve(axes, levels, [f["tokens_per_s"] for f in levels], "over HTTP", 0)
    _curve(axes, levels, [f["bound_tokens_per_s"] for f in levels], "if the device never waited", 6)
    axes.set_ylabel(f"{model}: tokens per second")
    axes.set_ylim(bottom=0)
    axes.legend(frameon=False)


def _gaps(axes: Axes, levels: Sequence[Mapping[str, Any]]) -> None:
    for number, name in enumerate(GAPS):
        _curve(axes, levels, [(f["gap_ms"] or {}).get(name) for f in levels], name, number)
    axes.set_yscale("log")
    axes.set_ylabel("gap between chunks, ms")
    axes.legend(frameon=False)


def _curve(
    axes: Axes, levels: Sequence[Mapping[str, Any]], values: Sequence[float | None], label: str, style: int
) -> None:
    known = [(f["streams"], value) for f, value in zip(levels, values, strict=True) if value]
    axes.plot(*zip(*known, strict=True), marker=SHAPES[style], color=COLOURS[style], label=label) if known else None
    axes.set_xscale("log", base=2)
    axes.set_xticks([f["streams"] for f in levels], [str(f["streams"]) for f in levels])
    axes.minorticks_off()
    axes.set_xlabel("streams")
    axes.grid(alpha=0.3)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m asynclane.bench.serving.picture",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--results", type=Path, default=RESULTS, metavar="DIR", help="default: %(default)s")
    options = parser.parse_args(argv)
    runs = read_serving(options.results)
    if not runs:
        parser.error(f"{options.results} has no serving-*.json")
    check_outputs(parser, options.results / PLOT)
    draw(runs, options.results / PLOT)
    print(options.results / PLOT)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
