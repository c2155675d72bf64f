"""Runs many decoders of `bench.quality` side by side, one process each, to choose defaults from a written sweep.

Usage: python -m asynclane.bench.sweep FILE [--processes 2] [--problems 400] [--seed 777] [--json FILE]
FILE holds one decoder a line, as `bench.quality` takes them; `#` starts a comment.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from .quality import parse_decoder, positive
from .report import check_outputs, json_line, table

HEAD = ("decoder", "accuracy", "95 % interval", "calls", "computed/token", "tokens/call")


def read_decoders(path: Path) -> list[str]:
    """Raises `ValueError` for a line that is no decoder, and `OSError`."""
    lines = [line.split("#")[0].strip() for line in path.read_text(encoding="utf-8").splitlines()]
    decoders = [line for line in lines if line]
    for decoder in decoders:
        parse_decoder(decoder, max_tokens=256)
    return decoders


def measure(decoder: str, problems: int, seed: int, model: str = "tiny-llada") -> dict[str, Any]:
    """One decoder's figures, from a process of its own with one thread: answers do not depend on either."""
    with tempfile.NamedTemporaryFile(suffix=".json") as out:
        command = [sys.executable, "-P", "-m", "asynclane.bench.quality", decoder, "--model", model]
        command += ["--problems", str(problems), "--seed", str(seed), "--json", out.name]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        done = subprocess.run(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        if done.returncode:
            raise RuntimeError(f"measuring {decoder} failed:\n{done.stderr}")
        figures: dict[str, Any] = json.loads(Path(out.name).read_text(encoding="utf-8"))["decoders"][0]
    return figures


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


def measure_all(decoders: Sequence[str], options: argparse.Namespace) -> list[dict[str, Any]]:
    with ThreadPoolExecutor(options.processes) as pool:
        return list(pool.map(lambda decoder: measure(decoder, options.problems, options.seed), decoders))


def arguments(program: str, text: str | None) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=program, description=text, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--processes", type=positive, default=os.cpu_count() or 1, help="default: every core")
    parser.add_argument("--problems", type=positive, default=400, help="default: %(default)s")
    parser.add_argument("--seed", type=int, default=777, help="default: %(default)s")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the last line to a file, too")
    return parser


def finish(figures: dict[str, object], options: argparse.Namespace) -> None:
    """Prints the line of JSON, and writes it if asked."""
    line = json_line({**figures, "problems": options.problems, "seed": options.seed})
    if options.json:
        options.json.write_text(line + "\n", encoding="utf-8")
    print(line)


def main(argv: Sequence[str] | None = None) -> int:
    parser = arguments("python -m asynclane.bench.sweep", __doc__)
    parser.add_argument("file", type=Path, metavar="FILE")
    options = parser.parse_args(argv)
    check_outputs(parser, None, options.json)
    try:
        decoders = read_decoders(options.file)
    except (ValueError, OSError) as error:
        parser.error(str(error))
    found = measure_all(decoders, options)
    print(table(HEAD, [row(figures) for figures in found]))
    finish({"benchmark": "sweep", "decoders": found}, options)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
