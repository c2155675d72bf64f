"""Measures how many tokens a forward commits on prose: tiny-prose fills the gaps of passages.

Usage: python -m asynclane.bench.quality.prose --model DIR [DECODER ...] [--passages 200] [--json FILE]
DIR is a checkpoint of `training.train tiny-prose`: its file reserved.json has prompts that training never saw. A
DECODER is a name, with or without parameters, as in `bench.quality`. More than one passage has the same gaps, so the
table has no accuracy. `same` is the share of answers that are the first decoder's.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ...server.engine.messages import AnswerOptions, Finish
from ...server.engine.wiring import open_checkpoint
from ...server.settings import Settings
from ..eval.decoders import Choice, parse_decoder
from ..load.output import check_outputs, finish, positive, program, table
from .run import DTYPE, Engine, open_offline
from .tally import Reply

RESERVED = "reserved.json"
GAP = "_"  # in a prompt
DECODERS = ("llada", "fast-dllm:cache=none,threshold=0.9", "fast-dllm:threshold=0.9", "asynclane")
MAX_TOKENS = 256


@dataclass(frozen=True, slots=True)
class Figures:
    """One decoder's figures over all passages; `tokens` includes an end token for each answer that has one."""

    decoder: str
    same: float
    tokens: int
    forwards: int
    computed_tokens: int
    cut: int

    @property
    def tokens_per_forward(self) -> float:
        return self.tokens / self.forwards


def prompts(directory: Path) -> list[str]:
    """User messages with reserved passages, gaps in them, in a checkpoint's directory. Raises `ValueError` if there are
    none."""
    try:
        return [prompt for _, prompt in json.loads((directory / RESERVED).read_text(encoding="utf-8"))]
    except (OSError, TypeError, ValueError) as error:
        raise ValueError(f"no prompts in {directory / RESERVED}: {type(error).__name__} {error}") from None


def kept_words(prompt: str, text: str) -> float:
    """The share of the words between gaps that an answer has, in order: of their longest common subsequence."""
    given, found = [word for word in prompt.split() if GAP not in word], text.split()
    lengths = [0] * (len(found) + 1)  # of the common subsequence of the words so far and each start of `found`
    for word in given:
        before = 0
        for at, other in enumerate(found, 1):
            before, lengths[at] = lengths[at], before + 1 if word == other else max(lengths[at], lengths[at - 1])
    return lengths[-1] / len(given)


def measure(engine: Engine, choice: Choice, messages: Sequence[str]) -> Sequence[Reply]:
    options = AnswerOptions(
        MAX_TOKENS, decoder=choice.name, params=tuple(choice.params.items()), cache_salt=choice.label
    )
    return engine.chat(messages, options)


def figures(label: str, replies: Sequence[Reply], first: Sequence[Reply]) -> Figures:
    return Figures(
        label,
        sum(a.text == b.text for a, b in zip(replies, first, strict=True)) / len(replies),
        sum(reply.usage.completion_tokens + (reply.finish is not Finish.LENGTH) for reply in replies),
        sum(reply.usage.stats.forwards for reply in replies),
        sum(reply.usage.stats.computed_tokens for reply in replies),
        sum(reply.finish is Finish.LENGTH for reply in replies),
    )


def main(argv: Sequence[str] | None = None) -> int:
    parser = program("quality.prose", __doc__)
    parser.add_argument("decoders", nargs="*", metavar="DECODER", help=f"default: {' '.join(DECODERS)}")
    parser.add_argument("--model", type=Path, metavar="DIR", required=True, help=f"a checkpoint with {RESERVED}")
    parser.add_argument("--passages", type=positive, default=200, help="how many, at most (default: %(default)s)")
    parser.add_argument("--batch", type=positive, default=16, help="requests at once (default: %(default)s)")
    options = parser.parse_args(argv)
    try:
        messages = prompts(options.model)[: options.passages]
        checkpoint = open_checkpoint(str(options.model))
        choices = [parse_decoder(text, MAX_TOKENS, checkpoint) for text in options.decoders or DECODERS]
        settings = Settings(model=str(options.model), dtype=DTYPE, max_num_seqs=options.batch)
    except ValueError as error:
        parser.error(str(error))
    check_outputs(parser, None, options.json)
    found: list[Figures] = []
    first: Sequence[Reply] = ()
    with open_offline(settings) as engine:
        for choice in choices:
            replies = measure(engine, choice, messages)
            first = first or replies
            found.append(figures(choice.label, replies, first))
            print(f"{choice.label}: {found[-1].tokens_per_forward:.2f}", file=sys.stderr, flush=True)
    head = ("decoder", "tokens/forward", "forwards", "tokens", "computed/token", "cut", "same")
    count = len(messages)
    print(table(head, [
        [
            f.decoder, f"{f.tokens_per_forward:.2f}", f"{f.forwards / count:.1f}", f"{f.tokens / count:.1f}",
            f"{f.computed_tokens / f.tokens:.1f}", str(f.cut), f"{f.same:.3f}",
        ]
        for f in found
    ]))  # fmt: skip
    finish(
        {
            "benchmark": "prose",
            "model": options.model.name,
            "dtype": DTYPE,
            "passages": count,
            "max_tokens": MAX_TOKENS,
            "decoders": [
                {
                    "decoder": f.decoder,
                    "tokens_per_forward": round(f.tokens_per_forward, 3),
                    "forwards": f.forwards,
                    "tokens": f.tokens,
                    "computed_tokens": f.computed_tokens,
                    "answers_cut_at_max_tokens": f.cut,
                    "same_as_first": round(f.same, 4),
                }
                for f in found
            ],
        },
        options.json,
    )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
