"""A front end in a process of its own: `main` runs there. It shares the listening socket with the others, and the
engine is at the other end of a link.

The engine's process decides when a front end ends: signals of a terminal, which go to all processes, are ignored here.
"""

from __future__ import annotations

import asyncio
import ctypes
import faulthandler
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import uvicorn

from ..app import create_app, open_tracing
from ..collector import YOUNG, spare_collections
from ..engine.messages import FromEngine, Serving, ToEngine
from ..http.connections import ConnectionConfig, Listener, log_accept_errors
from ..http.keys import Key, Keys
from ..link import Link, receive_frame
from ..logs import STDERR, logging_to, name_process
from ..schema.responses import ModelCard
from ..settings import Settings
from ..structured.grammar import Grammars
from ..text.tokenizer import Tokenizer
from .client import EngineClient
from .counts import Relay

# After the engine has failed:
REPORT_S = 3.0  # clients and probes still get the reason
EXIT_S = 9.0  # the process has ended, whatever hangs
FAILED = 1

PR_SET_PDEATHSIG = 1  # of Linux's prctl

# The arguments of the process: a name, two descriptors, and the path of its modules.
CODE = f"import gc, sys; gc.set_threshold({YOUNG}); sys.path[:] = sys.argv[4:]; from {{}} import main; main()"


class Setup(msgspec.Struct, frozen=True):
    """All that one of so many `frontends` must know to begin. `settings` and `card` are the fields of `Settings` and
    `ModelCard`; the limits of connections and of unread bytes are this front end's part. `keys` are those that the
    others have: the file may have been changed since, and be of no use."""

    frontends: int
    settings: dict[str, Any]
    card: dict[str, Any]
    directory: str  # of the checkpoint
    mask_id: int
    keys: Sequence[Key]
    max_connections: int
    descriptors: int


class SharedListener(Listener):
    """The socket of all front ends. asyncio accepts as many connections at once as its `backlog`: that is one here, so
    that front ends with nothing else to do take the next. The system's queue keeps its length."""

    queue = 128

    def listen(self, backlog: int = 0, /) -> None:
        super().listen(self.queue)


class FrontEnd(uvicorn.Server):
    """uvicorn, connected to an engine that ends it."""

    def __init__(self, config: ConnectionConfig, engine: EngineClient, end: socket.socket) -> None:
        super().__init__(config)
        self._engine = engine
        self._end = end

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(log_accept_errors)
        engine = self._engine
        link: Link[ToEngine, FromEngine] = Link(FromEngine, engine.take, self._lose)
        engine.send, engine.stop, engine.ended = link.send_soon, self._stop, self._report
        await link.open(self._end)
        await super().startup(sockets)
        link.send([Serving()])

    def handle_exit(self, sig: int, frame: Any) -> None:
        """See above."""

    def _stop(self) -> None:
        self.should_exit = True

    def _lose(self) -> None:
        if not self.should_exit:
            self._engine.lose("its process has ended, or hangs")

    def _report(self, reason: str) -> None:
        """The engine has failed for good."""
        asyncio.get_running_loop().call_later(REPORT_S, self._stop)
        exit_hard()


def exit_hard() -> None:
    """End the process with `FAILED` after `EXIT_S`, whatever hangs."""
    # Needs neither the event loop nor the interpreter, nor a `sys.stderr`, which is None if that was closed at first.
    faulthandler.dump_traceback_later(EXIT_S, exit=True, file=2)
    last = threading.Timer(EXIT_S + 0.5, os._exit, [FAILED])  # needs nobody who reads those stacks
    last.daemon = True
    last.start()


def main() -> None:
    """Serve until the engine's process says stop, or ends."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    if sys.platform == "linux":  # one that is stopped (SIGSTOP) continues when the engine's process ends, and learns it
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGCONT)
    name, link, listener = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    end = socket.socket(fileno=link)
    try:
        setup = msgspec.msgpack.decode(receive_frame(end), type=Setup)
    except EOFError:
        sys.exit(FAILED)
    settings = Settings(**setup.settings)
    with logging_to(STDERR, settings.log_level, settings.log_format):
        name_process(name)
        try:
            failed = _serve(setup, settings, end, SharedListener(fileno=listener))
        except Exception:
            logging.getLogger(__name__).exception("a front end has failed")
            failed = True
    if failed:
        os._exit(FAILED)  # threads that hang keep nobody


def _serve(setup: Setup, settings: Settings, end: socket.socket, listener: SharedListener) -> bool:
    """Return whether the engine has failed."""
    keys = Keys.of(settings, setup.frontends, setup.keys)
    text = Tokenizer(Path(setup.directory), setup.mask_id)
    text.prepare()
    grammars = Grammars(text, settings.grammar_timeout_s, settings.grammar_memory_mb)
    counts = Relay()
    engine = counts.engine = EngineClient(text, counts)
    engine.reload = keys.reload
    card = ModelCard(**setup.card)
    tracing = open_tracing(settings, card.id)
    app = create_app(engine, text, settings, counts, card, grammars=grammars, keys=keys, tracing=tracing)
    config = ConnectionConfig(app, settings, setup.max_connections, setup.descriptors)
    listener.queue, config.backlog = config.backlog, 1
    logging.getLogger("uvicorn.error").setLevel(logging.WARNING)  # the engine's process reports start and end
    server = FrontEnd(config, engine, end)
    spare_collections()
    try:
        server.run(sockets=[listener])
    finally:
        grammars.close()
        if tracing is not None:
            tracing.close()
    return engine.health.failure is not None
