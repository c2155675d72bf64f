"""Shows whether the shape of lanes should follow the load: `auto` against every fixed shape, from one request to many.

Usage: python -m asynclane.bench.steps.simulate [--requests 1,2,4] [--plot blocks.png] [--json blocks.json]
Recorded answers of a model (`steps.recordings`) are replayed at the step times of a measured curve. More than one
file of `--recordings` gives a table for each, since models differ in tokens a forward. A fixed shape is compared with
`auto` if its accuracy is within one point of the default's, or above it.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...scheduler.decoding.params import AUTO, DEFAULT_SHAPE, SHAPES, LaneShape
from ...scheduler.step_cost import MOSTLY_OPEN, Budget, StepCost
from ..load.output import check_outputs, finish, positive, table
from ..report import RESULTS
from .curves import draw_curves
from .prefill import read_curve
from .recordings import RECORDINGS, Recording, load, shape_name
from .replay import Loop, Outcome, Spell

CURVE = RESULTS / "offline-llada-8b.json"
LOADS = tuple(2**power for power in range(9))
MOST_REQUESTS = 4096
ROUNDS = 12  # answers of each place, at least, in warm-up and measurement
POINT = 0.01  # of accuracy, that a shape may lose


@dataclass(frozen=True, slots=True)
class Comparison:
    """One load: tokens a second in each fixed shape, and with a budget that starts untrained. `right` shapes lose no
    accuracy."""

    requests: int
    fixed: dict[LaneShape, float]
    auto: Outcome
    right: tuple[LaneShape, ...]

    @property
    def best(self) -> LaneShape:
        return max(self.right, key=lambda shape: self.fixed[shape])

    @property
    def of_best(self) -> float:
        """The rate of auto over that of the best shape that loses no accuracy."""
        return self.auto.tokens_per_s / self.fixed[self.best]

    @property
    def over_default(self) -> float:
        return self.auto.tokens_per_s / self.fixed[DEFAULT_SHAPE]


def compare(loop: Loop, cost: StepCost, requests: int, spell: Spell, right: tuple[LaneShape, ...]) -> Comparison:
    fixed = {shape: loop.run(requests, shape, spell).tokens_per_s for shape in loop.shapes}
    return Comparison(requests, fixed, loop.run(requests, Budget(cost), spell), right)


def as_accurate(recordings: Sequence[Recording]) -> tuple[LaneShape, ...]:
    """The shapes whose accuracy is within a point of the default's, or above it."""
    least = next(one.accuracy for one in recordings if one.shape == DEFAULT_SHAPE) - POINT
    return tuple(one.shape for one in recordings if one.accuracy >= least)


def accuracy_of(answers: dict[LaneShape, int], recordings: Sequence[Recording]) -> float:
    """The accuracy of answers in several shapes."""
    by_shape = {one.shape: one.accuracy for one in recordings}
    return sum(count * by_shape[shape] for shape, count in answers.items()) / sum(answers.values())


def main(argv: Sequence[str] | None = None) -> int:
    parser = _parser()
    options = parser.parse_args(argv)
    recorded, cost = _inputs(parser, options.recordings, options.curve)
    if options.plot and len(recorded) > 1:
        parser.error("--plot draws one file of --recordings")
    check_outputs(parser, options.plot, options.json)
    simulations = [_simulate(path, recordings, cost, options) for path, recordings in recorded.items()]
    finish({"benchmark": "simulate", "curve": options.curve.name, "simulations": simulations}, options.json)
    return 0


