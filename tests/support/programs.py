"""Clients that run in programs of their own. Tests of what a machine lacks are skipped, unless REQUIRE_TOOLS is set, as
it is in CI."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from typing import Any

import pytest

from .checkout import ROOT

NODE, PYTHON = ROOT / "tests" / "e2e" / "node", ROOT / "tests" / "e2e" / "python"
ENVIRONMENT = ROOT / "build" / "clients"  # with the packages of PYTHON


def needed(found: object, lacking: str) -> None:
    if not found:
        assert not os.environ.get("REQUIRE_TOOLS"), lacking
        pytest.skip(lacking)


def node_program(script: str, package: str) -> list[str]:
    """The command of a script of `tests/e2e/node`, which needs a package of npm."""
    program = shutil.which("node")
    needed(program, "there is no Node.js here")
    needed((NODE / "node_modules" / package).is_dir(), f"run `npm ci` in {NODE} first")
    return [str(program), str(NODE / script)]


def python_program(script: str) -> list[str]:
    """The command of a script of `tests/e2e/python`, which has packages in other versions than the tests."""
    program = ENVIRONMENT / "bin" / "python"
    needed(program.exists(), f"make {ENVIRONMENT} of {PYTHON / 'requirements.txt'} first")
    return [str(program), str(PYTHON / script)]


def ask(command: list[str], url: str, case: str, *, quiet: bool = True) -> Any:
    """Return what a script prints for a case, as JSON. A `quiet` one writes no warnings."""
    done = subprocess.run([*command, url, case], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr == "" or not quiet
    return json.loads(done.stdout)
