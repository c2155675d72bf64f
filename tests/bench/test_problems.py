"""The problems stay the same for ever, since every figure of the past rests on them."""

from __future__ import annotations

import hashlib
from collections import Counter

import pytest

from asynclane.bench.load.problems import TASKS, Problem, problems
from asynclane.bench.quality.checks import right

# Recorded from the program that drew the model's training data: three of the first four problems of seed
# 777, and digests of longer runs, over (task, prompt, answer, expected).
MATH = (
    "math",
    """\
Fay starts the day with 36 stamps. She sells half of the stamps. Then she finds 30 stamps at the market. \
She gives 45 stamps to Carl. How many stamps does Fay have now?""",
    """\
Fay starts with 36 stamps. Half of 36 is 18, so 18 stamps are left. \
With the 30 found, that makes 18 + 30 = 48 stamps. Giving 45 to Carl leaves 48 - 45 = 3 stamps.
#### 3""",
    3,
)
LIST = (
    "list",
    "Sort these numbers from small to large: 82, 73, 43, 36, 74, 34, 13, 80, 85.",
    "Sorted: 13, 34, 36, 43, 73, 74, 80, 82, 85.",
    "Sorted: 13, 34, 36, 43, 73, 74, 80, 82, 85.",
)
CODE = (
    "code",
    """\
In Python, define `smallest_even_negatives(numbers)`. \
It returns the smallest of the negatives of the even numbers in a list.""",
    """\
You can write it like this:
```python
def smallest_even_negatives(numbers):
    \"""Returns the smallest of the negatives of the even numbers in a list.\"""
    best = None
    for x in numbers:
        if x % 2 == 0:
            value = -x
            if best is None or value < best:
                best = value
    return best
```
It handles an empty input too.""",
    (
        ("smallest_even_negatives([1, 2, 3, 4, 12, -6, 0])", "-12"),
        ("smallest_even_negatives([-3, 15, 30, 7])", "-30"),
        ("smallest_even_negatives([0, 2, 11, 9])", "-2"),
    ),
)
DIGESTS = [
    (777, 400, TASKS, "6ac69f4634640e4400721ea63c2511754b6dff4e6f02159a263a13ef0d7a2fbb"),
    (99, 256, TASKS, "11ed482008ec4d2ad28c82b54dd09cd3748f18cff63d13013f7a6f398ae9fbea"),
    (5, 300, ("code",), "00810b975ea69bd5dd79159252840bf584be9b0323ad4165205b68ac26aa1054"),
    (0, 500, ("multi", "list"), "47ada7ef7744a854170aaa4728fc1a1f55b33015c061bee7c553cd617de7a9f4"),
]


def fields(problem: Problem) -> tuple[str, str, str, object]:
    return problem.task, problem.prompt, problem.answer, problem.expected


def test_first_problems_are_the_recorded_ones() -> None:
    drawn = [fields(problem) for problem in problems(777, 4)]
    assert [drawn[0], drawn[1], drawn[3]] == [MATH, LIST, CODE]


@pytest.mark.parametrize(("seed", "count", "tasks", "digest"), DIGESTS)
def test_long_runs_are_the_recorded_ones(seed: int, count: int, tasks: tuple[str, ...], digest: str) -> None:
    drawn = [fields(problem) for problem in problems(seed, count, tasks)]
    assert hashlib.sha256(repr(drawn).encode()).hexdigest() == digest


def test_longer_list_begins_with_the_shorter() -> None:
    assert problems(3, 50)[:20] == problems(3, 20)


def test_every_own_answer_is_right_and_every_task_occurs() -> None:
    drawn = problems(1, 60)
    assert all(right(problem, problem.answer) for problem in drawn)
    assert set(Counter(problem.task for problem in drawn)) == set(TASKS)


@pytest.mark.parametrize("seed", [-1, 1000, 12345])
def test_seeds_kept_for_later_are_refused(seed: int) -> None:
    with pytest.raises(ValueError, match=f"seed must be from 0 to 999, not {seed}: the others are reserved"):
        problems(seed, 1)


@pytest.mark.parametrize(("tasks", "named"), [(("math", "story"), "story"), ((), "none")])
def test_tasks_that_cannot_be_checked_are_refused(tasks: tuple[str, ...], named: str) -> None:
    with pytest.raises(ValueError, match=f"not {named}"):
        problems(1, 1, tasks)


def test_no_problems() -> None:
    assert problems(1, 0) == []
