"""Measures the accuracy and the cost of decoders, to choose defaults by figures.

Usage: python -m asynclane.bench.quality [DECODER ...] [--problems 120] [--plot out.png]
       python -m asynclane.bench.quality --all [--processes 2] [--plot out.png] [--json out.json]
A DECODER is a name, with or without parameters: asynclane, fast-dllm:cache=dual, asynclane:threshold=0.9
--all measures every decoder on every embedded model, 400 problems each. `llada` without a cache, its default, is the
slowest. The file of --json is written after each decoder.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from ...server.engine.messages import AnswerOptions
from ...server.engine.wiring import open_checkpoint, with_drafter
from ...server.settings import Settings
from ..eval.decoders import Choice, parse_decoder
from ..load.output import check_outputs, finish, positive, table, write_over
from ..load.problems import SEEDS, TASKS, Problem, problems
from ..report.plot import draw
from .tally import Reply, Tally, tally

if TYPE_CHECKING:
    from ...server.engine.offline import Offline

DEFAULT_DECODERS = ("llada", "fast-dllm:cache=dual", "asynclane")
BLOCK_DECODERS = ("llada", "fast-dllm", "asynclane")  # for a block-causal model
DTYPE = "float32"  # decoders are compared, not number formats

COLUMNS: tuple[tuple[str, Callable[[Tally], str]], ...] = (
    ("decoder", lambda t: t.decoder),
    ("accuracy", lambda t: f"{t.accuracy:.3f}"),
    ("95 % interval", lambda t: f"{t.interval.low:.3f}-{t.interval.high:.3f}"),
    *((task, lambda t, task=task: f"{t.tasks[task].share:.2f}" if task in t.tasks else "-") for task in TASKS),
    ("calls", lambda t: f"{t.calls_per_problem:.1f}"),
    ("tokens/call", lambda t: f"{t.tokens_per_call:.2f}"),
    ("computed/token", lambda t: f"{t.computed_per_token:.1f}"),
    ("wall s", lambda t: f"{t.wall_s:.1f}"),
)


class Engine(Protocol):
    """The part of the offline engine that is used here: one answer for each prompt, in order."""

    def chat(self, prompts: Sequence[str], options: AnswerOptions) -> Sequence[Reply]: ...


def measure(
    engine: Engine, choice: Choice, questions: Sequence[Problem], max_tokens: int, watch: bool = False
) -> Tally:
    """Answer all problems at once, so that the engine packs them as in serving. Grading is not timed. No decoder uses
    the prefix cache of another. With `watch` its lanes are counted."""
    options = AnswerOptions(
        max_tokens,
        decoder=choice.name,
        params=tuple(choice.params.items()),
        cache_salt=choice.label,
        watch=watch,
    )
    started = time.perf_counter()
    replies = engine.chat([problem.prompt for problem in questions], options)
    return tally(choice.label, questions, replies, time.perf_counter() - started)


def figures(choice: Choice, t: Tally) -> dict[str, object]:
    """Return a decoder's part of the JSON line."""
    return {
        "decoder": choice.label,
        "name": choice.name,
        "knobs": dict(choice.params),
        "right": t.total.right,
        "accuracy": round(t.accuracy, 4),
        "interval_95": [round(bound, 4) for bound in t.interval],
        "tasks": {task: {"right": score.right, "count": score.count} for task, score in t.tasks.items()},
        "calls_per_problem": round(t.calls_per_problem, 3),
        "tokens_per_call": round(t.tokens_per_call, 3),
        "computed_tokens_per_answer_token": round(t.computed_per_token, 3),
        "dropped_tokens_per_answer_token": round(t.dropped_per_token, 3),
        "answers_cut_at_max_tokens": t.cut,
        "wall_s": round(t.wall_s, 2),
    }


