"""The flags of the command `asynclane` and of its subcommands."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import NoReturn

from ...bench.eval.flags import add_eval_flags
from ...bench.load.flags import add_load_flags
from ...scheduler import LEARNT_RULES
from ..settings import OF_EVALUATION, OF_MEMORY, OF_ONE_ANSWER, OF_TRAINING, add_flags, installed_version
from ..text.answer_formats import OFF
from ..text.reasoning import REASONING_FORMATS
from ..text.tool_calls import TOOL_FORMATS

MISUSED = 2  # exit code
DEFAULT_PAGE = "trace.html"
DEFAULT_URL = "http://127.0.0.1:8000"


class Parser(argparse.ArgumentParser):
    """Errors are one line: the usage of twenty flags would bury the message."""

    def error(self, message: str) -> NoReturn:
        self.exit(MISUSED, f"{self.prog}: {message} (see --help)\n")


def build_parser() -> argparse.ArgumentParser:
    parser = Parser(prog="asynclane", description="An inference server for diffusion language models.")
    parser.add_argument("--version", action="version", version=installed_version())
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")

    serve = commands.add_parser("serve", help="serve a model over HTTP, as OpenAI's API")
    serve.add_argument("named_model", nargs="?", metavar="MODEL", help="the same as --model MODEL")
    add_flags(serve)

    generate = commands.add_parser("generate", help="answer one prompt here, without a server")
    _add_prompt(generate)
    add_flags(generate, OF_ONE_ANSWER)

    trace = commands.add_parser("trace", help="answer one prompt here, and show which lanes wrote it")
    _add_prompt(trace)
    trace.add_argument("--out", default=None, metavar="FILE", help=f"page to write; default: {DEFAULT_PAGE}")
    trace.add_argument("--live", action="store_true", help="show it in the terminal; then only --out writes a page")
    add_flags(trace, OF_ONE_ANSWER)

    inspect = commands.add_parser("inspect", help="describe a model and the memory that it needs, without loading it")
    inspect.add_argument("model", nargs="?", help="as --model of serve; default: list the embedded models")
    inspect.add_argument("--block-size", type=_positive, default=None, metavar="INT", help="as that of serve")
    inspect.add_argument("--check-weights", action="store_true", help="read all weights, and refuse NaN and infinity")
    inspect.add_argument("--json", action="store_true", help="print JSON")
    inspect.add_argument("--lora", metavar="STR", help="as that of serve")
    for flag, rows in (("--tool-parser", TOOL_FORMATS), ("--reasoning-parser", REASONING_FORMATS)):
        inspect.add_argument(flag, default=None, choices=[*rows, OFF], help="as that of serve")

    memory = inspect.add_argument_group("memory on a GPU, with any of these")
    memory.add_argument("--requests", type=_positive, metavar="INT", help="that run at once (default: 64)")
    memory.add_argument("--gpu-gib", type=_gib, metavar="GIB", help="memory of the GPU, to report what is left of it")
    add_flags(inspect, OF_MEMORY)

    decoders = commands.add_parser("decoders", help="list the decoders and their parameters")
    decoders.add_argument("name", nargs="?", metavar="DECODER", help="show this one in full")
    decoders.add_argument("--markdown", action="store_true", help="show all in full, as docs/decoders.md")

    chat = commands.add_parser("chat", help="talk to a running server")
    chat.add_argument("--url", default=DEFAULT_URL, help="default: %(default)s")
    chat.add_argument("--api-key", default=None, help="default: ASYNCLANE_API_KEY")
    chat.add_argument("--model", default=None, help="default: the model that it serves")
    chat.add_argument("--system", default=None, help="instructions before the conversation")
    chat.add_argument("--max-tokens", type=_positive, default=None)
    chat.add_argument("--temperature", type=_temperature, default=None)
    chat.add_argument("--decoder", default=None)
    chat.add_argument("--lanes", action="store_true", help="show the lanes at work while an answer is written")
    _add_params(chat)

    bench = commands.add_parser("bench", help="put a load on a running server and measure it")
    add_load_flags(bench, DEFAULT_URL)

    evaluation = commands.add_parser(
        "eval", help="measure decoders on GSM8K, MATH, HumanEval, MBPP, IFEval, ParallelBench"
    )
    add_eval_flags(evaluation)
    add_flags(evaluation, OF_EVALUATION)

    training = commands.add_parser(
        "train-controller", help="train the commit rule tspd or learn2pd on a model, for --controller of serve"
    )
    training.add_argument("model", metavar="MODEL", help="as --model of serve")
    training.add_argument("--method", choices=LEARNT_RULES, default="tspd", help="default: %(default)s")
    training.add_argument(
        "--data",
        type=Path,
        metavar="FILE",
        help="prompts, JSON lines with a prompt or messages; default, of an embedded model: problems of its own kinds",
    )
    training.add_argument(
        "--problems", type=_positive, metavar="N", help="only the first N prompts; default: all of a file, else 400"
    )
    training.add_argument("--max-tokens", type=_positive, default=256, help="of an answer (default: %(default)s)")
    training.add_argument("--raw", action="store_true", help="prompts are continued as text; default: chat messages")
    training.add_argument("--epochs", type=_positive, metavar="N", help="default: 120 of tspd, 80 of learn2pd")
    training.add_argument("--seed", type=_seed, default=0, help="of the weights, and of problems that are generated")
    training.add_argument("--out", type=Path, metavar="FILE", help="default: METHOD.safetensors")
    _add_params(training)
    add_flags(training, OF_TRAINING)

    commands.add_parser("version", help="print the version")
    return parser


def _add_prompt(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("prompt")
    parser.add_argument("--max-tokens", type=_positive, default=None)
    parser.add_argument("--temperature", type=_temperature, default=0.0)
    parser.add_argument("--seed", type=_seed, default=0)
    _add_params(parser)
    parser.add_argument("--raw", action="store_true", help="continue the prompt as text; default: it is a chat message")


def _add_params(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--knob",
        dest="params",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="decoding parameter; repeatable",
    )


def _positive(text: str) -> int:
    number = int(text)
    if not 0 < number < 2**31:
        raise argparse.ArgumentTypeError(f"must be from 1 to {2**31 - 1}, not {text}")
    return number


def _gib(text: str) -> float:
    number = float(text)
    if not 0 < number < 1e6:
        raise argparse.ArgumentTypeError(f"must be above 0, and less than 1000000, not {text}")
    return number


def _temperature(text: str) -> float:
    number = float(text)
    if not 0 <= number <= 2:
        raise argparse.ArgumentTypeError(f"must be from 0 to 2, not {text}")
    return number


def _seed(text: str) -> int:
    number = int(text)
    if not 0 <= number < 2**63:
        raise argparse.ArgumentTypeError(f"must be from 0 to {2**63 - 1}, not {text}")
    return number
