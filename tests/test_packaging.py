"""The wheel holds what a server needs and nothing else, however many folders there are; so does the source archive."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
from importlib.util import find_spec
from pathlib import Path, PurePosixPath
from typing import NamedTuple
from zipfile import ZipFile

import pytest

from .support.checkout import ROOT, sent_to_docker, tracked
from .support.scale import LONG

SHIPPED = (
    *(
        "python",
        "bench/eval",
        "bench/load",
        "clients",
        "deploy/__init__.py",
        "deploy/py.typed",
        "deploy/ray",
        "kernels",
        "models",
        "scheduler",
    ),
    "server",
    "training/controllers",
)
NEW = ("scheduler/decoding/lanes/new/__init__.py", "scheduler/decoding/lanes/new/policy.py", "server/new/__init__.py")
# The only `asynclane` is the unpacked wheel: the installation of the checkout would complete its packages.
IMPORT = """
import importlib.util, sys
from pathlib import Path
sys.meta_path[:] = [finder for finder in sys.meta_path if "editable" not in type(finder).__module__ + repr(finder)]
sys.path[:] = [sys.argv[1], *(path for path in sys.path if not (Path(path) / "asynclane").exists())]
import asynclane.bench.eval.run, asynclane.bench.load.run, asynclane.clients.cli
import asynclane.server.app, asynclane.server.cli.main, asynclane.training.controllers.command
assert not importlib.util.find_spec("asynclane.bench.quality")
assert not importlib.util.find_spec("asynclane.training.corpus")
"""


BUILD = "from setuptools import build_meta; build_meta.build_{}('dist')"
VERSIONS = ("3.11", "3.12", "3.13")  # of Python


class Distributions(NamedTuple):
    """A wheel and a source archive of the same files, and what is in them."""

    wheel: Path
    archive: Path
    unpacked_wheel: Path
    unpacked_archive: Path


def build(source: Path, kind: str) -> Path:
    """The `wheel`, or the source archive (`sdist`)."""
    subprocess.run([sys.executable, "-P", "-c", BUILD.format(kind)], cwd=source, check=True, capture_output=True)
    return next((source / "dist").glob("*.whl" if kind == "wheel" else "*.tar.gz"))


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Distributions:
    """Made of what Docker sends, of `MANIFEST.in`, a test, and some new folders."""
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        pytest.skip("needs a checkout")
    source, unpacked, sources = map(tmp_path_factory.mktemp, ("source", "wheel", "sdist"))
    for name in (*sent_to_docker(), "MANIFEST.in", "tests/test_words.py"):
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        if name.endswith(".safetensors"):
            (source / name).write_text(name)  # weights take seconds to compress
        else:
            shutil.copy(ROOT / name, source / name)
    for name in NEW:
        (source / name).parent.mkdir(exist_ok=True)
        (source / name).write_text("")
    wheel, archive = build(source, "wheel"), build(source, "sdist")
    with ZipFile(wheel) as files:
        files.extractall(unpacked)
    with tarfile.open(archive) as files:
        files.extractall(sources, filter="data")
    (top,) = sources.iterdir()
    return Distributions(wheel, archive, unpacked, top)


@pytest.fixture
def wheel(built: Distributions) -> Path:
    return built.unpacked_wheel


def test_the_wheel_holds_every_file_of_the_shipped_folders_and_no_other(wheel: Path) -> None:
    found = {path.relative_to(wheel / "asynclane").as_posix() for path in (wheel / "asynclane").rglob("*.*")}
    shipped = (*tracked(*SHIPPED), *NEW)
    wanted = {name.removeprefix("python/") for name in shipped if not name.endswith((".md", ".yaml"))}
    assert {name for name in found if not (wheel / "asynclane" / name).is_dir()} == wanted
    assert [path.name for path in wheel.iterdir() if path.suffix != ".dist-info"] == ["asynclane"]
    suffixes = {PurePosixPath(name).suffix for name in found}
    assert {".py", ".typed", ".npz", ".json", ".safetensors", ".html", ".js", ".css", ".svg"} <= suffixes


def test_the_wheel_runs_without_the_rest_of_the_project(wheel: Path) -> None:
    subprocess.run([sys.executable, "-P", "-c", IMPORT, str(wheel)], cwd=wheel, check=True)


def contents(package: Path) -> dict[str, bytes]:
    files = (path for path in package.rglob("*") if path.is_file() and path.parent.name != "__pycache__")
    return {path.relative_to(package).as_posix(): path.read_bytes() for path in files}


@LONG
def test_the_source_archive_makes_the_same_wheel_and_has_nothing_more(built: Distributions, tmp_path: Path) -> None:
    own = {"LICENSE", "MANIFEST.in", "PKG-INFO", "README.md", "asynclane.egg-info", "pyproject.toml", "setup.cfg"}
    own |= {"setup.py", *(folder.split("/")[0] for folder in SHIPPED)}
    assert {path.name for path in built.unpacked_archive.iterdir()} == own
    shutil.copytree(built.unpacked_archive, tmp_path / "source")
    with ZipFile(build(tmp_path / "source", "wheel")) as files:
        files.extractall(tmp_path / "wheel")
    assert contents(tmp_path / "wheel" / "asynclane") == contents(built.unpacked_wheel / "asynclane")


def test_both_may_be_published(built: Distributions) -> None:
    if find_spec("twine") is None and "REQUIRE_TOOLS" not in os.environ:
        pytest.skip("needs twine")
    command = [sys.executable, "-P", "-m", "twine", "check", "--strict", str(built.wheel), str(built.archive)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("PASSED") == 2


def test_pip_installs_the_wheel_with_its_command(built: Distributions, tmp_path: Path) -> None:
    quiet = ["--quiet", "--disable-pip-version-check", "--no-index", "--no-deps", "--no-cache-dir", "--no-compile"]
    command = [sys.executable, "-P", "-m", "pip", "install", *quiet, "--target", str(tmp_path), str(built.wheel)]
    subprocess.run(command, check=True, capture_output=True)
    names = (tmp_path / "bin" / "asynclane").read_text()
    assert "from asynclane.server.cli.main import main" in names
    metadata = next(tmp_path.glob("asynclane-*.dist-info/METADATA")).read_text()
    assert re.findall(r"^Classifier: Programming Language :: Python :: (3\.\d+)$", metadata, re.M) == list(VERSIONS)
    assert {"otel", "ray", "bench"} <= set(re.findall(r"^Provides-Extra: (\w+)$", metadata, re.M))


def test_the_versions_of_python_are_the_same_everywhere() -> None:
    """Those that pip and make check, and those of the pages."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    after = f"3.{int(VERSIONS[-1].split('.')[1]) + 1}"
    assert project["requires-python"] == f">={VERSIONS[0]},<{after}"
    first, last = (version.replace(".", ", ") for version in (VERSIONS[0], after))
    assert f"({first}) <= sys.version_info[:2] < ({last})" in (ROOT / "Makefile").read_text()
    for page in ("README.md", "CONTRIBUTING.md", "docs/operations.md"):
        assert f"Python {VERSIONS[0]} to {VERSIONS[-1]}" in (ROOT / page).read_text(), page


def test_every_package_of_the_extras_has_a_tested_version() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    pinned = {line.split("==")[0].lower().replace("_", "-") for line in (ROOT / "constraints.txt").read_text().split()}
    wanted = [
        *project["dependencies"],
        *(each for extra in project["optional-dependencies"].values() for each in extra),
    ]
    names = {re.split(r"[\[><=; ]", each)[0].lower() for each in wanted} - {"asynclane", "triton"}  # torch brings it
    assert names <= pinned


def test_the_files_that_make_test_fast_names_exist() -> None:
    text = (ROOT / "Makefile").read_text().replace("\\\n", " ")
    lists = [line.split(":=")[1].split() for line in text.splitlines() if line.startswith(("FAST :=", "SLOW :="))]
    assert len(lists) == 2
    assert not [name for names in lists for name in names if not (ROOT / name).exists()]
