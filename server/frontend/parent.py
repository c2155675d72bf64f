"""The engine's process, if front ends have processes of their own: `asyncio`, the engine, and no HTTP."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import os
import signal
import socket
import threading
from contextlib import suppress

from ..app import STOP_S, Loaded
from ..logs import name_process
from ..schema.limits import default_body_bytes
from ..settings import Settings
from .fleet import Fleet
from .process import EXIT_S, FAILED, Setup, exit_hard

CUT_S = 1.0  # an event loop that has not reported a failure by then hangs
KILL_S = 0.7  # before `EXIT_S`


class CannotStart(ValueError):
    """The front ends cannot start. The message is one line."""


def url_of(listener: socket.socket) -> str:
    address, port = listener.getsockname()[:2]
    host = f"[{address}]" if ":" in address else address
    return f"http://{host}:{port}"


def unread_part(settings: Settings, count: int, max_model_len: int) -> int:
    """The bytes of large bodies that may come or wait at once in each of so many front ends: room for one at least, if
    the server has it."""
    total = settings.max_unread_bytes
    longest = settings.max_body_bytes or default_body_bytes(max_model_len)
    return max(-(-total // count), min(total, longest))


def serve_apart(settings: Settings, loaded: Loaded, listener: socket.socket, limit: int, descriptors: int) -> int:
    """Serve until a signal, or until the engine fails for good. Returns the exit code. Raises `CannotStart`, and
    `KeyboardInterrupt` after a Ctrl-C that was not ignored before."""
    if os.name != "posix":
        raise CannotStart("--frontends: processes cannot share a socket on this system: give 0")
    name_process("engine")
    ignored = signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    count = loaded.frontends
    setup = Setup(
        frontends=count,
        settings=dataclasses.asdict(
            dataclasses.replace(settings, max_unread_bytes=unread_part(settings, count, loaded.card.max_model_len))
        ),
        card=dataclasses.asdict(loaded.card),
        directory=str(loaded.parts.directory.resolve()),
        mask_id=loaded.parts.text.mask_id,
        keys=loaded.keys.valid,
        max_connections=-(-limit // count),
        descriptors=descriptors,
    )
    parent = Parent(settings, loaded, listener, setup)
    try:
        asyncio.run(parent.run())
    finally:
        parent.fleet.kill()
        if loaded.parts.engine.death.done():  # a device that hangs may hold up the end of the interpreter for ever
            logging.shutdown()
            os._exit(FAILED)
    if parent.interrupted and not ignored:
        raise KeyboardInterrupt
    return 0


class Parent:
    """The engine with its front ends, from their start to their end."""

    def __init__(self, settings: Settings, loaded: Loaded, listener: socket.socket, setup: Setup) -> None:
        self.interrupted = False
        self.fleet = Fleet(loaded.parts.engine, loaded.parts.metrics, listener, setup)
        self._settings = settings
        self._loaded = loaded
        self._listener = listener
        self._signals = 0
        self._hurry: asyncio.Task[None] | None = None

    async def run(self) -> None:
        """Raises `CannotStart`."""
        loop, engine = asyncio.get_running_loop(), self._loaded.parts.engine
        end, heard = asyncio.Event(), threading.Event()

        def report(reason: object) -> None:
            """The engine has failed for good; runs in any thread."""
            with suppress(RuntimeError):  # the event loop is closed
                loop.call_soon_threadsafe(heard.set)
                loop.call_soon_threadsafe(end.set)
            exit_hard()
            threading.Thread(target=cut_unheard, daemon=True).start()

        def cut_unheard() -> None:
            if not heard.wait(CUT_S):
                self.fleet.cut()

        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._signal, number, end)
        if self._settings.api_key_file is not None:
            loop.add_signal_handler(signal.SIGHUP, self._reload)
        await engine.start()
        engine.death.add_done_callback(report)
        try:
            try:
                await self.fleet.start(self._loaded.frontends)
            except ValueError as error:
                raise CannotStart(str(error)) from None
            logging.getLogger(__name__).info(
                "%s is running on %s: process %d, with %d front ends",
                self._settings.model_name,
                url_of(self._listener),
                os.getpid(),
                self._loaded.frontends,
            )
            await end.wait()
            if engine.death.done():
                await self.fleet.wait(EXIT_S - KILL_S)  # they know, and end by themselves
            else:
                # While the socket is still open: new requests and those that cannot be finished get an error.
                log_drain(self._settings.drain_s)
                await engine.drain(self._settings.drain_s)
                await self.fleet.stop()
        finally:
            await engine.stop(STOP_S)
            self._loaded.parts.close()

    def _reload(self) -> None:
        keys = self._loaded.keys
        keys.reload()
        self.fleet.reload(keys.valid)

    def _signal(self, number: int, end: asyncio.Event) -> None:
        """The first signal drains, the second ends draining, and the third ends the process without errors for those
        that wait."""
        self._signals += 1
        self.interrupted = number == signal.SIGINT
        if self._signals == 1:
            end.set()
        elif self._signals == 2:
            self._hurry = asyncio.get_running_loop().create_task(self._loaded.parts.engine.drain(0.0))
        else:
            self.fleet.kill()
            os._exit(FAILED)


def log_drain(seconds: int) -> None:
    """Log what a server that ends waits for."""
    if seconds:
        logging.getLogger(__name__).info("finishing running requests, at most %d s; Ctrl-C again ends at once", seconds)
