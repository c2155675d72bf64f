"""Writes what the embedded models learn from: problems that a program can check, and some talk.

The problems are those of `bench`, drawn with other random numbers: evaluation never sees a training problem by way of
its seed. The mixture leans to what small models find hardest, lists and several problems at once.
"""

from __future__ import annotations

import multiprocessing
import os
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

from ..bench.load import problems as checkable
from ..bench.load.word_problems import ITEMS, NAMES, PLACES, WOMEN
from .talk import (
    ANIMALS,
    CAPITALS,
    STORY,
    TALK,
    WEATHER,
)

PARTS = 128  # the corpus is written in so many parts, whatever the number of processes
TOKENIZER_SAMPLE = 60_000


def _story(r: random.Random) -> tuple[str, str]:
    a, b = r.sample(NAMES, 2)
    scene = {
        "a": a, "b": b, "he": "She" if a in WOMEN else "He", "animal": r.choice(ANIMALS), "place": r.choice(PLACES),
        "item": r.choice(ITEMS), "weather": r.choice(WEATHER), "n": r.randint(2, 9),
    }  # fmt: skip
    kept = sorted(r.sample(range(1, len(STORY) - 1), r.randint(4, len(STORY) - 2)))
    story = " ".join(STORY[i] for i in (0, *kept, len(STORY) - 1)).format(**scene)
    return "Tell me a short story about {a} and a {animal} at the {place}.".format(**scene), story


def _fact(r: random.Random) -> tuple[str, str]:
    country, capital = r.choice(CAPITALS)
    ask = r.choice(("What is the capital of {}?", "Name the capital of {}."))
    return ask.format(country), f"The capital of {country} is {capital}."


def _chat(r: random.Random) -> tuple[str, str]:
    asks, answer = r.choice(TALK)
    return r.choice(asks), answer


def _problem(task: str, r: random.Random) -> tuple[str, str]:
    problem = checkable.DRAWS[task](r)
    return problem.prompt, problem.answer


MIXTURE: tuple[tuple[float, Callable[[random.Random], tuple[str, str]]], ...] = (
    (0.34, partial(_problem, "math")),
    (0.16, partial(_problem, "multi")),
    (0.16, partial(_problem, "code")),
    (0.22, partial(_problem, "list")),
    (0.07, _story),
    (0.02, _fact),
    (0.03, _chat),
)


def examples(seed: str) -> Iterator[tuple[str, str]]:
    """Prompts and answers without end; the same seed gives the same ones on every machine."""
    r = random.Random(seed)
    shares, draws = zip(*MIXTURE, strict=True)
    while True:
        (draw,) = r.choices(draws, shares)
        yield draw(r)


@dataclass(frozen=True, slots=True)
class Marks:
    """Token ids of the chat template."""

    begin: int
    end: int
    header: int
    header_end: int
    turn_end: int
    mask: int


MARKS = Marks(*range(6))
Example = tuple[npt.NDArray[np.int16], int]  # token ids, earlier answers as -1 - id; the prompt's length


class Writer:
    """Writes a first turn as the chat template does, with the end of the answer."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._user, self._assistant = (self._header(role) for role in ("user", "assistant"))

    def prompt(self, text: str) -> list[int]:
        asked = self._tokenizer.encode(text).ids
        return [MARKS.begin, *self._user, *asked, MARKS.turn_end, *self._assistant]

    def example(self, prompt: str, answer: str) -> Example:
        asked = self.prompt(prompt)
        return np.array([*asked, *self._tokenizer.encode(answer).ids, MARKS.turn_end], np.int16), len(asked)

    def _header(self, role: str) -> list[int]:
        name, gap = self._tokenizer.encode(role).ids, self._tokenizer.encode("\n\n").ids
        return [MARKS.header, *name, MARKS.header_end, *gap]


Source = Callable[[str, Tokenizer], Iterator[Example]]


def first_source(seed: str, tokenizer: Tokenizer) -> Iterator[Example]:
    """The examples of the first models, without end."""
    writer = Writer(tokenizer)
    for prompt, answer in examples(seed):
        yield writer.example(prompt, answer)


def _part(number: int, source: Source, tokenizer_file: str, seed: int, count: int) -> list[Example]:
    return list(islice(source(f"corpus {seed} {number}", Tokenizer.from_file(tokenizer_file)), count))


@contextmanager
def parts(
    tokenizer_file: Path, seed: int, count: int, source: Source = first_source
) -> Iterator[Iterator[list[Example]]]:
    """About `count` examples as token ids, in parts and in a fixed order, which all cores write meanwhile. To be
    called before the GPU is used, since the processes are forked."""
    write = partial(_part, source=source, tokenizer_file=str(tokenizer_file), seed=seed, count=-(-count // PARTS))
    with multiprocessing.get_context("fork").Pool(min(PARTS, os.cpu_count() or 1)) as pool:
        yield pool.imap(write, range(PARTS))


def corpus(tokenizer_file: Path, seed: int, count: int, source: Source = first_source) -> list[Example]:
    """All of `parts` at once."""
    with parts(tokenizer_file, seed, count, source) as written:
        return [example for part in written for example in part]
