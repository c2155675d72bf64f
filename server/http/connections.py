"""TCP connections: how many may be open, and how long a client may take to send its headers and to read its answers.

uvicorn bounds neither. Its `limit_concurrency` refuses requests, so sockets that send nothing are not counted.
"""

from __future__ import annotations

import asyncio
import errno
import json
import logging
import resource
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Any, cast

import h11
import uvicorn
from starlette.types import ASGIApp
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from ..errors import TooManyConnections
from ..settings import Settings
from .keys import client_of
from .sse import PROBE

MOST_DESCRIPTORS = 2**20  # more than Linux gives a process, where the hard limit is "unlimited"
DEFAULT_CONNECTIONS = 4096
RESERVED_DESCRIPTORS = 32  # at least, for files and for connections that are being refused
BACKLOG = (128, 2048)  # with fewer, clients have to try again after seconds
FLUSH_S = 5  # at the end, for the last bytes of answers that are done
GONE_CHECK_S = 0.1

NO_DESCRIPTORS = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})


def raise_descriptor_limit() -> int:
    """Raise the soft limit of open descriptors to the hard one. Returns the limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST_DESCRIPTORS if hard == resource.RLIM_INFINITY else hard
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with suppress(ValueError, OSError):  # a system may have a lower limit of its own
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
            soft = wanted
    return MOST_DESCRIPTORS if soft == resource.RLIM_INFINITY else soft


def connection_limit(requested: int | None, descriptors: int) -> int:
    """The most connections that may be open. Raises `ValueError` if `descriptors` do not suffice for those
    `requested`."""
    room = max(1, descriptors - max(RESERVED_DESCRIPTORS, descriptors // 4))
    if requested is not None and requested > room:
        raise ValueError(
            f"--max-connections must be at most {room}, not {requested}: the system allows {descriptors} open"
            " descriptors (ulimit -n)"
        )
    return requested or min(room, DEFAULT_CONNECTIONS)


class ConnectionConfig(uvicorn.Config):
    """uvicorn's configuration, with the limits of `Connection`."""

    def __init__(self, app: ASGIApp, settings: Settings, max_connections: int, descriptors: int = 2**16) -> None:
        # h11, asyncio and no websockets, whatever else is installed: `Connection` is about these.
        super().__init__(
            app,
            http=Connection,
            ws="none",
            loop="asyncio",
            lifespan="on",
            log_config=None,
            log_level=settings.log_level,
            access_log=False,
            # So many are accepted at once before the first can be refused, in up to four turns of the event loop.
            backlog=max(BACKLOG[0], min(BACKLOG[1], (descriptors - max_connections) // 4)),
            timeout_keep_alive=settings.keep_alive_s,
            timeout_graceful_shutdown=FLUSH_S,
            forwarded_allow_ips=settings.trusted_proxies,  # None: FORWARDED_ALLOW_IPS
        )
        self.max_connections = max_connections
        self.most_of_address = max(1, max_connections // 2)
        self.proxies = ProxyHeadersMiddleware(cast(Any, app), self.forwarded_allow_ips).trusted_hosts
        self.header_timeout_s = settings.header_timeout_s
        self.write_timeout_s = settings.write_timeout_s


class Listener(socket.socket):
    """Accepts for asyncio, which tries as often as its backlog in a turn of the loop. Without descriptors all of these
    would fail, and each would start a timer, after which asyncio does the same again."""

    _failed = False

    def accept(self) -> tuple[socket.socket, Any]:
        if self._failed:
            self._failed = False
            raise BlockingIOError  # for asyncio: none is waiting
        try:
            return super().accept()
        except OSError as error:
            self._failed = error.errno in NO_DESCRIPTORS
            raise


class Timer:
    """A call that is due so many seconds after `start`, unless `stop` comes first."""

    def __init__(self, loop: asyncio.AbstractEventLoop, seconds: float, call: Callable[[], None]) -> None:
        self._loop, self._seconds, self._call = loop, seconds, call
        self._handle: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Does nothing if it runs."""
        if self._handle is None:
            self._handle = self._loop.call_later(self._seconds, self._due)

    def stop(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _due(self) -> None:
        self._handle = None
        self._call()


class Connection(H11Protocol):
    """A connection that ends when its client is too slow to send the headers of a request, or to read what was sent."""

    config: ConnectionConfig

    def __init__(
        self,
        config: ConnectionConfig,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._headers_due = Timer(self.loop, config.header_timeout_s, self.timeout_keep_alive_handler)
        self._reading_due = Timer(self.loop, config.write_timeout_s, self._check_reader)
        self._unread_bytes = 0
        self._address = ""

    @property
    def _answering(self) -> bool:
        return not getattr(self.cycle, "response_complete", True)  # there is no cycle before the first request

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        # `pause_writing` comes with the first byte that the system does not take, so no unread byte goes unnoticed.
        transport.set_write_buffer_limits(high=0)
        self._address = client_of({"client": self.client})
        if len(self.connections) > self.config.max_connections:
            self._refuse(f"{self.config.max_connections} connections")
        elif self._has_too_many():
            self._refuse(f"{self.config.most_of_address} connections of {self._address}")
        else:
            self._headers_due.start()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._answering:
            self._headers_due.stop()
        else:
            self._headers_due.start()

    def eof_received(self) -> bool:  # type: ignore[override] # uvicorn's always closes
        """Return whether the connection stays open. A client that has closed its half may still read the answer; one
        that has left looks the same until something is sent to it: its system then resets the connection."""
        # A client of HTTP/1.0 may not be sent a 100, and proxies that speak it close a connection to abort.
        readable = self._answering and self.conn.their_state is h11.DONE and self.cycle.scope["http_version"] == "1.1"
        if not readable:
            return False
        self.cycle.keep_alive = False
        self._probe()
        self._check_gone()
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._headers_due.stop()
        self._reading_due.stop()
        self._unset_keepalive_if_required()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._unread_bytes = self.transport.get_write_buffer_size()
        self._reading_due.start()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._reading_due.stop()

    def _check_reader(self) -> None:
        unread_bytes = self.transport.get_write_buffer_size()
        if unread_bytes < self._unread_bytes:
            self._unread_bytes = unread_bytes
            self._reading_due.start()
        else:
            logging.getLogger(__name__).warning(
                "a connection was closed: its client read nothing for %g s", self.config.write_timeout_s
            )
            self.transport.abort()

    def _has_too_many(self) -> bool:
        """Return whether this is one more than an address may have. A proxy has those of many clients."""
        most = self.config.most_of_address
        if len(self.connections) <= most or self.client is None or self.client[0] in self.config.proxies:
            return False
        return sum(one._address == self._address for one in self.connections if isinstance(one, Connection)) > most

    def _refuse(self, open_now: str) -> None:
        """Answer before anything was read: a client that sends nothing must not keep its descriptor."""
        logging.getLogger(__name__).warning(
            "a connection was refused with HTTP 503: %s are open, and no more may be", open_now
        )
        error = TooManyConnections(open_now)
        body = json.dumps(error.body()).encode("ascii")
        headers = {"content-type": "application/json", "content-length": len(body), "connection": "close"}
        lines = [f"{name}: {value}\r\n" for name, value in {**headers, **(error.headers or {})}.items()]
        self.transport.write(f"HTTP/1.1 503 Service Unavailable\r\n{''.join(lines)}\r\n".encode("ascii") + body)
        self.transport.close()

    def _probe(self) -> None:
        """Send something that changes no answer."""
        if not self.cycle.response_started:
            self.cycle.waiting_for_100_continue = False
            self.transport.write(
                self.conn.send(h11.InformationalResponse(status_code=100, headers=[], reason="Continue")) or b""
            )
        elif PROBE in self.cycle.scope["state"]:
            self.transport.write(self.conn.send(h11.Data(data=self.cycle.scope["state"][PROBE])) or b"")

    def _check_gone(self) -> None:
        if self.transport.is_closing():
            return
        if self.transport.get_extra_info("socket").getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            self.transport.abort()
        else:
            self.loop.call_later(GONE_CHECK_S, self._check_gone)


def log_accept_errors(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """An exception handler of event loops: a connection that cannot be accepted is one line, without a traceback."""
    error = context.get("exception")
    if isinstance(error, OSError) and error.errno in NO_DESCRIPTORS and "accept" in context["message"]:
        logging.getLogger(__name__).error("no connection can be accepted: %s", error.strerror)
    else:
        loop.default_exception_handler(context)