def main(
    argv: Sequence[str] | None = None,
    open_engine: Callable[[Settings], AbstractContextManager[Engine]] | None = None,
) -> int:
    parser = _parser()
    options = parser.parse_args(argv)
    try:
        questions = problems(options.seed, options.problems)
        settings = Settings(
            model=options.model,
            drafter=options.drafter,
            dtype=options.dtype,
            quantization=options.quantization,
            deterministic=options.deterministic,
            kv_cache_dtype=options.kv_cache_dtype,
            controller=options.controller,
            max_num_seqs=options.batch,
        )
        checkpoint = with_drafter(open_checkpoint(options.model), settings)
        decoders = options.decoders or (BLOCK_DECODERS if checkpoint.config.block_size else DEFAULT_DECODERS)
        choices = [parse_decoder(text, options.max_tokens, checkpoint) for text in decoders]
    except ValueError as error:
        parser.error(str(error))
    check_outputs(parser, options.plot, options.json)
    tallies: list[Tally] = []

    def found() -> dict[str, object]:
        return {
            "benchmark": "quality",
            "model": settings.model_name,
            "drafter": settings.drafter,
            "dtype": settings.dtype,
            "quantization": settings.quantization,
            "deterministic": settings.deterministic,
            "kv_cache_dtype": settings.kv_cache_dtype,
            "controller": settings.controller,
            "problems": len(questions),
            "seed": options.seed,
            "max_tokens": options.max_tokens,
            "batch": options.batch,
            "decoders": [figures(*pair) for pair in zip(choices, tallies, strict=False)],
        }

    with (open_engine or open_offline)(settings) as engine:
        for number, choice in enumerate(choices, 1):
            _say(f"[{number}/{len(choices)}] {choice.label}: {len(questions)} problems ...")
            tallies.append(measure(engine, choice, questions, options.max_tokens))
            if options.json:
                write_over(found(), options.json)
            _say(f"[{number}/{len(choices)}] {tallies[-1].total.right} right in {tallies[-1].wall_s:.1f} s")
    print(table([name for name, _ in COLUMNS], [[show(t) for _, show in COLUMNS] for t in tallies]))
    if options.plot:
        draw(tallies, f"{settings.model_name}: {len(questions)} problems, seed {options.seed}", options.plot)
    finish(found(), options.json)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m asynclane.bench.quality",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("decoders", nargs="*", metavar="DECODER", help=f"default: {' '.join(DEFAULT_DECODERS)}")
    parser.add_argument("--problems", type=positive, default=120, help="how many (default: %(default)s)")
    parser.add_argument("--seed", type=seed, default=777, help="of the problems, 0 to 999 (default: %(default)s)")
    parser.add_argument("--max-tokens", type=positive, default=256, help="default: %(default)s")
    parser.add_argument("--model", default="tiny-llada", help="as in serving (default: %(default)s)")
    parser.add_argument("--drafter", metavar="MODEL", help="as in serving")
    parser.add_argument("--dtype", default=DTYPE, help="as in serving (default: %(default)s)")
    parser.add_argument("--quantization", help="as in serving")
    parser.add_argument("--deterministic", action="store_true", help="as in serving")
    parser.add_argument("--kv-cache-dtype", default="auto", help="as in serving (default: %(default)s)")
    parser.add_argument("--controller", metavar="FILE", help="as in serving")
    parser.add_argument("--batch", type=positive, default=16, help="requests at once (default: %(default)s)")
    parser.add_argument("--plot", type=Path, metavar="PNG", help="draw accuracy over cost")
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="write the last line to a file, too, after each decoder"
    )
    return parser


def seed(text: str) -> int:
    number = int(text)
    if not 0 <= number < SEEDS:
        raise argparse.ArgumentTypeError(
            f"must be from 0 to {SEEDS - 1}, not {number}: the others are reserved for later checks"
        )
    return number


def open_offline(settings: Settings) -> Offline:
    from ...server.engine.offline import Offline  # here, because it brings torch, which --help does not need

    return Offline(settings)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
