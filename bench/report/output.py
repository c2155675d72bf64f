"""Makes the figures of all benchmarks read alike: intervals, an aligned table, one last line of JSON."""

from __future__ import annotations

import argparse
import json
import math
import platform
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

Z_95 = 1.959964  # 95 % of a normal distribution lie within so many standard deviations
RESULTS = Path(__file__).resolve().parents[1] / "results"  # in a checkout: what is installed links to it, or has none
PACKAGES = ("asynclane", "torch", "triton")


class Interval(NamedTuple):
    low: float
    high: float


def wilson(successes: int, count: int, z: float = Z_95) -> Interval:
    """Where a share lies of which `successes` of `count` were seen: Wilson's score interval (JASA 22, 1927).

    Unlike the textbook interval it holds near 0 and 1, where good decoders are. Raises `ValueError` for no
    trials or more successes than trials.
    """
    if not 0 <= successes <= count or count < 1:
        raise ValueError(f"an interval needs 0 <= successes <= count and count >= 1, not {successes} of {count}")
    share = successes / count
    scale = 1 + z * z / count
    centre = (share + z * z / (2 * count)) / scale
    reach = z / scale * math.sqrt(share * (1 - share) / count + z * z / (4 * count * count))
    return Interval(max(0.0, centre - reach), min(1.0, centre + reach))


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns two spaces apart: the first holds words, flush left, the others numbers, flush right."""
    lines = [list(head), *map(list, rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    lines.insert(1, ["-" * width for width in widths])
    return "\n".join(
        "  ".join([line[0].ljust(widths[0]), *map(str.rjust, line[1:], widths[1:])]).rstrip() for line in lines
    )


def missing_output(plot: Path | None, *files: Path | None) -> str | None:
    """Why results could not be written later, to be known now: measuring takes minutes."""
    if plot is not None and find_spec("matplotlib") is None:
        return (
            "--plot needs matplotlib: in a checkout `make .venv/with-bench`, elsewhere pip install 'asynclane[bench]'"
        )
    if plot is not None and plot.suffix.lower() != ".png":
        return f"--plot draws a PNG: {plot.name} should end with .png"
    faults = (_unwritable(path) for path in (plot, *files) if path is not None)
    return next((fault for fault in faults if fault), None)


def _unwritable(path: Path) -> str | None:
    if not path.parent.is_dir():
        return f"no folder {path.parent} to write {path.name} to"
    there = path.exists()
    try:  # permissions do not tell of all disks that cannot be written to
        path.open("ab").close()
    except OSError as error:
        return f"cannot write {path}: {error.strerror or error}"
    if not there:
        path.unlink()
    return None


def check_outputs(parser: argparse.ArgumentParser, plot: Path | None, *files: Path | None) -> None:
    """Ends the program now if it could not write its results later."""
    fault = missing_output(plot, *files)
    if fault:
        parser.error(fault)


def json_line(figures: Mapping[str, object]) -> str:
    """`figures` with what is needed to repeat them: date, machine and versions (null: not installed).

    Raises `ValueError` for a figure that JSON cannot hold, such as NaN.
    """
    return json.dumps(
        {
            **figures,
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "machine": f"{platform.system()} {platform.machine()}",
            "versions": {"python": platform.python_version(), **{name: _version(name) for name in PACKAGES}},
        },
        allow_nan=False,
    )


def finish(figures: Mapping[str, object], path: Path | None) -> None:
    """Ends a program: prints the line of JSON, and writes it to `path` if that is asked for."""
    line = json_line(figures)
    if path:
        path.write_text(line + "\n", encoding="utf-8")
    print(line)


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
