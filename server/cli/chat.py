"""`asynclane chat`: a conversation with a running server."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping

import httpx

from ...clients import Client, ClientError, StatusError
from ...clients import LaneEvent as SentEvent
from ...clients.cli import Chat
from ..settings import api_key_from, color_allowed, cursor_moves
from ..text.lanes import Commit, LaneEvent, LaneView
from .params import parse_params
from .terminal import LiveView, Screen

NOT_FOUND = 404


def chat_main(arguments: argparse.Namespace, environ: Mapping[str, str]) -> int:
    """Raises `ValueError` with one line that says what is wrong."""
    given = {name: getattr(arguments, name) for name in ("max_tokens", "temperature", "decoder")}
    try:
        options = parse_params(arguments.params) | {name: value for name, value in given.items() if value is not None}
        with Client(arguments.url, api_key=arguments.api_key or api_key_from(environ)) as client:
            model = _served(client, arguments.model)
            screen = Screen.of(sys.stdout, cursor=cursor_moves(environ), color=color_allowed(environ))
            view = (lambda: Lanes(screen)) if arguments.lanes else None
            return Chat(client, model, system=arguments.system, options=options, view=view).run()
    except ClientError as error:
        raise ValueError(str(error)) from None
    except (ValueError, httpx.InvalidURL) as error:  # a malformed URL, or a key or text that cannot be sent
        raise ValueError(f"this cannot be sent: {error}") from None


def _served(client: Client, wanted: str | None) -> str:
    """The model to talk to: the server's, or the `wanted` one if the server has it. Raises `ClientError`."""
    try:
        models = [model.id for model in client.models()]
    except StatusError as error:
        if wanted is None or error.status != NOT_FOUND:
            raise
        return wanted  # a server of another kind may have no list
    if wanted is not None and wanted not in models:
        raise ClientError(f"the server has no model {wanted!r}: it serves {', '.join(map(repr, models))}")
    return wanted or models[0]


class Lanes:
    """The terminal's view of one answer's lanes, of events as they were sent."""

    def __init__(self, screen: Screen) -> None:
        self._live = LiveView(sys.stdout, screen)

    def show(self, event: SentEvent) -> None:
        self._live.show(
            LaneEvent(
                event.step,
                event.computed,
                event.refresh,
                tuple(LaneView(**{**dict(lane), "tokens": tuple(lane.tokens)}) for lane in event.lanes),
                tuple(Commit(commit.position, commit.text) for commit in event.commits),
            )
        )

    def finish(self, text: str) -> None:
        self._live.finish(text)
