"""Records the ranges and commits of every model call by block length, to simulate loads without a model.

Usage: python -m asynclane.bench.steps.recordings [--problems 200] [--graded 800] [--json FILE]
       python -m asynclane.bench.steps.recordings --model DIR --json FILE [--problems 200]
Answers the same problems once for each fixed block length, grades them, and writes the calls of the first `--problems`.
The problems of a checkpoint DIR with a file reserved.json (`quality.prose`) are the prompts in it; nothing grades them.
"""

from __future__ import annotations

import argparse
import gzip
import json
import sys
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import count
from pathlib import Path
from typing import Protocol

from ...scheduler.decoding.params import BLOCK_LENGTHS
from ...server.engine.messages import AnswerOptions, Delta
from ...server.settings import Settings
from ..load.problems import SEEDS, Problem, problems
from ..quality.checks import right
from ..quality.prose import RESERVED, prompts
from ..quality.run import DTYPE, open_offline
from ..quality.tally import Reply
from ..report import RESULTS

RECORDINGS = RESULTS / "recordings.json.gz"
PACKED = ".gz"  # the end of names of files that are compressed
MODEL = "tiny-llada"
GRADED = 800
MAX_TOKENS = 256


@dataclass(frozen=True, slots=True)
class Call:
    """A request's part of a step, in canvas positions: the prompt is below 0.

    It computed `[start, end)`. All positions before `frontier` were committed. `committed` [n] are positions.
    """

    start: int
    frontier: int
    end: int
    committed: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Recording:
    """One block length: `right` of `graded` answers, of which there may be none, and the calls of the first answers, in
    order."""

    block_length: int
    right: int
    graded: int
    answers: tuple[tuple[Call, ...], ...]

    @property
    def accuracy(self) -> float:
        """The share of right answers among those that were graded."""
        return self.right / self.graded


class Engine(Protocol):
    """The part of the offline engine that is used here."""

    def encode_chat(self, message: str) -> list[int]: ...
    def chat(self, prompts: Sequence[str], options: AnswerOptions) -> Sequence[Reply]: ...
    def watch(self, prompt: list[int], options: AnswerOptions, seen: Callable[[Delta], object]) -> Reply: ...


def record(engine: Engine, block_length: int, messages: Sequence[str], questions: Sequence[Problem]) -> Recording:
    """Answer and grade `questions`, and record the calls of the answers to `messages`."""
    options = AnswerOptions(MAX_TOKENS, decoder="asynclane", params=(("block_length", block_length),), watch=True)
    replies = engine.chat([problem.prompt for problem in questions], replace(options, watch=False)) if questions else ()
    passed = sum(right(problem, reply.text) for problem, reply in zip(questions, replies, strict=True))
    calls = [_watch(engine, engine.encode_chat(prompt), options) for prompt in messages]
    return Recording(block_length, passed, len(questions), tuple(calls))


def _watch(engine: Engine, prompt: list[int], options: AnswerOptions) -> tuple[Call, ...]:
    """Return the calls of one answer. A frontier is the end of the gapless commits before a call."""
    calls: list[Call] = []
    known: set[int] = set()

    def seen(delta: Delta) -> None:
        if delta.lanes is not None:
            frontier = next(position for position in count() if position not in known)
            start, end = delta.lanes.computed
            committed = tuple(commit.position for commit in delta.lanes.commits)
            known.update(committed)
            calls.append(Call(start, frontier, end, committed))

    engine.watch(prompt, options, seen)
    return tuple(calls)


