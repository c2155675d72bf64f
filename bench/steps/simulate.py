"""Shows whether block lengths should follow the load: adaptive against every fixed one, from one request to many.

Usage: python -m asynclane.bench.steps.simulate [--requests 1,2,4] [--plot blocks.png] [--json blocks.json]
Recorded calls of a model (`steps.recordings`) are replayed at the step times of a measured curve. More than one
file of `--recordings` gives a table for each, since models differ in tokens a forward.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...scheduler.decoding.params import BLOCK_LENGTHS
from ...scheduler.step_cost import Budget, StepCost
from ..load.output import check_outputs, finish, positive, table
from ..report import RESULTS
from .curves import draw_curves
from .recordings import RECORDINGS, Recording, load
from .replay import Loop, Outcome, Spell

CURVE = RESULTS / "roofline-h100-llada8b.json"
LOADS = tuple(2**power for power in range(9))
ADAPTIVE = "adaptive"
MOST_REQUESTS = 4096
ROUNDS = 100  # answers of each place, at least, in warm-up and measurement: some 500 steps each
TIE = 0.01  # changes of the block length cost about as much in replaying: a smaller difference is none


@dataclass(frozen=True, slots=True)
class Comparison:
    """One load: tokens per second at each fixed block length, and with a budget that starts untrained."""

    requests: int
    fixed: dict[int, float]
    adaptive: Outcome

    @property
    def best(self) -> int:
        return max(self.fixed, key=lambda block_length: self.fixed[block_length])

    @property
    def ratio(self) -> float:
        """The rate of adaptive over the best fixed block length of this load."""
        return self.adaptive.tokens_per_s / self.fixed[self.best]


def read_curve(path: Path) -> StepCost:
    """Return the cost of a step from a file with `points`: positions and milliseconds. Raises `ValueError` for another
    file, and `OSError`."""
    try:
        points = json.loads(path.read_text(encoding="utf-8"))["points"]
        return StepCost([tokens for tokens, _ in points], [ms / 1e3 for _, ms in points])
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path.name} is no cost curve: {type(error).__name__} {error}") from None


def compare(loop: Loop, cost: StepCost, requests: int, spell: Spell) -> Comparison:
    fixed = {block_length: loop.run(requests, block_length, spell).tokens_per_s for block_length in loop.block_lengths}
    return Comparison(requests, fixed, loop.run(requests, Budget(cost), spell))


def over_loads(comparisons: Sequence[Comparison]) -> dict[int, float]:
    """Return adaptive's rate over that of each fixed block length, geometric mean over all loads."""
    found = {}
    for block_length in comparisons[0].fixed:
        product = 1.0
        for load_ in comparisons:
            product *= load_.adaptive.tokens_per_s / load_.fixed[block_length]
        found[block_length] = product ** (1 / len(comparisons))
    return found


def main(argv: Sequence[str] | None = None) -> int:
    parser = _parser()
    options = parser.parse_args(argv)
    recorded, cost = _inputs(parser, options.recordings, options.curve)
    if options.plot and len(recorded) > 1:
        parser.error("--plot draws one file of --recordings")
    check_outputs(parser, options.plot, options.json)
    simulations = [_simulate(path, recordings, cost, options) for path, recordings in recorded.items()]
    worst = min(simulation["worst_of_best"] for simulation in simulations)
    finish(
        {"benchmark": "simulate", "curve": options.curve.name, "worst_of_best": worst, "simulations": simulations},
        options.json,
    )
    return 0


def _simulate(
    path: Path, recordings: tuple[Recording, ...], cost: StepCost, options: argparse.Namespace
) -> dict[str, Any]:
    """Compare on one file of recordings, print the table, draw, and return the figures."""
    loop = Loop(recordings, cost)
    comparisons = []
    for requests in options.requests:
        # A budget learns by steps, and an answer takes as many steps alone as among many.
        spell = Spell(max(options.warm_up, ROUNDS * requests), max(options.answers, ROUNDS * requests))
        comparisons.append(compare(loop, cost, requests, spell))
        said = f"{requests} requests: adaptive {comparisons[-1].ratio:.3f} of the best"
        print(f"{path.name}, {said}", file=sys.stderr, flush=True)
    gains = over_loads(comparisons)
    print(f"{path.name}\n{_table(recordings, comparisons, gains)}")
    worst = min(comparisons, key=lambda c: c.ratio)
    print(
        f"\nAdaptive brings at least {worst.ratio:.3f} of a load's best fixed length (at {worst.requests} requests)."
        f"\nOver all loads (geometric mean) it {_comparison(gains)}: {min(gains.values()):.3f} of the best.\n"
    )
    if options.plot:
        draw_curves(
            options.requests,
            {
                str(block_length): [c.fixed[block_length] / c.fixed[c.best] for c in comparisons]
                for block_length in loop.block_lengths
            },
            [c.ratio for c in comparisons],
            options.plot,
        )
    return _figures(path, recordings, comparisons, gains)