def _simulate(
    path: Path, recordings: tuple[Recording, ...], cost: StepCost, options: argparse.Namespace
) -> dict[str, Any]:
    """Compare on one file of recordings, print the table, draw, and return the figures."""
    loop, right = Loop(recordings, cost), as_accurate(recordings)
    comparisons = []
    for requests in options.requests:
        spell = Spell(max(options.warm_up, ROUNDS * requests), max(options.answers, ROUNDS * requests))
        comparisons.append(compare(loop, cost, requests, spell, right))
        said = f"{requests} requests: auto {comparisons[-1].of_best:.3f} of the best"
        print(f"{path.name}, {said}", file=sys.stderr, flush=True)
    print(f"{path.name}\n{_table(recordings, comparisons)}")
    computed, useful = _positions_a_token(recordings)
    least = f"{useful:.2f}: the prompt, and each token as a mask and as itself"
    print(
        f"\nThe default computes {computed:.2f} positions a token, and every shape at least {least}.\n"
        f"None is more than {computed / useful:.2f} times as fast where each position costs.\n"
    )
    if options.plot:
        draw_curves(
            options.requests,
            {shape_name(shape): [c.fixed[shape] / c.fixed[c.best] for c in comparisons] for shape in loop.shapes},
            [c.of_best for c in comparisons],
            options.plot,
        )
    return {
        "recordings": path.name,
        "problems": len(recordings[0].answers),
        "default_positions_a_token": round(computed, 3),
        "useful_positions_a_token": round(useful, 3),
        "accuracy": {shape_name(one.shape): round(one.accuracy, 4) for one in recordings},
        "loads": [
            {
                "requests": c.requests,
                "fixed_tokens_per_s": {shape_name(shape): round(rate, 1) for shape, rate in c.fixed.items()},
                "auto_tokens_per_s": round(c.auto.tokens_per_s, 1),
                "auto_accuracy": round(accuracy_of(c.auto.answers, recordings), 4),
                "of_best": round(c.of_best, 4),
                "over_default": round(c.over_default, 4),
                "answers": {shape_name(shape): count for shape, count in c.auto.answers.items()},
            }
            for c in comparisons
        ],
    }


def _missing(recordings: Sequence[Recording]) -> list[str]:
    """The shapes that auto may choose for these answers but were not recorded: narrow ones only where most of the
    default's positions stay open."""
    recorded = {one.shape for one in recordings}
    possible: tuple[LaneShape, ...] = SHAPES
    if DEFAULT_SHAPE in recorded:
        computed, useful = _positions_a_token(recordings)
        possible = possible if 1 - useful / computed > MOSTLY_OPEN else (DEFAULT_SHAPE,)
    return [shape_name(shape) for shape in possible if shape not in recorded]


def _positions_a_token(recordings: Sequence[Recording]) -> tuple[float, float]:
    """The positions that the default computes for each token, and those of them that any shape computes."""
    (default,) = (one for one in recordings if one.shape == DEFAULT_SHAPE)
    answers = default.answers
    tokens = sum(answer.tokens for answer in answers)
    return sum(answer.positions for answer in answers) / tokens, sum(answer.useful for answer in answers) / tokens


def _inputs(
    parser: argparse.ArgumentParser, files: Sequence[Path], curve: Path
) -> tuple[dict[Path, tuple[Recording, ...]], StepCost]:
    try:
        recorded, cost = {path: load(path) for path in files}, read_curve(curve)
    except (OSError, ValueError) as error:
        parser.error(str(error))
    for path, recordings in recorded.items():
        if missing := _missing(recordings):
            parser.error(f"{path.name} has no answers of block length + look-ahead {', '.join(missing)}")
    return recorded, cost


def _table(recordings: Sequence[Recording], comparisons: Sequence[Comparison]) -> str:
    head = [
        "requests",
        *(shape_name(one.shape) for one in recordings),
        AUTO,
        "its usual shape",
        "its accuracy",
        "of the best",
        "over the default",
    ]
    rows = [
        [
            str(c.requests),
            *(f"{c.fixed[one.shape]:.0f}" for one in recordings),
            f"{c.auto.tokens_per_s:.0f}",
            shape_name(c.auto.usual),
            f"{accuracy_of(c.auto.answers, recordings):.3f}",
            f"{c.of_best:.3f}",
            f"{c.over_default:.2f}",
        ]
        for c in comparisons
    ]
    return table(head, [*rows, ["accuracy", *(f"{one.accuracy:.3f}" for one in recordings), "", "", "", "", ""]])


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m asynclane.bench.steps.simulate",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--recordings", type=Path, nargs="+", default=[RECORDINGS], metavar="FILE", help=f"default: {RECORDINGS}"
    )
    parser.add_argument("--curve", type=Path, default=CURVE, metavar="FILE", help="of steps.offline (%(default)s)")
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
