"""The examples of the pages can be pasted: each Python example runs, and prints what is shown below it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from asynclane.server.settings import Settings

from ..support.scale import part
from ..support.servers import Server

ROOT = Path(__file__).parents[2]
PAGES = ("README.md", "docs/api.md", "docs/python.md", "clients/README.md")
README_LINES = 170
DEFAULT_URL = "http://127.0.0.1:8000"
# A block of Python, and the block without a language that stands right below it, if there is one.
EXAMPLE = re.compile(r"^(`{3,})python\n(.*?)^\1\n(?:```\n(.*?)^```$)?", re.M | re.S)
EXAMPLES = [
    (name, number, *found.group(2, 3))
    for name in PAGES
    for number, found in enumerate(EXAMPLE.finditer((ROOT / name).read_text(encoding="utf-8")), 1)
    if DEFAULT_URL in found.group(2) or "from asynclane import" in found.group(2)
]
# All in one process, since the imports of each take seconds; but each with names of its own.
RUN_EACH = """
import contextlib, io, json, sys

printed = []
for name, script in json.load(sys.stdin):
    with contextlib.redirect_stdout(io.StringIO()) as out:
        exec(compile(script, name, "exec"), {"__name__": "__main__"})
    printed.append(out.getvalue())
print(json.dumps(printed))
"""


@pytest.fixture(scope="module")
def server(open_server: Server) -> Server:
    """As the one that `make serve` starts, on a free port."""
    (model,) = httpx.get(f"{open_server.url}/v1/models").json()["data"]
    assert model["id"] == Settings().model
    return open_server


def test_there_are_examples() -> None:
    assert {name for name, *_ in EXAMPLES} == set(PAGES)
    assert sum(shown is not None for *_, shown in EXAMPLES) >= 8


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= README_LINES


def test_the_examples_run_and_print_what_is_shown(server: Server) -> None:
    examples = [each for each in EXAMPLES if each[0] == "README.md"]
    examples += part([each for each in EXAMPLES if each[0] != "README.md"], 2)
    scripts = [(f"{name}-{number}", script.replace(DEFAULT_URL, server.url)) for name, number, script, _ in examples]
    done = subprocess.run(
        [sys.executable, "-P", "-c", RUN_EACH],
        input=json.dumps(scripts),
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    for (name, number, _, shown), printed in zip(examples, json.loads(done.stdout), strict=True):
        assert printed.strip(), (name, number)
        assert shown is None or printed.strip("\n") == shown.strip("\n"), (name, number)
