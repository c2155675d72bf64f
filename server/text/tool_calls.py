"""The forms in which models write calls of tools, one row of a table each, and readers of such text.

A chat template shows by its text which form its model knows. A reader gets text that grows, and what it finds does not
depend on the pieces in which the text comes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from .arguments import JSON, read_arguments

SPACE = re.compile(r"[ \t\r\n]*")
OUTSIDE = re.compile(r"[\s0-9a-zA-Z+\-.,:]*")  # of strings and brackets
INSIDE = re.compile(r'[^"\\\x00-\x1f]*(?:\\["\\/bfnrtu][^"\\\x00-\x1f]*)*')  # a string, up to its end
NAME = r'[ \t\r\n]*"name"[ \t\r\n]*:[ \t\r\n]*"([^"\\]*)"[ \t\r\n]*,[ \t\r\n]*'
GEMMA_STRING = '<|"|>'
GEMMA_CALL = re.compile(r"\s*call:([\w.:-]+)(?=\{)")
GEMMA_KEY = re.compile(r'\s*(?:"([^"\\]*)"|([^\s{}\[\],:"]+))\s*:')
GEMMA_PLAIN = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?(?![\w.+-])|(?:true|false|null)(?!\w)")


@dataclass(frozen=True, slots=True)
class ToolFormat:
    """A form of calls. `open` and `close` stand around each, with a `gap` inside of both; without them, an answer that
    begins with a call is one. `arguments` is the name of the arguments in its JSON, `between` stands between two calls.
    A chat template with one of the `signs` shows this form. A form of `gemma`'s own syntax is not JSON."""

    name: str
    signs: tuple[str, ...]
    open: str = ""
    close: str = ""
    gap: str = ""
    arguments: str = "arguments"
    between: str = "\n"
    gemma: bool = False

    @property
    def markers(self) -> tuple[str, ...]:
        """Texts that may be tokens of their own."""
        return tuple(filter(None, (self.open, self.close, GEMMA_STRING if self.gemma else "")))


# Sources: the chat templates of Qwen2.5 and Qwen3, of Llama 3.1, and of Gemma 4. The order is that of their detection.
TOOL_FORMATS: Mapping[str, ToolFormat] = {
    row.name: row
    for row in (
        ToolFormat("gemma", ("<|tool_call>",), "<|tool_call>", "<tool_call|>", between="", gemma=True),
        ToolFormat("hermes", ("<tool_call>",), "<tool_call>", "</tool_call>", gap="\n"),
        ToolFormat("json", ('"parameters": ',), arguments="parameters", between="; "),
    )
}


def format_in(template: str) -> ToolFormat | None:
    """The form of calls that a chat template shows."""
    return next((row for row in TOOL_FORMATS.values() if any(sign in template for sign in row.signs)), None)


class JsonScanner:
    """Finds the end of a JSON object in a text that grows. It begins at `at`, which then is the place reached."""

    def __init__(self, at: int) -> None:
        self.at = at
        self.over = False
        self._depth = 0
        self._in_string = False

    def scan(self, text: str) -> bool | None:
        """True at the end of the object, False for what is no JSON, None if more text is needed."""
        while not self.over and self.at < len(text):
            pattern = INSIDE if self._in_string else OUTSIDE
            found = pattern.match(text, self.at)
            assert found is not None  # it matches nothing, too
            self.at = found.end()
            if self.at == len(text):
                return None
            letter = text[self.at]
            if self._in_string:
                if letter == "\\" and self.at + 1 == len(text):
                    return None
                if letter != '"':
                    return False
                self._in_string = False
            elif letter == '"':
                self._in_string = True
            elif letter in "{[":
                self._depth += 1
            elif letter in "}]":
                self._depth -= 1
            else:
                return False
            self.at += 1
            self.over = not self._depth
        return True if self.over else None


