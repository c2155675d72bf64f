"""Measures each part of AsyncLane by switching it off, beside the figures of the paper.

Usage: python -m asynclane.bench.quality.ablations [--model tiny-llada] [--problems 400] [--seed 777] [--plot PNG]
    [--json FILE]
Parts that a model cannot be without, or cannot have, are listed with the reason.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ...server.engine.wiring import open_checkpoint
from ..eval.decoders import parse_decoder
from ..load.output import check_outputs, finish, table
from ..report.plot import draw
from .field import Entry
from .sweep import MODELS, arguments, measure_all
from .workers import MAX_TOKENS

PAPER_PROBLEMS = 1319  # GSM8K's test set


@dataclass(frozen=True, slots=True)
class Paper:
    """Figures of arXiv 2606.08411 for LLaDA-8B on GSM8K-CoT at 256 tokens: accuracy in percent, and the model calls
    over all problems, where it has them."""

    accuracy: float
    calls: int | None = None

    @property
    def calls_per_problem(self) -> str:
        return "" if self.calls is None else f"{self.calls / PAPER_PROBLEMS:.1f}"


@dataclass(frozen=True, slots=True)
class Ablation:
    label: str
    decoder: str
    paper: Paper | None = None


ABLATIONS: tuple[Ablation, ...] = (
    Ablation("full", "asynclane", Paper(74.91, 60_378)),
    Ablation("siblings isolated, as in the paper", "asynclane:siblings=isolated", Paper(74.91, 60_378)),
    Ablation("coupled", "asynclane:siblings=coupled", Paper(73.39, 67_449)),
    Ablation("commit-and-advance", "asynclane:siblings=commit", Paper(68.46, 60_750)),
    Ablation("no forks", "asynclane:max_lanes=1"),
    Ablation("no look-ahead", "asynclane:lookahead=0", Paper(67.02, round(123_079 * 0.399))),
    Ablation("no reuse", "asynclane:reuse=false", Paper(74.37, round(209_613 * 0.312))),
    Ablation("neither", "asynclane:lookahead=0,reuse=false", Paper(67.02, round(123_079 * 0.424))),
    Ablation("boundaries: commas too", "asynclane:boundary=comma", Paper(72.48)),
    Ablation("boundaries: every 16 positions", "asynclane:boundary=stride", Paper(71.34)),
    Ablation("boundaries: stable proposals alone", "asynclane:boundary=stable,stable_steps=2"),
    Ablation("no settling", "asynclane:settle=false"),
    Ablation("no drafts", "asynclane:draft_threshold=off"),
    Ablation("no predicted end", "asynclane:end_threshold=off"),
    Ablation("no stricter later lanes", "asynclane:later_threshold=off"),
    Ablation("refreshed every 2 lanes", "asynclane:refresh_every=2"),
    Ablation("Fast-dLLM, dual cache, early stop", "fast-dllm:cache=dual"),
    Ablation("Fast-dLLM, dual cache, as published", "fast-dllm:cache=dual,early_stop=false"),
)

HEAD = ("", "accuracy", "95 % interval", "calls", "computed/token", "paper: accuracy", "calls")


def row(ablation: Ablation, measured: Entry) -> list[str]:
    paper = ablation.paper
    return [
        ablation.label,
        f"{100 * measured.accuracy:.1f}",
        f"{100 * measured.interval.low:.1f}-{100 * measured.interval.high:.1f}",
        f"{measured.calls_per_problem:.2f}",
        f"{measured.computed_per_token:.2f}",
        "" if paper is None else f"{paper.accuracy:.1f}",
        "" if paper is None else paper.calls_per_problem,
    ]


def accepted(model: str) -> tuple[list[Ablation], dict[str, str]]:
    """Return the ablations of a model, and the reasons for refusing the others by label. Raises `ValueError` and
    `OSError` for a model that cannot be opened."""
    checkpoint, chosen, refused = open_checkpoint(model), [], {}
    for ablation in ABLATIONS:
        try:
            parse_decoder(ablation.decoder, MAX_TOKENS, checkpoint)
            chosen.append(ablation)
        except ValueError as error:
            refused[ablation.label] = str(error)
    return chosen, refused


def main(argv: Sequence[str] | None = None) -> int:
    parser = arguments("python -m asynclane.bench.quality.ablations", __doc__)
    parser.add_argument("--model", default=MODELS[0], help="as in serving (default: %(default)s)")
    parser.add_argument("--plot", type=Path, metavar="PNG", help="draw accuracy over cost")
    options = parser.parse_args(argv)
    check_outputs(parser, options.plot, options.json)
    try:
        chosen, refused = accepted(options.model)
    except (ValueError, OSError) as error:
        parser.error(str(error))
    found = measure_all([ablation.decoder for ablation in chosen], options, options.model)
    labels = [ablation.label for ablation in chosen]
    measured = [Entry.of([{**figures, "decoder": label}]) for label, figures in zip(labels, found, strict=True)]
    print(table(HEAD, [row(*pair) for pair in zip(chosen, measured, strict=True)]))
    if refused:
        print("\nRefused:\n" + "\n".join(f"- {label}: {reason}" for label, reason in refused.items()))
    if options.plot:
        draw(
            measured,
            f"{options.model}, AsyncLane without its parts: {options.problems} problems, seed {options.seed}",
            options.plot,
        )
    labelled = [{"label": label, **figures} for label, figures in zip(labels, found, strict=True)]
    finish({"benchmark": "ablations", "model": options.model, "refused": refused, "ablations": labelled}, options.json)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
