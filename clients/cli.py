"""`asynclane chat`: a conversation in the terminal. Tests inject its input and output."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from .client import Client
from .errors import CONTROLS, ClientError, ConnectionFailed
from .types import LaneEvent, Message

HELP = "/reset starts a new conversation, /exit or Ctrl-D leaves, Ctrl-C stops an answer."
LEAVE = ("/exit", "/quit", "/bye")
SHOWN = {code: space for code, space in CONTROLS.items() if chr(code) not in "\n\t"}


def _write(text: str) -> None:
    sys.stdout.write(text.translate(SHOWN))
    sys.stdout.flush()


class LaneView(Protocol):
    """Shows an answer's lanes while it is written, then its text."""

    def show(self, event: LaneEvent) -> None: ...

    def finish(self, text: str) -> None: ...


class Chat:
    """`read` shows a prompt and returns a line, or raises EOFError; `write` shows text at once. `view` makes what shows
    an answer's lanes."""

    def __init__(
        self,
        client: Client,
        model: str,
        *,
        system: str | None = None,
        options: Mapping[str, Any] | None = None,
        read: Callable[[str], str] = input,
        write: Callable[[str], object] = _write,
        view: Callable[[], LaneView] | None = None,
    ) -> None:
        self._client, self._model, self._options = client, model, options or {}
        self._read, self._write, self._view = read, write, view
        self._opening: list[Message] = [{"role": "system", "content": system}] if system else []
        self._history = list(self._opening)

    def run(self) -> int:
        """Run until the user leaves. Raises `ConnectionFailed` if the server is gone."""
        self._write(f"{self._model}. {HELP}\n")
        while True:
            try:
                line = self._read("> ").strip()
            except EOFError:
                self._write("\n")
                return 0
            except KeyboardInterrupt:  # there is no answer to stop
                self._write("\n")
                continue
            if line in LEAVE:
                return 0
            if line == "/reset":
                self._history = list(self._opening)
                self._write("A new conversation.\n")
            elif line.startswith("/"):
                self._write(f"{HELP}\n")
            elif line:
                self._answer(line)

    def _answer(self, question: str) -> None:
        """Answer one question, and add both to the history. A question that failed is not added."""
        messages: list[Message] = [*self._history, {"role": "user", "content": question}]
        texts: list[str] = []
        view = None if self._view is None else self._view()
        lanes = view is not None
        try:
            with self._client.stream_chat(messages, model=self._model, lanes=lanes, extra=self._options) as stream:
                for delta in stream:
                    texts.append(delta.text)
                    if view is None:
                        self._write(delta.text)
                    elif delta.lanes is not None:
                        view.show(delta.lanes)
            if view is None:
                self._write("\n")
            else:
                view.finish("".join(texts))
        except KeyboardInterrupt:
            self._write("\n(stopped)\n")
        except ConnectionFailed:
            raise
        except ClientError as error:
            self._write(f"\n({error})\n")
            return
        if texts:
            self._history = [*messages, {"role": "assistant", "content": "".join(texts)}]
