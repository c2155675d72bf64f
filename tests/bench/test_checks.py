"""Graders separate right from wrong, and outlive whatever a model writes."""

from __future__ import annotations

from pathlib import Path

import pytest

from asynclane.bench.eval.sandbox import outcomes
from asynclane.bench.load.problems import Problem
from asynclane.bench.quality.checks import right

from ..support.scale import LONG

DOUBLE = Problem("code", "", "", (("double(2)", "4"), ("double('ab')", "'abab'")))


def problem(task: str, expected: object) -> Problem:
    return Problem(task, "", "", expected)


def fenced(code: str) -> str:
    return f"Here you are:\n```python\n{code}\n```\nIt is short."


@pytest.mark.parametrize(
    ("checked", "text", "accepted"),
    [
        (problem("math", 12), "6 + 6 = 12\n#### 12", True),
        (problem("math", -3), "####-3", True),
        (problem("math", 12), "#### 12\n#### 13", True),
        (problem("math", 12), "#### 13\n#### 12", False),
        (problem("math", 12), "the result is 12", False),
        (problem("math", 12), "#### 123", False),
        (problem("math", 12), "#### " + "9" * 10_000, False),
        (problem("multi", (1, 2)), "(1) a\n#### 1\n\n(2) b\n#### 2", True),
        (problem("multi", (1, 2)), "#### 2 #### 1", False),
        (problem("multi", (1, 2)), "#### 1 #### 2 #### 3", False),
        (problem("list", "Sorted: 1, 2."), " Sorted: 1, 2.\n", True),
        (problem("list", "Sorted: 1, 2."), "Sorted: 1, 2", False),
        (DOUBLE, fenced("import math\ndef double(x):\n    print(x)\n    return x + x"), True),
        (
            DOUBLE,
            fenced("from typing import Any\nclass Twice:\n    n = 2\ndef double(x: Any):\n    return x * Twice.n"),
            True,
        ),
        (DOUBLE, fenced("def double(x):\n    return x + 2"), False),
        (DOUBLE, fenced("def twice(x):\n    return x * 2"), False),
        (DOUBLE, "def double(x):\n    return x * 2", False),
        (DOUBLE, "```python\ndef double(x):\n    return x * 2", False),
    ],
)
def test_an_answer_is_right_or_wrong(checked: Problem, text: str, accepted: bool) -> None:
    assert right(checked, text) is accepted


@pytest.mark.parametrize(
    "code",
    [
        pytest.param("raise ValueError('no')", id="raises"),
        pytest.param("raise SystemExit(0)", id="no such name"),
        pytest.param("import os", id="imports os"),
        pytest.param("__import__('subprocess')", id="imports by call"),
        pytest.param("open('/etc/passwd')", id="opens"),
        pytest.param("def double(x):\n    return double(x)", id="recurses for ever"),
        pytest.param("x = [0]\nwhile True:\n    x = x + x", id="eats memory"),
        pytest.param("'\\0'", id="nul"),
        pytest.param("\ud800", id="surrogate"),
        pytest.param("(" * 5000, id="nests"),
        pytest.param("def double(x):\n    return [x for x in iter(int, 1)]", id="never ends", marks=LONG),
        pytest.param("10 ** 10 ** 9", id="never ends, in one operation"),
    ],
)
def test_bad_code_is_wrong_and_no_more(code: str) -> None:
    assert not right(DOUBLE, fenced(code))


def test_answers_do_not_see_one_another() -> None:
    assert outcomes("x = 1", ["x", "x + 1"]) == ["1", "2"]
    assert outcomes("", ["x"]) is None


def test_code_that_finds_its_way_to_open_still_writes_nothing(tmp_path: Path) -> None:
    code = (
        "import re\n"
        "opener = re.enum.sys.modules['builtins'].open\n"
        f"with opener({str(tmp_path / 'x')!r}, 'w') as file:\n"
        "    file.write('x')"
    )
    assert outcomes(code, ["1"]) is None
    assert (tmp_path / "x").read_text() == ""  # it did get there
