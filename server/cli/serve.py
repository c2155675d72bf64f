"""`asynclane serve`: the HTTP server, from the bound port to the drained engine."""

from __future__ import annotations

import asyncio
import gc
import logging
import signal
import socket
from concurrent.futures import Future
from types import FrameType

import uvicorn

from ..app import Service, build_service
from ..settings import Settings

FAILED = 1
FLUSH_S = 5  # for the last bytes of answers that are done


def serve_main(settings: Settings) -> int:
    """Serve until a signal. Raises `ValueError` and `OSError` with one line that says why it cannot begin."""
    # The port first: a model takes long to load, and a port that is taken should be reported before.
    with bind(settings.host, settings.port) as listener:
        logging.basicConfig(level=settings.log_level.upper(), format="%(levelname)s %(name)s: %(message)s")
        service = build_service(settings)
        gc.collect()
        gc.freeze()  # each later search for garbage in what stays would stop everybody for 0.1 s
        try:
            return _serve(settings, service, listener)
        except (ValueError, OSError) as error:
            raise RuntimeError("the server failed while it was running") from error


def _serve(settings: Settings, service: Service, listener: socket.socket) -> int:
    config = uvicorn.Config(
        service.app,
        lifespan="on",
        log_level=settings.log_level,
        timeout_graceful_shutdown=FLUSH_S,
    )

    class Server(uvicorn.Server):
        """uvicorn does not log the address of a socket that was given to it, and does not know about draining."""

        hurry: Future[None] | None = None

        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            self.loop = asyncio.get_running_loop()
            await super().startup(sockets)
            if self.started:
                address, port = listener.getsockname()[:2]
                host = f"[{address}]" if ":" in address else address
                logging.getLogger(__name__).info("%s is running on http://%s:%d", settings.model_name, host, port)

        async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
            # While the socket is still open: new requests and those that cannot be finished get an error.
            await service.drain(settings.drain_s)
            await super().shutdown(sockets)

        def handle_exit(self, sig: int, frame: FrameType | None) -> None:
            if not self.should_exit or self.hurry is not None:
                super().handle_exit(sig, frame)  # a third signal ends the process without errors for those that wait
            else:  # a second signal ends draining
                self.hurry = asyncio.run_coroutine_threadsafe(service.drain(0.0), self.loop)

    server = Server(config)
    # uvicorn drains on SIGTERM, then raises the signal again: the drained process is done, not killed.
    signal.signal(signal.SIGTERM, lambda number, frame: None)
    server.run(sockets=[listener])
    return 0 if server.started else FAILED


def bind(host: str, port: int) -> socket.socket:
    """A bound socket, not yet listening. Raises `OSError`."""
    try:
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
    except OSError as error:
        raise OSError(f"cannot listen on {host}:{port}: {error.strerror or error}; choose another --port") from None
    return listener
