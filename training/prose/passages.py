"""Examples from the corpus of tiny-prose: the beginning of a passage, and how it goes on to the end of a paragraph."""

from __future__ import annotations

import json
import lzma
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from random import Random
from typing import NamedTuple

from tokenizers import Tokenizer

from ...bench.quality.prose import ASK
from ..corpus import Example, Writer

SENTENCE = re.compile(r"""(?<=[.!?:])\s+(?=["'(]?[A-Z])""")
MOST_SENTENCES, MOST_PROMPT = 3, 400  # of a beginning; characters
LEAST_ANSWER, MOST_ANSWER = 150, 680  # characters
MOST_TOKENS = 252  # of an answer, so that all of it fits a canvas of 256
TRIES = 8


class Section(NamedTuple):
    """Paragraphs that follow one another in a manual, with an empty line between two."""

    source: str
    text: str


@cache
def sections(file: Path) -> tuple[Section, ...]:
    """Those of a corpus."""
    _, *lines = lzma.decompress(file.read_bytes()).decode().splitlines()
    return tuple(Section(*json.loads(line)) for line in lines)


def draw(r: Random, section: Section) -> tuple[str, str] | None:
    """A beginning of one to three sentences, from the start of a paragraph, and its continuation; None if none of some
    tries has the lengths that are wanted."""
    paragraphs = section.text.split("\n\n")
    for _ in range(TRIES):
        first = r.randrange(len(paragraphs))
        rest = "\n\n".join(paragraphs[first:])
        breaks = list(SENTENCE.finditer(rest, 0, MOST_PROMPT + 2))[:MOST_SENTENCES]
        if not breaks:
            continue
        cut = r.choice(breaks)
        answer = rest[cut.end() :]
        ends = [match.start() for match in re.finditer(r"\n\n|\Z", answer)]
        fitting = [end for end in ends if LEAST_ANSWER <= end <= MOST_ANSWER]
        if fitting:
            return rest[: cut.start()], answer[: r.choice(fitting)]
    return None


def source(seed: str, tokenizer: Tokenizer, *, file: Path) -> Iterator[Example]:
    """Examples without end; a section is drawn as often as its length says."""
    r = Random(seed)
    writer = Writer(tokenizer)
    found = sections(file)
    weights = list(_running(found))
    while True:
        (section,) = r.choices(found, cum_weights=weights)
        passage = draw(r, section)
        if passage is None:
            continue
        ids, asked = writer.example(ASK.format(passage[0]), passage[1])
        if len(ids) - asked <= MOST_TOKENS:
            yield ids, asked


def _running(found: tuple[Section, ...]) -> Iterator[int]:
    total = 0
    for section in found:
        total += len(section.text)
        yield total
