"""The time that `LLM` adds to the engine: both answer the same problems, as `bench.quality` gives them, and must agree:
`python -m asynclane.bench.steps.llm --problems 400 --seed 500`.

The problems are cut into parts, and both answer each part before the next one, in turn first and second, so that
whatever else the machine does falls on both. CPU time is that of all threads of this process.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from ...server.engine.messages import AnswerOptions
from ...server.engine.offline import Offline
from ...server.llm import LLM, SamplingParams
from ...server.settings import Settings
from ..load.output import check_outputs, finish, positive, program, table
from ..load.problems import Problem, problems

MAX_TOKENS = 256
Answers = Callable[[Sequence[str]], list[str]]


class Times(NamedTuple):
    """Seconds of the engine and of `LLM` for one part of the problems."""

    engine_cpu_s: float
    llm_cpu_s: float
    engine_wall_s: float
    llm_wall_s: float


def timed(answers: Answers, prompts: Sequence[str]) -> tuple[list[str], float, float]:
    """The answers, with seconds of CPU time and of wall time."""
    cpu, wall = time.process_time(), time.perf_counter()
    texts = answers(prompts)
    return texts, time.process_time() - cpu, time.perf_counter() - wall


def compare(engine: Answers, llm: Answers, questions: Sequence[Problem], size: int) -> list[Times]:
    """The times of both for each `size` problems. Raises `RuntimeError` where their answers differ."""
    parts = list[Times]()
    for number, start in enumerate(range(0, len(questions), size)):
        prompts = [problem.prompt for problem in questions[start : start + size]]
        order = (engine, llm) if number % 2 == 0 else (llm, engine)
        found = {each: timed(each, prompts) for each in order}
        (texts, *of_engine), (others, *of_llm) = found[engine], found[llm]
        if texts != others:
            raise RuntimeError(f"the answers of part {number} differ")
        parts.append(Times(of_engine[0], of_llm[0], of_engine[1], of_llm[1]))
        print(
            f"[{start + len(prompts)}/{len(questions)}] CPU {parts[-1][0]:.2f} and {parts[-1][1]:.2f} s",
            file=sys.stderr,
        )
    return parts


def main(argv: Sequence[str] | None = None) -> int:
    parser = program("steps.llm", __doc__)
    parser.add_argument("--model", default="tiny-llada", help="default: %(default)s")
    parser.add_argument("--problems", type=positive, default=400, help="default: %(default)s")
    parser.add_argument("--seed", type=int, default=500, help="of the problems (default: %(default)s)")
    parser.add_argument("--part", type=positive, default=20, help="problems answered at a time (default: %(default)s)")
    parser.add_argument("--batch", type=positive, default=16, help="requests at once (default: %(default)s)")
    options = parser.parse_args(argv)
    check_outputs(parser, None, options.json)
    settings: dict[str, Any] = {"model": options.model, "dtype": "float32", "max_num_seqs": options.batch}
    with Offline(Settings(**settings)) as offline, LLM(**settings) as llm:

        def of_engine(prompts: Sequence[str]) -> list[str]:
            return [answer.text for answer in offline.chat(prompts, AnswerOptions(MAX_TOKENS))]

        def of_llm(prompts: Sequence[str]) -> list[str]:
            chats = [[{"role": "user", "content": prompt}] for prompt in prompts]
            return [found.outputs[0].text for found in llm.chat(chats, SamplingParams(max_tokens=MAX_TOKENS))]

        for warm in (of_engine, of_llm):
            warm([problem.prompt for problem in problems(options.seed, 2)])
        parts = compare(of_engine, of_llm, problems(options.seed, options.problems), options.part)
    sums = Times(*map(sum, zip(*parts, strict=True)))
    more = [part.llm_cpu_s / part.engine_cpu_s - 1 for part in parts]
    rows = [
        ["engine", f"{sums.engine_cpu_s:.2f}", f"{sums.engine_wall_s:.2f}", ""],
        ["LLM", f"{sums.llm_cpu_s:.2f}", f"{sums.llm_wall_s:.2f}", f"{100 * statistics.median(more):+.1f}"],
    ]
    print(table(["answers of", "CPU s", "wall s", "median % of CPU time"], rows))
    figures = {name: round(value, 3) for name, value in sums._asdict().items()}
    finish(
        {
            "benchmark": "llm",
            "model": options.model,
            "problems": options.problems,
            "seed": options.seed,
            "part": options.part,
            "batch": options.batch,
            **figures,
            "more_cpu_median": round(statistics.median(more), 4),
        },
        options.json,
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
