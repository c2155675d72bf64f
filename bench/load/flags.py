"""The flags of `asynclane bench`, in a file of their own: the command line shows help without loading more."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

MOST = 4096  # requests at once: each is a connection


def add_load_flags(parser: argparse.ArgumentParser, default_url: str) -> None:
    parser.add_argument("--url", default=default_url, help="any OpenAI-compatible server (default: %(default)s)")
    parser.add_argument("--api-key", default=None, help="default: ASYNCLANE_API_KEY")
    parser.add_argument("--model", default=None, help="default: the first that it serves")
    parser.add_argument("--completions", action="store_true", help="ask /v1/completions, not /v1/chat/completions")
    load = parser.add_mutually_exclusive_group()
    load.add_argument(
        "--concurrency", type=_list_of(_count), default=None, metavar="N,N", help="closed loop (default: 1,4,16)"
    )
    load.add_argument(
        "--rate", type=_list_of(_above_zero), default=None, metavar="R,R", help="open loop: Poisson arrivals a second"
    )
    parser.add_argument("--requests", type=_positive, default=None, help="of each load; default: 4 rounds, at least 32")
    parser.add_argument("--duration", type=_above_zero, default=None, metavar="S", help="none starts later than this")
    parser.add_argument(
        "--stagger", type=_at_least_zero, default=0.0, metavar="S", help="spread a closed loop's start over S"
    )
    parser.add_argument("--timeout", type=_above_zero, default=120.0, metavar="S", help="of one (default: %(default)g)")
    parser.add_argument("--deadline", type=_above_zero, default=10.0, metavar="S", help="of goodput (%(default)g)")
    parser.add_argument("--warmup", type=_positive, default=4, help="requests before, not counted (%(default)s)")
    parser.add_argument("--prompts", type=Path, metavar="FILE", help="a line each: text, or a JSON object")
    parser.add_argument("--tasks", default=None, metavar="T,T", help="without --prompts: some of math,multi,code,list")
    parser.add_argument("--seed", type=int, default=777, help="of problems and arrivals (default: %(default)s)")
    parser.add_argument("--max-tokens", type=_positive, default=256, help="default: %(default)s")
    parser.add_argument("--temperature", type=_at_least_zero, default=0.0, help="default: %(default)g")
    parser.add_argument("--decoder", default=None)
    parser.add_argument("--knob", action="append", default=[], metavar="NAME=VALUE", help="of the decoder; repeatable")
    parser.add_argument("--plot", type=Path, metavar="PNG", help="draw curves over the loads; needs asynclane[bench]")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the last line to a file, too")


def _list_of(kind: Callable[[str], Any]) -> Callable[[str], tuple[Any, ...]]:
    def read(text: str) -> tuple[Any, ...]:
        return tuple(kind(part) for part in text.split(","))

    return read


def _number(text: str, kind: Callable[[str], Any], good: Callable[[Any], bool], wanted: str) -> Any:
    try:
        number = kind(text)
    except ValueError:
        number = None
    if number is None or not math.isfinite(number) or not good(number):
        raise argparse.ArgumentTypeError(f"must be {wanted}, not {text!r}")
    return number


def _positive(text: str) -> int:
    return int(_number(text, int, lambda number: number >= 1, "a whole number from 1"))


def _count(text: str) -> int:
    return int(_number(text, int, lambda number: 1 <= number <= MOST, f"whole numbers from 1 to {MOST}"))


def _above_zero(text: str) -> float:
    return float(_number(text, float, lambda number: number > 0, "a number above 0"))


def _at_least_zero(text: str) -> float:
    return float(_number(text, float, lambda number: number >= 0, "a number, at least 0"))