def load(path: Path) -> tuple[Recording, ...]:
    """Return recordings, shortest blocks first. Raises `ValueError` for another file, and `OSError`."""
    data = path.read_bytes()
    try:
        read = json.loads(gzip.decompress(data) if path.suffix == PACKED else data)
        found = tuple(_recording(entry) for entry in read["recordings"])
    except (KeyError, TypeError, ValueError, EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise ValueError(f"{path.name} is no file of recordings: {type(error).__name__} {error}") from None
    if not found or not found[0].answers or len({len(recording.answers) for recording in found}) > 1:
        raise ValueError(f"{path.name} must have the same answers at one block length or more")
    return found


def dump(recordings: Sequence[Recording], about: Mapping[str, object]) -> str:
    """Return the text of a file that `load` reads, one answer a line."""
    entries = ",\n".join(_lines(recording) for recording in recordings)
    return f'{{"about": {json.dumps(about)},\n"recordings": [\n{entries}\n]}}\n'


def _lines(recording: Recording) -> str:
    head = {key: value for key, value in asdict(recording).items() if key != "answers"}
    answers = ",\n".join(json.dumps(list(map(_flat, calls)), separators=(",", ":")) for calls in recording.answers)
    return f'{json.dumps(head)[:-1]}, "answers": [\n{answers}]}}'


def _flat(call: Call) -> list[int]:
    return [call.start, call.frontier, call.end, *call.committed]


def _recording(entry: Mapping[str, object]) -> Recording:
    block_length, passed, graded, answers = (entry[key] for key in ("block_length", "right", "graded", "answers"))
    if not (isinstance(block_length, int) and isinstance(passed, int) and isinstance(graded, int) and passed <= graded):
        raise ValueError("block_length, right and graded are whole numbers")
    if not isinstance(answers, list):
        raise ValueError("answers is a list")
    return Recording(block_length, passed, graded, tuple(tuple(_calls(calls)) for calls in answers))


def _calls(flat: list[list[int]]) -> Iterator[Call]:
    if not flat:
        raise ValueError("an answer without calls")
    for start, frontier, end, *committed in flat:
        if not start <= frontier <= end or not committed or min(committed) < frontier:
            raise ValueError(f"a call over [{start}, {end}) from {frontier}")
        yield Call(start, frontier, end, tuple(committed))


def _questions(options: argparse.Namespace) -> tuple[list[str], list[Problem]]:
    """The prompts of recorded answers, and the problems that are graded. Raises `ValueError`."""
    kept, graded, directory = options.problems, options.graded, Path(options.model)
    if (directory / RESERVED).is_file():
        if graded:
            raise ValueError(f"--graded {graded}: nothing grades the answers to {directory / RESERVED}")
        messages, questions = prompts(directory), []
    else:
        questions = problems(options.seed, GRADED if graded is None else graded)
        messages = [problem.prompt for problem in questions]
    if not 0 < kept <= len(messages):
        raise ValueError(f"--problems must be from 1 to {len(messages)}, not {kept}")
    return messages[:kept], questions


def _figures(recording: Recording) -> str:
    calls = [call for answer in recording.answers for call in answer]
    rate = f"{sum(len(call.committed) for call in calls) / len(calls):.2f} tokens a forward"
    return f"{recording.right} of {recording.graded} right, {rate}" if recording.graded else rate


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m asynclane.bench.steps.recordings",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--problems", type=int, default=200, help="whose calls are kept (default: %(default)s)")
    parser.add_argument("--graded", type=int, help=f"that are answered (default: {GRADED}, or 0 where nothing grades)")
    parser.add_argument("--model", default=MODEL, help="as in serving (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=11, help=f"below {SEEDS} (default: %(default)s)")
    parser.add_argument("--block-lengths", default=",".join(map(str, BLOCK_LENGTHS)), help="default: %(default)s")
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help=f"to write, {PACKED}: compressed (default for {MODEL}: results)"
    )
    options = parser.parse_args(argv)
    file = options.json or (RECORDINGS if options.model == MODEL else None)
    if file is None:
        parser.error(f"--model {options.model} needs --json")
    try:
        messages, questions = _questions(options)
        block_lengths = [int(text) for text in options.block_lengths.split(",")]
    except ValueError as error:
        parser.error(str(error))
    if not file.parent.is_dir():
        parser.error(f"no folder {file.parent} to write {file.name} to")
    recordings = []
    with open_offline(Settings(model=options.model, dtype=DTYPE, max_num_seqs=16)) as engine:
        for block_length in block_lengths:
            recordings.append(record(engine, block_length, messages, questions))
            print(f"block_length {block_length}: {_figures(recordings[-1])}", file=sys.stderr, flush=True)
    about = {"model": Path(options.model).name, "dtype": DTYPE, "seed": options.seed, "max_tokens": MAX_TOKENS}
    data = dump(recordings, about).encode()
    file.write_bytes(gzip.compress(data, mtime=0) if file.suffix == PACKED else data)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
