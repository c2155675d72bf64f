"""A package that brings a commit rule, as CONTRIBUTING.md has it: once installed, it answers over HTTP and from Python,
alone as batched with others. Packages beside it that do not load change nothing but the log."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from ..support.checkout import ROOT
from ..support.processes import ASYNCLANE, environment
from ..support.scale import LONG
from ..support.servers import Server, start_server, stop_server

QUESTIONS = (
    "What is the capital of France?",
    "Tell me a short story about Mia and a fox at the park.",
)
GIVEN: tuple[dict[str, Any], ...] = (
    {"decoder": "leftward", "leftward.sure_from": 0.6},
    {"decoder": "fast-dllm", "rule": "leftward"},
    {"decoder": "asynclane", "rule": "leftward", "leftward.sure_from": 0.99},
)
ANSWERS = f"""
import asynclane_leftward  # before the project, which loads it
import json
from asynclane import LLM, SamplingParams

with LLM("tiny-llada", max_num_seqs=16) as llm:
    chats, params = [], []
    for given in {GIVEN!r}:
        for question in {QUESTIONS!r}:
            own = dict(given)
            params.append(SamplingParams(decoder=own.pop("decoder", None), params=own, max_tokens=12))
            chats.append([{{"role": "user", "content": question}}])
    together = [found.outputs[0].text for found in llm.chat(chats, params, use_tqdm=False)]
    alone = [llm.chat(*each, use_tqdm=False)[0].outputs[0].text for each in zip(chats, params)]
print(json.dumps([together, alone]))
"""
LEFT_OUT = {
    "broken": "ImportError: not on this machine",
    "wino": "a built-in decoder or rule has this name",
}


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The value of `PYTHONPATH` with the package of CONTRIBUTING.md installed, and with one that is of no use."""
    text = (ROOT / "CONTRIBUTING.md").read_text()
    (rule,) = re.findall(r"```python\n(.*?)```", text.split("### A commit rule: two files")[1].split("\n### ")[0], re.S)
    (project,) = re.findall(
        r"```toml\n(.*?)```", text.split("### A commit rule in a package of its own")[1].split("\n### ")[0], re.S
    )
    rule, found = re.subn(r"from \.\.\S* import (.*)\n", r"from asynclane.scheduler import \1\n", rule)
    rule, named = re.subn(r'"sure_from"', '"leftward.sure_from"', rule)
    assert (found, named) == (2, 3)
    source, site = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("site")
    (source / "pyproject.toml").write_text(project)
    (source / "asynclane_leftward.py").write_text(rule)
    quiet = ["--quiet", "--no-index", "--no-deps", "--no-build-isolation", "--no-cache-dir"]
    command = [sys.executable, "-P", "-m", "pip", "--disable-pip-version-check", "install", *quiet]
    subprocess.run([*command, "--target", str(site), str(source)], check=True, timeout=120)
    useless = site / "useless-0.1.dist-info"
    useless.mkdir()
    (useless / "METADATA").write_text("Metadata-Version: 2.1\nName: useless\nVersion: 0.1\n")
    entries = "broken = broken_plugin:Rule\nwino = asynclane_leftward:Leftward\n"
    (useless / "entry_points.txt").write_text(f"[asynclane.decoders]\n{entries}")
    (site / "broken_plugin.py").write_text("raise ImportError('not on\\nthis machine')\n")
    return os.pathsep.join([str(site), *filter(None, [os.environ.get("PYTHONPATH")])])


@pytest.fixture(scope="module")
def server(path: str) -> Iterator[Server]:
    flags = "--frontends", "1", "--max-num-seqs", "16", "--decoder", "leftward"
    server = start_server(*flags, environ={"PYTHONPATH": path})
    try:
        yield server
    finally:
        stop_server(server)


def run(path: str, *command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, env=environment(PYTHONPATH=path), capture_output=True, text=True, timeout=120)


