"""Draws the time of whole steps over their size, beside the rates of memory and of a large product on the same card.

Usage: python -m asynclane.bench.steps.roofline [--results bench/results]
Reads the results of `steps.offline` and `kernels`, so it needs no GPU, and writes roofline.png beside them. The dashed
line is the time to read all weights once at the fastest rate of a copy or a sum, or to do all operations at that of a
large product, whichever is longer.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..kernels.cases import ITEM, Peaks, Workload
from ..load.output import COLOURS, check_outputs, save_picture
from ..load.output import SHAPES as MARKERS
from ..report import RESULTS
from ..report.tables import MODELS, compared, read_kernels, read_steps
from .offline import ROW, Load, projected
from .shapes import SHAPES as NETWORKS

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PLOT = "roofline.png"
POINTS = 200  # of the limit's line
LINES = (("ours_ms", "asynclane"), ("reference_ms", "library calls"))
DASHED = "weights at the memory's rate, or operations at a large product's"


def step_work(shape: str, load: Load) -> Workload:
    """Return the work of a step of a network without experts: its weights are read once at any size."""
    config = NETWORKS[shape]
    kv_dim = config.kv_heads * config.head_dim
    layer = config.dim * (2 * config.dim + 2 * kv_dim + 3 * config.ff_dim)
    head = config.vocab_size * config.dim
    count = sum(projected(size, config.logit_shift) for size, _ in load.rows)
    pairs = sum(size * keys for size, keys in load.rows)
    operations = config.layers * (2 * load.tokens * layer + 4 * pairs * config.dim) + 2 * count * head
    return Workload((config.layers * layer + head) * ITEM, operations)


def limit_ms(shape: str, tokens: int, keys: int, peaks: Peaks) -> float:
    """Return the limit of `tokens` positions in rows of up to `ROW` over `keys` each; the last row may be shorter."""
    rows = tuple((min(ROW, tokens - start), keys) for start in range(0, tokens, ROW))
    work = step_work(shape, Load(str(tokens), rows))
    return work.bound_ms(peaks)


def draw(runs: Sequence[Mapping[str, Any]], kernels: Mapping[str, Any], path: Path) -> None:
    """Draw one panel for each shape, as a PNG at `path`. Needs matplotlib, extra `bench`."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.2 * len(runs), 4.6), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(1, len(runs), sharey=True, squeeze=False)[0]
    for axes, run in zip(panels, runs, strict=True):
        _panel(axes, run, Peaks(**kernels["peaks"]))
    panels[0].set_ylabel("milliseconds of a step")
    panels[0].legend(frameon=False, loc="upper left")
    figure.suptitle(f"Steps on one {runs[0]['card']}, bfloat16 (lower is better)", fontsize=11)
    save_picture(figure, path)


def _panel(axes: Axes, run: Mapping[str, Any], peaks: Peaks) -> None:
    steps = [step for step in run["steps"] if step["load"].isdigit()]  # rows of equal length
    sizes = [step["tokens"] for step in steps]
    for (key, label), marker, colour in zip(LINES, MARKERS, COLOURS, strict=False):
        axes.plot(sizes, [step[key] for step in steps], marker=marker, color=colour, markersize=5, label=label)
    grid = sorted({round(size) for size in np.geomspace(min(sizes), max(sizes), POINTS)})
    limits = [limit_ms(run["shape"], tokens, run["keys"], peaks) for tokens in grid]
    axes.plot(
        grid,
        limits,
        color=COLOURS[-1],
        linestyle="--",
        label=DASHED,
    )
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", subs=[])
    axes.set_yticks([step * 10**power for power in range(-1, 4) for step in (1, 2, 5)])
    axes.set_ylim(min(limits) / 1.3, 1.3 * max(step[key] for step in steps for key, _ in LINES))
    axes.set_xticks(sizes, list(map(str, sizes)))
    axes.set_xlabel("positions of a step")
    axes.set_title(MODELS[run["shape"]], fontsize=10)
    axes.yaxis.set_major_formatter("{x:g}")
    axes.grid(alpha=0.3, which="both")


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m asynclane.bench.steps.roofline",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--results",
        type=Path,
        default=RESULTS,
        metavar="DIR",
        help="folder of JSON files and of the plot (default: %(default)s)",
    )
    options = parser.parse_args(argv)
    path = options.results / PLOT
    check_outputs(parser, path)
    runs, kernels = [run for run in read_steps(options.results) if compared(run)], read_kernels(options.results)
    if not runs or kernels is None:
        parser.error(f"{options.results} lacks offline-*.json or kernels.json: `make bench-gpu` writes them")
    cards = {run["card"] for run in (*runs, kernels)}
    if len(cards) > 1:
        parser.error(f"the results are of different cards: {', '.join(sorted(cards))}")
    draw(runs, kernels, path)
    print(path)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
