"""The flags of `asynclane bench`. The command line shows its help without loading more than this file."""

from __future__ import annotations

import argparse
from pathlib import Path

from .output import above_zero, at_least_zero, list_of, number, positive

MOST = 4096  # requests at once: each is a connection
COUNTS = list_of(number(int, lambda value: 1 <= value <= MOST, f"whole numbers from 1 to {MOST}"))


def add_load_flags(parser: argparse.ArgumentParser, default_url: str) -> None:
    parser.add_argument("--url", default=default_url, help="any OpenAI-compatible server (default: %(default)s)")
    parser.add_argument("--api-key", default=None, help="default: ASYNCLANE_API_KEY")
    parser.add_argument("--model", default=None, help="default: the first model of the server")
    parser.add_argument("--completions", action="store_true", help="use /v1/completions, not /v1/chat/completions")
    load = parser.add_mutually_exclusive_group()
    load.add_argument("--concurrency", type=COUNTS, default=None, metavar="N,N", help="closed loop (default: 1,4,16)")
    load.add_argument(
        "--rate", type=list_of(above_zero), default=None, metavar="R,R", help="open loop: Poisson arrivals a second"
    )
    parser.add_argument(
        "--requests", type=positive, default=None, help="requests of each load (default: 4 rounds, at least 32)"
    )
    parser.add_argument(
        "--duration", type=above_zero, default=None, metavar="S", help="no request starts later than this"
    )
    parser.add_argument(
        "--stagger", type=at_least_zero, default=0.0, metavar="S", help="spread a closed loop's start over S"
    )
    parser.add_argument(
        "--timeout", type=above_zero, default=120.0, metavar="S", help="of one request (default: %(default)g)"
    )
    parser.add_argument(
        "--deadline",
        type=above_zero,
        default=10.0,
        metavar="S",
        help="within which an answer counts as goodput (default: %(default)g)",
    )
    parser.add_argument("--warmup", type=positive, default=4, help="first requests, not counted (default: %(default)s)")
    source = parser.add_mutually_exclusive_group()
    source.add_argument("--prompts", type=Path, metavar="FILE", help="a prompt a line: text, or a JSON object")
    source.add_argument(
        "--dataset", type=Path, metavar="FILE", help="JSON of conversations in ShareGPT's form; first turns are sent"
    )
    parser.add_argument("--tasks", default=None, metavar="T,T", help="without --prompts: some of math,multi,code,list")
    parser.add_argument("--seed", type=int, default=777, help="of problems and arrivals (default: %(default)s)")
    parser.add_argument("--max-tokens", type=positive, default=256, help="default: %(default)s")
    parser.add_argument("--temperature", type=at_least_zero, default=0.0, help="default: %(default)g")
    parser.add_argument("--decoder", default=None)
    parser.add_argument(
        "--knob",
        dest="params",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a decoding parameter; repeatable",
    )
    parser.add_argument("--plot", type=Path, metavar="PNG", help="draw curves over the loads; needs the extra bench")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the last line to a file")
