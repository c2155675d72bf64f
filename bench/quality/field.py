"""Measures every decoder on every embedded model, and draws the best: `python -m asynclane.bench.quality --all`.

Decoders that a model refuses are listed with the reason. A frontier has the decoders that no other beats in accuracy at
the same or a lower cost. Answers do not depend on the device, so many problems may be answered on a GPU (`--device
cuda`) and fewer be timed on a CPU: `--again` shows the results of several runs together.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from ...scheduler.decoding.commit import HOST_RULES
from ...scheduler.decoding.compatibility import VocabularyFacts, refuse
from ...scheduler.decoding.params import ParamError
from ...scheduler.decoding.registry import DECODERS
from ...scheduler.decoding.resolve import resolve
from ...server.cli.params import parse_params
from ...server.engine.wiring import open_checkpoint
from ..eval.interval import Interval
from ..load.output import check_outputs, finish, table, write_over
from ..report.plot import COSTS, Cost, draw_field
from .sweep import MODELS, arguments, terms
from .workers import MAX_TOKENS, Job, measure_each

Run = dict[str, Any]  # one decoder's figures on one model, and its terms, as `workers` returns them

HEAD = (
    "decoder",
    "problems",
    "accuracy",
    "95 % interval",
    "calls",
    "tokens/call",
    "computed/token",
    "CPU ms",
    "ahead in",
)
INTRODUCTION = """# Every decoder on every embedded model

