"""The command says in one line what is wrong, drains before it ends, and loads nothing that it does not need."""

from __future__ import annotations

import argparse
import gc
import io
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import types
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from asynclane.clients import Client, StatusError
from asynclane.server.cli import main as cli
from asynclane.server.cli.params import parse_params
from asynclane.server.cli.parser import build_parser
from asynclane.server.collector import YOUNG
from asynclane.server.settings import GROUPS, Settings

from ...support.other_server import ANSWER, other_server, stream
from ...support.processes import ASYNCLANE, environment, started
from ...support.scale import ALL, LONG


def one_line(capsys: pytest.CaptureFixture[str]) -> str:
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    return captured.err


def code_of(argv: list[str]) -> int:
    """The exit code; the command's parser ends the process itself."""
    try:
        return cli.main(argv)
    except SystemExit as ended:
        return int(ended.code or 0)


def test_collections_are_rare_while_modules_are_imported() -> None:
    usual = gc.get_threshold()
    gc.set_threshold(700)
    try:
        assert code_of(["--version"]) == 0
        assert gc.get_threshold()[0] == YOUNG
    finally:
        gc.set_threshold(*usual)


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["serve", "--port", "x"], "--port must be a whole number"),
        (["serve", "--dtype", "int4"], "--dtype must be one of"),
        (["generate", "Hi", "--page-size", "0"], "--page-size must be from 1"),
        (["chat", "--knob", "turn"], "a parameter is NAME=VALUE, not 'turn'"),
        (["serve", "tiny-sdar", "--model", "tiny-llada"], "the model is given twice, 'tiny-sdar' and --model"),
        *(
            (argv, "--help")
            for argv in (
                ["dance"],
                ["serve", "--colour", "red"],
                ["generate"],
                *(
                    [command, "Hi", *flag]
                    for command in ("generate", "trace")
                    for flag in (["--port", "9999"], ["--api-key", "x"], ["--max-queue", "3"], ["--drain-s", "1"])
                ),
                *(["generate", "Hi", "--max-tokens", value] for value in ("0", "-1", "many")),
                *(["generate", "Hi", "--temperature", value] for value in ("inf", "nan", "-1", "3")),
                *(["generate", "Hi", "--seed", value] for value in ("-1", "1" + "0" * 30)),
                ["chat", "--temperature", "nan"],
            )
        ),
    ],
)
def test_misuse_is_one_line_and_exit_code_2(argv: list[str], message: str, capsys: Any) -> None:
    assert code_of(argv) == 2
    assert message in one_line(capsys)


def test_a_name_in_an_error_cannot_move_the_cursor(tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "\x1b[2J").mkdir()
    assert code_of(["inspect", str(tmp_path / "\x1b[2J")]) == 2
    line = one_line(capsys)
    assert r"\x1b[2J" in line
    assert "\x1b" not in line


