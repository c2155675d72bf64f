"""First questions: what passes, what does not, and the report."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from asynclane.bench.quality import openers
from asynclane.bench.quality.openers import Extraction, Request, Session, measure, questions
from asynclane.server.engine.messages import Finish


class Scripted:
    """Answers with a text of its own to each conversation, and rightly to schemas and tools."""

    def __init__(self, text: str, finish: Finish = Finish.STOP) -> None:
        self.text, self.finish = text, finish
        self.conversations: list[Sequence[Mapping[str, str]]] = []

    def answers(self, conversations: Sequence[Sequence[Mapping[str, str]]]) -> list[Any]:
        self.conversations += conversations
        return [self._answer(self.text) for _ in conversations]

    def with_schemas(self, rows: Sequence[Extraction]) -> list[Any]:
        return [self._answer(json.dumps(row.expect)) for row in rows]

    def with_tools(self, rows: Sequence[Request]) -> list[Any]:
        return [self._answer(f"<tool_call>\n{json.dumps(row.call)}\n</tool_call>") for row in rows]

    def _answer(self, text: str) -> Any:
        return SimpleNamespace(text=text, finish=self.finish)


def passed(session: Scripted) -> dict[str, int]:
    outcomes = measure(cast("Session", session), questions())
    return {part: sum(o.passed for o in outcomes if o.part == part) for part in dict.fromkeys(o.part for o in outcomes)}


def test_only_sensible_answers_pass() -> None:
    session = Scripted("I only know sums. Do you?")
    found = passed(session)
    assert 10 < found["openers"] < 30
    assert found["schemas"] == 8  # two have values that nobody expects: three fruits, and the name of a lamp
    assert found["tools"] == 9  # and one request needs no call
    assert len(session.conversations) == 30 + 10 + 10
    assert [message["role"] for message in session.conversations[-1]] == ["user", "assistant", "user"]


def test_an_answer_that_is_cut_does_not_pass() -> None:
    assert set(passed(Scripted("I only know sums. Do you?", Finish.LENGTH)).values()) == {0}


def test_a_wrong_setting_ends_the_program(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        openers.main(["--dtype", "int3"])
    assert "--dtype" in capsys.readouterr().err
