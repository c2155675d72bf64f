"""Measures each part of AsyncLane by switching it off, beside the figures of the paper.

Usage: python -m asynclane.bench.quality.ablations [--decoder asynclane-paper] [--model tiny-llada] [--problems 400]
    [--seed 777] [--plot PNG] [--json FILE]
Parts that a model cannot be without, or cannot have, are listed with the reason. `as in paper`: calls as the paper
counts them. `lead`, `ahead`, `overlap`: `lane_figures`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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


FULL = Paper(74.91, 60_378)
NO_LOOKAHEAD, NEITHER = Paper(67.02, round(123_079 * 0.399)), Paper(67.02, round(123_079 * 0.424))
NO_REUSE = Paper(74.37, round(209_613 * 0.312))
BLIND = "lookahead=0,refine_lookahead=0,refresh_margin=0"  # the look-ahead of lanes and of refreshes

# By the decoder that they change.
ABLATIONS: Mapping[str, tuple[Ablation, ...]] = {
    "asynclane": (
        Ablation("full", "asynclane", FULL),
        Ablation("siblings isolated", "asynclane:siblings=isolated", FULL),
        Ablation("coupled", "asynclane:siblings=coupled", Paper(73.39, 67_449)),
        Ablation("commit-and-advance", "asynclane:siblings=commit", Paper(68.46, 60_750)),
        Ablation("no forks", "asynclane:max_lanes=1"),
        Ablation("no look-ahead", "asynclane:lookahead=0", NO_LOOKAHEAD),
        Ablation("no reuse of the first pass", "asynclane:reuse=false"),
        Ablation("neither", "asynclane:lookahead=0,reuse=false", NEITHER),
        Ablation("boundaries: commas too", "asynclane:boundary=comma", Paper(72.48)),
        Ablation("boundaries: every 16 positions", "asynclane:boundary=stride", Paper(71.34)),
        Ablation("boundaries: stable proposals alone", "asynclane:boundary=stable,stable_steps=2"),
        Ablation("no settling", "asynclane:settle=false"),
        Ablation("no drafts", "asynclane:draft_threshold=off"),
        Ablation("no predicted end", "asynclane:end_threshold=off"),
        Ablation("no stricter later lanes", "asynclane:later_threshold=off"),
        Ablation("refreshed every 2 lanes", "asynclane:refresh_every=2"),
        Ablation("refreshed after each lane", "asynclane:refresh_every=1"),
        Ablation("refreshed after each lane, no reuse", "asynclane:refresh_every=1,reuse=false", NO_REUSE),
        Ablation("Fast-dLLM, dual cache, early stop", "fast-dllm:cache=dual"),
        Ablation("Fast-dLLM, dual cache, as published", "fast-dllm:cache=dual,early_stop=false"),
    ),
    "asynclane-paper": (
        Ablation(
            "block-wise, one token a call",
            "asynclane-paper:max_lanes=1,steps=256,draft_threshold=off",
            Paper(73.01, 337_664),
        ),
        Ablation("block-wise, threshold", "asynclane-paper:max_lanes=1"),
        Ablation("commit-and-advance", "asynclane-paper:siblings=commit", Paper(68.46, 60_750)),
        Ablation("coupled", "asynclane-paper:siblings=coupled", Paper(73.39, 67_449)),
        Ablation("full", "asynclane-paper", FULL),
        Ablation("no look-ahead", f"asynclane-paper:{BLIND}", NO_LOOKAHEAD),
        Ablation("no reuse", "asynclane-paper:reuse=false", NO_REUSE),
        Ablation("neither", f"asynclane-paper:reuse=false,{BLIND}", NEITHER),
        Ablation("boundaries: commas too", "asynclane-paper:boundary=period_comma", Paper(72.48)),
        Ablation("boundaries: every 16 positions", "asynclane-paper:boundary=stride", Paper(71.34)),
    ),
}

HEAD = (
    *("", "accuracy", "95 % interval", "calls", "as in paper", "computed/token", "forks", "lead", "ahead", "overlap"),
    *("paper: accuracy", "calls"),
)


def row(ablation: Ablation, figures: Mapping[str, Any]) -> list[str]:
    paper, (low, high), lanes = ablation.paper, figures["interval_95"], figures["lanes"]
    each = 1 / figures["problems"]
    return [
        ablation.label,
        f"{100 * figures['accuracy']:.1f}",
        f"{100 * low:.1f}-{100 * high:.1f}",
        f"{figures['calls_per_problem']:.2f}",
        f"{lanes['paper_calls'] * each:.2f}",
        f"{figures['computed_tokens_per_answer_token']:.2f}",
        f"{lanes['forks'] * each:.2f}",
        f"{lanes['mean_lead']:+.3f}" if lanes["pair_calls"] else "",
        f"{lanes['ahead']:.3f}",
        f"{lanes['overlap']:.3f}",
        "" if paper is None else f"{paper.accuracy:.1f}",
        "" if paper is None else paper.calls_per_problem,
    ]


def accepted(model: str, decoder: str) -> tuple[list[Ablation], dict[str, str]]:
    """Return the ablations of a decoder on a model, and the reasons for refusing the others by label. Raises
    `ValueError` and `OSError` for a model that cannot be opened."""
    checkpoint, chosen, refused = open_checkpoint(model), [], {}
    for ablation in ABLATIONS[decoder]:
        try:
            parse_decoder(ablation.decoder, MAX_TOKENS, checkpoint)
            chosen.append(ablation)
        except ValueError as error:
            refused[ablation.label] = str(error)
    return chosen, refused


def main(argv: Sequence[str] | None = None) -> int:
    parser = arguments("python -m asynclane.bench.quality.ablations", __doc__)
    parser.add_argument("--model", default=MODELS[0], help="as in serving (default: %(default)s)")
    parser.add_argument("--decoder", choices=ABLATIONS, default="asynclane", help="default: %(default)s")
    parser.add_argument("--plot", type=Path, metavar="PNG", help="draw accuracy over cost")
    options = parser.parse_args(argv)
    check_outputs(parser, options.plot, options.json)
    try:
        chosen, refused = accepted(options.model, options.decoder)
    except (ValueError, OSError) as error:
        parser.error(str(error))
    if not chosen:
        parser.error(f"{options.model} takes none of them: {next(iter(refused.values()))}")
    found = measure_all([ablation.decoder for ablation in chosen], options, options.model, watch=True)
    print(table(HEAD, [row(*pair) for pair in zip(chosen, found, strict=True)]))
    if refused:
        print("\nRefused:\n" + "\n".join(f"- {label}: {reason}" for label, reason in refused.items()))
    labelled = [{"label": one.label, **figures} for one, figures in zip(chosen, found, strict=True)]
    if options.plot:
        draw(
            [Entry.of([{**figures, "decoder": figures["label"]}]) for figures in labelled],
            f"{options.model}, {options.decoder} without its parts: {options.problems} problems, seed {options.seed}",
            options.plot,
        )
    about = {"model": options.model, "decoder": options.decoder, "refused": refused}
    finish({"benchmark": "ablations", **about, "ablations": labelled}, options.json)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
