"""`asynclane serve`: the HTTP server, from the bound port to the drained engine."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
from concurrent.futures import Future
from types import FrameType

import uvicorn

from ..app import Service, build_service, load
from ..collector import spare_collections
from ..frontend.parent import CannotStart, log_drain, serve_apart, url_of
from ..frontend.process import FAILED, REPORT_S, exit_hard
from ..http.connections import ConnectionConfig, Listener, connection_limit, log_accept_errors, raise_descriptor_limit
from ..logs import STDERR, logging_to
from ..settings import Settings, check_proxies, split_origins, traces_url


def serve_main(settings: Settings) -> int:
    """Serve until a signal. Raises `ValueError` and `OSError` with one line that says why it cannot begin."""
    open_standard_streams()
    # The port first: a model takes long to load, and a port that is taken should be reported before.
    with (
        bind(settings.host, settings.port) as listener,
        logging_to(STDERR, settings.log_level, settings.log_format),
    ):
        split_origins(settings.allowed_origins or "*")  # now: a model takes long to load
        check_proxies(settings.trusted_proxies or "*")
        traces_url(settings, os.environ)
        settings.front_ends(on_gpu=False)
        descriptors = raise_descriptor_limit()
        limit = connection_limit(settings.max_connections, descriptors)
        logging.getLogger(__name__).info("loading %s", settings.model_name)
        loaded = load(settings)
        service = None if loaded.frontends else build_service(settings, loaded)
        spare_collections()
        try:
            if service is None:
                return serve_apart(settings, loaded, listener, limit, descriptors)
            return _serve(settings, service, listener, ConnectionConfig(service.app, settings, limit, descriptors))
        except CannotStart:
            raise
        except (ValueError, OSError) as error:
            raise RuntimeError("the server failed while it was running") from error


def _serve(settings: Settings, service: Service, listener: socket.socket, config: ConnectionConfig) -> int:
    class Server(uvicorn.Server):
        """uvicorn does not log the address of a socket that was given to it, and does not know about draining."""

        hurry: Future[None] | None = None

        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            self.loop = asyncio.get_running_loop()
            self.loop.set_exception_handler(log_accept_errors)
            await super().startup(sockets)
            if self.started:
                logging.getLogger(__name__).info("%s is running on %s", settings.model_name, url_of(listener))

        async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
            # While the socket is still open: new requests and those that cannot be finished get an error.
            log_drain(settings.drain_s)
            await service.drain(settings.drain_s)
            await super().shutdown(sockets)

        def handle_exit(self, sig: int, frame: FrameType | None) -> None:
            if not self.should_exit or self.hurry is not None:
                super().handle_exit(sig, frame)  # a third signal ends the process without errors for those that wait
            else:  # a second signal ends draining
                self.hurry = asyncio.run_coroutine_threadsafe(service.drain(0.0), self.loop)

        def report(self, death: Future[str]) -> None:
            """The engine has failed for good; runs in any thread."""
            self.loop.call_soon_threadsafe(self.loop.call_later, REPORT_S, setattr, self, "should_exit", True)
            exit_hard()

    server = Server(config)
    service.death.add_done_callback(server.report)
    # uvicorn drains on SIGTERM, then raises the signal again: the drained process is done, not killed.
    signal.signal(signal.SIGTERM, lambda number, frame: None)
    try:
        server.run(sockets=[listener])
    finally:
        if service.death.done():  # a device that hangs may hold up the end of the interpreter for ever
            logging.shutdown()
            os._exit(FAILED)
    return 0 if server.started else FAILED


def open_standard_streams() -> None:
    """Open a null device in place of each standard stream that is closed. Otherwise the port would get its number, and
    in a front end that is its own input."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # the lowest number that is free


def bind(host: str, port: int) -> Listener:
    """A bound socket, not yet listening. Raises `OSError`."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = Listener(family, kind, protocol)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
        except OSError:
            listener.close()
            raise
    except OSError as error:
        raise OSError(f"cannot listen on {host}:{port}: {error.strerror or error}; choose another --port") from None
    return listener
