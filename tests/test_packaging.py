"""The wheel holds what a server needs and nothing else, however many folders there are."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path, PurePosixPath
from zipfile import ZipFile

import pytest

from .support.checkout import ROOT, sent_to_docker, tracked

SHIPPED = ("python", "bench/load", "clients", "kernels", "models", "scheduler", "server")
NEW = ("scheduler/decoding/lanes/new/__init__.py", "scheduler/decoding/lanes/new/policy.py", "server/new/__init__.py")
# The only `asynclane` is the unpacked wheel: the installation of the checkout would complete its packages.
IMPORT = """
import importlib.util, sys
from pathlib import Path
sys.meta_path[:] = [finder for finder in sys.meta_path if "editable" not in type(finder).__module__ + repr(finder)]
sys.path[:] = [sys.argv[1], *(path for path in sys.path if not (Path(path) / "asynclane").exists())]
import asynclane.bench.load.run, asynclane.clients.cli, asynclane.server.app, asynclane.server.cli.main
assert not importlib.util.find_spec("asynclane.bench.quality")
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel of what Docker sends and of some new folders, unpacked."""
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        pytest.skip("needs a checkout")
    source, unpacked = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    for name in sent_to_docker():
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, source / name)
    for name in NEW:
        (source / name).parent.mkdir(exist_ok=True)
        (source / name).write_text("")
    build = "from setuptools.build_meta import build_wheel; build_wheel('dist')"
    subprocess.run([sys.executable, "-P", "-c", build], cwd=source, check=True, capture_output=True)
    with ZipFile(next((source / "dist").glob("*.whl"))) as archive:
        archive.extractall(unpacked)
    return unpacked


def test_the_wheel_holds_every_file_of_the_shipped_folders_and_no_other(wheel: Path) -> None:
    found = {path.relative_to(wheel / "asynclane").as_posix() for path in (wheel / "asynclane").rglob("*.*")}
    wanted = {name.removeprefix("python/") for name in (*tracked(*SHIPPED), *NEW) if not name.endswith(".md")}
    assert {name for name in found if not (wheel / "asynclane" / name).is_dir()} == wanted
    assert [path.name for path in wheel.iterdir() if path.suffix != ".dist-info"] == ["asynclane"]
    suffixes = {PurePosixPath(name).suffix for name in found}
    assert {".py", ".typed", ".npz", ".json", ".safetensors", ".html", ".js", ".css", ".svg"} <= suffixes


def test_the_wheel_runs_without_the_rest_of_the_project(wheel: Path) -> None:
    subprocess.run([sys.executable, "-P", "-c", IMPORT, str(wheel)], cwd=wheel, check=True)


def test_the_files_that_make_test_fast_names_exist() -> None:
    text = (ROOT / "Makefile").read_text().replace("\\\n", " ")
    lists = [line.split(":=")[1].split() for line in text.splitlines() if line.startswith(("FAST :=", "SLOW :="))]
    assert len(lists) == 2
    assert not [name for names in lists for name in names if not (ROOT / name).exists()]
