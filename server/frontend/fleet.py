"""The front ends of an engine: started, replaced when they die, and ended with it."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import socket
import subprocess
import sys
import time
from collections import defaultdict, deque
from collections.abc import Sequence
from contextlib import suppress
from functools import partial

from msgspec import structs

from ..engine.engine import Engine
from ..engine.messages import FromEngine, Reload, Stop, ToEngine
from ..engine.port import Port
from ..http.connections import FLUSH_S
from ..http.keys import Key
from ..link import Link, send_frame
from ..metrics import Metrics
from .process import CODE, Setup

START_S = 60.0
MOST_DEATHS, WITHIN_S = 5, 60.0  # of one front end, after which it is replaced, in so many seconds
END_S = 1.0  # from the end of a connection to that of its process
PAUSE_S = 0.1  # before it is replaced first; it doubles
MODULE = "asynclane.server.frontend.process"


@dataclasses.dataclass(eq=False)
class Child:
    """A front-end process."""

    name: str
    process: subprocess.Popen[bytes]
    end: socket.socket
    serving: asyncio.Future[None]
    link: Link[FromEngine, ToEngine] | None = None
    port: Port | None = None


class Fleet:
    """Lives on the event loop of its engine."""

    def __init__(self, engine: Engine, metrics: Metrics, listener: socket.socket, setup: Setup) -> None:
        self._engine = engine
        self._metrics = metrics
        self._listener = listener
        self._setup = setup
        self._children: set[Child] = set()
        self._deaths: defaultdict[str, deque[float]] = defaultdict(partial(deque, maxlen=MOST_DEATHS))
        self._tasks: set[asyncio.Task[None]] = set()
        self._started = self._stopping = False

    async def start(self, count: int) -> None:
        """Start front ends, and wait until they accept connections. Raises `ValueError` if one does not."""
        try:
            children = [await self._spawn(f"frontend-{number + 1}") for number in range(count)]
        except OSError as error:
            self.kill()
            raise ValueError(f"a front end did not start: {error}") from None
        servings = [child.serving for child in children]
        _, late = await asyncio.wait(servings, timeout=START_S, return_when=asyncio.FIRST_EXCEPTION)
        lost = [child for child in children if child not in self._children]
        if lost or late:
            how = f"{lost[0].name} {await _end(lost[0])}" if lost else f"not in {START_S:g} s"
            self.kill()
            raise ValueError(f"a front end did not start: {how}")
        self._started = True

    async def stop(self) -> None:
        """Let the front ends finish the responses that have begun, and end."""
        self._stopping = True
        self._listener.close()
        children = list(self._children)  # one that is not heard any more has left the set, and may hang
        self._post(Stop())
        await self.wait(FLUSH_S + 2.0)
        _kill(children)

    async def wait(self, timeout_s: float) -> None:
        """Wait until all front ends have ended."""
        self._stopping = True
        children = list(self._children)
        ends = [asyncio.to_thread(_wait, child.process, timeout_s) for child in children]
        await asyncio.gather(*ends)

    def reload(self, keys: Sequence[Key]) -> None:
        """Let the front ends read their API keys again. Those that start later begin with these `keys`."""
        self._setup = structs.replace(self._setup, keys=keys)
        self._post(Reload())

    def cut(self) -> None:
        """End all connections, from any thread: the front ends learn that the engine's process hangs."""
        for child in list(self._children):
            with suppress(OSError):
                child.end.shutdown(socket.SHUT_RDWR)

    def kill(self) -> None:
        self._stopping = True
        _kill(list(self._children))

    def _post(self, message: FromEngine) -> None:
        for child in self._children:
            if child.port is not None:
                child.port.post(message)
                child.port.flush()

    def _start(self, name: str) -> Child:
        """Raises `OSError`: there may be no process, descriptor or memory left."""
        ours, theirs = socket.socketpair()
        passed = theirs.fileno(), self._listener.fileno()
        command = [sys.executable, "-I", "-c", CODE.format(MODULE), name, *map(str, passed), *sys.path]
        try:
            with theirs:
                process = subprocess.Popen(command, pass_fds=passed, stdin=subprocess.DEVNULL)
            try:
                send_frame(ours, self._setup)
            except OSError:  # it has been killed already
                process.kill()
                process.wait()
                raise
        except OSError:
            ours.close()
            raise
        child = Child(name, process, ours, asyncio.get_running_loop().create_future())
        self._children.add(child)
        return child

    async def _spawn(self, name: str) -> Child:
        child = self._start(name)
        child.link = Link(ToEngine, lambda messages: self._take(child, messages), partial(self._lose, child))
        await child.link.open(child.end)
        child.port = self._engine.connect(child.link.send)
        child.port.serving = partial(self._serve, child)
        return child

    def _take(self, child: Child, messages: list[ToEngine]) -> None:
        if child.port is not None:
            child.port.take(messages)

    def _serve(self, child: Child) -> None:
        """A front end accepts connections."""
        if not child.serving.done():
            child.serving.set_result(None)
        self._observe()

    def _observe(self) -> None:
        self._metrics.observe_frontends(
            {
                child.name: child.process.pid
                for child in self._children
                if child.serving.done() and not child.serving.exception()
            }
        )

    def _lose(self, child: Child) -> None:
        """A front end has ended, or will not be heard again."""
        self._children.discard(child)
        if child.port is not None:
            self._engine.disconnect(child.port)
        if not child.serving.done():
            child.serving.set_exception(ChildProcessError(child.name))
            child.serving.exception()  # nobody may be left to see it
        self._observe()
        if self._started and not self._stopping and not self._engine.death.done():
            task = asyncio.get_running_loop().create_task(self._replace(child))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _replace(self, child: Child) -> None:
        how = await _end(child)
        while await self._may_replace(child.name, how):
            try:
                await self._spawn(child.name)
            except OSError as error:
                how = f"does not start ({error})"
            else:
                return

    async def _may_replace(self, name: str, how: str) -> bool:
        """Log how a front end has ended. Return, after a pause, whether there is to be another one."""
        now, deaths = time.monotonic(), self._deaths[name]
        recent = [at for at in deaths if at > now - WITHIN_S]
        deaths.append(now)
        if len(recent) == MOST_DEATHS:
            logging.getLogger(__name__).error("%s %s", name, how)
            self._engine.fail(f"{name} has ended {MOST_DEATHS + 1} times within {WITHIN_S:g} s")
            return False
        logging.getLogger(__name__).error("%s %s, and is replaced", name, how)
        await asyncio.sleep(PAUSE_S * 2 ** len(recent))
        return not self._stopping and not self._engine.death.done()


async def _end(child: Child) -> str:
    """How a front end has ended that is not heard any more. One that hangs is killed."""
    await asyncio.to_thread(_wait, child.process, END_S)
    child.process.kill()
    code = await asyncio.to_thread(child.process.wait)
    return f"has ended (signal {-code})" if code < 0 else f"has ended (exit code {code})"


def _kill(children: Sequence[Child]) -> None:
    for child in children:
        child.process.kill()
        child.process.wait()


def _wait(process: subprocess.Popen[bytes], timeout_s: float) -> None:
    with suppress(subprocess.TimeoutExpired):
        process.wait(timeout_s)
