"""Counts of the structure find what is there in a small project, and one chat in the real one."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from asynclane.bench.report.structure import main

PROJECT = {
    "scheduler/__init__.py": "",
    "scheduler/a.py": '"""What it is."""\nfrom .b import x\n',
    "scheduler/b.py": 'def x():\n    """Whether it is."""\n    from .decoding import c\n',
    "scheduler/decoding/__init__.py": "",
    "scheduler/decoding/c.py": "from ..a import y\nfrom ...server import z\n",
    "server/__init__.py": "import asynclane.server.app\n",
    "server/app.py": '"""The app. What else?"""\n',
    "tests/test_a.py": '"""Of tests."""\nfrom asynclane.scheduler.a import x\n\n',
}


def figures(capsys: pytest.CaptureFixture[str], *flags: str) -> dict[str, Any]:
    assert main(list(flags)) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out.splitlines()[-1])
    return found


def test_circles_lines_and_docstrings_are_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, text in PROJECT.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    subprocess.run(["git", "add", "."], cwd=tmp_path, check=True)
    found = figures(capsys, "--root", str(tmp_path))
    (circle,) = found["import_circles"]
    assert set(circle) == {"scheduler/a.py", "scheduler/b.py", "scheduler/decoding/c.py"}
    assert found["core_lines"] == 9
    assert found["scheduler_lines_without_decoding"] == 5
    assert found["test_lines"] == 3
    assert found["poor_docstrings"] == ["scheduler/a.py:1", "scheduler/b.py:1"]