`python -m asynclane.bench.quality --all` made this page, with seed {seed}, in float32 at temperature 0.
[Cost](cost.md#every-decoder) has the picture; [evaluation](evaluation.md) measures any model on public sets.

- `calls`: forwards per problem.
- `computed/token`: all positions that the network computed, prompt and look-ahead included, per answer token.
- `CPU ms`: the time of one core per answer{batch}.
- `ahead in`: no decoder with as few calls (or as few computed positions) is as accurate. Only decoders with the most
  `problems` are compared; the slowest ran fewer, for lack of time.

A list below each table names the decoders that the model refuses, with the reason. Rows of `asynclane` with
`stop_threshold=off` are of the time when that was the default. Decoders without a row came later, and were not run on
so many problems: [decoding](decoding.md) has their figures.

Decoders that are written "(after)" come after a paper, and are not what it describes. `ahd`, `ce`, `ete`, `leap` and
`tspd` were written from papers, or summaries of them, without code; `d2cache` and `dllm-cache` select positions
otherwise than the authors do. Their figures are of our versions, not of the authors', as are those of `learn2pd`, which
has weights of our own.
"""
# Combinations of decoders and parameters beyond the defaults.
COMBINATIONS = (
    "fast-dllm:cache=none",
    "fast-dllm:cache=none,threshold=0.95",
    "fast-dllm:cache=none,threshold=0.97",
    "fast-dllm:cache=none,threshold=0.98",
    "fast-dllm:cache=prefix",
    "d3llm:cache=none,entropy_threshold=0.1",
    *(f"asynclane:cache={cache}" for cache in ("none", "d2", "interval", "delayed")),
    "asynclane:cache=none,lookahead=64",
    "asynclane:cache=none,lookahead=canvas,threshold=0.97,draft_threshold=0.999",
    "asynclane:cache=none,lookahead=canvas,threshold=0.98,later_threshold=0.995,draft_threshold=off",
    "asynclane:lookahead=canvas,threshold=0.97,draft_threshold=0.999",
    "asynclane:lookahead=canvas,threshold=0.98,later_threshold=0.995,draft_threshold=0.999",
    "asynclane:stop_threshold=off",
    "asynclane:threshold=0.8,later_threshold=0.95",
    "asynclane:block_length=64,lookahead=64",
    "asynclane:block_length=64,lookahead=64,rule=credit,threshold=0.95",
    "asynclane:rule=credit,threshold=0.95,later_threshold=0.98",
    "asynclane:rule=credit,threshold=0.9,later_threshold=0.95",
    "asynclane:rule=localleap,threshold=0.95,near_threshold=0.9",
    "asynclane:rule=entropy,entropy_threshold=0.2",
    "asynclane:rule=tspd,refresh_every=2",
    "tccf:turn=newline",
    *(f"asynclane:rule={rule}" for rule in HOST_RULES),
)


@dataclass(frozen=True, slots=True)
class Entry:
    """The figures of one decoder on one model. `cpu_ms` is milliseconds of one core for each answer, `batch` at once;
    None if it was not timed on a CPU."""

    decoder: str
    problems: int
    accuracy: float
    interval: Interval
    calls_per_problem: float
    tokens_per_call: float
    computed_per_token: float
    cpu_ms: float | None = None
    batch: int | None = None

    @classmethod
    def of(cls, runs: Sequence[Run]) -> Entry:
        """Take the answers of the run with most problems, and the time of the last run on a CPU."""
        run = max(runs, key=lambda run: int(run["problems"]))
        timed = next((run for run in reversed(runs) if run["device"] == "cpu"), None)
        return cls(
            decoder=str(run["decoder"]),
            problems=int(run["problems"]),
            accuracy=float(run["accuracy"]),
            interval=Interval(*run["interval_95"]),
            calls_per_problem=float(run["calls_per_problem"]),
            tokens_per_call=float(run["tokens_per_call"]),
            computed_per_token=float(run["computed_tokens_per_answer_token"]),
            cpu_ms=1000.0 * float(timed["wall_s"]) / int(timed["problems"]) if timed else None,
            batch=int(timed["batch"]) if timed else None,
        )


class Standing(NamedTuple):
    """One model: all entries, fewest calls first; those with the most problems; and the best of these, by cost."""

    entries: list[Entry]
    compared: list[Entry]
    ahead: dict[Cost, list[Entry]]

    @classmethod
    def of(cls, entries: Sequence[Entry]) -> Standing:
        most = max(entry.problems for entry in entries)
        compared = [entry for entry in entries if entry.problems == most]
        ahead = {cost: frontier(compared, cost) for cost in COSTS}
        return cls(sorted(entries, key=lambda entry: entry.calls_per_problem), compared, ahead)


class Field(NamedTuple):
    """All runs, of one seed, and the reasons of refusals by model and decoder."""

    runs: list[Run]
    refused: dict[str, dict[str, str]]

    def standings(self) -> dict[str, Standing]:
        """Return the standing of each model with runs."""
        found: dict[str, dict[str, list[Run]]] = {model: {} for model in MODELS}
        for run in self.runs:
            found[run["model"]].setdefault(run["decoder"], []).append(run)
        return {
            model: Standing.of([Entry.of(runs) for runs in decoders.values()])
            for model, decoders in found.items()
            if decoders
        }

    def figures(self) -> dict[str, object]:
        return {"benchmark": "field", **self._asdict()}


def frontier(entries: Sequence[Entry], cost: Cost) -> list[Entry]:
    """Return the entries that no other beats in accuracy at the same or a lower cost."""
    ahead: list[Entry] = []
    for entry in sorted(entries, key=lambda entry: (cost.of(entry), -entry.accuracy)):
        if not ahead or entry.accuracy > ahead[-1].accuracy:
            ahead.append(entry)
    return ahead


def entrants(model: str) -> tuple[list[str], dict[str, str]]:
    """Return the decoders that a model accepts, and the reasons for refusing the others."""
    checkpoint = open_checkpoint(model)
    accepted: list[str] = []
    refused: dict[str, str] = {}
    for text in (*DECODERS, *COMBINATIONS):
        name, _, params = text.partition(":")
        try:
            chosen = parse_params(params.split(",") if params else [])
            decoder = resolve(name, chosen, MAX_TOKENS, checkpoint.config.pattern)
            refuse(VocabularyFacts(decoder, checkpoint.text.vocabulary))
            accepted.append(text)
        except ParamError as error:
            refused[text] = str(error)
    return accepted, refused


def named(decoder: str) -> str:
    """Return the decoder as tables write it: with "(after)" where it is not what its paper describes."""
    name, *params = decoder.replace(":", ",").split(",")
    rules = [HOST_RULES[param.removeprefix("rule=")] for param in params if param.startswith("rule=")]
    sources = [rule.SOURCE for rule in rules] or ([DECODERS[name].source] if name in DECODERS else [])
    return f"{decoder} (after)" if any(source.startswith("after ") for source in sources) else decoder


def tabulated(standing: Standing) -> str:
    return table(
        HEAD,
        [
            [
                named(entry.decoder),
                str(entry.problems),
                f"{entry.accuracy:.3f}",
                "{:.3f}-{:.3f}".format(*entry.interval),
                f"{entry.calls_per_problem:.2f}",
                f"{entry.tokens_per_call:.1f}",
                f"{entry.computed_per_token:.1f}",
                "-" if entry.cpu_ms is None else f"{entry.cpu_ms:.0f}",
                " ".join(cost.name for cost, those in standing.ahead.items() if entry in those),
            ]
            for entry in standing.entries
        ],
    )


def page(field: Field) -> str:
    """Return all tables, in Markdown."""
    standings = field.standings()
    batches = sorted({entry.batch for one in standings.values() for entry in one.entries if entry.batch is not None})
    batch = f", {' or '.join(map(str, batches))} at once" if batches else ""
    parts = [INTRODUCTION.format(seed=field.runs[0]["seed"], batch=batch)]
    for model, standing in standings.items():
        parts.append(f"## {model}\n```\n{tabulated(standing)}\n```\n")
        if reasons := field.refused.get(model):
            parts.append("Refused:\n" + "\n".join(f"- `{name}`: {reason}" for name, reason in reasons.items()) + "\n")
    return "\n".join(parts)


def field_main(argv: Sequence[str]) -> int:
    parser = arguments("python -m asynclane.bench.quality --all", __doc__)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=MODELS, metavar="MODEL")
    parser.add_argument("--decoders", nargs="+", metavar="DECODER", help="measure only these of the list")
    parser.add_argument("--resume", action="store_true", help="keep the runs in the file of --json; measure the rest")
    parser.add_argument("--plot", type=Path, metavar="PNG", help="draw accuracy over cost, a row for each model")
    parser.add_argument("--page", type=Path, metavar="MD", help="write the tables as a page")
    parser.add_argument("--again", type=Path, nargs="+", metavar="FILE", help="show files of --json; measure nothing")
    options = parser.parse_args(argv)
    check_outputs(parser, options.plot, options.json, options.page)
    if options.again and options.json:
        parser.error("--again measures nothing: there is no --json to write")
    if options.again and (options.resume or options.decoders):
        parser.error("--again measures nothing: there is nothing to resume or to choose")
    if options.resume and not options.json:
        parser.error("--resume goes on with the file of --json")
    if unknown := {*(options.decoders or ())} - {*DECODERS, *COMBINATIONS}:
        parser.error(f"--decoders takes those of the list, not {', '.join(sorted(unknown))}")
    try:
        field = read(options.again) if options.again else _kept(options)
    except ValueError as error:
        parser.error(str(error))
    if not options.again:
        _measure(field, options)
    if not field.runs:
        parser.error("nothing to show: no model accepts these decoders, or the files have no runs")
    standings = field.standings()
    for model, standing in standings.items():
        print(f"{model}\n{tabulated(standing)}\n")
    if options.plot:
        draw_field({model: (one.compared, one.ahead) for model, one in standings.items()}, options.plot)
    if options.page:
        options.page.write_text(page(field), encoding="utf-8")
    finish(field.figures(), options.json)
    return 0


def _kept(options: argparse.Namespace) -> Field:
    """Return the earlier runs. Raises `ValueError` if they are of other problems."""
    field = read([options.json] if options.resume and options.json.exists() else [])
    for run in field.runs:
        if (run["problems"], run["seed"]) != (options.problems, options.seed):
            raise ValueError(
                f"{options.json} holds {run['problems']} problems of seed {run['seed']}: resume with these"
            )
    return field


def _measure(field: Field, options: argparse.Namespace) -> None:
    """Add the missing runs, and write all runs after each decoder: all of them take long."""
    fields = {model: entrants(model) for model in options.models}
    field.refused.update({model: refused for model, (_, refused) in fields.items()})
    done = {Job(run["model"], run["decoder"]) for run in field.runs}
    selected = options.decoders or (*DECODERS, *COMBINATIONS)
    jobs = [
        Job(model, decoder) for model, (accepted, _) in fields.items() for decoder in accepted if decoder in selected
    ]
    for job, figures in measure_each([job for job in jobs if job not in done], terms(options), options.processes):
        field.runs.append({"model": job.model, **figures})
        if options.json:
            write_over(field.figures(), options.json)


def read(paths: Sequence[Path]) -> Field:
    """Read files of `--json` together. Raises `ValueError` for another file, and for runs of several seeds, which have
    different problems."""
    field, seeds = Field([], {}), set[int]()
    for path in paths:
        try:
            written = json.loads(path.read_text(encoding="utf-8"))
            Field(written["runs"], {}).standings()  # fails where a figure is missing
            seeds.update(run["seed"] for run in written["runs"])
            field.runs.extend(written["runs"])
            field.refused.update(written["refused"])
        except (OSError, ValueError, LookupError, TypeError) as error:
            raise ValueError(f"{path} is no file of --json: {type(error).__name__}: {error}") from None
    if len(seeds) > 1:
        raise ValueError(f"runs of seeds {', '.join(map(str, sorted(seeds)))} cannot be combined")
    return field
