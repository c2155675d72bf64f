"""Figures of all benchmarks are laid out alike, and their last line can be read by a program."""

from __future__ import annotations

import json
import platform
from datetime import datetime

import pytest

from asynclane.bench.eval.interval import wilson
from asynclane.bench.load.output import json_line, table


@pytest.mark.parametrize(
    ("successes", "count", "low", "high"),
    [
        (0, 10, 0.0, 0.2775),  # Brown, Cai and DasGupta 2001, and R's prop.test(correct=FALSE)
        (10, 10, 0.7225, 1.0),
        (5, 10, 0.2366, 0.7634),
        (81, 263, 0.2553, 0.3662),  # Newcombe 1998, table I
        (1, 29, 0.0061, 0.1718),
    ],
)
def test_wilson_against_published_values(successes: int, count: int, low: float, high: float) -> None:
    assert wilson(successes, count) == pytest.approx((low, high), abs=5e-5)


@pytest.mark.parametrize(("successes", "count"), [(0, 0), (3, 2), (-1, 2)])
def test_wilson_refuses_what_cannot_be(successes: int, count: int) -> None:
    with pytest.raises(ValueError, match=f"not {successes} of {count}"):
        wilson(successes, count)


def test_table_is_aligned() -> None:
    assert table(["name", "calls"], [["a", "1.5"], ["longer", "100.25"]]).split("\n") == [
        "name     calls",
        "------  ------",
        "a          1.5",
        "longer  100.25",
    ]
    assert table(["name", "x"], []) == "name  x\n----  -"
    with pytest.raises(ValueError, match="zip"):
        table(["name", "x"], [["a"]])


def test_json_line_says_what_is_needed_to_repeat_it() -> None:
    line = json_line({"benchmark": "x", "figure": 1.5})
    read = json.loads(line)
    assert "\n" not in line
    assert (read["benchmark"], read["figure"]) == ("x", 1.5)
    assert read["versions"]["python"] == platform.python_version()
    assert {"torch", "asynclane"} < set(read["versions"])
    assert datetime.fromisoformat(read["date"]).tzinfo is not None
    with pytest.raises(ValueError, match="JSON"):
        json_line({"figure": float("nan")})
