"""Measures answer templates: the parts of an answer are gaps, with their tags between them, and the results are graded.

Usage: python -m asynclane.bench.quality.templates [DECODER ...] [--problems 100] [--json FILE]
A question has two or three problems, and its template a gap for the solution of each. The last result is a gap of its
own, the summary. Each gap has the number of tokens that it needs.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ...server.engine.messages import AnswerOptions, Usage
from ...server.engine.wiring import open_checkpoint
from ...server.settings import Settings
from ..eval.decoders import Choice, parse_decoder
from ..load.output import check_outputs, finish, positive, table
from ..load.problems import Problem, problems
from .checks import right
from .infill import GRADES, Columns, Filled
from .run import DTYPE, open_offline, seed

if TYPE_CHECKING:
    from ...server.engine.offline import Offline

DECODERS = ("nap", "asynclane", "fast-dllm", "llada")
LONGEST = 512  # positions of a canvas
# A part begins after its number, and the summary after the last mark of a result. The texts of gaps begin with a space.
TAG = re.compile(r"(\(1\)|\n\n\(\d\)|\n####(?= -?\d+$))")


@dataclass(frozen=True, slots=True)
class Form:
    """An answer to `problem` that begins with `tag`: the text of each gap, and the text after it."""

    problem: Problem
    tag: str
    gaps: tuple[tuple[str, str], ...]


def form(problem: Problem) -> Form:
    """The template of a problem with several results."""
    _, tag, *pieces = TAG.split(problem.answer)
    return Form(problem, tag, tuple(zip(pieces[::2], (*pieces[1::2], ""), strict=True)))


def measure(offline: Offline, choice: Choice, forms: Sequence[Form]) -> Filled:
    """Fill all templates at once."""
    text = offline.parts.text

    def request(one: Form) -> tuple[list[int], AnswerOptions]:
        chat = [{"role": "user", "content": one.problem.prompt}, {"role": "assistant", "content": one.tag}]
        encoded = [[text.encode(piece, specials=False) for piece in pair] for pair in one.gaps]
        template = tuple([(len(gap), tuple(after)) for gap, after in encoded])
        size = sum(open_ + len(after) for open_, after in template)
        params = tuple(choice.params.items())
        options = AnswerOptions(size, template=template, ignore_end=True, decoder=choice.name, params=params)
        return text.encode_chat(chat), options

    answers = offline.answer_each([request(one) for one in forms])
    good = [right(one.problem, one.tag + answer.text) for one, answer in zip(forms, answers, strict=True)]
    usage = Usage.total([answer.usage for answer in answers])
    return Filled("parts", choice.label, sum(good), len(forms), usage)


COLUMNS: Columns = (
    ("decoder", lambda f: f.way),
    *GRADES,
    ("tokens/call", lambda f: f"{f.usage.completion_tokens / f.usage.stats.forwards:.1f}"),
    ("computed/token", lambda f: f"{f.usage.stats.computed_tokens / f.usage.completion_tokens:.1f}"),
)


def main(argv: Sequence[str] | None = None) -> int:
    parser = _parser()
    options = parser.parse_args(argv)
    try:
        forms = [form(problem) for problem in problems(options.seed, options.problems, ("multi",))]
        checkpoint = open_checkpoint(options.model)
        choices = [parse_decoder(name, LONGEST, checkpoint) for name in options.decoders or DECODERS]
        settings = Settings(model=options.model, dtype=options.dtype, max_num_seqs=options.batch)
    except ValueError as error:
        parser.error(str(error))
    check_outputs(parser, None, options.json)
    with open_offline(settings) as offline:
        filled = [measure(offline, choice, forms) for choice in choices]
    print(table([name for name, _ in COLUMNS], [[show(f) for _, show in COLUMNS] for f in filled]))
    finish(
        {
            "benchmark": "templates",
            "model": settings.model_name,
            "dtype": settings.dtype,
            "problems": options.problems,
            "seed": options.seed,
            "decoders": [f.figures for f in filled],
        },
        options.json,
    )
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m asynclane.bench.quality.templates",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("decoders", nargs="*", metavar="DECODER", help=f"default: {' '.join(DECODERS)}")
    parser.add_argument("--problems", type=positive, default=100, help="questions (default: %(default)s)")
    parser.add_argument("--seed", type=seed, default=777, help="of the problems, 0 to 999 (default: %(default)s)")
    parser.add_argument("--model", default="tiny-llada", help="as in serving (default: %(default)s)")
    parser.add_argument("--dtype", default=DTYPE, help="as in serving (default: %(default)s)")
    parser.add_argument("--batch", type=positive, default=16, help="requests at once (default: %(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the last line to a file, too")
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
