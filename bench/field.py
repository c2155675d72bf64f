"""Measures every decoder on every embedded model, and draws who is ahead: `python -m asynclane.bench.quality --all`.

Each pair of a decoder and a model is a process of its own with one thread. Decoders that a model refuses are listed
with the reason. A frontier holds the decoders that no other beats in accuracy at as little cost.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from ..scheduler.decoders import resolve
from ..scheduler.geometry import Geometry
from ..scheduler.knobs import KnobError
from ..scheduler.methods import METHODS
from ..scheduler.rules import JUDGES
from ..scheduler.vocabulary import Vocabulary
from ..server.checkpoint import open_checkpoint
from ..server.knobs import parse_knobs
from .plot import draw_field
from .report import Interval, check_outputs, table
from .sweep import arguments, finish, measure

MODELS = ("tiny-llada", "tiny-dream", "tiny-sdar")
HEAD = ("decoder", "accuracy", "95 % interval", "calls", "tokens/call", "computed/token", "wall s", "frontier")
# What decoders of the table make together, beyond their defaults.
COMBINATIONS = (
    "fast-dllm:cache=none",
    "fast-dllm:cache=none,threshold=0.95",
    "fast-dllm:cache=prefix",
    "asynclane:cache=none",
    "asynclane:cache=d2",
    "asynclane:cache=interval",
    "asynclane:block_length=64,lookahead=64",
    "asynclane:rule=credit,threshold=0.95,later_threshold=0.98",
    "asynclane:block_length=64,lookahead=64,rule=credit,threshold=0.95",
    "asynclane:rule=tspd,refresh_every=2",
    "tccf:turn=newline",
    *(f"asynclane:rule={rule}" for rule in JUDGES),
)


@dataclass(frozen=True, slots=True)
class Entry:
    """One decoder's figures on one model, as `bench.quality` gives them."""

    model: str
    figures: dict[str, Any]

    @property
    def decoder(self) -> str:
        return str(self.figures["decoder"])

    @property
    def accuracy(self) -> float:
        return float(self.figures["accuracy"])

    @property
    def interval(self) -> Interval:
        return Interval(*self.figures["interval_95"])

    @property
    def calls_per_problem(self) -> float:
        return float(self.figures["calls_per_problem"])

    @property
    def computed_per_token(self) -> float:
        return float(self.figures["computed_tokens_per_answer_token"])


def frontier(entries: Sequence[Entry], cost: str = "calls_per_problem") -> list[Entry]:
    """Those that no other beats: none costs less, or as much, and is righter, or as right and costs less."""
    ahead: list[Entry] = []
    for entry in sorted(entries, key=lambda entry: (getattr(entry, cost), -entry.accuracy)):
        if not ahead or entry.accuracy > ahead[-1].accuracy:
            ahead.append(entry)
    return ahead


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
    """Of one model, the fewest calls first."""
    ahead = frontier(entries)
    return [
        [
            entry.decoder,
            f"{entry.accuracy:.3f}",
            "{:.3f}-{:.3f}".format(*entry.interval),
            f"{entry.calls_per_problem:.1f}",
            f"{entry.figures['tokens_per_call']:.1f}",
            f"{entry.computed_per_token:.1f}",
            f"{entry.figures['wall_s']:.0f}",
            "*" if entry in ahead else "",
        ]
        for entry in sorted(entries, key=lambda entry: entry.calls_per_problem)
    ]


def field_main(argv: Sequence[str]) -> int:
    parser = arguments("python -m asynclane.bench.quality --all", __doc__)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=MODELS, metavar="MODEL")
    parser.add_argument("--plot", type=Path, metavar="PNG", help="draw accuracy over cost, a row for each model")
    parser.add_argument("--again", type=Path, nargs="+", metavar="FILE", help="show what --json wrote; measure nothing")
    options = parser.parse_args(argv)
    check_outputs(parser, options.plot, options.json)
    if options.again and options.json:
        parser.error("--again measures nothing: there is no --json to write")
    if options.again:
        _show(_read(options.again), options.plot)
        return 0
    fields = {model: entrants(model) for model in options.models}

    def run(pair: tuple[str, str]) -> Entry:
        model, text = pair
        entry = Entry(model, measure(text, options.problems, options.seed, model))
        print(f"{model} {text}: {entry.accuracy:.3f}, {entry.calls_per_problem:.1f} calls", file=sys.stderr, flush=True)
        return entry

    with ThreadPoolExecutor(options.processes) as pool:
        found = list(pool.map(run, ((model, text) for model, (taken, _) in fields.items() for text in taken)))
    of_model = {model: [entry for entry in found if entry.model == model] for model in fields}
    _show(of_model, options.plot)
    models = {
        model: {"decoders": [entry.figures for entry in of_model[model]], "refused": refused}
        for model, (_, refused) in fields.items()
    }
    finish({"benchmark": "field", "processes": options.processes, "models": models}, options)
    return 0


def _read(paths: Sequence[Path]) -> dict[str, list[Entry]]:
    written = [json.loads(path.read_text(encoding="utf-8"))["models"] for path in paths]
    return {
        model: [Entry(model, each) for each in part["decoders"]] for models in written for model, part in models.items()
    }


def _show(of_model: Mapping[str, Sequence[Entry]], plot: Path | None) -> None:
    for model, entries in of_model.items():
        print(f"{model}\n{table(HEAD, rows(entries))}\n")
    if plot:
        draw_field({model: (entries, partial(frontier, entries)) for model, entries in of_model.items()}, plot)