@LONG
def test_it_answers_alone_as_batched_and_over_http_as_from_python(path: str, server: Server) -> None:
    done = run(path, sys.executable, "-P", "-c", ANSWERS)
    assert done.returncode == 0, done.stderr
    together, alone = json.loads(done.stdout)
    assert together == alone
    assert "Paris" in together[0]
    assert done.stderr.splitlines() == [
        f"the decoder {name!r} of useless 0.1 is left out: {reason}" for name, reason in LEFT_OUT.items()
    ]
    bodies: list[dict[str, Any]] = [
        {"model": "tiny-llada", "max_tokens": 12, "messages": [{"role": "user", "content": question}], **given}
        for given in GIVEN
        for question in QUESTIONS
    ]
    with httpx.Client(base_url=server.url, timeout=60) as client:
        replies = [client.post("/v1/chat/completions", json=body).json() for body in bodies]
    assert [reply["choices"][0]["message"]["content"] for reply in replies] == together


def test_front_ends_and_engine_know_it(server: Server) -> None:
    assert [line.partition("wiring - ")[2].strip() for line in server.log if "is left out" in line] == [
        f"the decoder {name!r} of useless 0.1 is left out: {reason}" for name, reason in LEFT_OUT.items()
    ]
    (model,) = httpx.get(f"{server.url}/v1/models").json()["data"]
    assert model["decoders"]["leftward"]["leftward.sure_from"] == 0.9
    assert "broken" not in model["decoders"]
    document = httpx.get(f"{server.url}/openapi.json").json()
    schema = document["components"]["schemas"]["ChatCompletionRequest"]["properties"]
    assert "leftward" in schema["decoder"]["enum"]
    assert schema["leftward.sure_from"]["anyOf"][0]["maximum"] == 1
    body = {"model": "tiny-llada", "messages": [{"role": "user", "content": "a"}], "decoder": "leftward"}
    for wrong, param in (
        ({"leftward.sure_from": 2}, "leftward.sure_from"),
        ({"leftward.sure": 2}, "leftward.sure"),
        ({"decoder": "fast-dllm", "leftward.sure_from": 1}, "leftward.sure_from"),
        ({"decoder": "broken"}, "decoder"),
        ({"decoder": "leftwards"}, "decoder"),
    ):
        refused = httpx.post(f"{server.url}/v1/chat/completions", json={**body, **wrong})
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, param)
    assert "did you mean 'leftward'?" in refused.json()["error"]["message"]


def test_the_command_lists_it_with_its_package_and_says_what_is_left_out(path: str) -> None:
    done = run(path, *ASYNCLANE, "decoders")
    assert done.returncode == 0
    (row,) = [line for line in done.stdout.splitlines() if line.startswith("leftward ")]
    assert row.endswith("CONTRIBUTING.md (plug-in: asynclane-leftward 1.0)")
    assert [line for line in done.stderr.splitlines() if "useless" in line] == [
        f"asynclane: the decoder {name!r} of useless 0.1 is left out: {reason}" for name, reason in LEFT_OUT.items()
    ]
    shown = run(path, *ASYNCLANE, "decoders", "leftward").stdout
    assert "| `leftward.sure_from` | 0.9 | a number from 0 to 1 |" in shown
    assert "Source: CONTRIBUTING.md (plug-in: asynclane-leftward 1.0)." in shown
    assert "leftward" in run(path, *ASYNCLANE, "decoders", "fast-dllm").stdout


def test_the_page_of_all_decoders_has_the_built_in_ones_alone(path: str) -> None:
    page = run(path, *ASYNCLANE, "decoders", "--markdown").stdout
    assert page == (ROOT / "docs" / "decoders.md").read_text()


def test_it_may_be_the_default_decoder(server: Server) -> None:
    """As `server` has it."""
    body = {"model": "tiny-llada", "max_tokens": 12, "messages": [{"role": "user", "content": QUESTIONS[0]}]}
    with httpx.Client(base_url=server.url, timeout=60) as client:
        answers = [
            client.post("/v1/chat/completions", json={**body, **one}).json() for one in ({}, {"decoder": "leftward"})
        ]
    (one, other) = ([answer["choices"], answer["usage"]] for answer in answers)
    assert one == other
    assert "Paris" in one[0][0]["message"]["content"]


def test_one_that_is_left_out_is_unknown(path: str) -> None:
    done = run(path, *ASYNCLANE, "decoders", "broken")
    assert (done.returncode, "unknown decoder 'broken'" in done.stderr) == (2, True)
