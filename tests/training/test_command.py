"""`asynclane train-controller` on a small model: the server computes what was trained, and refuses any other file."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Self

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file

from asynclane.models.checkpoint.fingerprint import fingerprint
from asynclane.models.checkpoint.registry import find_model
from asynclane.scheduler import LearntRule, StepView
from asynclane.scheduler.contract import Doubles
from asynclane.scheduler.decoding.commit import LEARNT_RULES
from asynclane.scheduler.decoding.commit.host.learn2pd import Learn2PD
from asynclane.scheduler.decoding.commit.host.tspd import TSPD
from asynclane.scheduler.decoding.commit.shared.weights import Observed, weights
from asynclane.server.cli import main as cli
from asynclane.server.engine.controller import Controller, read_controller, write_controller
from asynclane.server.engine.messages import AnswerOptions
from asynclane.server.engine.offline import Offline
from asynclane.server.settings import Settings
from asynclane.training.controllers import nets
from asynclane.training.controllers.command import LEARNERS

from ..support.scale import LONG, part

MODEL = "tiny-llada"
SETTINGS = Settings(model=MODEL, dtype="float32", threads=1, max_num_seqs=16, max_step_tokens=256)
ORDER = "Dana has 17 coins. Then she buys 5 coins. How many coins does Dana have now?"


def trained(method: str, out: Path) -> dict[str, np.ndarray]:
    size = ["--problems", "10", "--max-tokens", "8", "--epochs", "2", "--seed", "3"]
    fast = ["--threads", "1", "--max-step-tokens", "256"]
    assert cli.main(["train-controller", MODEL, "--method", method, "--out", str(out), *size, *fast]) == 0
    return load_file(out)


@pytest.fixture(scope="module", params=part(LEARNT_RULES, 2))
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    out = tmp_path_factory.mktemp("controller") / "made.safetensors"
    trained(request.param, out)
    return request.param, out


class Kept:
    """The scores of a rule, with its input."""

    def __init__(self) -> None:
        self.steps: list[tuple[list[int], StepView, Observed, Doubles]] = []


class Watched(LearntRule):
    def __init__(self, params: object, length: int, learnt: object, kept: Kept) -> None:
        super().__init__(params, length, learnt)  # type: ignore[arg-type]
        self.kept = kept

    @classmethod
    def scores(cls, rules: Sequence[Self], view: StepView, observed: Observed) -> Doubles:
        found: Doubles = super().scores(rules, view, observed)  # type: ignore[safe-super]
        rules[0].kept.steps.append(([id(rule) for rule in rules], view, observed, found.copy()))
        return found


class WatchedTSPD(Watched, TSPD): ...


class WatchedLearn2PD(Watched, Learn2PD): ...


def test_the_server_computes_the_probabilities_that_were_trained(made: tuple[str, Path]) -> None:
    method, path = made
    learnt = read_controller(str(path), fingerprint(find_model(MODEL))).weights
    kept, rule = Kept(), {"tspd": WatchedTSPD, "learn2pd": WatchedLearn2PD}[method]
    with Offline(SETTINGS, {method: partial(rule, learnt=learnt, kept=kept)}) as offline:
        answers = offline.chat([ORDER, "Count."], AnswerOptions(24, decoder=method, params=(("threshold", 0.9),)))
    assert all(answer.token_ids for answer in answers)
    net = nets.Controller() if method == "tspd" else nets.Filter()
    for name, array in net.arrays().items():
        array[...] = learnt[name]  # the memory of the parameters
    if method == "learn2pd":
        for _, _, observed, scores in kept.steps:
            seen = torch.from_numpy(observed.seen)
            wanted = net(nets.Windows(seen, seen, seen)).sigmoid().detach().numpy()
            np.testing.assert_allclose(scores, wanted.reshape(-1)[observed.place], atol=1e-6)
        return
    histories: dict[tuple[int, int], list[tuple[np.ndarray, float]]] = {}
    for rules, view, observed, scores in kept.steps:
        for row, at in enumerate(observed.at):
            key = rules[view.requests.index[at]], int(view.positions[at])
            histories.setdefault(key, []).append((observed.seen[row], scores[row]))
    assert max(map(len, histories.values())) > 1
    for history in histories.values():
        seen = torch.from_numpy(np.stack([one for one, _ in history]))[None]
        ones = torch.ones(seen.shape[:2])
        wanted = net(nets.Histories(seen, ones, ones, torch.tensor([len(history)])))
        np.testing.assert_allclose([score for _, score in history], wanted.sigmoid().detach()[0], atol=1e-6)


@LONG
def test_the_same_training_makes_the_same_file(made: tuple[str, Path], tmp_path: Path) -> None:
    method, path = made
    again, learnt = trained(method, tmp_path / "again.safetensors"), load_file(path)
    assert all((again[name] == learnt[name]).all() for name in learnt)


def test_a_server_with_the_file_answers_by_it(made: tuple[str, Path], tmp_path: Path) -> None:
    """Nothing passes if the last bias is low: one token a forward."""
    method, path = made
    learnt = load_file(path)
    bias = "head_bias" if method == "tspd" else "outer_bias"
    never = Controller(method, MODEL, fingerprint(find_model(MODEL)), {**learnt, bias: np.full_like(learnt[bias], -50)})
    write_controller(tmp_path / "never.safetensors", never, {})
    with Offline(replace(SETTINGS, decoder=method, controller=str(tmp_path / "never.safetensors"))) as offline:
        slow, plain = offline.answer_each(
            [(offline.encode_chat(ORDER), AnswerOptions(16, decoder=name)) for name in (method, "fast-dllm")]
        )
    assert slow.usage.stats.forwards >= slow.usage.completion_tokens > plain.usage.stats.forwards


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    capsys.readouterr()
    assert cli.main([*arguments]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    return lines[0]


def served(path: Path, *more: str) -> tuple[str, ...]:
    return ("generate", "Hi", "--threads", "1", "--controller", str(path), *more)


def test_a_file_of_another_model_or_method_or_a_broken_one_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole, path = dict(weights("tspd")), tmp_path / "own.safetensors"
    own = Controller("tspd", MODEL, fingerprint(find_model(MODEL)), whole)
    write_controller(path, own, {})
    line = refused(capsys, *served(path, "--model", "tiny-dream"))
    assert line.endswith("make one with `asynclane train-controller MODEL`")
    line = refused(capsys, *served(path, "--model", MODEL, "--decoder", "learn2pd"))
    assert "has weights of tspd, and --decoder learn2pd does not use them" in line
    line = refused(capsys, *served(path, "--model", MODEL, "--load-format", "dummy"))
    assert "leave out --load-format dummy" in line
    cut, text, foreign, absent = (tmp_path / name for name in ("cut", "text", "foreign", "absent"))
    cut.write_bytes(path.read_bytes()[:-8])
    text.write_text("{}")
    save_file(whole, foreign)
    for file, why in (
        (cut, "cannot be read"),
        (text, "cannot be read"),
        (foreign, "is no file of"),
        (absent, "no file"),
    ):
        assert why in refused(capsys, *served(file, "--model", MODEL))
    lame, nan = dict(whole), {**whole, "head": np.full_like(whole["head"], np.nan)}
    del lame["head"]
    for weights_ in (lame, nan, dict(weights("learn2pd"))):
        write_controller(path, own._replace(weights=weights_), {})
        assert "does not have the weights of tspd" in refused(capsys, *served(path, "--model", MODEL))
    write_controller(path, own._replace(method="credit"), {})
    assert "is for 'credit': there are learn2pd, tspd" in refused(capsys, *served(path, "--model", MODEL))


@pytest.mark.parametrize(
    ("lines", "flags", "why"),
    [
        (["{"], [], "line 1 is no JSON"),
        ([{"text": "Hi"}], [], "line 1: expected a JSON object a line, with prompt (a text) or messages"),
        ([{"prompt": "Hi", "messages": []}], [], "line 1: expected a JSON object"),
        ([{"messages": [{"role": "user", "content": "Hi"}]}], ["--raw"], "line 1 has messages, which --raw excludes"),
        ([{"prompt": "Hi"}] * 2, [], "line 2: its text is that of"),
        ([{"prompt": f"{n}"} for n in range(9)], [], "there are 9 different prompts, and training needs at least 10"),
        ([], ["--knob", "threshold=0.5"], "--knob threshold has no part in training"),
        ([], ["--knob", "speed=2"], "has no parameter 'speed'"),
        ([], ["--out", "nowhere/x"], "no folder nowhere to write x to"),
        ([], ["--load-format", "dummy"], "leave out --load-format dummy"),
    ],
)
def test_wrong_input_is_one_line(
    lines: list[object], flags: list[str], why: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = tmp_path / "data.jsonl"
    data.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines))
    given = ["--data", str(data)] if lines else []
    assert why in refused(capsys, "train-controller", MODEL, *given, "--out", str(tmp_path / "out"), *flags)
    assert not (tmp_path / "out").exists()


def test_a_model_that_is_not_embedded_needs_prompts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = str(tmp_path / "out")
    line = refused(capsys, "train-controller", str(find_model(MODEL)), "--out", out)
    assert "needs --data FILE with prompts" in line


def test_every_rule_with_weights_can_be_trained() -> None:
    assert LEARNT_RULES.keys() == LEARNERS.keys()
