"""Measures many decoders of a file, to choose defaults.

Usage: python -m asynclane.bench.quality.sweep FILE [--processes 2] [--problems 400] [--seed 777]
    [--device cuda] [--json FILE]
FILE has one decoder a line, as `bench.quality` takes them; `#` starts a comment.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ...server.engine.wiring import open_checkpoint
from ..eval.decoders import parse_decoder
from ..load.output import check_outputs, finish, positive, table
from .run import seed
from .workers import MAX_TOKENS, Job, Terms, measure_each

MODELS = ("tiny-llada", "tiny-dream", "tiny-sdar")
HEAD = ("decoder", "accuracy", "95 % interval", "calls", "computed/token", "tokens/call")


def read_decoders(path: Path, model: str = MODELS[0]) -> list[str]:
    """Read decoders. Raises `ValueError` for a line that is no decoder of `model`, and `OSError`."""
    checkpoint = open_checkpoint(model)
    lines = [line.split("#")[0].strip() for line in path.read_text(encoding="utf-8").splitlines()]
    decoders = [line for line in lines if line]
    if not decoders:
        raise ValueError(f"{path} has no line with a decoder")
    for decoder in decoders:
        parse_decoder(decoder, MAX_TOKENS, checkpoint)
    return decoders


def row(figures: dict[str, Any]) -> list[str]:
    low, high = figures["interval_95"]
    return [
        figures["decoder"],
        f"{figures['accuracy']:.4f}",
        f"{low:.3f}-{high:.3f}",
        f"{figures['calls_per_problem']:.2f}",
        f"{figures['computed_tokens_per_answer_token']:.2f}",
        f"{figures['tokens_per_call']:.1f}",
    ]


def measure_all(
    decoders: Sequence[str], options: argparse.Namespace, model: str = MODELS[0], watch: bool = False
) -> list[dict[str, Any]]:
    """Return the figures of all decoders, in order, with `watch` those of their lanes, too."""
    jobs = [Job(model, decoder) for decoder in decoders]
    found = dict(measure_each(jobs, terms(options)._replace(watch=watch), options.processes))
    return [found[job] for job in jobs]


def terms(options: argparse.Namespace) -> Terms:
    return Terms(options.problems, options.seed, options.batch, options.device)


def arguments(program: str, text: str | None) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=program, description=text, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--processes", type=positive, default=os.cpu_count() or 1, help="default: every core")
    parser.add_argument("--problems", type=positive, default=400, help="default: %(default)s")
    parser.add_argument("--seed", type=seed, default=777, help="default: %(default)s")
    parser.add_argument("--batch", type=positive, default=16, help="requests at once (default: %(default)s)")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="default: %(default)s")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the last line to a file, too")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    parser = arguments("python -m asynclane.bench.quality.sweep", __doc__)
    parser.add_argument("file", type=Path, metavar="FILE")
    parser.add_argument("--model", default=MODELS[0], help="as in serving (default: %(default)s)")
    options = parser.parse_args(argv)
    check_outputs(parser, None, options.json)
    try:
        decoders = read_decoders(options.file, options.model)
    except (ValueError, OSError) as error:
        parser.error(str(error))
    found = measure_all(decoders, options, options.model)
    print(table(HEAD, [row(figures) for figures in found]))
    finish({"benchmark": "sweep", "model": options.model, "decoders": found}, options.json)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
