"""Measures infilling: functions lose a part, the model writes it again, and the functions' tests run.

Usage: python -m asynclane.bench.quality.infill [--functions 40] [--decoder asynclane] [--json FILE]
Each gap is filled at its true length; at a length chosen by trying, as the server does without max_tokens; and by the
same request without the suffix, of whose answer a client keeps the part that belongs into the gap.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ...server.api.infill_lengths import LENGTHS, likeliest
from ...server.engine.messages import AnswerOptions, Usage
from ...server.schema.responses import Finished
from ...server.settings import Settings
from ..eval.decoders import parse_decoder
from ..eval.interval import Interval, wilson
from ..load.output import check_outputs, finish, positive, table
from .holes import HOLES, Hole, holes
from .run import DTYPE, open_offline

if TYPE_CHECKING:
    from ...server.engine.offline import Offline

MAX_TOKENS = max(LENGTHS)  # without a suffix


@dataclass(frozen=True, slots=True)
class Filled:
    """The results of one way of filling gaps of one kind."""

    kind: str
    way: str
    right: int
    count: int
    usage: Usage

    @property
    def interval(self) -> Interval:
        return wilson(self.right, self.count)

    @property
    def figures(self) -> dict[str, object]:
        return {
            "gap": self.kind,
            "way": self.way,
            "right": self.right,
            "count": self.count,
            "interval_95": [round(bound, 4) for bound in self.interval],
            "calls": self.usage.stats.forwards,
            "computed_tokens": self.usage.stats.computed_tokens,
            "answer_tokens": self.usage.completion_tokens,
        }


class Filler:
    """Fills all gaps of a kind at once."""

    def __init__(self, offline: Offline, decoder: str, params: Mapping[str, str | float | bool]) -> None:
        self._offline = offline
        self._decoder = decoder
        self._params = params

    def without_suffix(self, gaps: Sequence[Hole]) -> list[Finished]:
        return self._fill([(gap, MAX_TOKENS) for gap in gaps], suffix=False)

    def of_true_length(self, gaps: Sequence[Hole]) -> list[Finished]:
        return self._fill([(gap, len(self._ids(gap.middle))) for gap in gaps])

    def of_tried_length(self, gaps: Sequence[Hole]) -> list[Finished]:
        tries = self._fill([(gap, length) for gap in gaps for length in LENGTHS])
        return [likeliest(tries[at : at + len(LENGTHS)]) for at in range(0, len(tries), len(LENGTHS))]

    def _fill(self, gaps: Sequence[tuple[Hole, int]], suffix: bool = True) -> list[Finished]:
        answers = self._offline.answer_each([self._request(gap, length, suffix) for gap, length in gaps])
        return [Finished(answer.text, answer.finish, answer.scores, answer.usage) for answer in answers]

    def _request(self, gap: Hole, length: int, suffix: bool) -> tuple[list[int], AnswerOptions]:
        chat = [{"role": "user", "content": gap.question}, {"role": "assistant", "content": gap.before}]
        after = tuple(self._ids(gap.after)) if suffix else ()
        params = tuple(self._params.items())
        options = AnswerOptions(length, decoder=self._decoder, params=params, ranks=0, suffix=after)
        return self._offline.parts.text.encode_chat(chat), options

    def _ids(self, text: str) -> list[int]:
        return self._offline.parts.text.encode(text, specials=False)


def measure(way: str, gaps: Sequence[Hole], fill: Callable[[Sequence[Hole]], list[Finished]]) -> Filled:
    found = fill(gaps)
    whole = way != WITHOUT
    texts = [answer.text if whole else gap.cut(answer.text) for gap, answer in zip(gaps, found, strict=True)]
    usage = Usage.total([answer.usage for answer in found])
    right = sum(gap.filled(text) for gap, text in zip(gaps, texts, strict=True))
    return Filled(gaps[0].kind, way, right, len(gaps), usage)


WITHOUT = "without suffix"
Columns = tuple[tuple[str, Callable[[Filled], str]], ...]
GRADES: Columns = (
    ("right", lambda f: f"{f.right}/{f.count}"),
    ("95 % interval", lambda f: f"{f.interval.low:.2f}-{f.interval.high:.2f}"),
    ("calls", lambda f: f"{f.usage.stats.forwards / f.count:.1f}"),
)
COLUMNS: Columns = (
    ("gap, way", lambda f: f"{f.kind}, {f.way}"),
    *GRADES,
    ("computed/gap", lambda f: f"{f.usage.stats.computed_tokens / f.count:.0f}"),
)


def main(argv: Sequence[str] | None = None) -> int:
    parser = _parser()
    options = parser.parse_args(argv)
    try:
        choice = parse_decoder(options.decoder, min(LENGTHS))
        gaps = [holes(options.seed, options.functions, kind) for kind in options.gaps]
        settings = Settings(model=options.model, dtype=options.dtype, max_num_seqs=options.batch)
    except ValueError as error:
        parser.error(str(error))
    check_outputs(parser, None, options.json)
    filled: list[Filled] = []
    with open_offline(settings) as offline:
        filler = Filler(offline, choice.name, choice.params)
        ways = {
            "true length": filler.of_true_length,
            "tried lengths": filler.of_tried_length,
            WITHOUT: filler.without_suffix,
        }
        for some in gaps:
            for way, fill in ways.items():
                filled.append(measure(way, some, fill))
                print(f"{some[0].kind}, {way}: {filled[-1].right} of {len(some)}", file=sys.stderr, flush=True)
    print(table([name for name, _ in COLUMNS], [[show(f) for _, show in COLUMNS] for f in filled]))
    finish(
        {
            "benchmark": "infill",
            "model": settings.model_name,
            "dtype": settings.dtype,
            "decoder": choice.label,
            "functions": options.functions,
            "seed": options.seed,
            "lengths": list(LENGTHS),
            "gaps": [f.figures for f in filled],
        },
        options.json,
    )
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m asynclane.bench.quality.infill",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--gaps", nargs="+", choices=HOLES, default=HOLES, help="kinds of gaps (default: all)")
    parser.add_argument("--functions", type=positive, default=40, help="how many (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=777, help="of the functions, 0 to 999 (default: %(default)s)")
    parser.add_argument("--decoder", default="asynclane", help="with or without parameters (default: %(default)s)")
    parser.add_argument("--model", default="tiny-llada", help="as in serving (default: %(default)s)")
    parser.add_argument("--dtype", default=DTYPE, help="as in serving (default: %(default)s)")
    parser.add_argument("--batch", type=positive, default=16, help="requests at once (default: %(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the last line to a file, too")
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
