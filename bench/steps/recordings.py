"""Records the cost of answers by the shape of lanes, to simulate loads without a model.

Usage: python -m asynclane.bench.steps.recordings [--problems 200] [--seed 600] [--json FILE]
       python -m asynclane.bench.steps.recordings --model DIR --json FILE [--problems 60] [--first 100]
Answers the same problems once in each shape (block length and look-ahead), and grades them. Those of a checkpoint DIR
with a file reserved.json (`quality.prose`) are its prompts from `--first` on; their accuracy is the share of the given
words that stand in the answer, in order.
"""

from __future__ import annotations

import argparse
import gzip
import json
import sys
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol

from ...scheduler.decoding.params import SHAPES, LaneShape
from ...scheduler.step_cost import AnswerCost
from ...server.engine.messages import AnswerOptions, Finish
from ...server.settings import Settings
from ..load.problems import SEEDS, problems
from ..quality.checks import right
from ..quality.prose import RESERVED, kept_words, prompts
from ..quality.run import DTYPE, open_offline
from ..quality.tally import Reply
from ..report import RESULTS

RECORDINGS = RESULTS / "recordings.json.gz"
PACKED = ".gz"  # the end of names of files that are compressed
MODEL = "tiny-llada"
MAX_TOKENS = 256


@dataclass(frozen=True, slots=True)
class Recording:
    """The answers in one shape, in the order of their problems. `score` is the sum of their grades of 0 to 1."""

    shape: LaneShape
    score: float
    answers: tuple[AnswerCost, ...]

    @property
    def accuracy(self) -> float:
        """The mean grade of its answers."""
        return self.score / len(self.answers)


class Engine(Protocol):
    """The part of the offline engine that is used here."""

    def chat(self, prompts: Sequence[str], options: AnswerOptions) -> Sequence[Reply]: ...


Grade = Callable[[str], float]  # of an answer's text


def record(engine: Engine, shape: LaneShape, graded: Sequence[tuple[str, Grade]]) -> Recording:
    """Answer each message, and grade the answer."""
    params = tuple(shape._asdict().items())
    options = AnswerOptions(MAX_TOKENS, decoder="asynclane", params=params, cache_salt=shape_name(shape))
    replies = engine.chat([message for message, _ in graded], options)
    score = sum(grade(reply.text) for (_, grade), reply in zip(graded, replies, strict=True))
    return Recording(shape, score, tuple(map(_cost, replies)))


def _cost(reply: Reply) -> AnswerCost:
    stats = reply.usage.stats
    tokens = reply.usage.completion_tokens + (reply.finish is not Finish.LENGTH)
    return AnswerCost(stats.forwards, stats.computed_tokens, stats.prompt_tokens - stats.cached_tokens, tokens)


