"""What the command `asynclane` and its subcommands take."""

from __future__ import annotations

import argparse
from typing import NoReturn

from ...bench.load.flags import add_load_flags
from ..settings import add_flags

MISUSED = 2  # exit code
DEFAULT_PAGE = "trace.html"
DEFAULT_URL = "http://127.0.0.1:8000"


class Parser(argparse.ArgumentParser):
    """Says what is wrong in one line; the usage of twenty flags would bury it."""

    def error(self, message: str) -> NoReturn:
        self.exit(MISUSED, f"{self.prog}: {message} (see --help)\n")


def build_parser() -> argparse.ArgumentParser:
    parser = Parser(prog="asynclane", description="An inference server for diffusion language models.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    serve = commands.add_parser("serve", help="serve a model over HTTP, as OpenAI's API")
    add_flags(serve)

    generate = commands.add_parser("generate", help="answer one prompt here, without a server")
    _add_question(generate)
    add_flags(generate)

    trace = commands.add_parser("trace", help="answer one prompt here, and show which lanes wrote it")
    _add_question(trace)
    trace.add_argument("--out", default=None, metavar="FILE", help=f"page to write; default: {DEFAULT_PAGE}")
    trace.add_argument("--live", action="store_true", help="show it here; a page is then written only to --out")
    add_flags(trace)

    inspect = commands.add_parser("inspect", help="say what a model is and what memory it needs, without loading it")
    inspect.add_argument("model", nargs="?", help="as --model of serve; without it, the embedded ones are listed")
    inspect.add_argument("--json", action="store_true", help="for machines")

    decoders = commands.add_parser("decoders", help="say what decoders there are, and what their knobs are")
    decoders.add_argument("name", nargs="?", metavar="DECODER", help="one of them, in full")
    decoders.add_argument("--markdown", action="store_true", help="all of them in full, as docs/decoders.md")

    chat = commands.add_parser("chat", help="talk to a running server")
    chat.add_argument("--url", default=DEFAULT_URL, help="default: %(default)s")
    chat.add_argument("--api-key", default=None, help="default: ASYNCLANE_API_KEY")
    chat.add_argument("--model", default=None, help="default: the one it serves")
    chat.add_argument("--system", default=None, help="instructions that precede the conversation")
    chat.add_argument("--max-tokens", type=_positive, default=None)
    chat.add_argument("--temperature", type=_temperature, default=None)
    chat.add_argument("--decoder", default=None)
    _add_knob(chat)

    bench = commands.add_parser("bench", help="put a load on a running server, and show what its users get")
    add_load_flags(bench, DEFAULT_URL)

    commands.add_parser("version", help="print the version")
    return parser


def _add_question(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("prompt")
    parser.add_argument("--max-tokens", type=_positive, default=None)
    parser.add_argument("--temperature", type=_temperature, default=0.0)
    parser.add_argument("--seed", type=_seed, default=0)
    _add_knob(parser)
    parser.add_argument("--raw", action="store_true", help="the prompt is text to continue, not a chat message")


def _add_knob(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--knob", action="append", default=[], metavar="NAME=VALUE", help="of the decoder; repeatable")


def _positive(text: str) -> int:
    number = int(text)
    if not 0 < number < 2**31:
        raise argparse.ArgumentTypeError(f"must be from 1 to {2**31 - 1}, not {text}")
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
