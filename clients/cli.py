"""A conversation in the terminal, over injected input and output, so that tests can hold one."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any

from .calls import Message
from .client import Client
from .errors import CONTROLS, ClientError, ConnectionFailed

HELP = "/reset starts anew, /quit or Ctrl-D leaves, Ctrl-C stops an answer."
SHOWN = {code: space for code, space in CONTROLS.items() if chr(code) not in "\n\t"}


def _write(text: str) -> None:
    sys.stdout.write(text.translate(SHOWN))
    sys.stdout.flush()


class Chat:
    """`read` takes a prompt and returns a line, or raises EOFError; `write` shows text at once."""

    def __init__(
        self,
        client: Client,
        model: str,
        *,
        system: str | None = None,
        options: Mapping[str, Any] | None = None,
        read: Callable[[str], str] = input,
        write: Callable[[str], object] = _write,
    ) -> None:
        self._client = client
        self._model = model
        self._opening: list[Message] = [{"role": "system", "content": system}] if system else []
        self._options = options or {}
        self._read = read
        self._write = write
        self._history = list(self._opening)

    def run(self) -> int:
        """Until the user leaves. Raises `ConnectionFailed` if the server is gone."""
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
            match line:
                case "":
                    continue
                case "/quit":
                    return 0
                case "/reset":
                    self._history = list(self._opening)
                    self._write("A new conversation.\n")
                case _ if line.startswith("/"):
                    self._write(f"{HELP}\n")
                case _:
                    self._answer(line)

    def _answer(self, question: str) -> None:
        """One turn. It enters the history with what was answered; a question that failed does not."""
        asked: list[Message] = [*self._history, {"role": "user", "content": question}]
        said: list[str] = []
        try:
            with self._client.stream_chat(asked, model=self._model, extra=self._options) as stream:
                for delta in stream:
                    said.append(delta.text)
                    self._write(delta.text)
            self._write("\n")
        except KeyboardInterrupt:
            self._write("\n(stopped)\n")
        except ConnectionFailed:
            raise
        except ClientError as error:
            self._write(f"\n({error})\n")
            return
        if said:
            self._history = [*asked, {"role": "assistant", "content": "".join(said)}]