def load(path: Path) -> tuple[Recording, ...]:
    """Return recordings, one for each shape. Raises `ValueError` for another file, and `OSError`."""
    data = path.read_bytes()
    try:
        read = json.loads(gzip.decompress(data) if path.suffix == PACKED else data)
        found = tuple(_recording(entry) for entry in read["recordings"])
    except (KeyError, TypeError, ValueError, EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise ValueError(f"{path.name} is no file of recordings: {type(error).__name__} {error}") from None
    if not found or not found[0].answers or len({len(recording.answers) for recording in found}) > 1:
        raise ValueError(f"{path.name} must have the same answers in one shape or more")
    return found


def dump(recordings: Sequence[Recording], about: Mapping[str, object]) -> str:
    """Return the text of a file that `load` reads, one shape a line."""
    entries = ",\n".join(
        json.dumps(
            {
                "shape": recording.shape,
                "score": round(recording.score, 3),
                "answers": recording.answers,
            },
            separators=(",", ":"),
        )
        for recording in recordings
    )
    return f'{{"about": {json.dumps(about)},\n"recordings": [\n{entries}\n]}}\n'


def _recording(entry: Mapping[str, object]) -> Recording:
    shape, score, answers = (entry[key] for key in ("shape", "score", "answers"))
    if not (isinstance(shape, list) and isinstance(score, int | float) and isinstance(answers, list)):
        raise ValueError("a shape and answers are lists, and a score is a number")
    return Recording(LaneShape(*shape), score, tuple(_answer(AnswerCost(*numbers)) for numbers in answers))


def _answer(cost: AnswerCost) -> AnswerCost:
    if min(cost) < 0 or not cost.forwards or not cost.tokens or cost.positions < cost.prompt + cost.tokens:
        raise ValueError(f"no answer has {cost}")
    return cost


def _graded(options: argparse.Namespace) -> list[tuple[str, Grade]]:
    """The messages, each with the grade of its answer. Raises `ValueError`."""
    first, count, directory = options.first, options.problems, Path(options.model)
    graded: list[tuple[str, Grade]]
    if (directory / RESERVED).is_file():
        messages = prompts(directory)
        graded = [(message, partial(kept_words, message)) for message in messages]
    else:
        graded = [(one.prompt, partial(right, one)) for one in problems(options.seed, first + count)]
    if not 0 <= first < first + count <= len(graded):
        raise ValueError(f"--first and --problems must be within the {len(graded)} there are, not {first} and {count}")
    return graded[first : first + count]


def _figures(recording: Recording) -> str:
    tokens = sum(answer.tokens for answer in recording.answers)
    forwards = sum(answer.forwards for answer in recording.answers)
    computed = sum(answer.positions for answer in recording.answers)
    rates = f"{tokens / forwards:.2f} tokens a forward, {computed / tokens:.2f} positions a token"
    return f"accuracy {recording.accuracy:.3f}, {rates}"


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m asynclane.bench.steps.recordings",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--problems", type=int, default=200, help="how many (default: %(default)s)")
    parser.add_argument("--first", type=int, default=0, help="the first one's number (default: %(default)s)")
    parser.add_argument("--model", default=MODEL, help="as in serving (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=600, help=f"below {SEEDS} (default: %(default)s)")
    said = "block lengths and look-aheads, as 32+32,8+0 (default: all of auto)"
    parser.add_argument("--shapes", type=_shapes, default=SHAPES, help=said)
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help=f"to write, {PACKED}: compressed (default for {MODEL}: results)"
    )
    options = parser.parse_args(argv)
    file = options.json or (RECORDINGS if options.model == MODEL else None)
    if file is None:
        parser.error(f"--model {options.model} needs --json")
    try:
        graded = _graded(options)
    except ValueError as error:
        parser.error(str(error))
    if not file.parent.is_dir():
        parser.error(f"no folder {file.parent} to write {file.name} to")
    recordings = []
    with open_offline(Settings(model=options.model, dtype=DTYPE, max_num_seqs=16)) as engine:
        for shape in options.shapes:
            recordings.append(record(engine, shape, graded))
            print(f"{shape_name(shape)}: {_figures(recordings[-1])}", file=sys.stderr, flush=True)
    about = {"model": Path(options.model).name, "dtype": DTYPE, "max_tokens": MAX_TOKENS, "first": options.first}
    data = dump(recordings, about | {"seed": options.seed}).encode()
    file.write_bytes(gzip.compress(data, mtime=0) if file.suffix == PACKED else data)
    return 0


def shape_name(shape: LaneShape) -> str:
    """Block length and look-ahead, as `--shapes` takes them."""
    return f"{shape.block_length}+{shape.lookahead}"


def _shapes(text: str) -> tuple[LaneShape, ...]:
    try:
        shapes = tuple(LaneShape(*map(int, part.split("+"))) for part in text.split(","))
    except (TypeError, ValueError):
        raise argparse.ArgumentTypeError(f"must be pairs as 32+32 with commas between, not {text!r}") from None
    if not all(1 <= shape.block_length <= MAX_TOKENS and 0 <= shape.lookahead <= MAX_TOKENS for shape in shapes):
        raise argparse.ArgumentTypeError(f"lengths must be up to {MAX_TOKENS}, not {text!r}")
    return shapes


if __name__ == "__main__":
    raise SystemExit(main())
