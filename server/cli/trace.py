"""Answers one prompt and shows how: as a page of the answer's lane tree over its steps, or live in the terminal."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from importlib.resources import files
from pathlib import Path
from typing import Any, TextIO

from ..engine.messages import Delta
from ..engine.offline import (
    Offline,
    OfflineAnswer,
    Question,
    check,
    summary,
)
from ..settings import Settings
from ..text.lanes import LaneEvent
from .terminal import LiveView, Screen

MARKER = "{{trace}}"


@dataclass(frozen=True, slots=True)
class Views:
    """Where the answer is shown: a page at a path, a screen, or both."""

    page: Path | None
    screen: Screen | None = None


@dataclass(frozen=True, slots=True)
class Trace:
    """An answer, and what each of its steps did."""

    answer: OfflineAnswer
    events: tuple[LaneEvent, ...]
    prompt_tokens: int

    @property
    def summary(self) -> str:
        return summary(self.answer.usage)


def trace_main(settings: Settings, question: Question, views: Views, out: TextIO) -> int:
    """Raises `ApiError`, `ValueError` and `OSError` with one line that says what is wrong."""
    check(question, settings)
    if views.page is not None and not views.page.parent.is_dir():
        raise FileNotFoundError(f"there is no folder {views.page.parent} to write {views.page.name} to")
    if views.page is not None and views.page.is_dir():
        raise IsADirectoryError(f"{views.page} is a folder: give the name of a file")
    live = None if views.screen is None else LiveView(out, views.screen)
    with Offline(settings) as offline:
        trace = ask(offline, question, live, kept=views.page is not None)
    if views.page is not None:
        views.page.write_text(page(describe(trace, question, settings)), encoding="utf-8")
    if live is not None:
        live.finish(trace.answer.text)
    print(f"\n{trace.summary}" if live else trace.summary, file=out)
    if views.page is not None:
        print(f"written to {views.page}", file=out)
    return 0


def ask(offline: Offline, question: Question, live: LiveView | None = None, *, kept: bool = True) -> Trace:
    """Who watches it live may leave; what is `kept` is then asked to its end. Else raises `BrokenPipeError`."""
    ids, options = offline.read(question)
    events: list[LaneEvent] = []

    def see(delta: Delta) -> None:
        nonlocal live
        if delta.lanes is not None:
            events.append(delta.lanes)
            try:
                if live is not None:
                    live.show(delta.lanes)
            except BrokenPipeError:
                if not kept:
                    raise
                live = None

    answer = offline.watch(ids, replace(options, watch=True), see)
    return Trace(answer, tuple(events), len(ids))


def describe(trace: Trace, question: Question, settings: Settings) -> dict[str, Any]:
    """All that the page shows."""
    answer = trace.answer
    return {
        "model": settings.model_name,
        "decoder": settings.decoder,
        "knobs": dict(question.knobs),
        "temperature": question.temperature,
        "seed": question.seed,
        "prompt": question.prompt,
        "prompt_tokens": trace.prompt_tokens,
        "text": answer.text,
        "finish": answer.finish,
        "summary": trace.summary,
        "usage": asdict(answer.usage),
        "steps": [event.json() for event in trace.events],
    }


def page(trace: Mapping[str, Any]) -> str:
    """One HTML file that needs no other."""
    template = files("asynclane.server").joinpath("web", "trace.html").read_text(encoding="utf-8")
    # As JSON, texts hold no line separators and no surrogates; without these three they close no element either.
    data = json.dumps(trace, ensure_ascii=True, allow_nan=False)
    for char in "<>&":
        data = data.replace(char, f"\\u{ord(char):04x}")
    return template.replace(MARKER, data, 1)
