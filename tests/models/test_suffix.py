"""Tokens between prompt and suffix are written for both."""

from __future__ import annotations

from dataclasses import replace

import pytest

from asynclane.bench.quality.holes import holes
from asynclane.models.exec.runner import Runner
from asynclane.scheduler import Vocabulary

from ..support.cases import TEXT
from ..support.driver import Spec, run
from ..support.scale import LONG

GAPS = holes(21, 4, "name")


def ids(text: str) -> list[int]:
    return TEXT.encode(text, specials=False)


@pytest.mark.parametrize("decoder", ["asynclane", "fast-dllm", pytest.param("llada", marks=LONG)])
def test_a_line_that_follows_from_the_suffix_alone_is_written(
    decoder: str, runner: Runner, vocabulary: Vocabulary
) -> None:
    """Without the suffix it cannot be known which function is meant."""
    specs = []
    for gap in GAPS:
        chat = [{"role": "user", "content": gap.question}, {"role": "assistant", "content": gap.before}]
        specs.append(Spec(TEXT.encode_chat(chat), len(ids(gap.middle)), decoder, suffix=ids(gap.after)))
    blind = [replace(spec, suffix=()) for spec in specs]
    texts = [TEXT.decode(answer.text) for answer in run(runner, vocabulary, [*specs, *blind])]
    filled = [gap.filled(text) for gap, text in zip([*GAPS, *GAPS], texts, strict=True)]
    assert filled == [True] * len(GAPS) + [False] * len(GAPS)
