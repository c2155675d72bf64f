"""Drives the Firefox that is on this machine by WebDriver BiDi, which it speaks itself: no driver is downloaded."""

from __future__ import annotations

import itertools
import json
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from websockets.sync.client import ClientConnection, connect

from ..support.processes import end, environment, start

NAMES = ("firefox-esr", "firefox", "/Applications/Firefox.app/Contents/MacOS/firefox")
START_S = 60


def find_firefox() -> str | None:
    return next(filter(None, map(shutil.which, NAMES)), None)


class Firefox:
    """One window. `complaints` are the errors and warnings that pages wrote to the console."""

    def __init__(self, socket: ClientConnection) -> None:
        self._socket = socket
        self._numbers = itertools.count()
        self.complaints: list[str] = []
        self.send("session.new", capabilities={})
        self.send("session.subscribe", events=["log.entryAdded"])
        self._window = self.send("browsingContext.getTree")["contexts"][0]["context"]

    def send(self, method: str, **params: Any) -> Any:
        """The result of a command."""
        number = next(self._numbers)
        self._socket.send(json.dumps({"id": number, "method": method, "params": params}))
        while True:
            message = json.loads(self._socket.recv(timeout=START_S))
            if message.get("method") == "log.entryAdded" and message["params"]["level"] in ("error", "warn"):
                self.complaints.append(message["params"]["text"])
            if message.get("id") == number:
                assert message["type"] == "success", message
                return message["result"]

    def go(self, url: str) -> None:
        self.send("browsingContext.navigate", context=self._window, url=url, wait="complete")

    def run(self, expression: str) -> Any:
        """The value of an expression in the page, a number, a text, true or false, once its promise is kept."""
        target = {"context": self._window}
        got = self.send("script.evaluate", expression=expression, target=target, awaitPromise=True)
        assert got["type"] == "success", got
        return got["result"].get("value")

    def wait(self, condition: str) -> None:
        """Return once a condition of the page is true."""
        deadline = time.monotonic() + START_S
        while not self.run(f"Boolean({condition})"):
            assert time.monotonic() < deadline, condition
            time.sleep(0.05)

    def type(self, text: str) -> None:
        """The keys of a text, for what has the focus."""
        keys = [{"type": kind, "value": letter} for letter in text for kind in ("keyDown", "keyUp")]
        self.send(
            "input.performActions", context=self._window, actions=[{"type": "key", "id": "keys", "actions": keys}]
        )


@contextmanager
def open_firefox(program: str, profile: Path) -> Iterator[Firefox]:
    """Headless, with an empty profile of its own."""
    command = [program, "--headless", "--no-remote", "--profile", str(profile), "--remote-debugging-port", "0"]
    home = environment(HOME=str(profile), MOZ_DISABLE_CONTENT_SANDBOX="1")
    process = start(command, env=home, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL)
    try:
        assert process.stderr is not None
        found = next(filter(None, (re.search(r"BiDi listening on (ws://\S+)", line) for line in process.stderr)))
        with connect(f"{found[1]}/session", max_size=None, open_timeout=START_S, proxy=None) as socket:
            yield Firefox(socket)
    finally:
        end(process)
