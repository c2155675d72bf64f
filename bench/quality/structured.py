"""Measures whether answers with a JSON schema parse and validate, and the cost in calls and time.

Usage: python -m asynclane.bench.quality.structured [--requests 500] [--decoder asynclane]
The schemas are those of schemas.json. Every second request is sampled at temperature 1, with a seed of its own.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...server.engine.messages import AnswerOptions, Finish
from ...server.settings import Settings
from ...server.structured.grammar import Wanted
from ..load.output import json_line, positive, require, table
from ..load.problems import problems

if TYPE_CHECKING:
    from ...server.engine.offline import Offline, OfflineAnswer

SCHEMAS = Path(__file__).parent / "schemas.json"


@dataclass(frozen=True, slots=True)
class SchemaTally:
    """Answers to requests with a schema: numbers of those that end with `stop`, parse, and validate."""

    name: str
    answers: int = 0
    stopped: int = 0
    parse: int = 0
    valid: int = 0

    def plus(self, finish: Finish, schema: Any, text: str) -> SchemaTally:
        from jsonschema import Draft202012Validator

        try:
            value = json.loads(text)
            parses, valid = True, Draft202012Validator(schema).is_valid(value)
        except ValueError:
            parses = valid = False
        stopped = finish is Finish.STOP
        return SchemaTally(
            self.name, self.answers + 1, self.stopped + stopped, self.parse + parses, self.valid + (parses and valid)
        )


@dataclass(frozen=True, slots=True)
class Cost:
    """The sum over all answers."""

    tokens: int
    calls: int
    wall_s: float

    @classmethod
    def of(cls, answers: Sequence[OfflineAnswer], wall_s: float) -> Cost:
        usages = [answer.usage for answer in answers]
        return cls(sum(u.completion_tokens for u in usages), sum(u.stats.forwards for u in usages), wall_s)

    def row(self, label: str, answers: int) -> list[str]:
        return [
            label,
            f"{self.tokens / answers:.1f}",
            f"{self.calls / answers:.1f}",
            f"{self.tokens / self.calls:.2f}",
            f"{1e3 * self.wall_s / self.calls:.2f}",
            f"{self.wall_s:.1f}",
        ]


def measure(
    engine: Offline, schemas: dict[str, Any], requests: int, options: AnswerOptions
) -> tuple[list[SchemaTally], Cost, Cost]:
    """Return the tallies of the schemas, the cost with them, and the cost of the same requests without."""
    prompts = [engine.encode_chat(problem.prompt) for problem in problems(777, requests)]
    names = [list(schemas)[number % len(schemas)] for number in range(requests)]
    grammars = {name: engine.grammar(Wanted(name, schema=json.dumps(schema))) for name, schema in schemas.items()}

    def request(number: int, constrained: bool) -> tuple[list[int], AnswerOptions]:
        return prompts[number], AnswerOptions(
            max_tokens=options.max_tokens,
            decoder=options.decoder,
            temperature=float(number // len(schemas) % 2),
            seed=number,
            grammar=grammars[names[number]] if constrained else None,
        )

    costs, answers = [], []
    for constrained in (False, True):
        started = time.perf_counter()
        answers = engine.answer_each([request(number, constrained) for number in range(requests)])
        costs.append(Cost.of(answers, time.perf_counter() - started))
    tallies = {name: SchemaTally(name) for name in schemas}
    for name, answer in zip(names, answers, strict=True):
        tallies[name] = tallies[name].plus(answer.finish, schemas[name], answer.text)
    return list(tallies.values()), costs[1], costs[0]


def main(argv: Sequence[str] | None = None) -> int:
    from ...server.engine.offline import Offline  # here, because it brings torch, which --help does not need

    parser = argparse.ArgumentParser(
        prog="python -m asynclane.bench.quality.structured",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--requests", type=positive, default=500, help="how many (default: %(default)s)")
    parser.add_argument("--max-tokens", type=positive, default=128, help="default: %(default)s")
    parser.add_argument("--decoder", default="asynclane", help="default: %(default)s")
    parser.add_argument("--model", default="tiny-llada", help="as in serving (default: %(default)s)")
    parser.add_argument("--batch", type=positive, default=16, help="requests at once (default: %(default)s)")
    parser.add_argument("--threads", type=positive, help="as in serving")
    given = parser.parse_args(argv)
    require(parser, "jsonschema")
    schemas = json.loads(SCHEMAS.read_text(encoding="utf-8"))
    with Offline(Settings(model=given.model, max_num_seqs=given.batch, threads=given.threads)) as engine:
        options = AnswerOptions(given.max_tokens, decoder=given.decoder)
        tallies, with_schema, without = measure(engine, schemas, given.requests, options)
    answers, stopped, parse, valid = (
        sum(getattr(tally, name) for tally in tallies) for name in ("answers", "stopped", "parse", "valid")
    )
    rows = [[t.name, str(t.answers), str(t.stopped), str(t.parse), str(t.valid)] for t in tallies]
    print(
        table(["schema", "answers", "stop", "parse", "valid"], [*rows, _texts("all", answers, stopped, parse, valid)])
    )
    head = ["", "tokens/answer", "calls/answer", "tokens/call", "ms/call", "wall s"]
    print("\n" + table(head, [with_schema.row("with a schema", answers), without.row("without", answers)]))
    print(
        json_line(
            {
                "benchmark": "structured",
                "model": given.model,
                "decoder": given.decoder,
                "requests": answers,
                "max_tokens": given.max_tokens,
                "batch": given.batch,
                "stopped": stopped,
                "parse": parse,
                "valid": valid,
                "with_schema": {
                    "tokens": with_schema.tokens,
                    "calls": with_schema.calls,
                    "wall_s": round(with_schema.wall_s, 2),
                },
                "without": {"tokens": without.tokens, "calls": without.calls, "wall_s": round(without.wall_s, 2)},
            }
        )
    )
    return 0


def _texts(*cells: object) -> list[str]:
    return [str(cell) for cell in cells]


if __name__ == "__main__":
    raise SystemExit(main())
