"""The command `asynclane`: subcommands import only what they need, so that each starts at once."""

from __future__ import annotations

import argparse
import logging
import os
import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from io import TextIOWrapper
from pathlib import Path
from types import FrameType
from typing import Any, TextIO

from ..settings import (
    Settings,
    SettingsError,
    api_key_from,
    color_allowed,
    cursor_moves,
    installed_version,
    read_settings,
)
from .parser import DEFAULT_PAGE, MISUSED, build_parser

FAILED, INTERRUPTED = 1, 130
FLUSH_S = 5  # for the last bytes of answers that are done


def main(argv: Sequence[str] | None = None) -> int:
    """Exit codes: 0 done, 1 failed while running, 2 misuse or a start in vain, 130 interrupted."""
    code = 0
    try:
        if isinstance(sys.stdout, TextIOWrapper):
            sys.stdout.reconfigure(errors="replace")  # a terminal may know no Unicode
        code = _run(build_parser().parse_args(argv), os.environ)
        code = _flush() or code
    except KeyboardInterrupt:
        code = INTERRUPTED
    except BrokenPipeError:  # the reader has seen enough
        pass
    finally:
        _let_go(sys.stdout)
        _let_go(sys.stderr)
    return code


def _run(arguments: argparse.Namespace, environ: Mapping[str, str]) -> int:
    try:
        match arguments.command:
            case "serve":
                return _serve(read_settings(arguments, environ))
            case "generate":
                return _generate(read_settings(arguments, environ), arguments)
            case "trace":
                return _trace(read_settings(arguments, environ), arguments, environ)
            case "inspect" | "decoders":
                return _tell(arguments)
            case "chat":
                return _chat(arguments, environ)
            case "bench":
                return _bench(arguments, environ)
            case _:
                print(installed_version())
                return 0
    except SettingsError as error:
        return _complain(error)


def _flush() -> int:
    try:
        print(end="", flush=True)
    except OSError as error:  # a full disk
        return _complain(error)
    return 0


def _let_go(stream: TextIO | None) -> None:
    """Drops what cannot be sent, or Python would try again as it exits, and complain."""
    if stream is None:
        return
    try:
        stream.flush()
    except OSError:
        with open(os.devnull, "wb") as nowhere:
            os.dup2(nowhere.fileno(), stream.fileno())


def _serve(settings: Settings) -> int:
    # The port first: a model takes long to load, and a port that is taken should be said before.
    try:
        listener = bind(settings.host, settings.port)
    except OSError as error:
        return _complain(
            f"cannot listen on {settings.host}:{settings.port}: {error.strerror or error}; choose another --port"
        )
    with listener:
        import asyncio
        from concurrent.futures import Future

        import uvicorn

        from ..engine.wiring import build_service

        logging.basicConfig(level=settings.log_level.upper(), format="%(levelname)s %(name)s: %(message)s")
        try:
            service = build_service(settings)
        except (ValueError, OSError) as error:
            return _complain(error)
        config = uvicorn.Config(
            service.app,
            lifespan="on",
            log_level=settings.log_level,
            timeout_graceful_shutdown=FLUSH_S,
        )

        class Server(uvicorn.Server):
            """uvicorn keeps quiet about sockets that were given to it, and knows no time for draining."""

            hurry: Future[None] | None = None

            async def startup(self, sockets: list[socket.socket] | None = None) -> None:
                self.loop = asyncio.get_running_loop()
                await super().startup(sockets)
                if self.started:
                    address, port = listener.getsockname()[:2]
                    host = f"[{address}]" if ":" in address else address
                    logging.getLogger(__name__).info("%s is running on http://%s:%d", settings.model_name, host, port)

            async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
                # While the socket is still open: who comes now is told, and so is who cannot be finished.
                await service.drain(settings.drain_s)
                await super().shutdown(sockets)

            def handle_exit(self, sig: int, frame: FrameType | None) -> None:
                if not self.should_exit or self.hurry is not None:
                    super().handle_exit(sig, frame)  # a third one does not even tell those that wait
                else:  # asked twice: the time for draining is over now
                    self.hurry = asyncio.run_coroutine_threadsafe(service.drain(0.0), self.loop)

        server = Server(config)
        # uvicorn drains on SIGTERM, then raises the signal again: the drained process is done, not killed.
        signal.signal(signal.SIGTERM, lambda number, frame: None)
        server.run(sockets=[listener])
        return 0 if server.started else FAILED