class CallReader:
    """Reads one call from a text that begins with it and grows.

    `name` and `arguments` are set once the whole call is known to be one; with `early`, as soon as they come, for text
    that a grammar has written. `end` is the place after it.
    """

    def __init__(self, form: ToolFormat, names: Collection[str], early: bool) -> None:
        self.name = ""
        self.arguments = ""
        self.end = 0
        self._form = form
        self._names = names
        self._early = early and not form.gemma
        self._whole: JsonScanner | None = None
        self._inner: JsonScanner | None = None  # of the arguments, which come early
        self._began = 0  # the place of the object, and then of the arguments

    @property
    def complete(self) -> bool:
        """True if the arguments are, as far as they have come."""
        return bool(self.name) and _is_object(self.arguments)

    def read(self, text: str, ended: bool) -> bool | None:
        """True for a whole call, False for what is none, None if more text is needed."""
        found = self._read_gemma(text, ended) if self._form.gemma else self._read_json(text, ended)
        return found if found is not None or not ended else False

    def _read_json(self, text: str, ended: bool) -> bool | None:
        if self._whole is None:
            at = _after_space(text, len(self._form.open))
            if at == len(text):
                return None
            if text[at] != "{":
                return False
            self._whole, self._began = JsonScanner(at), at
        found = self._whole.scan(text)
        if self._early:
            self._take_early(text)
        self.end = len(text) if ended else self._whole.at
        if not found:
            return found
        at = _after_space(text, self._whole.at)
        close = self._form.close
        if text.startswith(close, at):
            self.end = at + len(close) if close else self._whole.at
        elif not close.startswith(text[at:]):
            return False
        elif ended:  # the object is whole, and the answer ends within the marker after it
            self.end = len(text)
        else:
            return None
        if self.name:
            return True
        call = read_call(text[self._began : self._whole.at], self._names)
        if call is None:
            return False
        self.name, self.arguments = call
        return True

    def _take_early(self, text: str) -> None:
        if self._inner is None:
            header = re.compile(rf'\{{{NAME}"{self._form.arguments}"[ \t\r\n]*:[ \t\r\n]*(?=\{{)')
            found = header.match(text, self._began)
            if found is None or found[1] not in self._names:
                return
            self.name, self._began = found[1], found.end()
            self._inner = JsonScanner(self._began)
        self._inner.scan(text)
        self.arguments = text[self._began : self._inner.at]

    def _read_gemma(self, text: str, ended: bool) -> bool | None:
        start, close = len(self._form.open), self._form.close
        at = text.find(close, start)
        while at >= 0 and text.count(GEMMA_STRING, start, at) % 2:  # within a string
            at = text.find(close, at + len(close))
        if at < 0 and not ended:
            return None
        whole = text[start:] if at < 0 else text[start:at]  # an answer may end before the marker
        call = read_gemma_call(whole, self._names)
        if call is None:
            return False
        self.name, self.arguments = call
        self.end = len(text) if at < 0 else at + len(close)
        return True


def _after_space(text: str, at: int) -> int:
    found = SPACE.match(text, at)
    assert found is not None
    return found.end()


def _is_object(text: str) -> bool:
    try:
        read_arguments(text)
    except ValueError:
        return False
    return True


def read_call(text: str, names: Collection[str]) -> tuple[str, str] | None:
    """The name and the arguments, as they are written, of a call as a JSON object; None if it is none of a known
    tool."""
    try:
        members = _members(text)
        name = JSON.decode(members.get("name", "null"))
    except (ValueError, IndexError, RecursionError):
        return None
    arguments = members.get("arguments", members.get("parameters", ""))
    return (name, arguments) if isinstance(name, str) and name in names and _is_object(arguments) else None


def _members(text: str) -> dict[str, str]:
    """The members of a JSON object as they are written. Raises `ValueError` and `IndexError`."""
    found: dict[str, str] = {}
    at = _after_space(text, 1)
    while text[at] != "}":
        name, at = JSON.raw_decode(text, at)
        at = _after_space(text, at)
        if text[at] != ":" or not isinstance(name, str):
            raise ValueError("no member")
        start = _after_space(text, at + 1)
        _, at = JSON.raw_decode(text, start)
        found[name] = text[start:at]
        at = _after_space(text, at)
        if text[at] == ",":
            at = _after_space(text, at + 1)
        elif text[at] != "}":
            raise ValueError("no member")
    return found


def read_gemma_call(text: str, names: Collection[str]) -> tuple[str, str] | None:
    """The name and the arguments, as JSON, of `call:NAME{KEY:VALUE,...}`; None if it is none of a known tool. Strings
    stand between `<|"|>`, and may have any character."""
    found = GEMMA_CALL.match(text)
    if found is None or found[1] not in names:
        return None
    try:
        value, at = _gemma_value(text, found.end())
        arguments = json.dumps(value, ensure_ascii=False)
    except (ValueError, IndexError, RecursionError):
        return None
    return None if text[at:].strip() or not _is_object(arguments) else (found[1], arguments)


def _gemma_value(text: str, at: int) -> tuple[object, int]:
    at = _after_space(text, at)
    if text.startswith(GEMMA_STRING, at):
        start = at + len(GEMMA_STRING)
        end = text.index(GEMMA_STRING, start)
        return text[start:end], end + len(GEMMA_STRING)
    if text[at] in "{[":
        return _gemma_group(text, at)
    plain = GEMMA_PLAIN.match(text, at)
    if plain is None:
        raise ValueError("no value")
    return JSON.decode(plain[0]), plain.end()


def _gemma_group(text: str, at: int) -> tuple[object, int]:
    """An object or a list, which begins at `at`."""
    named, close = text[at] == "{", "}" if text[at] == "{" else "]"
    members: dict[str, object] = {}
    items: list[object] = []
    at = _after_space(text, at + 1)
    while text[at] != close:
        if named:
            key = GEMMA_KEY.match(text, at)
            if key is None:
                raise ValueError("no name")
            members[key[1] if key[2] is None else key[2]], at = _gemma_value(text, key.end())
        else:
            item, at = _gemma_value(text, at)
            items.append(item)
        at = _after_space(text, at)
        if text[at] == ",":
            at = _after_space(text, at + 1)
        elif text[at] != close:
            raise ValueError("no end")
    return (members if named else items), at + 1