def test_a_bad_environment_variable_is_one_line(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setenv("ASYNCLANE_DEVICE", "toaster")
    assert cli.main(["serve"]) == 2
    assert "ASYNCLANE_DEVICE must be one of auto, cpu, cuda" in one_line(capsys)


LOAD = "asynclane.server.cli.serve.load"


def test_a_port_that_is_taken_is_reported_before_the_model_is_loaded(
    monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setattr(LOAD, lambda settings: pytest.fail("the model must not be loaded"))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert cli.main(["serve", "--port", str(port)]) == 2
    assert f"cannot listen on 127.0.0.1:{port}: Address already in use" in one_line(capsys)


def test_traces_without_their_extra_are_refused_before_a_model_is_loaded(
    monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setattr(LOAD, lambda settings: pytest.fail("the model must not be loaded"))
    monkeypatch.setattr("asynclane.server.settings.SDK", ["asynclane.nonsense.sdk"])
    assert cli.main(["serve", "--port", "0", "--otlp-endpoint", "http://127.0.0.1:4318"]) == 2
    assert "--otlp-endpoint needs OpenTelemetry's SDK: in the checkout, pip install " in one_line(capsys)


@pytest.mark.parametrize("error", [ValueError("bad\nmodel"), FileNotFoundError("bad model")])
def test_a_model_that_cannot_be_loaded_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: Any, error: Exception
) -> None:
    def load(settings: Settings) -> None:
        raise error

    monkeypatch.setattr(LOAD, load)
    assert cli.main(["serve", "--port", "0"]) == 2
    assert "bad model" in one_line(capsys)


def test_generate_passes_on_its_flags(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[Any] = []
    monkeypatch.setattr("asynclane.server.cli.generate._generate", lambda *them: given.extend(them) or 0)
    flags = ["--dtype", "float32", "--max-tokens", "7", "--raw", "--knob", "max_lanes=2", "--knob", "cache=none"]
    assert cli.main(["generate", "Hi", *flags]) == 0
    settings, arguments = given
    assert settings == Settings(dtype="float32")
    assert (arguments.prompt, arguments.max_tokens, arguments.temperature, arguments.seed) == ("Hi", 7, 0.0, 0)
    assert arguments.raw
    assert parse_params(arguments.params) == {"max_lanes": 2, "cache": "none"}


def test_chat_passes_on_its_flags(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[Any] = []
    monkeypatch.setattr("asynclane.clients.Client.models", lambda self: [types.SimpleNamespace(id="tiny-sdar")])
    monkeypatch.setattr("asynclane.clients.cli.Chat.run", lambda self: given.append(self._options) or 0)
    assert cli.main(["chat", "--decoder", "tccf", "--knob", "turn=newline", "--knob", "fine_length=4"]) == 0
    assert given == [{"decoder": "tccf", "turn": "newline", "fine_length": 4}]


SHORT = ["Hi", "--max-tokens", "4"]
# Each subcommand that prints; `URL` and `FOLDER` are filled in.
PRINTING = [
    ["--help"],
    ["inspect"],
    ["inspect", "tiny-llada", "--json"],
    ["decoders"],
    ["decoders", "llada"],
    ["decoders", "--markdown"],
    ["version"],
    ["generate", *SHORT],
    ["trace", *SHORT, "--live", "--out", "FOLDER/page.html"],
    ["chat", "--url", "URL"],
    ["eval"],
    [*"train-controller tiny-llada --problems 10 --max-tokens 4 --epochs 1 --seed 3 --out FOLDER/weights".split()],
    ["bench", "--url", "URL", "--requests", "1", "--concurrency", "1", "--json", "FOLDER/load.json"],
]


def tried(argv: list[str]) -> bool:
    return ALL or argv[0] != "train-controller"  # which takes a second


@pytest.fixture
def run_unread(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> Iterator[Callable[..., tuple[int, str]]]:
    """The exit code of a command whose stream `unread` has no reader, and the text of the other stream."""
    with ExitStack() as streams:

        def run(argv: list[str], unread: str = "stdout") -> tuple[int, str]:
            reader, writer = os.pipe()
            os.close(reader)
            monkeypatch.setattr(sys, unread, streams.enter_context(os.fdopen(writer, "w")))
            monkeypatch.setattr(sys, "stdin", io.StringIO("Hi\n"))
            code = code_of(argv)
            return code, "".join(capsys.readouterr())

        yield run


def test_the_bare_command_shows_its_help_and_version_its_version(capsys: Any) -> None:
    assert code_of([]) == code_of(["--help"]) == 0
    bare, asked = capsys.readouterr().out.split("usage: ")[1:]
    assert bare == asked
    assert "serve a model over HTTP" in bare
    assert code_of(["--version"]) == code_of(["version"]) == 0
    assert len(set(capsys.readouterr().out.split())) == 1


def test_serve_takes_its_model_as_a_word(monkeypatch: pytest.MonkeyPatch) -> None:
    served: list[str] = []
    monkeypatch.setattr("asynclane.server.cli.serve.serve_main", lambda settings: served.append(settings.model) or 0)
    assert code_of(["serve", "tiny-sdar"]) == code_of(["serve", "--model", "tiny-sdar"]) == 0
    assert served == ["tiny-sdar", "tiny-sdar"]


def test_every_flag_of_serve_is_in_a_group(capsys: Any) -> None:
    assert code_of(["serve", "--help"]) == 0
    shown = capsys.readouterr().out
    assert [line for line in shown.splitlines() if line[:1].isalpha() and line.endswith(":")][2:] == [
        f"{title}:" for title in GROUPS.values()
    ]
    (options,) = (part for part in shown.split("\n\n") if part.startswith("options:"))
    assert options.split() == "options: -h, --help show this help message and exit".split()


def test_every_subcommand_is_covered() -> None:
    (commands,) = (action for action in build_parser()._actions if isinstance(action, argparse._SubParsersAction))
    assert {argv[0] for argv in PRINTING} - {"--help"} == set(commands.choices) - {"serve"}


@pytest.mark.parametrize("argv", [*filter(tried, PRINTING)], ids=" ".join)
def test_a_reader_who_has_seen_enough_is_no_fault(run_unread: Any, argv: list[str], tmp_path: Path) -> None:
    with other_server(lambda number: (200, ANSWER)) as url:
        code, said = run_unread([word.replace("URL", url).replace("FOLDER", str(tmp_path)) for word in argv])
    notes = [line for line in said.splitlines() if not line.startswith(("rules for", "[1/1]")) and line]
    assert (code, notes) == (0, [])
    assert len(list(tmp_path.iterdir())) == any("FOLDER" in word for word in argv), "a file is written all the same"


@pytest.mark.parametrize("name", ["", "GOMP_SPINCOUNT", "OMP_WAIT_POLICY"])
def test_threads_wait_actively_for_a_short_time_unless_the_environment_says_how(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY"):
        monkeypatch.setenv(variable, "set before, so that it is as it was after the test")
        monkeypatch.delenv(variable)
    if name:
        monkeypatch.setenv(name, "7")
    cli.main([])
    assert os.environ.get("GOMP_SPINCOUNT") == {"": "3000", "GOMP_SPINCOUNT": "7"}.get(name)


@pytest.mark.parametrize("environ", [{}, {"PYTHONUNBUFFERED": "1"}], ids=["buffered", "unbuffered"])
def test_nor_does_the_interpreter_complain_as_it_exits(environ: dict[str, str]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    command = [*ASYNCLANE, "decoders", "--markdown"]
    done = subprocess.run(command, env=environment(**environ), stdout=writer, stderr=subprocess.PIPE, check=False)
    os.close(writer)
    assert (done.returncode, done.stderr) == (0, b"")


def test_a_load_that_fails_says_so_even_where_nobody_reads(run_unread: Any, tmp_path: Path) -> None:
    argv = ["--requests", "1", "--warmup", "1", "--concurrency", "1", "--json", str(tmp_path / "load.json")]
    with other_server(lambda number: (500, "") if number else (200, ANSWER)) as url:
        assert run_unread(["bench", "--url", url, *argv])[0] == 1
    assert json.loads((tmp_path / "load.json").read_text(encoding="utf-8"))["loads"][0]["failed"] == 1


@pytest.mark.parametrize("unread", ["stdout", "stderr"])
@pytest.mark.parametrize("argv", [["dance"], ["generate", "Hi", "--page-size", "0"]])
def test_misuse_is_misuse_even_where_nobody_reads(run_unread: Any, argv: list[str], unread: str) -> None:
    code, said = run_unread(argv, unread)
    assert (code, said.count("\n")) == (2, unread == "stdout")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize("argv", [["version"], ["decoders", "--markdown"]])
def test_a_full_disk_is_one_line_and_exit_code_2(argv: list[str], monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    with open("/dev/full", "w", encoding="utf-8") as full:
        monkeypatch.setattr(sys, "stdout", full)
        assert cli.main(argv) == 2
    assert one_line(capsys) == "asynclane: [Errno 28] No space left on device\n"


def test_an_output_that_knows_no_unicode_gets_what_it_can_show(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    spoken = stream({"choices": [{"delta": {"content": "na\u00efve"}}]})
    shown = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(shown, "ascii"))
    monkeypatch.setattr(sys, "stdin", io.StringIO("Hi\n"))
    with other_server(lambda number: (200, spoken)) as url:
        assert cli.main(["chat", "--url", url]) == 0
    assert b"na?ve" in shown.getvalue()
    assert capsys.readouterr().err == ""


def test_chat_with_a_model_that_the_server_has_not_is_one_line(capsys: Any) -> None:
    with other_server(lambda number: (200, ANSWER)) as url:
        assert cli.main(["chat", "--url", url, "--model", "nope"]) == 2
    assert "the server has no model 'nope': it serves 'other'" in one_line(capsys)


def test_chat_takes_a_model_by_name_where_a_server_has_no_list(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[str] = []
    monkeypatch.setattr("asynclane.clients.cli.Chat.run", lambda self: given.append(self._model) or 0)

    def no_list(client: Client) -> None:
        raise StatusError(404, "Not Found")

    monkeypatch.setattr("asynclane.clients.Client.models", no_list)
    assert cli.main(["chat", "--model", "theirs"]) == 0
    assert given == ["theirs"]


def test_chat_without_a_server_is_one_line(capsys: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    assert cli.main(["chat", "--url", f"http://127.0.0.1:{port}"]) == 2
    assert f"no server at http://127.0.0.1:{port}" in one_line(capsys)


def test_what_needs_neither_torch_nor_a_web_framework_takes_none() -> None:
    script = """
import sys
from asynclane.server.cli.main import main
assert main(["version"]) == main(["decoders"]) == 0
assert not {"torch", "fastapi", "transformers", "uvicorn"} & set(sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


SERVE = """
import asyncio, sys
from concurrent.futures import Future
from contextlib import asynccontextmanager
from types import SimpleNamespace
from fastapi import FastAPI
from starlette.responses import StreamingResponse
from asynclane.server.app import Service
from asynclane.server.cli import serve
from asynclane.server.cli.main import main

@asynccontextmanager
async def lifespan(app):
    yield
    print("engine stopped", flush=True)

app = FastAPI(lifespan=lifespan)

@app.get("/slow")
async def slow():
    async def body():
        yield b"begun,"
        await asyncio.sleep(0.5)
        yield b"done"
    return StreamingResponse(body())

serve.load = lambda settings: SimpleNamespace(frontends=0)
serve.build_service = lambda settings, loaded: Service(app, lambda s: asyncio.sleep(0), Future())
sys.exit(main(["serve", "--port", sys.argv[1]]))
"""


IGNORING = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)"  # as `nohup`, and `&` in a script


@pytest.mark.parametrize(
    ("number", "begun", "code"),
    [(signal.SIGTERM, "", 0), pytest.param(signal.SIGINT, "", 130, marks=LONG), (signal.SIGINT, IGNORING, 0)],
    ids=["TERM", "INT", "INT-ignored-before"],
)
def test_a_signal_lets_running_requests_finish(number: signal.Signals, begun: str, code: int) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, "-c", f"{begun}\n{SERVE}", str(port)]
    with started(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        too_long = threading.Timer(30, process.kill)
        too_long.start()
        try:
            assert process.stderr is not None
            for line in process.stderr:
                if "running on" in line:
                    break
            with httpx.stream("GET", f"http://127.0.0.1:{port}/slow", timeout=10) as response:
                parts = response.iter_text()
                got = next(parts)
                process.send_signal(number)
                got += "".join(parts)
            out, err = process.communicate(timeout=10)
        finally:
            too_long.cancel()
    assert got == "begun,done"
    assert "engine stopped" in out
    assert process.returncode == code, err
