"""Writes files of problems from the project's own generators, for models that were trained on their kind.

Usage: python -m asynclane.bench.eval.export gsm8k FILE [--problems 100] [--seed 777]
       python -m asynclane.bench.eval.export mbpp FILE
The first are word problems in the form of GSM8K, the second small Python functions in the form of MBPP.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..load.output import positive
from ..load.problems import Problem, problems
from .programs import fenced


def as_gsm8k(number: int, problem: Problem) -> dict[str, Any]:
    return {"question": problem.prompt, "answer": problem.answer}


def as_mbpp(number: int, problem: Problem) -> dict[str, Any]:
    tests = [f"assert repr({call}) == {value!r}" for call, value in problem.expected]
    return {"task_id": number, "text": problem.prompt, "code": fenced(problem.answer), "test_list": tests}


DRAWN = 4  # for each problem, as generators repeat themselves
FORMS: Mapping[str, tuple[str, Callable[[int, Problem], dict[str, Any]]]] = {
    "gsm8k": ("math", as_gsm8k),
    "mbpp": ("code", as_mbpp),
}


def export(form: str, path: Path, count: int, seed: int) -> None:
    """Write each problem once: generators repeat short functions. Raises `ValueError` for a reserved seed, and for more
    problems than the generator has."""
    task, shaped = FORMS[form]
    drawn = {problem.prompt: problem for problem in problems(seed, DRAWN * count, [task])}
    chosen = [*drawn.values()][:count]
    if len(chosen) < count:
        raise ValueError(f"the generator of {task} has {len(chosen)} problems of seed {seed}: give fewer --problems")
    lines = [json.dumps(shaped(number, problem)) for number, problem in enumerate(chosen, 1)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m asynclane.bench.eval.export",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("form", choices=[*FORMS])
    parser.add_argument("file", type=Path)
    parser.add_argument("--problems", type=positive, default=100, help="how many (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=777, help="of the problems (default: %(default)s)")
    options = parser.parse_args(argv)
    try:
        export(options.form, options.file, options.problems, options.seed)
    except (ValueError, OSError) as error:
        parser.error(str(error))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