def bind(host: str, port: int) -> socket.socket:
    """A bound socket, not yet listening. Raises OSError."""
    family, kind, protocol, _, address = socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except OSError:
        listener.close()
        raise
    return listener


def _generate(settings: Settings, arguments: argparse.Namespace) -> int:
    from ..engine.offline import Question, generate_main
    from ..errors import ApiError
    from .params import parse_params

    try:
        knobs = parse_params(arguments.knob)
        return generate_main(settings, Question(knobs=knobs, **_asked(arguments)))
    except (ApiError, ValueError, TypeError, OSError) as error:
        return _complain(error)


def _trace(settings: Settings, arguments: argparse.Namespace, environ: Mapping[str, str]) -> int:
    from ..engine.offline import Question
    from ..errors import ApiError
    from .params import parse_params
    from .terminal import Screen
    from .trace import Views, trace_main

    page = arguments.out or (None if arguments.live else DEFAULT_PAGE)
    screen = Screen.of(sys.stdout, cursor=cursor_moves(environ), color=color_allowed(environ))
    views = Views(Path(page) if page else None, screen if arguments.live else None)
    try:
        question = Question(knobs=parse_params(arguments.knob), **_asked(arguments))
        return trace_main(settings, question, views, sys.stdout)
    except (ApiError, ValueError, TypeError, OSError) as error:
        return _complain(error)


def _asked(arguments: argparse.Namespace) -> dict[str, Any]:
    return {name: getattr(arguments, name) for name in ("prompt", "raw", "max_tokens", "temperature", "seed")}


def _tell(arguments: argparse.Namespace) -> int:
    try:
        if arguments.command == "decoders":
            from .decoders import catalogue_main

            return catalogue_main(arguments.name, arguments.markdown)
        from .inspect import inspect_main

        return inspect_main(arguments.model, arguments.json)
    except (ValueError, OSError) as error:
        return _complain(error)


def _chat(arguments: argparse.Namespace, environ: Mapping[str, str]) -> int:
    import httpx

    from ...clients import Client, ClientError
    from ...clients.cli import Chat
    from .params import parse_params

    wishes = {name: getattr(arguments, name) for name in ("max_tokens", "temperature", "decoder")}
    try:
        knobs = parse_params(arguments.knob)
        with Client(arguments.url, api_key=arguments.api_key or api_key_from(environ)) as client:
            model = arguments.model or client.models()[0].id
            options = knobs | {name: value for name, value in wishes.items() if value is not None}
            return Chat(client, model, system=arguments.system, options=options).run()
    except ClientError as error:
        return _complain(error)
    except (ValueError, httpx.InvalidURL) as error:  # a URL that is none, a key or a text that cannot be sent
        return _complain(f"this cannot be sent: {error}")


def _bench(arguments: argparse.Namespace, environ: Mapping[str, str]) -> int:
    import httpx

    from ...bench.load.run import load_main
    from ...clients import ClientError

    try:
        return load_main(arguments, api_key_from(environ))
    except (ClientError, ValueError, OSError, httpx.InvalidURL) as error:
        return _complain(error)


def _complain(problem: Exception | str) -> int:
    if isinstance(problem, BrokenPipeError):  # an OSError that is nobody's misuse
        raise problem
    with suppress(BrokenPipeError):  # nobody listens, and it is still misuse
        print(f"asynclane: {' '.join(str(problem).split())}", file=sys.stderr)
    return MISUSED
