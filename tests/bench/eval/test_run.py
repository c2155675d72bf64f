"""`asynclane eval`, from its arguments to its files, with answers from a list."""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Self
from unittest.mock import Mock

import pytest

from asynclane.bench.eval.backends import OF_ANSWERS, InProcess, Options, Reply
from asynclane.bench.eval.decoders import Choice, joined, parse_decoder, split_decoder
from asynclane.bench.eval.export import main as export
from asynclane.bench.eval.run import _backend
from asynclane.bench.eval.tasks import Prompt, find
from asynclane.clients import StatusError
from asynclane.server.cli import main as cli
from asynclane.server.errors import ContextLengthExceeded, InvalidValue
from asynclane.server.presets import PRESETS
from asynclane.server.settings import OF_EVALUATION, Settings

from ...support.checkpoints import write_checkpoint

COUNT = 8
PRESET = next(iter(PRESETS))
ANSWERS = {f"What is {number} + 1?": f"It is {number + 1}.\n#### {number + 1}" for number in range(COUNT)}


class Known:
    """A backend that knows the answers, and as `llada` gives half of them. It ends after `most` answers."""

    name = "known"
    default = "asynclane"
    has_template: bool | None = True

    def __init__(self, most: int = 10**9) -> None:
        self.most = most
        self.facts: Mapping[str, str | None] = {"model": "known", "dtype": "float32", "quantization": None}
        self.seen: list[str] = []
        self.temperatures = set[float]()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None: ...

    def choice(self, text: str, max_tokens: int) -> Choice:
        return parse_decoder(text, max_tokens)

    @asynccontextmanager
    async def connected(self) -> AsyncGenerator[None]:
        yield

    async def answer(self, prompt: Prompt, choice: Choice, options: Options) -> Reply:
        await asyncio.sleep(0)
        if len(self.seen) == self.most:
            raise KeyboardInterrupt
        question = next(question for question in ANSWERS if question in prompt.text)
        self.seen.append(question)
        self.temperatures.add(options.params()["temperature"])
        text = ANSWERS[question] if choice.name != "llada" or int(question[8]) % 2 else "#### 77"
        return Reply(text, "stop", 10, 5 if choice.name == "llada" else 2, 40)

    async def count(self, text: str) -> int | None:
        return 9


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "data.jsonl"
    path.write_text("".join(json.dumps({"question": q, "answer": a}) + "\n" for q, a in ANSWERS.items()))
    return path


Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(data: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """The exit code, the output and the errors of the command, answered by a backend."""

    def called(backend: Known, *arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr("asynclane.bench.eval.run._backend", lambda *them: backend)
        code = cli.main(["eval", "gsm8k", "--shots", "0", "--data", str(data), *arguments])
        return (code, *capsys.readouterr())

    return called


def records(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


BOTH = ("--decoder", "asynclane", "--decoder", "llada")


def test_from_arguments_to_table_picture_and_file(run: Run, data: Path) -> None:
    code, out, err = run(Known(), *BOTH, "--plot", "plot.png", "--limit", "6")
    assert (code, err) == (0, "")
    rows = {line.split()[0]: line.split()[1:] for line in out.splitlines() if line.startswith(("asynclane", "llada"))}
    assert rows["asynclane"][:5] == ["6", "1.000", "0.610-1.000", "1.000", "0.610-1.000"]
    assert rows["asynclane"][5:9] == ["2.00", "5.00", "4.50", "4.0"]
    assert rows["llada"][:3] == ["6", "0.500", "0.188-0.812"]
    assert "6 of 8 problems of" in out
    assert "prompt: chat template, no shots, stop strings: 'Question:', '</s>', '<|im_end|>'" in out
    assert data.with_name("plot.png").read_bytes().startswith(b"\x89PNG")
    header, *answers, summary = records(data.with_name("eval-gsm8k.jsonl"))
    assert header["run"]["decoders"] == ["asynclane", "llada"]
    assert len(answers) == 12
    assert answers[0].keys() >= {"answer", "decoder", "prompt_sha256", "text", "extracted", "points", "forwards"}
    assert answers[0].keys() >= {"tokens", "script_tokens", "computed", "seconds", "finish"}
    assert summary["summary"][0]["metrics"]["strict"]["accuracy"] == 1.0
    assert summary["summary"][1]["tokens_per_forward"] == 2.0
    assert summary["summary"][1]["script_tokens_per_forward"] == 1.8
    assert summary["summary"][0]["computed_per_token"] == 4.0


@pytest.mark.parametrize(("arguments", "temperature"), [([], 0), (["--temperature", "0.7"], 0.7)])
def test_the_temperature_is_0_unless_it_is_given(
    run: Run, data: Path, arguments: list[str], temperature: float
) -> None:
    known = Known()
    code, out, _ = run(known, *arguments)
    assert (code, known.temperatures) == (0, {temperature})
    assert f"temperature {temperature}" in out
    assert records(data.with_name("eval-gsm8k.jsonl"))[0]["run"]["temperature"] == temperature


def test_an_interrupted_run_goes_on_where_it_was(run: Run, data: Path) -> None:
    first = Known(most=5)
    assert run(first, "--out", "o.jsonl", "--batch", "1")[0] == 130
    path = data.with_name("o.jsonl")
    complete = len(records(path)) - 1
    assert 1 <= complete <= 5
    with path.open("a") as file:
        file.write('{"answer": "cut o')
    second = Known()
    code, out, _ = run(second, "--out", "o.jsonl")
    assert code == 0
    assert len(second.seen) == COUNT - complete
    assert out.split("asynclane ")[1].split()[:2] == [str(COUNT), "1.000"]
    assert len(records(path)) == COUNT + 2
    third = Known()
    assert run(third, "--out", "o.jsonl")[0] == 0
    assert third.seen == []
    assert len(records(path)) == COUNT + 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--decoder", "llada"], 'whose decoders is ["asynclane"], not ["llada"]'),
        (["--raw"], 'whose prompt is "chat template", not "raw"'),
        (["--max-tokens", "64"], "whose max_tokens is 256, not 64"),
        (["--temperature", "0.5"], "whose temperature is 0.0, not 0.5"),
        (["--shots", "1", "--shots-file", "data.jsonl"], "whose shots is 0, not 1"),
    ],
)
def test_a_file_of_another_run_is_refused(run: Run, arguments: list[str], message: str) -> None:
    assert run(Known(), "--out", "o.jsonl", "--limit", "2")[0] == 0
    code, out, err = run(Known(), "--out", "o.jsonl", *arguments)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert f"o.jsonl is of another run, {message}: give another --out" in err


def test_so_is_that_of_another_model_of_other_problems_and_any_other_file(run: Run, data: Path) -> None:
    assert run(Known(), "--out", "o.jsonl")[0] == 0
    other = Known()
    other.facts = {**other.facts, "model": "other"}
    assert 'whose model is "known", not "other"' in run(other, "--out", "o.jsonl")[2]
    data.write_text("".join(data.read_text().splitlines(keepends=True)[1:]))
    code, _, err = run(Known(), "--out", "o.jsonl")
    assert (code, err.count("\n")) == (2, 1)
    assert "has an answer to a problem that --data has not" in err
    for text in ("hello", '{"run": 3}\n', '{"run": []}\n', "[1]\n", "[" * 100_000 + "\n", "\xff\n"):
        data.with_name("x").write_text(text, encoding="latin-1")
        code, _, err = run(Known(), "--out", "x")
        assert (code, err.count("\n")) == (2, 1), text
        assert "give another --out" in err
        assert data.with_name("x").read_text(encoding="latin-1") == text


@pytest.mark.parametrize("field", ["points", "tokens", "prompt_sha256"])
def test_an_answer_without_what_figures_are_made_of_is_refused(field: str, run: Run, data: Path) -> None:
    assert run(Known(), "--limit", "1", "--out", "o.jsonl")[0] == 0
    path = data.parent / "o.jsonl"
    head, answer, *_ = records(path)
    for broken in ({name: value for name, value in answer.items() if name != field}, answer | {field: None}):
        path.write_text(f"{json.dumps(head)}\n{json.dumps(broken)}\n")
        code, _, err = run(Known(), "--out", "o.jsonl")
        assert (code, err.count("\n")) == (2, 1)
        assert "o.jsonl, line 2 is no result of an evaluation" in err


class Refusing(Known):
    """A backend that refuses one of the prompts."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error = error

    async def answer(self, prompt: Prompt, choice: Choice, options: Options) -> Reply:
        if "What is 3 +" in prompt.text:
            raise self.error
        return await super().answer(prompt, choice, options)


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (InvalidValue("prompt", "the text has no tokens"), "data.jsonl, line 4: the text has no tokens"),
        (ContextLengthExceeded(9, 8, 7, param="max_tokens"), "data.jsonl, line 4: the context is 9 tokens"),
        (StatusError(400, "too long", param="messages.0.content"), "data.jsonl, line 4: 400: too long"),
        (StatusError(400, "is for others", param="decoder"), "asynclane: decoder 'asynclane': 400: is for others"),
        (InvalidValue("steps", "steps must be 2"), "asynclane: decoder 'asynclane': steps must be 2"),
    ],
)
def test_a_refusal_names_the_line_of_a_prompt_or_the_decoder_whose_parameter_is_refused(
    run: Run, data: Path, error: Exception, message: str
) -> None:
    data.write_bytes(b"\xef\xbb\xbf" + data.read_bytes())  # a byte order mark is read
    code, _, err = run(Refusing(error))
    assert (code, err.count("\n")) == (2, 1)
    assert message in err
    assert run(Known())[0] == 0


def test_a_prompt_that_needs_a_template_is_refused_without_one(run: Run, data: Path) -> None:
    bare = Known()
    bare.has_template = False
    code, out, err = run(bare)
    assert code == 0
    assert "prompt: raw" in out
    code, _, err = run(bare, "--chat-template")
    assert (code, err.count("\n")) == (2, 1)
    assert "--chat-template needs a chat template, and known has none: give --raw, or another model" in err
    line = {"key": 1, "prompt": "?", "instruction_id_list": ["startend:quotation"], "kwargs": [{}]}
    data.write_text(json.dumps(line))
    assert cli.main(["eval", "ifeval", "--data", str(data)]) == 2


def misuse(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    try:
        code = cli.main(["eval", *arguments])
    except SystemExit as ended:
        code = int(ended.code or 0)
    out, err = capsys.readouterr()
    assert (code, out, err.count("\n")) == (2, "", 1)
    return err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["gsm9k"], "no task 'gsm9k': did you mean 'gsm8k'? the tasks are gsm8k, gsm8k_cot, "),
        (["gsm8k"], "gsm8k needs --data FILE, which has a JSON object a line, with question (a text), answer (a text)"),
        (["--data", "data.jsonl"], "--data is a file of which task? give one before it: gsm8k"),
        (["gsm8k", "--data", "none.jsonl"], "none.jsonl cannot be read: No such file or directory"),
        (["mbpp", "--data", "data.jsonl"], "data.jsonl, line 1 has no 'task_id' (any value)"),
        (["gsm8k", "--data", "data.jsonl"], "gsm8k takes 5 shots from --shots-file FILE"),
        (["gsm8k", "--data", "data.jsonl", "--out", "no/o.jsonl"], "no folder no to write o.jsonl to"),
        (["gsm8k", "--data", "data.jsonl", "--plot", "a.svg"], "--plot draws a PNG"),
        (["gsm8k", "--data", "data.jsonl", "--limit", "0"], "--limit: must be a whole number from 1"),
        (["gsm8k", "--data", "data.jsonl", "--raw", "--chat-template"], "not allowed with"),
        (["gsm8k", "--data", "data.jsonl", "--api-key", "x"], "--api-key is for a server: give its --url"),
        (["gsm8k", "--data", "data.jsonl", "--url", "x", "--dtype", "auto"], "--dtype is for a model that is loaded"),
        (["gsm8k_cot", "--data", "data.jsonl", "--url", "x"], "'x' is no URL of a server"),
        (["gsm8k_cot", "--data", "data.jsonl", "--url", "http://127.0.0.1:9"], "no server at http://127.0.0.1:9"),
        (["gsm8k_cot", "--data", "data.jsonl", "--model", "tiny-lada"], "did you mean 'tiny-llada'?"),
        (["gsm8k_cot", "--data", "data.jsonl", "--decoder", "llada:blok_length=8"], "did you mean 'block_length'?"),
        (["gsm8k_cot", "--data", "data.jsonl", "--decoder", "lada"], "decoder 'lada': unknown decoder 'lada'"),
        (["gsm8k_cot", "--data", "data.jsonl", "--decoder", "llada:steps"], "a parameter is NAME=VALUE, not 'steps'"),
        (["gsm8k_cot", "--data", "data.jsonl", "--decoder", "llada", "--preset", PRESET], "leave out --decoder"),
        (["gsm8k_cot", "--data", "data.jsonl", *(2 * ["--decoder", "llada"])], "--decoder is given twice"),
        (["gsm8k_cot", "--data", "data.jsonl", "--preset", "dparallel-dream"], "--preset dparallel-dream is for Dream"),
        (["gsm8k", "--data", "data.jsonl", "--temperature", "-1"], "--temperature: must be a number from 0 to 2"),
        (["gsm8k_cot", "--data", "data.jsonl", "--batch", "65537"], "--batch: must be a whole number from 1 to 65536"),
    ],
)
def test_misuse_is_one_line(arguments: list[str], message: str, data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert message in misuse(capsys, *arguments)
    assert [path.name for path in data.parent.iterdir()] == ["data.jsonl"]


@pytest.mark.parametrize("preset", PRESETS)
def test_a_preset_is_the_default_decoder(preset: str) -> None:
    found = split_decoder(joined(PRESETS[preset].line))
    assert (found.name, found.params) == PRESETS[preset].line


# Settings of a model that change its speed and its memory, and the one whose decoder is measured.
OF_SPEED = """
download threads cuda_graph_sizes compile_cache max_model_len max_step_tokens chunked_prefill_size kv_cache_tokens
gpu_memory_utilization page_size prefix_sharing step_timeout_s max_failed_steps preset
""".split()


def test_a_file_says_on_which_settings_its_answers_depend() -> None:
    assert {"model", *OF_ANSWERS} | {*OF_SPEED} == {*OF_EVALUATION}
    backend = InProcess(Settings(model="OWNER/NAME@REVISION", lora="adapter"), Mock(), "asynclane")
    assert (backend.name, backend.facts["model"], backend.facts["lora"]) == (
        "OWNER/NAME",
        "OWNER/NAME@REVISION",
        "adapter",
    )


def test_a_model_that_takes_one_decoder_is_measured_with_it(tmp_path: Path) -> None:
    directory = write_checkpoint(tmp_path / "model", "DiffusionGemmaForBlockDiffusion")
    backend = _backend(argparse.Namespace(), Settings(model=str(directory)), None)
    assert backend.choice(backend.default, 64).name == "renoise"
    causal = write_checkpoint(tmp_path / "causal", "Qwen3ForCausalLM")
    for drafter, name in ((None, "autoregressive"), ("tiny-sdar", "deer")):
        backend = _backend(argparse.Namespace(), Settings(model=str(causal), drafter=drafter), None)
        assert backend.choice(backend.default, 64).name == name


def test_a_picture_without_matplotlib_is_refused_before_anything_is_loaded(
    data: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("asynclane.bench.load.output.find_spec", lambda name: None)
    line = misuse(capsys, "gsm8k", "--data", str(data), "--plot", "plot.png")
    assert "--plot needs matplotlib: in the checkout, pip install" in line


def test_without_a_task_all_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["eval"]) == 0
    assert "gsm8k: question (a text), answer (a text)\n" in capsys.readouterr().out


def test_own_functions_have_the_form_of_mbpp(tmp_path: Path) -> None:
    data = tmp_path / "own.jsonl"
    assert export(["mbpp", str(data), "--problems", "3"]) == 0
    task = find("mbpp")
    for line in task.read(data):
        assert task.grade(line.fields, line.fields["code"], lambda *them: False).points["raw"] == (1, 1)


def test_more_problems_than_a_generator_has_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        export(["mbpp", str(tmp_path / "own.jsonl"), "--problems", "400"])
    assert "the generator of code has 3" in capsys.readouterr().err
