"""Measures every decoder on every embedded model, and draws who is ahead: `python -m asynclane.bench.quality --all`.

Decoders that a model refuses are listed with the reason. A frontier holds the decoders that no other beats in accuracy
at as little cost. Answers do not depend on the device, so many problems may be answered on a GPU (`--device cuda`) and
fewer be timed on a CPU: `--again` shows what several runs found, together.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from ..scheduler.decoders import resolve
from ..scheduler.geometry import Geometry
from ..scheduler.knobs import KnobError
from ..scheduler.methods import METHODS
from ..scheduler.rules import JUDGES
from ..scheduler.vocabulary import Vocabulary
from ..server.checkpoint import open_checkpoint
from ..server.knobs import parse_knobs
from .plot import draw_field
from .report import Interval, check_outputs, json_line, table
from .sweep import MODELS, arguments, terms
from .workers import Job, measure_each

Run = dict[str, Any]  # one decoder's figures on one model, as `bench.quality` gives them

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
FRONTIERS = {"calls": "calls_per_problem", "computed": "computed_per_token"}
INTRODUCTION = """# Every decoder on every embedded model

Made by `python -m asynclane.bench.quality --all`, seed 777, in float32 at temperature 0; drawn in the
[README](../README.md#what-it-costs-and-what-it-is-worth). `calls` are model calls per problem, `computed/token` every
position that the network computed, prompt and look-ahead included, per answer token; `CPU ms` is one core's time for an
answer, 16 at once. `ahead in`: no other decoder has fewer calls, or computes less, and is as often right.
"""
# What decoders of the table make together, beyond their defaults.
COMBINATIONS = (
    *(
        f"fast-dllm:cache=none{threshold}"
        for threshold in ("", ",threshold=0.95", ",threshold=0.97", ",threshold=0.98")
    ),
    "fast-dllm:cache=prefix",
    "d3llm:cache=none,entropy_threshold=0.1",
    *(f"asynclane:cache={cache}" for cache in ("none", "d2", "interval", "delayed")),
    "asynclane:cache=none,lookahead=64",
    "asynclane:cache=none,lookahead=canvas,threshold=0.97,draft_threshold=0.999",
    "asynclane:cache=none,lookahead=canvas,threshold=0.98,later_threshold=0.995,draft_threshold=off",
    "asynclane:lookahead=canvas,threshold=0.97,draft_threshold=0.999",
    "asynclane:lookahead=canvas,threshold=0.98,later_threshold=0.995,draft_threshold=0.999",
    "asynclane:threshold=0.8,later_threshold=0.95",
    "asynclane:block_length=64,lookahead=64",
    "asynclane:block_length=64,lookahead=64,rule=credit,threshold=0.95",
    "asynclane:rule=credit,threshold=0.95,later_threshold=0.98",
    "asynclane:rule=credit,threshold=0.9,later_threshold=0.95",
    "asynclane:rule=localleap,threshold=0.95,near_threshold=0.9",
    "asynclane:rule=entropy,entropy_threshold=0.2",
    "asynclane:rule=tspd,refresh_every=2",
    "tccf:turn=newline",
    *(f"asynclane:rule={rule}" for rule in JUDGES),
)


@dataclass(frozen=True, slots=True)
class Entry:
    """What is known of one decoder on one model: the run of most problems, and one that was timed on a CPU."""

    run: Run
    timed: Run | None = None

    @property
    def decoder(self) -> str:
        return str(self.run["decoder"])

    @property
    def problems(self) -> int:
        return int(self.run["problems"])

    @property
    def accuracy(self) -> float:
        return float(self.run["accuracy"])

    @property
    def interval(self) -> Interval:
        return Interval(*self.run["interval_95"])

    @property
    def calls_per_problem(self) -> float:
        return float(self.run["calls_per_problem"])

    @property
    def computed_per_token(self) -> float:
        return float(self.run["computed_tokens_per_answer_token"])

    @property
    def cpu_ms(self) -> float | None:
        """Milliseconds of one core for each answer."""
        if self.timed is None:
            return None
        return 1000.0 * float(self.timed["wall_s"]) / int(self.timed["problems"])


class Field(NamedTuple):
    """All runs, and by model and decoder why a model refuses it."""

    runs: list[Run]
    refused: dict[str, dict[str, str]]

    def entries(self, model: str) -> list[Entry]:
        """The fewest calls first."""
        by_decoder: dict[str, list[Run]] = {}
        for run in self.runs:
            if run["model"] == model:
                by_decoder.setdefault(run["decoder"], []).append(run)
        return sorted(map(_entry, by_decoder.values()), key=lambda entry: entry.calls_per_problem)

    def models(self) -> list[str]:
        return [model for model in MODELS if any(run["model"] == model for run in self.runs)]


def _entry(runs: Sequence[Run]) -> Entry:
    """Answers are those of most problems, the time is that of the last run on a CPU."""
    timed = [run for run in runs if run["device"] == "cpu"]
    return Entry(max(runs, key=lambda run: int(run["problems"])), timed[-1] if timed else None)


def frontier(entries: Sequence[Entry], cost: str = "calls_per_problem") -> list[Entry]:
    """Those that no other beats: none costs less, or as much, and is righter, or as right and costs less. Of those that
    were asked as many problems as any."""
    ahead: list[Entry] = []
    for entry in sorted(_asked_most(entries), key=lambda entry: (getattr(entry, cost), -entry.accuracy)):
        if not ahead or entry.accuracy > ahead[-1].accuracy:
            ahead.append(entry)
    return ahead


def _asked_most(entries: Sequence[Entry]) -> list[Entry]:
    most = max(entry.problems for entry in entries)
    return [entry for entry in entries if entry.problems == most]


def entrants(model: str, max_tokens: int = 256) -> tuple[list[str], dict[str, str]]:
    """The decoders that a model takes, and why it refuses others."""
    checkpoint = open_checkpoint(model)
    config, words = checkpoint.config, checkpoint.text
    geometry = Geometry(config.shift, config.block)
    vocabulary = Vocabulary(words.pieces, words.mask_id, words.end_ids)
    taken: list[str] = []
    refused: dict[str, str] = {}
    for text in (*METHODS, *COMBINATIONS):
        name, _, knobs = text.partition(":")
        try:
            decoder = resolve(name, parse_knobs(knobs.split(",") if knobs else []), max_tokens, geometry)
            decoder.policy.require(vocabulary)
            taken.append(text)
        except KnobError as error:
            refused[text] = str(error)
    return taken, refused


def rows(entries: Sequence[Entry]) -> list[list[str]]:
    """Of one model."""
    ahead = {name: frontier(entries, cost) for name, cost in FRONTIERS.items()}
    return [
        [
            entry.decoder,
            str(entry.problems),
            f"{entry.accuracy:.3f}",
            "{:.3f}-{:.3f}".format(*entry.interval),
            f"{entry.calls_per_problem:.2f}",
            f"{entry.run['tokens_per_call']:.1f}",
            f"{entry.computed_per_token:.1f}",
            "-" if entry.cpu_ms is None else f"{entry.cpu_ms:.0f}",
            " ".join(name for name, those in ahead.items() if entry in those),
        ]
        for entry in entries
    ]


def page(field: Field) -> str:
    """All tables, in Markdown."""
    parts = [INTRODUCTION]
    for model in field.models():
        parts.append(f"## {model}\n```\n{table(HEAD, rows(field.entries(model)))}\n```\n")
        if reasons := field.refused.get(model):
            parts.append("Refused:\n" + "\n".join(f"- `{name}`: {reason}" for name, reason in reasons.items()) + "\n")
    return "\n".join(parts)


def field_main(argv: Sequence[str]) -> int:
    parser = arguments("python -m asynclane.bench.quality --all", __doc__)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=MODELS, metavar="MODEL")
    parser.add_argument("--decoders", nargs="+", metavar="DECODER", help="of the list, only these")
    parser.add_argument("--resume", action="store_true", help="keep what the file of --json holds; measure the rest")
    parser.add_argument("--plot", type=Path, metavar="PNG", help="draw accuracy over cost, a row for each model")
    parser.add_argument("--page", type=Path, metavar="MD", help="write the tables as a page")
    parser.add_argument("--again", type=Path, nargs="+", metavar="FILE", help="show what --json wrote; measure nothing")
    options = parser.parse_args(argv)
    check_outputs(parser, options.plot, options.json, options.page)
    if options.again and options.json:
        parser.error("--again measures nothing: there is no --json to write")
    if options.resume and not options.json:
        parser.error("--resume goes on with the file of --json")
    field = read(options.again) if options.again else _measured(options)
    for model in field.models():
        print(f"{model}\n{table(HEAD, rows(field.entries(model)))}\n")
    if options.plot:
        by_model = {model: _asked_most(field.entries(model)) for model in field.models()}
        draw_field({model: (entries, partial(frontier, entries)) for model, entries in by_model.items()}, options.plot)
    if options.page:
        options.page.write_text(page(field), encoding="utf-8")
    return 0


def _measured(options: argparse.Namespace) -> Field:
    """Writes what there is after each decoder: all of them take long."""
    fields = {model: entrants(model) for model in options.models}
    field = read([options.json]) if options.resume else Field([], {})
    field.refused.update({model: refused for model, (_, refused) in fields.items()})
    done = {Job(run["model"], run["decoder"]) for run in field.runs}
    jobs = [Job(model, decoder) for model, (taken, _) in fields.items() for decoder in options.decoders or taken]
    jobs = [job for job in jobs if job not in done and job.decoder in fields[job.model][0]]
    for job, figures in measure_each(jobs, terms(options), options.processes):
        field.runs.append({"model": job.model, **figures})
        if options.json:
            told = {"benchmark": "field", **terms(options)._asdict(), "processes": options.processes, **field._asdict()}
            options.json.write_text(json_line(told) + "\n", encoding="utf-8")
    return field


def read(paths: Sequence[Path]) -> Field:
    """Of some files that `--json` wrote: together."""
    field = Field([], {})
    for path in paths:
        written = json.loads(path.read_text(encoding="utf-8"))
        field.runs.extend(written["runs"])
        field.refused.update(written["refused"])
    return field
