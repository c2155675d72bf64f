"""`asynclane generate` answers one prompt without a server; `asynclane trace` also shows how the lanes wrote the
answer, as a page or live in the terminal."""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

from ...scheduler import resolve
from ..engine.messages import AnswerOptions, Delta, Usage
from ..engine.offline import Offline, OfflineAnswer
from ..engine.wiring import default_line, open_checkpoint, with_drafter
from ..errors import ApiError
from ..settings import Settings, color_allowed, cursor_moves
from ..text import counted
from ..text.lanes import LaneEvent
from .params import parse_params
from .parser import DEFAULT_PAGE
from .terminal import LiveView, Screen


def generate_main(settings: Settings, arguments: argparse.Namespace, environ: Mapping[str, str]) -> int:
    """Run `generate` or `trace`. Raises `ValueError` and `OSError` with one line that says what is wrong."""
    try:
        if arguments.command == "trace":
            return _trace(settings, arguments, environ)
        return _generate(settings, arguments)
    except (ApiError, TypeError) as error:  # tokenizers raise TypeError for lone surrogates
        raise ValueError(str(error)) from None


def _generate(settings: Settings, arguments: argparse.Namespace) -> int:
    params = _checked_params(settings, arguments)
    with Offline(settings) as offline:
        (answer,) = offline.answer_each([_request(offline, arguments, params)])
    print(f"{answer.text}\n\n{summary(answer.usage)}")
    return 0


def _trace(settings: Settings, arguments: argparse.Namespace, environ: Mapping[str, str]) -> int:
    """Show the answer as a page, in the terminal, or both."""
    params = _checked_params(settings, arguments)
    name = arguments.out or (None if arguments.live else DEFAULT_PAGE)
    path = Path(name) if name else None
    if path is not None and not path.parent.is_dir():
        raise FileNotFoundError(f"there is no folder {path.parent} to write {path.name} to")
    if path is not None and path.is_dir():
        raise IsADirectoryError(f"{path} is a folder: give the name of a file")
    live = None
    if arguments.live:
        live = LiveView(sys.stdout, Screen.of(sys.stdout, cursor=cursor_moves(environ), color=color_allowed(environ)))
    with Offline(settings) as offline:
        prompt, options = _request(offline, arguments, params, watch=True)
        answer, events = _watch(offline, prompt, options, live, kept=path is not None)
    cost = summary(answer.usage)
    if path is not None:
        trace = {
            "model": settings.model_name,
            "decoder": offline.parts.line.name,
            "params": offline.parts.line.requested(None, params)[1],
            "temperature": arguments.temperature,
            "seed": arguments.seed,
            "prompt": arguments.prompt,
            "prompt_tokens": len(prompt),
            "text": answer.text,
            "finish": answer.finish,
            "summary": cost,
            "steps": [event.json() for event in events],
        }
        path.write_text(page(trace), encoding="utf-8")
    if live is not None:
        live.finish(answer.text)
        print()
    print(cost)
    if path is not None:
        print(f"written to {path}")
    return 0


def summary(usage: Usage) -> str:
    """The cost of an answer in one line."""
    tokens, stats, forwards = usage.completion_tokens, usage.stats, usage.stats.forwards
    parts = [counted(stats.lanes, "lane"), counted(stats.forks, "fork"), counted(stats.refreshes, "refresh", "es")]
    return (
        f"{counted(tokens, 'token')} in {counted(forwards, 'forward')}: {tokens / forwards:.1f} tokens per forward, "
        f"{', '.join(parts)}, {counted(stats.computed_tokens, 'position')} computed"
    )


def _checked_params(settings: Settings, arguments: argparse.Namespace) -> dict[str, Any]:
    """The decoding parameters. What can be refused before the model is loaded, which may take long, is refused here.
    Raises `ValueError`."""
    params = parse_params(arguments.params)
    if not arguments.prompt.strip():
        raise ValueError("the prompt is empty: give a text to answer")
    if arguments.max_tokens is not None:
        checkpoint = open_checkpoint(settings.model, settings.download, block_size=settings.block_size)
        pattern = with_drafter(checkpoint, settings).pattern
        resolve(*default_line(settings, pattern).requested(None, params), arguments.max_tokens, pattern)
    return params


def _request(
    offline: Offline, arguments: argparse.Namespace, params: Mapping[str, Any], watch: bool = False
) -> tuple[list[int], AnswerOptions]:
    text = arguments.prompt
    prompt = offline.parts.text.encode(text) if arguments.raw else offline.encode_chat(text)
    options = AnswerOptions(
        max_tokens=arguments.max_tokens or offline.room(prompt),
        temperature=arguments.temperature,
        seed=arguments.seed,
        params=tuple(params.items()),
        watch=watch,
    )
    return prompt, options


def _watch(
    offline: Offline, prompt: list[int], options: AnswerOptions, live: LiveView | None, *, kept: bool
) -> tuple[OfflineAnswer, list[LaneEvent]]:
    """An answer and its lane events. A reader of `live` may leave: an answer that is `kept` is still computed to its
    end, any other raises `BrokenPipeError`."""
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

    return offline.watch(prompt, options, see), events


def page(trace: Mapping[str, Any]) -> str:
    """One HTML file that needs no other: the chat page's style, legend and scripts around one answer."""
    web = files("asynclane.server").joinpath("web")

    def read(name: str) -> str:
        return web.joinpath(name).read_text(encoding="utf-8")

    def cut(start: str, end: str) -> str:
        chat = read("chat.html")
        begin = chat.index(start)
        return chat[begin : chat.index(end, begin) + len(end)]

    # JSON in ASCII holds no line separators and no surrogates. Without these three it closes no element either.
    data = json.dumps(trace, ensure_ascii=True, allow_nan=False)
    for char in "<>&":
        data = data.replace(char, f"\\u{ord(char):04x}")
    # One script has no modules to import from.
    scripts = "".join(map(read, ("canvas.js", "calls.js", "tokens.js", "turn.js")))
    scripts = re.sub(r"^import .*\n|^export ", "", scripts, flags=re.MULTILINE)
    parts = {
        "style": read("chat.css"),
        "legend": cut('<ul class="legend">', "</ul>"),
        "turn": cut('<template id="turn">', "</template>"),
        "scripts": scripts,
        "trace": data,
    }
    return re.sub(r"{{(\w+)}}", lambda found: parts[found[1]], read("trace.html"))
