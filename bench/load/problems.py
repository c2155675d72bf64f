"""Questions whose answers a program can check, so that the quality of a decoder is a number.

The problems are of the kinds that the embedded model was trained on. The same seed gives the same problems on every
machine, and a longer list begins with the shorter one. Random numbers are drawn in a fixed order: a change to the order
changes every problem, and earlier figures can no longer be compared.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .code_problems import code_problem
from .word_problems import word_problem, words

TASKS: tuple[str, ...] = ("math", "multi", "code", "list")
SEEDS = 1000


@dataclass(frozen=True, slots=True)
class Problem:
    """A prompt, one right answer to it, and the value that the check of its task expects (`bench.quality.checks`)."""

    task: str
    prompt: str
    answer: str
    expected: Any


def problems(seed: int, count: int, tasks: Sequence[str] = TASKS) -> list[Problem]:
    """Return the first `count` problems of `tasks` that `seed` gives.

    Raises `ValueError` for an unknown task and for a seed from 1000: those are reserved for later checks, on problems
    that no default was chosen on.
    """
    if not 0 <= seed < SEEDS:
        raise ValueError(
            f"seed must be from 0 to {SEEDS - 1}, not {seed}: the others are reserved for later checks, "
            "on problems that no default was chosen on"
        )
    unknown = [task for task in tasks if task not in TASKS]
    if unknown or not tasks:
        raise ValueError(f"tasks must be some of {', '.join(TASKS)}, not {', '.join(unknown) or 'none'}")
    r = random.Random(seed)
    found: list[Problem] = []
    while len(found) < count:
        problem = _draw(r)
        if problem is not None and problem.task in tasks:
            found.append(problem)
    return found


def _math(r: random.Random) -> Problem:
    story, work, result = word_problem(r)
    return Problem("math", story, work, result)


def _multi(r: random.Random) -> Problem:
    """Several word problems in one prompt: a long answer of many parts."""
    parts = [word_problem(r) for _ in range(r.randint(2, 3))]
    return Problem(
        "multi",
        "Solve these problems. " + " ".join(f"({i}) {story}" for i, (story, _, _) in enumerate(parts, 1)),
        "\n\n".join(f"({i}) {work}" for i, (_, work, _) in enumerate(parts, 1)),
        tuple(result for _, _, result in parts),
    )


def _code(r: random.Random) -> Problem:
    prompt, answer, calls = code_problem(r)
    return Problem("code", prompt, answer, calls)


WORDS = words(
    "river stone cloud table green silver tiger candle window garden letter yellow winter summer rocket "
    "island bridge forest pepper button"
)


def _numbers(r: random.Random) -> list[str]:
    return [str(r.randint(0, 99)) for _ in range(r.randint(3, 9))]


def _words(r: random.Random) -> list[str]:
    return r.sample(WORDS, r.randint(3, 8))


@dataclass(frozen=True, slots=True)
class ListTask:
    """A request about items: easy for people, hard for a decoder that writes many words at once."""

    prompt: str
    items: Callable[[random.Random], list[str]]
    answer: Callable[[list[str]], str]
    between: str = ", "


LIST_TASKS = (
    ListTask(
        "Sort these numbers from small to large: {}.",
        _numbers,
        lambda xs: f"Sorted: {', '.join(sorted(xs, key=int))}.",
    ),
    ListTask("Reverse this list: {}.", _numbers, lambda xs: f"Reversed: {', '.join(reversed(xs))}."),
    ListTask("Repeat this list: {}.", _numbers, lambda xs: f"The list is {', '.join(xs)}."),
    ListTask(
        "Find the largest and the smallest number: {}.",
        _numbers,
        lambda xs: f"The largest number is {max(xs, key=int)} and the smallest is {min(xs, key=int)}.",
    ),
    ListTask(
        "Say these words in reverse order: {}",
        _words,
        lambda xs: f"In reverse order: {' '.join(reversed(xs))}.",
        between=" ",
    ),
    ListTask(
        "How many words are here, and which come first and last? {}",
        _words,
        lambda xs: f"There are {len(xs)} words. The first is {xs[0]} and the last is {xs[-1]}.",
        between=" ",
    ),
)


def _list(r: random.Random) -> Problem:
    task = r.choice(LIST_TASKS)
    items = task.items(r)
    answer = task.answer(items)
    return Problem("list", task.prompt.format(task.between.join(items)), answer, answer)


# The model was also trained on talk that no program can check. It is passed over, but its random numbers are drawn, so
# that the problems after it are those that the training programs drew.


def _pass_over_story(r: random.Random) -> None:
    r.sample(range(20), 2)  # two of 20 names
    for choices in (8, 8, 16, 7):  # animal, place, item, weather
        r.choice(range(choices))
    r.randint(2, 9)
    r.sample(range(7), r.randint(4, 7))  # the sentences that are kept


def _pass_over_fact(r: random.Random) -> None:
    r.choice(range(30))  # the country
    r.choice(range(2))  # the wording


def _pass_over_chat(r: random.Random) -> None:
    wordings = r.choice((5, 3, 3, 3, 3, 3))
    r.choice(range(wordings))


DRAWS: Mapping[str, Callable[[random.Random], Problem]] = {
    "math": _math,
    "multi": _multi,
    "code": _code,
    "list": _list,
}
MIXTURE: tuple[tuple[float, Callable[[random.Random], Problem | None]], ...] = (
    (0.40, DRAWS["math"]),
    (0.52, DRAWS["multi"]),
    (0.72, DRAWS["code"]),
    (0.86, DRAWS["list"]),
    (0.95, _pass_over_story),
    (0.97, _pass_over_fact),
    (1.00, _pass_over_chat),
)


def _draw(r: random.Random) -> Problem | None:
    share = r.random()
    return next(draw for below, draw in MIXTURE if share < below)(r)
