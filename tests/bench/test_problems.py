"""The problems stay the same for ever, since every figure of the past rests on them."""

from __future__ import annotations

import hashlib
from collections import Counter

import pytest

from asynclane.bench.load.problems import TASKS, Problem, problems
from asynclane.bench.quality.checks import right

# Recorded from the program that drew the model's training data, over (task, prompt, answer, expected).
DIGESTS = [
    (777, 400, TASKS, "6ac69f4634640e4400721ea63c2511754b6dff4e6f02159a263a13ef0d7a2fbb"),
    (99, 256, TASKS, "11ed482008ec4d2ad28c82b54dd09cd3748f18cff63d13013f7a6f398ae9fbea"),
    (0, 500, ("multi", "list"), "47ada7ef7744a854170aaa4728fc1a1f55b33015c061bee7c553cd617de7a9f4"),
]


def fields(problem: Problem) -> tuple[str, str, str, object]:
    return problem.task, problem.prompt, problem.answer, problem.expected


@pytest.mark.parametrize(("seed", "count", "tasks", "digest"), DIGESTS)
def test_long_runs_are_the_recorded_ones(seed: int, count: int, tasks: tuple[str, ...], digest: str) -> None:
    drawn = [fields(problem) for problem in problems(seed, count, tasks)]
    assert hashlib.sha256(repr(drawn).encode()).hexdigest() == digest


def test_longer_list_begins_with_the_shorter() -> None:
    assert problems(3, 50)[:20] == problems(3, 20)
    assert problems(1, 0) == []


def test_every_own_answer_is_right_and_every_task_occurs() -> None:
    drawn = problems(1, 60)
    assert all(right(problem, problem.answer) for problem in drawn)
    assert set(Counter(problem.task for problem in drawn)) == set(TASKS)


@pytest.mark.parametrize("seed", [-1, 1000])
def test_seeds_kept_for_later_are_refused(seed: int) -> None:
    with pytest.raises(ValueError, match=f"seed must be from 0 to 999, not {seed}: the others are reserved"):
        problems(seed, 1)


@pytest.mark.parametrize(("tasks", "named"), [(("math", "story"), "story"), ((), "none")])
def test_tasks_that_cannot_be_checked_are_refused(tasks: tuple[str, ...], named: str) -> None:
    with pytest.raises(ValueError, match=f"not {named}"):
        problems(1, 1, tasks)
