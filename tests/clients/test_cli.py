"""A conversation keeps its history, survives errors, and ends when its user wants."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx
import pytest

from asynclane.clients import ConnectionFailed
from asynclane.clients.cli import Chat

from .conftest import ANSWER, Server, Stream, chunk, failing


class Terminal:
    """Types lines, or raises what keys raise; then Ctrl-D. Keeps what is shown."""

    def __init__(self, *typed: str | BaseException | type[BaseException]) -> None:
        self.typed = iter(typed)
        self.shown = ""

    def read(self, prompt: str) -> str:
        line = next(self.typed, EOFError)
        if not isinstance(line, str):
            raise line
        return line

    def write(self, text: str) -> None:
        self.shown += text


@pytest.fixture
def talk(connect: Any) -> Callable[..., tuple[Terminal, Server]]:
    def talk(*typed: Any, replies: list[list[Any]] | None = None, **options: Any) -> tuple[Terminal, Server]:
        terminal = Terminal(*typed)
        streams = iter(replies or [[ANSWER]] * 9)
        with connect(lambda: httpx.Response(200, stream=Stream(next(streams)))) as (client, server):
            assert Chat(client, "tiny-llada", read=terminal.read, write=terminal.write, **options).run() == 0
        return terminal, server

    return talk


def said(server: Server, index: int = -1) -> list[tuple[str, str]]:
    return [(message["role"], message["content"]) for message in server.body(index)["messages"]]


def test_the_answer_is_shown_and_the_next_question_knows_it(talk: Any) -> None:
    terminal, server = talk("Hi", "And?")
    assert terminal.shown.count("Hello wörld\n") == 2
    assert said(server) == [("user", "Hi"), ("assistant", "Hello wörld"), ("user", "And?")]


def test_reset_forgets_all_but_the_instructions(talk: Any) -> None:
    _, server = talk("Hi", "/reset", "Again", system="Be brief.")
    assert said(server) == [("system", "Be brief."), ("user", "Again")]


@pytest.mark.parametrize("end", ["/exit", "/quit", "/bye", EOFError])
def test_quit_and_ctrl_d_leave(talk: Any, end: Any) -> None:
    _, server = talk(end, "never sent")
    assert server.requests == []


def test_ctrl_c_stops_the_answer_and_keeps_what_was_said(talk: Any) -> None:
    terminal, server = talk("Hi", "And?", replies=[[chunk("Hel"), KeyboardInterrupt()], [ANSWER]])
    assert "Hel\n(stopped)\n" in terminal.shown
    assert said(server) == [("user", "Hi"), ("assistant", "Hel"), ("user", "And?")]


def test_ctrl_c_at_the_prompt_asks_again(talk: Any) -> None:
    _, server = talk(KeyboardInterrupt, "Hi")
    assert said(server) == [("user", "Hi")]


def test_an_error_is_shown_and_its_question_forgotten(talk: Any) -> None:
    failed = 'event: error\ndata: {"error": {"message": "the step failed"}}\n\n'
    terminal, server = talk("Hi", "Again", replies=[[chunk("Hel"), failed], [ANSWER]])
    assert "(the step failed)" in terminal.shown
    assert said(server) == [("user", "Again")]


def test_empty_lines_and_unknown_commands_ask_nothing(talk: Any) -> None:
    terminal, server = talk("", "  ", "/help")
    assert server.requests == []
    assert terminal.shown.count("/reset") == 2


def test_options_go_with_every_question(talk: Any) -> None:
    _, server = talk("Hi", options={"decoder": "llada", "max_tokens": 5})
    assert (server.body()["decoder"], server.body()["max_tokens"]) == ("llada", 5)


def test_a_server_that_is_gone_ends_the_conversation(connect: Any) -> None:
    terminal = Terminal("Hi")
    with connect(failing(httpx.ConnectError("refused"))) as (client, _), pytest.raises(ConnectionFailed):
        Chat(client, "tiny-llada", read=terminal.read, write=terminal.write).run()


def test_a_view_of_the_lanes_replaces_the_text_as_it_comes(talk: Any) -> None:
    lane = {"id": 0, "parent": None, "role": "generate", "start": 0, "end": 8, "fate": "live", "tokens": [None, " it"]}
    event = {"step": 0, "computed": [-4, 8], "refresh": True, "lanes": [lane], "commits": []}
    seen: list[Any] = []

    class Screen:
        def show(self, event: Any) -> None:
            seen.append(event.step)

        def finish(self, text: str) -> None:
            seen.append(text)

    terminal, server = talk("Hi", "And?", replies=[[chunk(lanes=event), ANSWER], [ANSWER]], view=Screen)
    assert server.body()["stream_options"]["include_lanes"] is True
    assert seen[0] == 0
    assert said(server)[1] == ("assistant", seen[1])
    assert seen[1] not in terminal.shown
