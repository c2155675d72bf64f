"""The plan of `asynclane bench`: loads, bounds and requests, made from its flags before anything is sent."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...server.cli.params import parse_params
from .problems import TASKS, problems

DRAWN = 256  # problems; a longer run repeats them
FEWEST, ROUNDS = 32, 4  # requests of a level without a number or a time


@dataclass(frozen=True, slots=True)
class Level:
    """A load: `concurrency` requests at once (closed loop), or `rate` arrivals a second (open loop)."""

    concurrency: int | None = None
    rate: float | None = None

    def __str__(self) -> str:
        return f"{self.concurrency} at once" if self.rate is None else f"{self.rate:g} per s"


@dataclass(frozen=True, slots=True)
class Target:
    """A server, and the way to send requests to it."""

    url: str
    api_key: str | None
    model: str | None
    chat: bool
    timeout_s: float


@dataclass(frozen=True, slots=True)
class Bounds:
    """The end of a level: after so many requests, or when no more may start, whichever is first."""

    requests: int | None
    duration_s: float | None

    def requests_at(self, level: Level) -> int | None:
        if self.requests is None and self.duration_s is None:
            return max(FEWEST, ROUNDS * (level.concurrency or 0))
        return self.requests


@dataclass(frozen=True, slots=True)
class Plan:
    """`bodies` are requests without their model, sent in order and again from the first. They have the `options`,
    except where a line of a file has its own."""

    target: Target
    levels: tuple[Level, ...]
    bounds: Bounds
    bodies: tuple[Mapping[str, Any], ...]
    options: Mapping[str, Any]
    stagger_s: float
    warmup: int
    deadline_s: float
    seed: int
    source: str


def read_plan(flags: argparse.Namespace, api_key: str | None) -> Plan:
    """Raises `ValueError` and `OSError` with one line about the fault."""
    options: dict[str, Any] = {"max_tokens": flags.max_tokens, "temperature": flags.temperature}
    if flags.decoder is not None:
        options["decoder"] = flags.decoder
    options |= parse_params(flags.params)
    chat = not flags.completions
    file = flags.prompts or flags.dataset
    if file is None:
        tasks = flags.tasks.split(",") if flags.tasks is not None else TASKS
        requests = [{"prompt": problem.prompt} for problem in problems(flags.seed, DRAWN, tasks)]
        source = f"problems of seed {flags.seed}: {', '.join(tasks)}"
    elif flags.tasks is not None:
        raise ValueError("--tasks selects built-in problems: it cannot be combined with a file")
    else:
        try:
            requests = read_prompts(file) if flags.dataset is None else read_conversations(file)
        except OSError as error:
            raise OSError(f"{file} cannot be read: {error.strerror or error}") from None
        source = file.name
    rates, concurrencies = flags.rate or (), flags.concurrency or (() if flags.rate else (1, 4, 16))
    if rates and flags.stagger:
        raise ValueError("--stagger is for --concurrency: with --rate, arrivals are spread already")
    return Plan(
        target=Target(flags.url, flags.api_key or api_key, flags.model, chat, flags.timeout),
        levels=(*(Level(concurrency=n) for n in concurrencies), *(Level(rate=rate) for rate in rates)),
        bounds=Bounds(flags.requests, flags.duration),
        bodies=tuple(_body(chat, options, fields) for fields in requests),
        options=options,
        stagger_s=flags.stagger,
        warmup=flags.warmup,
        deadline_s=flags.deadline,
        seed=flags.seed,
        source=source,
    )


def read_prompts(path: Path) -> list[dict[str, Any]]:
    """Read lines: text, or a JSON object with `prompt` or `messages` and the parameters of the request."""
    try:
        lines = [line.strip() for line in path.read_text(encoding="utf-8").split("\n")]
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8: {error}") from None
    found = [_read_line(line, f"{path}, line {number}") for number, line in enumerate(lines, 1) if line]
    if not found:
        raise ValueError(f"{path} has no prompts")
    return found


def read_conversations(path: Path) -> list[dict[str, Any]]:
    """Read conversations in ShareGPT's form: an array of `{"conversations": [{"from": "human", "value": TEXT}, ...]}`.
    A request is the first turn of a human, after a `system` turn if there is one; others are skipped."""
    try:
        entries = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:  # of Unicode, too
        raise ValueError(f"{path} is no JSON: {error}") from None
    if not isinstance(entries, list):
        raise ValueError(f"{path} must be an array of conversations, not {type(entries).__name__}")
    found = []
    for number, entry in enumerate(entries, 1):
        turns = entry.get("conversations") if isinstance(entry, dict) else None
        if not isinstance(turns, list):
            raise ValueError(f"{path}, entry {number}: needs 'conversations', a list of turns with 'from' and 'value'")
        if messages := _opening(turns):
            found.append({"messages": messages})
    if not found:
        raise ValueError(f"{path} has no conversation that a human begins")
    return found


def _opening(turns: list[Any]) -> list[dict[str, str]]:
    """The messages up to the first of a human, which may follow one of the system. Empty if others begin."""
    messages: list[dict[str, str]] = []
    for turn in turns[:2]:
        who, text = (turn.get("from"), turn.get("value")) if isinstance(turn, dict) else (None, None)
        if not isinstance(text, str) or not text.strip():
            return []
        if who in ("human", "user"):
            return [*messages, {"role": "user", "content": text}]
        if who != "system":
            return []
        messages.append({"role": "system", "content": text})
    return []


def _read_line(line: str, place: str) -> dict[str, Any]:
    if not line.startswith("{"):
        return {"prompt": line}
    try:
        fields: dict[str, Any] = json.loads(line)
        json.dumps(fields, allow_nan=False, ensure_ascii=False).encode()  # as it will be sent
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{place}: not JSON: {error}") from None
    if ("prompt" in fields) == ("messages" in fields):
        raise ValueError(f"{place}: needs either 'prompt' or 'messages'")
    if not isinstance(fields.get("messages", []), list):  # the server checks its content
        raise ValueError(f"{place}: 'messages' must be a list")
    return fields


def _body(chat: bool, options: Mapping[str, Any], fields: Mapping[str, Any]) -> dict[str, Any]:
    if chat and "prompt" in fields:
        rest = {name: value for name, value in fields.items() if name != "prompt"}
        fields = {"messages": [{"role": "user", "content": fields["prompt"]}], **rest}
    elif not chat and "messages" in fields:
        raise ValueError("--completions takes prompts, and the file has messages")
    return {**options, **fields}
