"""The command says in one line what is wrong, drains on SIGTERM, and loads nothing that it does not need."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import threading
import types
from typing import Any

import httpx
import pytest

from asynclane.server.cli import main as cli
from asynclane.server.settings import Settings


@pytest.fixture
def build_module(monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    """A composition root in place of the real one, which would load a model."""
    module = types.ModuleType("asynclane.server.engine.wiring")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return module


def one_line(capsys: pytest.CaptureFixture[str]) -> str:
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    return captured.err


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["serve", "--port", "x"], "--port must be a number"),
        (["serve", "--dtype", "int4"], "--dtype must be one of"),
        (["generate", "Hi", "--page-size", "0"], "--page-size must be from 1"),
    ],
)
def test_a_bad_setting_is_one_line_and_exit_code_2(argv: list[str], message: str, capsys: Any) -> None:
    assert cli.main(argv) == 2
    assert message in one_line(capsys)


@pytest.mark.parametrize(
    "argv",
    [
        [],
        ["dance"],
        ["serve", "--colour", "red"],
        ["generate"],
        *(["generate", "Hi", "--max-tokens", value] for value in ("0", "-1", "many")),
        *(["generate", "Hi", "--temperature", value] for value in ("inf", "nan", "-1", "3")),
        *(["generate", "Hi", "--seed", value] for value in ("-1", "1" + "0" * 30)),
        ["chat", "--temperature", "nan"],
    ],
)
def test_misuse_is_one_line_and_exit_code_2(argv: list[str], capsys: Any) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main(argv)
    assert caught.value.code == 2
    assert "--help" in one_line(capsys)


def test_a_bad_variable_of_the_environment_is_told(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setenv("ASYNCLANE_DEVICE", "toaster")
    assert cli.main(["serve"]) == 2
    assert "ASYNCLANE_DEVICE must be one of auto, cpu, cuda" in one_line(capsys)


def test_a_port_that_is_taken_is_told_before_the_model_is_loaded(build_module: Any, capsys: Any) -> None:
    build_module.build_service = lambda settings: pytest.fail("the model must not be loaded")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert cli.main(["serve", "--port", str(port)]) == 2
    assert f"cannot listen on 127.0.0.1:{port}: Address already in use" in one_line(capsys)


@pytest.mark.parametrize("error", [ValueError("bad\nmodel"), FileNotFoundError("bad model")])
def test_a_model_that_cannot_be_loaded_is_one_line(build_module: Any, capsys: Any, error: Exception) -> None:
    def build_service(settings: Settings) -> None:
        raise error

    build_module.build_service = build_service
    assert cli.main(["serve", "--port", "0"]) == 2
    assert "bad model" in one_line(capsys)


def test_generate_passes_on_what_was_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    module = types.ModuleType("asynclane.server.engine.offline")
    module.generate_main = lambda *given: asked.extend(given) or 0  # type: ignore[attr-defined]
    module.Question = types.SimpleNamespace  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    flags = ["--dtype", "float32", "--max-tokens", "7", "--raw", "--knob", "max_lanes=2", "--knob", "cache=none"]
    assert cli.main(["generate", "Hi", *flags]) == 0
    settings, question = asked
    assert settings == Settings(dtype="float32")
    knobs = {"max_lanes": 2, "cache": "none"}
    assert vars(question) == {
        "prompt": "Hi",
        "raw": True,
        "max_tokens": 7,
        "temperature": 0.0,
        "seed": 0,
        "knobs": knobs,
    }


def test_chat_passes_on_what_was_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    monkeypatch.setattr("asynclane.clients.Client.models", lambda self: [types.SimpleNamespace(id="tiny-sdar")])
    monkeypatch.setattr("asynclane.clients.cli.Chat.run", lambda self: asked.append(self._options) or 0)
    assert cli.main(["chat", "--decoder", "tccf", "--knob", "turn=newline", "--knob", "fine_length=4"]) == 0
    assert asked == [{"decoder": "tccf", "turn": "newline", "fine_length": 4}]


@pytest.mark.parametrize("command", ["chat", "generate"])
def test_a_knob_that_is_none_is_one_line(command: str, capsys: Any) -> None:
    argv = [command, *(["Hi"] if command == "generate" else []), "--knob", "turn"]
    assert cli.main(argv) == 2
    assert "a knob is NAME=VALUE, not 'turn'" in one_line(capsys)


@pytest.mark.parametrize("argv", [["inspect"], ["inspect", "tiny-llada", "--json"], ["decoders", "--markdown"]])
def test_a_reader_who_has_seen_enough_is_no_fault(argv: list[str]) -> None:
    command = [
        sys.executable,
        "-c",
        "from asynclane.server.cli.main import main; import sys; sys.exit(main(sys.argv[1:]))",
    ]
    with subprocess.Popen([*command, *argv], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.close()
        assert process.stderr is not None
        assert process.stderr.read() == b""
    assert process.returncode == 0


def test_chat_without_a_server_is_one_line(capsys: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    assert cli.main(["chat", "--url", f"http://127.0.0.1:{port}"]) == 2
    assert f"no server at http://127.0.0.1:{port}" in one_line(capsys)


def test_the_version_takes_neither_torch_nor_a_web_framework() -> None:
    script = """
import sys
from asynclane.server.cli.main import main
assert main(["version"]) == 0
assert not {"torch", "fastapi", "transformers", "uvicorn"} & set(sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


SERVE = """
import asyncio, sys, types
from contextlib import asynccontextmanager
from fastapi import FastAPI
from starlette.responses import StreamingResponse
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

build = types.ModuleType("asynclane.server.engine.wiring")
build.build_service = lambda settings: types.SimpleNamespace(app=app, drain=lambda s: asyncio.sleep(0))
sys.modules[build.__name__] = build
sys.exit(main(["serve", "--port", sys.argv[1]]))
"""


def test_sigterm_lets_running_requests_finish_and_exits_with_0() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    process = subprocess.Popen(
        [sys.executable, "-c", SERVE, str(port)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
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
            process.send_signal(signal.SIGTERM)
            got += "".join(parts)
        out, err = process.communicate(timeout=10)
    finally:
        too_long.cancel()
        process.kill()
        process.communicate()
    assert got == "begun,done"
    assert "engine stopped" in out
    assert process.returncode == 0, err
