"""A Dockerfile, read as stages of instructions: as much of the language as ours uses."""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import dataclass, field
from pathlib import Path

FLAG = re.compile(r"--[a-z-]+=\S+\s+")


@dataclass(frozen=True, slots=True)
class Stage:
    """The lines from one FROM to the next; `base` is an image or another stage."""

    name: str
    base: str
    instructions: list[tuple[str, str]] = field(default_factory=list)

    def all(self, kind: str) -> list[str]:
        return [value for one, value in self.instructions if one == kind]


def read(path: Path) -> dict[str, Stage]:
    """The stages by name, in order. Arguments before the first stage stay in the text."""
    text = "\n".join(line for line in path.read_text().splitlines() if not line.lstrip().startswith("#"))
    stages: dict[str, Stage] = {}
    current: Stage | None = None
    for line in text.replace("\\\n", "").splitlines():
        kind, _, value = line.strip().partition(" ")
        if kind == "FROM":
            base, _, name = value.partition(" AS ")
            current = stages[name] = Stage(name, base)
        elif kind and current is not None:
            current.instructions.append((kind, " ".join(value.split()) if kind != "HEALTHCHECK" else value))
    return stages


def lineage(stages: dict[str, Stage], name: str) -> list[Stage]:
    """The stages that a target consists of, the first one first."""
    found = [stages[name]]
    while found[0].base in stages:
        found.insert(0, stages[found[0].base])
    return found


def last(stages: list[Stage], kind: str) -> str:
    return [value for stage in stages for value in stage.all(kind)][-1]


def variables(stages: list[Stage]) -> dict[str, str]:
    """The variables that ENV sets; $NAME stays in them."""
    pairs = [word for stage in stages for value in stage.all("ENV") for word in shlex.split(value)]
    return dict(pair.split("=", 1) for pair in pairs)


def labels(stages: list[Stage]) -> dict[str, str]:
    pairs = [word for stage in stages for value in stage.all("LABEL") for word in shlex.split(value)]
    return dict(pair.split("=", 1) for pair in pairs)


def shell(run: str) -> str:
    """The command of a RUN, without the flags of BuildKit."""
    while FLAG.match(run):
        run = FLAG.sub("", run, count=1)
    return run


def exec_form(value: str) -> list[str]:
    """The words of ENTRYPOINT, CMD or HEALTHCHECK."""
    words: list[str] = json.loads(value[value.index("[") :])
    return words
