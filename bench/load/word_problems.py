"""Word problems whose answers are worked step by step, so that each number depends on the one before.

The order in which random numbers are drawn is part of what `problems` promises.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass


def words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


NAMES = words("Mia Tom Lena Omar Ruth Ivan Nora Paul Zoe Ben Aiko Carl Dina Eric Fay Gus Hana Jack Kira Leo")
WOMEN = words("Mia Lena Ruth Nora Zoe Aiko Dina Fay Hana Kira")
ITEMS = words(
    "apples books coins shells pencils stickers marbles cookies stamps cards flowers buttons eggs tickets "
    "balloons beads"
)
BOXES = words("bags boxes baskets packs jars trays")
PLACES = words("shop market school library park farm museum station")

Drawn = tuple[int, dict[str, object]]


@dataclass(frozen=True, slots=True)
class Step:
    """An event that changes the number of things from `n` by `k` to `after(n, k)`.

    Both sentences may use the scene's words, `n`, `k`, `after`, and the words that `draw` returns with k. A step that
    is not `possible` is left out of the story.
    """

    story: str
    work: str
    after: Callable[[int, int], int]
    draw: Callable[[random.Random, int], Drawn] = lambda r, n: (0, {})
    possible: Callable[[int], bool] = lambda n: True


STEPS = (
    Step(
        "{He} buys {k} more {item}.",
        "After buying {k} more, {he} has {n} + {k} = {after} {item}.",
        after=lambda n, k: n + k,
        draw=lambda r, n: (r.randint(2, 40), {}),
    ),
    Step(
        "{He} gives {k} {item} to {friend}.",
        "Giving {k} to {friend} leaves {n} - {k} = {after} {item}.",
        after=lambda n, k: n - k,
        draw=lambda r, n: (r.randint(1, n - 1), {}),
        possible=lambda n: n > 4,
    ),
    Step(
        "{He} gets {p} {box} with {q} {item} in each.",
        "The {box} hold {p} * {q} = {k} {item}, so {he} has {n} + {k} = {after} {item}.",
        after=lambda n, k: n + k,
        draw=lambda r, n: ((p := r.randint(2, 9)) * (q := r.randint(2, 9)), {"p": p, "q": q}),
    ),
    Step(
        "Then {friend} doubles the number of {item} that {hero} has.",
        "Doubling gives 2 * {n} = {after} {item}.",
        after=lambda n, k: 2 * n,
        possible=lambda n: n < 120,
    ),
    Step(
        "Then {he} finds {k} {item} at the {place}.",
        "With the {k} found, that makes {n} + {k} = {after} {item}.",
        after=lambda n, k: n + k,
        draw=lambda r, n: (r.randint(2, 30), {"place": r.choice(PLACES)}),
    ),
    Step(
        "On the way home {he} loses {k} {item}.",
        "Losing {k} leaves {n} - {k} = {after} {item}.",
        after=lambda n, k: n - k,
        draw=lambda r, n: (r.randint(1, n - 1), {}),
        possible=lambda n: n > 4,
    ),
    Step(
        "{He} sells half of the {item}.",
        "Half of {n} is {after}, so {after} {item} are left.",
        after=lambda n, k: n // 2,
        possible=lambda n: n % 2 == 0 and n > 2,
    ),
    Step(
        "Then each of {p} friends brings {hero} {gift} 3 {item}.",
        "The friends bring {p} * 3 = {k} {item}, so there are {n} + {k} = {after} {item}.",
        after=lambda n, k: n + k,
        draw=lambda r, n: (3 * (p := r.randint(2, 5)), {"p": p, "gift": r.choice(("a gift of", "exactly"))}),
        possible=lambda n: n < 100,
    ),
)


def word_problem(r: random.Random) -> tuple[str, str, int]:
    """Return the story, the work and the result."""
    hero, friend = r.sample(NAMES, 2)
    he = "she" if hero in WOMEN else "he"
    item, box = r.choice(ITEMS), r.choice(BOXES)
    scene = {"hero": hero, "friend": friend, "he": he, "He": he.capitalize(), "item": item, "box": box}
    n = r.randint(2, 60)
    place = r.choice(PLACES)
    openings = (
        f"{hero} has {n} {item}.",
        f"{hero} starts the day with {n} {item}.",
        f"At the {place}, {hero} counts {n} {item}.",
    )
    story, work = [r.choice(openings)], [f"{hero} starts with {n} {item}."]
    for _ in range(r.randint(1, 5)):
        step = r.choice(STEPS)
        if not step.possible(n):
            continue
        k, drawn = step.draw(r, n)
        after = step.after(n, k)
        words_used = {**scene, **drawn, "n": n, "k": k, "after": after}
        story.append(step.story.format_map(words_used))
        work.append(step.work.format_map(words_used))
        n = after
    endings = (
        f"How many {item} does {hero} have now?",
        f"How many {item} does {hero} have in the end?",
        f"How many {item} are left with {hero}?",
    )
    return " ".join([*story, r.choice(endings)]), f"{' '.join(work)}\n#### {n}", n
