"""Examples from the corpus of tiny-prose: notes, and the passage of a manual that they were taken from."""

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

ASK = "Write a paragraph from these notes: {}"
LEAST, MOST = 170, 680  # characters of a passage
MOST_TOKENS = 252  # so that all of it fits a canvas of 256
MISSING = 0.05  # share of words that the notes lack besides those of grammar; more of them, and fewer tokens are sure
TRIES = 8
CORPUS = "corpus.jsonl.xz"
GRAMMAR = frozenset(
    """a an the this that these those it its itself he she they them their there here i you your we our us my me his her
    is are was were be been being am do does did done has have had having can could will would shall should may might
    must not no nor and or but if then than so as of in on at to from by for with without into onto over under between
    among about against within through during before after above below up down out off again once only also just very
    too more most some any each every both either all other another such same own what which who whom whose
    when where why how while because until unless since although though however therefore thus""".split()
)


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


def notes(r: Random, passage: str) -> str:
    """The words of a passage in their order, without those of grammar, without some others, without punctuation and
    without the capitals of sentences."""
    kept = (word for word in map(_bare, passage.split()) if word and word.lower() not in GRAMMAR)
    return " ".join(word for word in kept if r.random() >= MISSING)


def _bare(word: str) -> str:
    word = word.strip("\"'.,;:!?")
    if word.count("(") != word.count(")"):
        word = word.strip("()").strip("\"'.,;:!?")
    if not re.search("[A-Za-z0-9]", word):
        return ""
    return word.lower() if word[1:].islower() else word


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
        ids, asked = writer.example(ASK.format(notes(r, passage)), passage)
        if len(ids) - asked <= MOST_TOKENS:
            yield ids, asked
