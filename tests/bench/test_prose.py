"""Figures on prose count what the engine reports, and prompts come from a file of the checkpoint."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from asynclane.bench.quality.prose import RESERVED, figures, main
from asynclane.bench.quality.tally import Reply
from asynclane.server.engine.messages import Finish


def reply(text: str, tokens: int, forwards: int, finish: Finish = Finish.STOP) -> Reply:
    stats = SimpleNamespace(forwards=forwards, computed_tokens=10 * forwards)
    usage = SimpleNamespace(completion_tokens=tokens, stats=stats)
    return cast(Reply, SimpleNamespace(text=text, finish=finish, usage=usage))


def test_an_end_token_counts_where_an_answer_has_one() -> None:
    first = [reply("a", 9, 5), reply("b", 20, 5)]
    found = figures("x", [reply("a", 9, 4), reply("c", 20, 6, Finish.LENGTH)], first)
    assert (found.tokens, found.forwards, found.tokens_per_forward) == (30, 10, 3.0)
    assert (found.same, found.cut, found.computed_tokens) == (0.5, 1, 100)


@pytest.mark.parametrize("text", ["[1]", "{", '{"a": 1}'])
def test_bad_prompts_are_refused_in_one_line(text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / RESERVED).write_text(text, encoding="utf-8")
    with pytest.raises(SystemExit, match="2"):
        main(["--model", str(tmp_path)])
    assert RESERVED in capsys.readouterr().err.splitlines()[-1]


def test_a_model_without_prompts_is_refused_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["--model", "nowhere"])
    assert f"nowhere/{RESERVED}" in capsys.readouterr().err.splitlines()[-1]
