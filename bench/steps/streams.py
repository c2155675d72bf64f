"""How the token rate grows with concurrent answers: closed loop over the engine, without HTTP and its client.

Usage: python -m asynclane.bench.steps.streams [--streams 1,4,16] [--problems 64]
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence

from ...server.engine.messages import AnswerOptions
from ...server.engine.offline import Offline
from ...server.settings import Settings
from ..load.output import json_line, table
from ..load.problems import problems

SEED = 777


def measure(streams: int, prompts: Sequence[str], options: AnswerOptions) -> dict[str, float]:
    """Answer tokens per second while `streams` answers are always under way."""
    with Offline(Settings(model="tiny-llada", max_num_seqs=streams)) as offline:
        offline.chat(prompts[:streams], options)  # the first steps of a process are slow
        started = time.perf_counter()
        answers = offline.chat(prompts, options)
        seconds = time.perf_counter() - started
    tokens = sum(answer.usage.completion_tokens for answer in answers)
    calls = sum(answer.usage.stats.forwards for answer in answers)
    computed = sum(answer.usage.stats.computed_tokens for answer in answers)
    return {
        "streams": streams,
        "tokens_per_s": tokens / seconds,
        "row_tokens": computed / calls,
        "computed_per_s": computed / seconds,
    }


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m asynclane.bench.steps.streams", description=__doc__)
    parser.add_argument("--streams", default="1,4,16", help="numbers of concurrent answers (default: %(default)s)")
    parser.add_argument("--problems", type=int, default=64)
    parser.add_argument("--max-tokens", type=int, default=256)
    arguments = parser.parse_args(argv)
    prompts = [problem.prompt for problem in problems(SEED, arguments.problems)]
    options = AnswerOptions(arguments.max_tokens)
    rows = []
    for streams in map(int, arguments.streams.split(",")):
        rows.append(measure(streams, prompts, options))
        print(f"{streams} streams done", file=sys.stderr)
    base = rows[0]["tokens_per_s"]
    for row in rows:
        row["ratio"] = row["tokens_per_s"] / base
    header = ["streams", "tokens/s", "times the first", "computed/s", "tokens per row"]
    lines = [
        [
            f"{row['streams']:.0f}",
            f"{row['tokens_per_s']:.0f}",
            f"{row['ratio']:.2f}",
            f"{row['computed_per_s']:.0f}",
            f"{row['row_tokens']:.0f}",
        ]
        for row in rows
    ]
    print(table(header, lines))
    print(json_line({"benchmark": "streams", "rows": rows}))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
