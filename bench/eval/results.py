"""The file of an evaluation: one line for the run, one for each answer, one for the summary; a later run continues it.

`{"run": {...}}` has everything that answers depend on. `{"answer": KEY, "decoder": ..., ...}` are complete answers, in
the order in which they came. `{"summary": [...]}` is written at the end, and again by a run that adds answers.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TextIO

Record = dict[str, Any]
SHOWN = 60  # characters of a value in an error
NUMBER, COUNT = (int, float), (int, type(None))
# The fields of an answer that figures are made of, and their types.
FIELDS: Mapping[str, tuple[type, ...]] = {
    **dict.fromkeys(("answer", "decoder", "prompt_sha256", "text", "finish"), (str,)),
    **dict.fromkeys(("tokens", "seconds"), NUMBER),
    **dict.fromkeys(("script_tokens", "forwards", "computed"), COUNT),
    "points": (dict,),
}


class Results:
    """A context manager. `answers` has the records by decoder and key, those of earlier runs included.

    Raises `ValueError` for a file of another run or of another kind, and `OSError` if it cannot be read or written.
    """

    def __init__(self, path: Path, run: Mapping[str, Any]) -> None:
        self.answers: dict[tuple[str, str], Record] = {}
        self._path = path
        self._run = json.loads(json.dumps(run))  # as it is read from a file
        self._file: TextIO | None = None

    def __enter__(self) -> Self:
        kept = self._read() if self._path.exists() else b""
        try:
            self._file = self._path.open("a", encoding="utf-8")
            self._file.truncate(len(kept))  # before a line that an interrupted run began
        except OSError as error:
            raise OSError(f"cannot write {self._path}: {error.strerror or error}") from None
        if not kept:
            self._write({"run": self._run})
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._file is not None:
            self._file.close()

    def add(self, record: Record) -> None:
        self.answers[record["decoder"], record["answer"]] = record
        self._write(record)

    def finish(self, summary: list[Record]) -> None:
        self._write({"summary": summary})

    def _write(self, line: Mapping[str, Any]) -> None:
        assert self._file is not None
        self._file.write(json.dumps(line, ensure_ascii=False) + "\n")
        self._file.flush()

    def _read(self) -> bytes:
        """Take the answers of an earlier run, and return its complete lines."""
        try:
            text = self._path.read_bytes()
        except OSError as error:
            raise OSError(f"{self._path} cannot be read: {error.strerror or error}") from None
        kept = text[: text.rfind(b"\n") + 1]
        for number, raw in enumerate(kept.splitlines(), 1):
            try:
                line = json.loads(raw)
                if number == 1:
                    self._same(line["run"])
                elif "answer" in line:
                    if not all(isinstance(line[name], kinds) for name, kinds in FIELDS.items()):
                        raise TypeError
                    self.answers[line["decoder"], line["answer"]] = line
            except (LookupError, TypeError, AttributeError, RecursionError, UnicodeDecodeError, json.JSONDecodeError):
                raise ValueError(
                    f"{self._path}, line {number} is no result of an evaluation: give another --out"
                ) from None
        if text and not kept:
            raise ValueError(f"{self._path} is no file of results: give another --out")
        return kept

    def _same(self, earlier: Mapping[str, Any]) -> None:
        for name in dict.fromkeys((*self._run, *earlier)):
            before, now = earlier.get(name), self._run.get(name)
            if before != now:
                raise ValueError(
                    f"{self._path} is of another run, whose {name} is {_shown(before)}, not {_shown(now)}: "
                    "give another --out"
                )


def _shown(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}..."
