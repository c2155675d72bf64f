"""The quality benchmark, from its arguments to its last line, over an engine that answers from a list."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import pytest

from asynclane.bench.eval.decoders import parse_decoder
from asynclane.bench.load.problems import Problem, problems
from asynclane.bench.quality.run import DEFAULT_DECODERS, main
from asynclane.bench.quality.tally import tally
from asynclane.scheduler import RequestStats
from asynclane.server.engine.messages import AnswerOptions, Finish, Usage
from asynclane.server.settings import Settings
from asynclane.server.text.lanes import LaneEvent

COUNT = 24


@dataclass(frozen=True, slots=True)
class FakeAnswer:
    text: str
    token_ids: tuple[int, ...]
    finish: Finish
    usage: Usage
    lanes: tuple[LaneEvent, ...] = ()


@dataclass(slots=True)
class FakeOffline:
    """Knows all answers of seed 777; as `llada` it gets every fourth wrong, cut short. Ten calls each."""

    settings: Settings
    asked: list[AnswerOptions] = field(default_factory=list)
    open: bool = False

    def __enter__(self) -> Self:
        self.open = True
        return self

    def __exit__(self, *exc: object) -> None:
        self.open = False

    def chat(self, prompts: Sequence[str], options: AnswerOptions) -> list[FakeAnswer]:
        assert self.open
        self.asked.append(options)
        known = {problem.prompt: problem.answer for problem in problems(777, COUNT)}
        return [
            self.answer(known[prompt], wrong=options.decoder == "llada" and number % 4 == 0)
            for number, prompt in enumerate(prompts)
        ]

    def answer(self, text: str, wrong: bool) -> FakeAnswer:
        usage = Usage(39, RequestStats(forwards=10, computed_tokens=400))
        return FakeAnswer("?" if wrong else text, tuple(range(39)), Finish.LENGTH if wrong else Finish.STOP, usage)


@pytest.fixture
def opened() -> list[FakeOffline]:
    return []


def run(opened: list[FakeOffline], *arguments: str) -> int:
    def open_engine(settings: Settings) -> FakeOffline:
        opened.append(FakeOffline(settings))
        return opened[-1]

    return main([*arguments, "--problems", str(COUNT)], open_engine)


def test_from_arguments_to_the_last_line(
    opened: list[FakeOffline], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "out.json"
    assert (
        run(opened, "llada", "asynclane:threshold=0.9", "--json", str(file), "--plot", str(tmp_path / "out.png")) == 0
    )
    out, err = capsys.readouterr()
    head, rule, first, second, last = out.splitlines()
    assert head.split("  ")[0] == "decoder"
    assert set(rule) == {"-", " "}
    assert len(head) == len(rule) == len(first) == len(second)
    assert first.split()[:2] == ["llada", "0.750"]
    assert second.split()[:2] == ["asynclane:threshold=0.9", "1.000"]
    assert err.splitlines()[-1].startswith("[2/2] 24 right in ")
    assert file.read_text() == last + "\n"
    assert (tmp_path / "out.png").read_bytes().startswith(b"\x89PNG")
    read = json.loads(last)
    assert {"problems": COUNT, "seed": 777, "dtype": "float32", "model": "tiny-llada"}.items() <= read.items()
    llada, lanes = read["decoders"]
    assert lanes["knobs"] == {"threshold": 0.9}
    assert llada["interval_95"] == [0.551, 0.88]
    assert (llada["right"], llada["answers_cut_at_max_tokens"]) == (18, 6)
    assert sum(task["count"] for task in llada["tasks"].values()) == COUNT
    assert llada["calls_per_problem"] == 10
    assert llada["tokens_per_call"] == 4  # 39 tokens and the end, in ten calls
    assert llada["computed_tokens_per_answer_token"] == 10


def test_a_run_that_is_cut_short_leaves_the_decoders_that_it_has_measured(
    opened: list[FakeOffline], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file, chat = tmp_path / "out.json", FakeOffline.chat

    def once(self: FakeOffline, prompts: Sequence[str], options: AnswerOptions) -> list[FakeAnswer]:
        if self.asked:
            raise KeyboardInterrupt
        return chat(self, prompts, options)

    monkeypatch.setattr(FakeOffline, "chat", once)
    with pytest.raises(KeyboardInterrupt):
        run(opened, "llada", "asynclane", "--json", str(file))
    assert [row["decoder"] for row in json.loads(file.read_text())["decoders"]] == ["llada"]
    assert [*tmp_path.iterdir()] == [file]


def test_the_engine_is_opened_once_and_closed(opened: list[FakeOffline]) -> None:
    run(opened, "--batch", "8", "--max-tokens", "64", "--model", "tiny-dream")
    (engine,) = opened
    assert not engine.open
    assert engine.settings == Settings(model="tiny-dream", dtype="float32", max_num_seqs=8)
    assert [options.decoder for options in engine.asked] == ["llada", "fast-dllm", "asynclane"]
    assert engine.asked[1] == AnswerOptions(
        max_tokens=64, decoder="fast-dllm", params=(("cache", "dual"),), cache_salt="fast-dllm:cache=dual"
    )


@pytest.mark.parametrize(
    ("text", "name", "params"),
    [
        ("asynclane:threshold=0.9,refresh_every=0", "asynclane", {"threshold": 0.9, "refresh_every": 0}),
        ("fast-dllm:cache=dual,early_stop=false", "fast-dllm", {"cache": "dual", "early_stop": False}),
    ],
)
def test_decoder_arguments(text: str, name: str, params: dict[str, object]) -> None:
    choice = parse_decoder(text, max_tokens=256)
    assert (choice.label, choice.name, choice.params) == (text, name, params)
    assert {param: type(value) for param, value in choice.params.items()} == {k: type(v) for k, v in params.items()}


@pytest.mark.parametrize("text", DEFAULT_DECODERS)
def test_default_decoders_exist(text: str) -> None:
    parse_decoder(text, max_tokens=256)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("nonesuch", "unknown decoder 'nonesuch'"),
        ("asynclane:threshold=0.9,", "a parameter is NAME=VALUE, not ''"),
        ("asynclane:threshold=0.9,threshold=0.8", "'threshold' is given twice"),
        ("asynclane:threshold=nan", "threshold must be a number"),
        ("fast-dllm:early_stop=no", 'early_stop must be one of true, false, "block", not "no"'),
    ],
)
def test_bad_decoder_arguments(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match="decoder") as caught:
        parse_decoder(text, max_tokens=256)
    assert reason in str(caught.value)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["asynclane:threshold=9"], "threshold must be"),
        (["--seed", "1000"], "the others are reserved for later checks"),
        (["--max-tokens", "0"], "must be a whole number from 1"),
        (["--batch", "100000"], "max_num_seqs must be"),
        (["--json", "/no/such/folder/out.json"], "no folder /no/such/folder"),
    ],
)
def test_bad_arguments_are_told_before_a_model_is_loaded(
    arguments: list[str], reason: str, opened: list[FakeOffline], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        run(opened, *arguments)
    assert stopped.value.code == 2
    assert reason in capsys.readouterr().err
    assert opened == []


@pytest.mark.parametrize(("count", "replies"), [(2, 1), (0, 0)])
def test_one_reply_for_each_problem(count: int, replies: int) -> None:
    answer = FakeOffline(Settings()).answer("x", wrong=False)
    some: list[Problem] = problems(1, count)
    with pytest.raises(ValueError, match=f"{replies} replies to {count} problems"):
        tally("llada", some, [answer] * replies, wall_s=0.0)
