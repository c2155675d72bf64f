"""Examples from the corpus of tiny-prose: a passage of a manual with gaps, and the passage."""

from __future__ import annotations

import json
import lzma
import re
from collections.abc import Iterator
from functools import cache
from itertools import accumulate
from pathlib import Path
from random import Random
from typing import NamedTuple

from tokenizers import Tokenizer

from ..corpus import Example, Writer

ASK = "Fill the gaps: {}"
GAP = "_"
WORD = re.compile(r"\w+(?:[-']\w+)*")
LEAST, MOST = 120, 440  # characters of a passage
MOST_TOKENS = 190  # so that it fits twice into the largest size of `diets.PROSE_SIZES`, with a canvas of 256
GAPS = 0.15  # share of words in prompts for measurements: more of them, and a forward commits fewer tokens
MOST_GAPS = 0.6  # the highest share in a prompt of training
WITHOUT_GAPS = 0.25  # share of the training's prompts that have no gap
TRIES = 8
CORPUS = "corpus.jsonl.xz"


class Section(NamedTuple):
    """Paragraphs that follow one another in a manual, with an empty line between two."""

    source: str
    text: str


@cache
def sections(directory: Path) -> tuple[Section, ...]:
    """Those of a corpus."""
    _, *lines = lzma.decompress((directory / CORPUS).read_bytes()).decode().splitlines()
    return tuple(Section(*json.loads(line)) for line in lines)


def draw(r: Random, section: Section) -> str | None:
    """Paragraphs of a section that follow one another; None if none of some tries has the length that is wanted."""
    paragraphs = section.text.split("\n\n")
    for _ in range(TRIES):
        first = r.randrange(len(paragraphs))
        ends = list(accumulate(len(paragraph) + 2 for paragraph in paragraphs[first:]))
        fitting = [count for count, end in enumerate(ends, first + 1) if LEAST <= end - 2 <= MOST]
        if fitting:
            return "\n\n".join(paragraphs[first : r.choice(fitting)])
    return None


def gapped(r: Random, passage: str, share: float) -> str:
    """A passage in which each word is a gap with probability `share`; punctuation stays."""
    return WORD.sub(lambda word: GAP if r.random() < share else word.group(), passage)


def source(seed: str, tokenizer: Tokenizer, *, directory: Path) -> Iterator[Example]:
    """Examples without end; a section is drawn as often as its length says."""
    r = Random(seed)
    writer = Writer(tokenizer)
    found = sections(directory)
    weights = list(accumulate(len(section.text) for section in found))
    while True:
        (section,) = r.choices(found, cum_weights=weights)
        passage = draw(r, section)
        if passage is None:
            continue
        share = 0.0 if r.random() < WITHOUT_GAPS else r.uniform(0, MOST_GAPS)
        ids, asked = writer.example(ASK.format(gapped(r, passage, share)), passage)
        if len(ids) - asked <= MOST_TOKENS:
            yield ids, asked