def _inputs(
    parser: argparse.ArgumentParser, files: Sequence[Path], curve: Path
) -> tuple[dict[Path, tuple[Recording, ...]], StepCost]:
    try:
        recorded, cost = {path: load(path) for path in files}, read_curve(curve)
    except (OSError, ValueError) as error:
        parser.error(str(error))
    for path, recordings in recorded.items():
        missing = set(BLOCK_LENGTHS) - {recording.block_length for recording in recordings}
        if missing:
            parser.error(f"{path.name} has no calls at block length {', '.join(map(str, sorted(missing)))}")
    return recorded, cost


def _comparison(gains: dict[int, float]) -> str:
    worst = min(gains.values())
    if abs(worst - 1) <= TIE:
        return f"is no different from the best single length within {TIE:.0%}"
    return "beats every single block_length" if worst > 1 else "loses to a single block_length"


def _table(recordings: Sequence[Recording], comparisons: Sequence[Comparison], gains: dict[int, float]) -> str:
    head = [
        "requests",
        *(f"block {r.block_length}" for r in recordings),
        ADAPTIVE,
        "of best",
        "mean block_length",
    ]
    rows = [
        [
            str(c.requests),
            *(f"{c.fixed[r.block_length]:.0f}" for r in recordings),
            f"{c.adaptive.tokens_per_s:.0f}",
            f"{c.ratio:.3f}",
            f"{c.adaptive.mean_block_length:.0f}",
        ]
        for c in comparisons
    ]
    rows.append(["adaptive over it", *(f"{gains[r.block_length]:.3f}" for r in recordings), "", "", ""])
    if all(r.graded for r in recordings):
        rows.append(["accuracy", *(f"{r.accuracy:.3f}" for r in recordings), "", "", ""])
    return table(head, rows)


def _figures(
    path: Path, recordings: Sequence[Recording], comparisons: Sequence[Comparison], gains: dict[int, float]
) -> dict[str, Any]:
    return {
        "recordings": path.name,
        "problems": len(recordings[0].answers),
        "accuracy": {str(r.block_length): round(r.accuracy, 4) for r in recordings if r.graded},
        "loads": [
            {
                "requests": c.requests,
                "fixed_tokens_per_s": {str(block_length): round(rate, 1) for block_length, rate in c.fixed.items()},
                "adaptive_tokens_per_s": round(c.adaptive.tokens_per_s, 1),
                "of_best": round(c.ratio, 4),
                "steps": {str(block_length): count for block_length, count in c.adaptive.steps.items()},
            }
            for c in comparisons
        ],
        "adaptive_over_fixed": {str(block_length): round(gain, 4) for block_length, gain in gains.items()},
        "worst_of_best": round(min(c.ratio for c in comparisons), 4),
        "beats_every_fixed": min(gains.values()) > 1 + TIE,
    }


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m asynclane.bench.steps.simulate",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--recordings", type=Path, nargs="+", default=[RECORDINGS], metavar="FILE", help=f"default: {RECORDINGS}"
    )
    parser.add_argument("--curve", type=Path, default=CURVE, metavar="FILE", help="default: %(default)s")
    parser.add_argument("--requests", type=_loads, default=LOADS, help="loads, such as 1,16,256; default: 1 to 256")
    parser.add_argument(
        "--warm-up",
        type=positive,
        default=400,
        help=f"answers before measuring, {ROUNDS} a request at least (%(default)s)",
    )
    parser.add_argument(
        "--answers", type=positive, default=1000, help=f"answers measured, {ROUNDS} a request at least (%(default)s)"
    )
    parser.add_argument("--plot", type=Path, metavar="PNG", help="draw all settings over the load")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the last line to a file, too")
    return parser


def _loads(text: str) -> tuple[int, ...]:
    try:
        loads = tuple(int(part) for part in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be whole numbers with commas between, not {text!r}") from None
    if not all(1 <= load_ <= MOST_REQUESTS for load_ in loads):
        raise argparse.ArgumentTypeError(f"must be from 1 to {MOST_REQUESTS}, not {text!r}")
    return loads


if __name__ == "__main__":
    raise SystemExit(main())
