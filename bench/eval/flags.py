"""The flags of `asynclane eval`, apart from the code that reads them: the command's help imports no benchmark."""

from __future__ import annotations

import argparse
from pathlib import Path

from ..load.output import number, positive

MOST_AT_ONCE = 65536  # as --max-num-seqs of a server
from_none = number(int, lambda value: value >= 0, "a whole number from 0")
temperature = number(float, lambda value: 0 <= value <= 2, "a number from 0 to 2")
at_once = number(int, lambda value: 1 <= value <= MOST_AT_ONCE, f"a whole number from 1 to {MOST_AT_ONCE}")


def add_eval_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "task",
        nargs="?",
        metavar="TASK",
        help="gsm8k, gsm8k_cot, gsm8k_cot_zeroshot, minerva_math, humaneval, humaneval_instruct, mbpp, mbpp_instruct,"
        " mbpp_plain, ifeval, or parallelbench_NAME; without one, all are listed",
    )
    group = parser.add_argument_group("problems")
    group.add_argument("--data", type=Path, metavar="FILE", help="problems in the form of the public set, JSON lines")
    group.add_argument("--limit", type=positive, metavar="N", help="only the first N")
    group.add_argument("--shots", type=from_none, metavar="N", help="examples before each; default: the task's")
    group.add_argument("--shots-file", type=Path, metavar="FILE", help="a file to take them from, the first ones")
    template = group.add_mutually_exclusive_group()
    template.add_argument(
        "--chat-template",
        dest="chat",
        action="store_const",
        const=True,
        help="the prompt is a user's message; default: if the model has a chat template",
    )
    template.add_argument(
        "--raw", dest="chat", action="store_const", const=False, help="the prompt is continued as text"
    )
    group = parser.add_argument_group("answers")
    group.add_argument(
        "--decoder",
        dest="decoders",
        action="append",
        metavar="NAME[:PARAM=VALUE,...]",
        help="a decoder to measure; repeatable; default: asynclane, that of --preset, or the only one that a model"
        " takes",
    )
    group.add_argument("--max-tokens", type=positive, metavar="N", help="length of the canvas; default: the task's")
    group.add_argument(
        "--temperature",
        type=temperature,
        default=0.0,
        metavar="T",
        help="0, the default, takes the likeliest tokens; above it they are drawn with seed 0",
    )
    group.add_argument("--batch", type=at_once, default=16, metavar="N", help="requests at once (default: %(default)s)")
    group.add_argument("--url", help="a running server that answers; default: the model is loaded here")
    group.add_argument("--api-key", help="of that server; default: ASYNCLANE_API_KEY")
    group = parser.add_argument_group("results")
    group.add_argument(
        "--out", type=Path, metavar="FILE", help="JSON lines, which a later run continues; default: eval-TASK.jsonl"
    )
    group.add_argument("--plot", type=Path, metavar="PNG", help="draw accuracy over tokens a forward")
