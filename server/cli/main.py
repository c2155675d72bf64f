"""The command `asynclane`. Each subcommand imports only the modules that it needs, so that it starts at once."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from io import TextIOWrapper
from typing import TextIO

from ..collector import make_collections_rare
from ..settings import OF_MEMORY, installed_version, read_settings
from .parser import MISUSED, build_parser

INTERRUPTED = 130
# Turns that a thread of libgomp waits actively: its own number, a hundred times as many, takes the cores from whatever
# else runs, and is 2 % faster on idle ones.
SPINS = "3000"


def main(argv: Sequence[str] | None = None) -> int:
    """Exit codes: 0 done, 1 failed while running, 2 misuse or a failed start, 130 interrupted."""
    code, hangs = 0, False
    try:
        make_collections_rare()
        if "OMP_WAIT_POLICY" not in os.environ:
            os.environ.setdefault("GOMP_SPINCOUNT", SPINS)  # read when torch is imported
        if isinstance(sys.stdout, TextIOWrapper):
            sys.stdout.reconfigure(errors="replace")  # a terminal may not know Unicode
        parser = build_parser()
        arguments = parser.parse_args(argv)
        try:
            if arguments.command is None:
                parser.print_help()
            else:
                code = _run(arguments, os.environ)
            print(end="", flush=True)  # a full disk is an error, too
        except (ValueError, OSError) as error:
            code, hangs = _complain(error), getattr(error, "hangs", False)
    except KeyboardInterrupt:
        code = INTERRUPTED
    except BrokenPipeError:  # the reader has left
        pass
    finally:
        _let_go(sys.stdout)
        _let_go(sys.stderr)
    if hangs:  # a thread that waits for ever would hold up the end of the interpreter
        os._exit(code)
    return code


def _run(arguments: argparse.Namespace, environ: Mapping[str, str]) -> int:
    """Raises `ValueError` and `OSError` with one line that says what is wrong."""
    match arguments.command:
        case "serve":
            _take_named_model(arguments)
            settings = read_settings(arguments, environ)
            from .serve import serve_main

            return serve_main(settings)
        case "generate" | "trace":
            settings = read_settings(arguments, environ)
            from .generate import generate_main

            return generate_main(settings, arguments, environ)
        case "chat":
            from .chat import chat_main

            return chat_main(arguments, environ)
        case "inspect":
            from .inspect import Load, inspect_main

            options = {
                "lora": arguments.lora,
                "tool_parser": arguments.tool_parser,
                "reasoning_parser": arguments.reasoning_parser,
                "block_size": arguments.block_size,
                "check_weights": arguments.check_weights,
            }
            wanted = ("requests", "gpu_gib", *OF_MEMORY)
            if any(getattr(arguments, name) is not None for name in wanted):
                arguments.max_num_seqs = arguments.requests
                options["load"] = Load(read_settings(arguments, {}), arguments.gpu_gib)
            return inspect_main(arguments.model, arguments.json, **options)
        case "decoders":
            from .decoders import decoders_main

            return decoders_main(arguments.name, arguments.markdown)
        case "bench":
            from .bench import bench_main

            return bench_main(arguments, environ)
        case "eval":
            from .eval import eval_main

            return eval_main(arguments, environ)
        case "train-controller":
            from .train_controller import train_controller_main

            return train_controller_main(arguments, environ)
        case _:
            print(installed_version())
            return 0


def _take_named_model(arguments: argparse.Namespace) -> None:
    """`serve MODEL` is `serve --model MODEL`. Raises `ValueError` for both at once."""
    if arguments.named_model is not None:
        if arguments.model is not None:
            raise ValueError(f"the model is given twice, {arguments.named_model!r} and --model {arguments.model!r}")
        arguments.model = arguments.named_model


def _complain(problem: Exception) -> int:
    if isinstance(problem, BrokenPipeError):  # an OSError, but no misuse
        raise problem
    line = " ".join(str(problem).split())
    # Names come from files, and could move a terminal's cursor.
    shown = "".join(each if each.isprintable() else repr(each)[1:-1] for each in line)
    with suppress(BrokenPipeError):  # without a reader it is still misuse
        print(f"asynclane: {shown}", file=sys.stderr)
    return MISUSED


def _let_go(stream: TextIO | None) -> None:
    """Drop what cannot be sent. Otherwise Python tries again as it exits, and prints an error."""
    if stream is None:
        return
    try:
        stream.flush()
    except OSError:
        with open(os.devnull, "wb") as nowhere:
            os.dup2(nowhere.fileno(), stream.fileno())
