"""Measures each part of AsyncLane by switching it off, beside the figures of the paper.

Usage: python -m asynclane.bench.quality.ablations [--problems 400] [--seed 777] [--plot PNG] [--json FILE]
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ..load.output import check_outputs, finish, table
from ..report.plot import draw
from .field import Entry
from .sweep import arguments, measure_all

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


def main(argv: Sequence[str] | None = None) -> int:
    parser = arguments("python -m asynclane.bench.quality.ablations", __doc__)
    parser.add_argument("--plot", type=Path, metavar="PNG", help="draw accuracy over cost")
    options = parser.parse_args(argv)
    check_outputs(parser, options.plot, options.json)
    found = measure_all([ablation.decoder for ablation in ABLATIONS], options)
    labels = [ablation.label for ablation in ABLATIONS]
    measured = [Entry.of([{**figures, "decoder": label}]) for label, figures in zip(labels, found, strict=True)]
    print(table(HEAD, [row(*pair) for pair in zip(ABLATIONS, measured, strict=True)]))
    if options.plot:
        draw(measured, f"AsyncLane without its parts: {options.problems} problems, seed {options.seed}", options.plot)
    labelled = [{"label": label, **figures} for label, figures in zip(labels, found, strict=True)]
    finish({"benchmark": "ablations", "ablations": labelled}, options.json)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
