"""The output of all benchmarks: an aligned table, files checked in advance, one last line of JSON."""

from __future__ import annotations

import argparse
import json
import math
import platform
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PACKAGES = ("asynclane", "torch", "triton")
# Colours that colour-blind readers can distinguish (Okabe and Ito), each with a shape of its own.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
SHAPES = ("o", "s", "D", "^", "v", "P", "X")
TINTS = 96  # of a picture: enough for the colours of its lines and their edges


def program(module: str, text: str | None, *, json_file: bool = True) -> argparse.ArgumentParser:
    """Return the parser of `python -m asynclane.bench.<module>`; `text` is the module's docstring."""
    parser = argparse.ArgumentParser(
        prog=f"python -m asynclane.bench.{module}",
        description=text,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    if json_file:
        parser.add_argument("--json", type=Path, metavar="FILE", help="also write the last line to a file")
    return parser


# --- Types of arguments -------------------------------------------------------------------------------------


def list_of(kind: Callable[[str], Any]) -> Callable[[str], tuple[Any, ...]]:
    def read(text: str) -> tuple[Any, ...]:
        return tuple(kind(part) for part in text.split(","))

    return read


def number(kind: Callable[[str], Any], valid: Callable[[Any], bool], allowed: str) -> Callable[[str], Any]:
    """Return an argument type that takes a finite number of `kind` that is `valid`; `allowed` describes it."""

    def read(text: str) -> Any:
        try:
            value = kind(text)
        except ValueError:
            value = None
        if value is None or not math.isfinite(value) or not valid(value):
            raise argparse.ArgumentTypeError(f"must be {allowed}, not {text!r}")
        return value

    return read


positive = number(int, lambda value: value >= 1, "a whole number from 1")
above_zero = number(float, lambda value: value > 0, "a number above 0")
at_least_zero = number(float, lambda value: value >= 0, "a number, at least 0")


# --- Results ------------------------------------------------------------------------------------------------


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns two spaces apart: the first holds words, flush left, the others numbers, flush right."""
    lines = [list(head), *map(list, rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    lines.insert(1, ["-" * width for width in widths])
    return "\n".join(
        "  ".join([line[0].ljust(widths[0]), *map(str.rjust, line[1:], widths[1:])]).rstrip() for line in lines
    )


def missing_output(plot: Path | None, *files: Path | None) -> str | None:
    """Return why the results could not be written, or None. Call it before measuring, which takes minutes."""
    if plot is not None and find_spec("matplotlib") is None:
        return "--plot needs matplotlib: in the checkout, pip install --constraint constraints.txt '.[bench]'"
    if plot is not None and plot.suffix.lower() != ".png":
        return f"--plot draws a PNG: {plot.name} should end with .png"
    faults = (_unwritable(path) for path in (plot, *files) if path is not None)
    return next((fault for fault in faults if fault), None)


def _unwritable(path: Path) -> str | None:
    if not path.parent.is_dir():
        return f"no folder {path.parent} to write {path.name} to"
    exists = path.exists()
    try:  # permissions do not show every disk that cannot be written to
        path.open("ab").close()
    except OSError as error:
        return f"cannot write {path}: {error.strerror or error}"
    if not exists:
        path.unlink()
    return None


def check_outputs(parser: argparse.ArgumentParser, plot: Path | None, *files: Path | None) -> None:
    """End the program now if it could not write its results later."""
    fault = missing_output(plot, *files)
    if fault:
        parser.error(fault)


def require(parser: argparse.ArgumentParser, package: str) -> None:
    """End the program now if a package of the extra `bench` is not installed."""
    if find_spec(package) is None:
        parser.error(f"this needs {package}: in a checkout `make .venv/with-bench`")


def json_line(figures: Mapping[str, object]) -> str:
    """Return `figures` and what is needed to repeat them: date, machine and versions (null: not installed).

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


def write_over(figures: Mapping[str, object], path: Path) -> None:
    """Write the line of JSON to `path` at once: a program that is ended leaves the old file or the new one."""
    new = path.with_name(path.name + ".new")
    new.write_text(json_line(figures) + "\n", encoding="utf-8")
    new.replace(path)


def finish(figures: Mapping[str, object], path: Path | None = None) -> None:
    """End a program: write the line of JSON to `path`, if there is one, and print it."""
    line = json_line(figures)
    if path:
        path.write_text(line + "\n", encoding="utf-8")
    print(line)


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def save_picture(figure: Figure, path: Path) -> None:
    """Write a figure as PNG with a palette, a third of the size of one without."""
    from PIL import Image  # comes with matplotlib

    figure.canvas.draw()
    drawn = Image.frombuffer("RGBA", figure.canvas.get_width_height(), figure.canvas.buffer_rgba())  # type: ignore[attr-defined]
    drawn.convert("RGB").quantize(TINTS).save(path, format="PNG", optimize=True)
