"""The Dockerfile without an image engine: its steps are carried out in a folder, and what they make is started as a
container would be: as its user, with nothing but its variables, on a root that cannot be written."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from ..support.checkout import sent_to_docker
from ..support.processes import started
from ..support.servers import PARIS, Server, wait_for
from .dockerfile import Stage, exec_form, labels, last, lineage, read, shell, variables
from .tools import DEPLOY, ROOT, documents, free_port, needed, run

STAGES = read(ROOT / "Dockerfile")
TARGETS = ("cpu", "gpu")
# Folders of the image that steps write to or read; in a test they lie below a folder of its own.
FOLDERS = re.compile(r"(?<![\w/.])/(?:opt/asynclane|opt/sbom|src|cache|models|home/asynclane)(?![\w-])")
# A namespace in which all is read-only but /tmp, which is empty, and the volume. A folder above Python that only root
# may enter is replaced by an empty one in which Python lies.
CONTAINER = """
set -e
mount --make-rprivate /
if [ -n "$CLOSED" ]; then
  mount --bind "$PYTHON" /mnt
  mount -t tmpfs -o mode=755 tmpfs "$CLOSED"
  mkdir -p "$PYTHON"
  mount --move /mnt "$PYTHON"
fi
mount --bind "$VOLUME" "$VOLUME"
mount -o remount,ro,bind /
mount -t tmpfs -o noexec tmpfs /tmp
cd "$WORKDIR"
exec setpriv --reuid 10001 --regid 10001 --clear-groups --inh-caps=-all --bounding-set=-all --no-new-privs "$@"
"""


def below(root: Path, text: str) -> str:
    """The text with the image's folders below `root`."""
    return FOLDERS.sub(lambda found: f"{root}{found[0]}", text)


def test_the_default_target_is_the_gpu_s_and_both_take_the_environment_that_was_built_for_them() -> None:
    assert list(STAGES)[-1] == "gpu"
    for target in TARGETS:
        assert f"--from=build-{target} /opt/asynclane /opt/asynclane" in STAGES[target].all("COPY")


@pytest.mark.parametrize("target", TARGETS)
def test_an_image_is_labelled_and_runs_as_a_user_without_rights(target: str) -> None:
    stages = lineage(STAGES, target)
    (project,) = re.findall(r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    found = {name.removeprefix("org.opencontainers.image."): value for name, value in labels(stages).items()}
    assert found.keys() == {"title", "description", "licenses", "version", "revision"}
    assert f"VERSION={project}" in [value for stage in stages for value in stage.all("ARG")]
    assert last(stages, "USER") == "10001:10001"
    assert stages[-1].instructions[-1][0] == "USER"  # nothing later is done as root, and nothing runs as root
    assert exec_form(last(stages, "ENTRYPOINT")) == ["asynclane"]  # exec form: signals reach the server
    assert last(stages, "VOLUME") == "/cache"
    installed = " ".join(value for stage in stages for value in stage.all("RUN"))
    assert "pip" not in installed


def test_the_chart_and_compose_use_the_user_and_the_folders_of_the_image() -> None:
    values = (DEPLOY / "helm" / "asynclane" / "templates" / "deployment.yaml").read_text()
    assert {"runAsUser: 10001", "mountPath: /cache", "mountPath: /models"} <= set(re.findall(r"\w+: [\w/]+", values))
    (compose,) = documents((DEPLOY / "compose.yaml").read_text())
    for service in (compose["services"]["server-gpu"], compose["services"]["server-cpu"]):
        assert service["read_only"]
        assert service["tmpfs"] == ["/tmp"]
        assert service["cap_drop"] == ["ALL"]
        assert {volume.rsplit(":/", 1)[1] for volume in service["volumes"]} == {
            "models:ro",
            "cache",
            "etc/asynclane:ro",
        }
        assert service["volumes"][-1].startswith("./keys:")  # Docker makes an empty folder if there is none
        assert int(service["stop_grace_period"].removesuffix("s")) >= 45
    for service in compose["services"].values():
        assert all(port.startswith("127.0.0.1:") for port in service["ports"])
        for volume in service["volumes"]:
            source = volume.split(":")[0]
            assert not source.startswith("./") or source == "./keys" or (DEPLOY / source).exists()


def health_check(port: int) -> int:
    command = exec_form(last(lineage(STAGES, "cpu"), "HEALTHCHECK"))
    command[0] = sys.executable
    return subprocess.run(command, env={"ASYNCLANE_PORT": str(port)}, timeout=20, check=False, stderr=-3).returncode


def test_the_health_check_says_whether_the_server_lives(server: Server) -> None:
    assert health_check(int(server.url.rsplit(":", 1)[1])) == 0
    assert health_check(free_port()) != 0


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """The root of images. Not below /tmp, which in a container is another one."""
    path = Path(tempfile.mkdtemp(dir="/var/tmp", prefix="asynclane-image-"))
    try:
        path.chmod(0o755)
        yield path
    finally:
        shutil.rmtree(path)


def carry_out(stages: list[Stage], root: Path, given: dict[str, str]) -> None:
    """RUN, WORKDIR and COPY of the stages, below `root`. Packages that this environment has are not installed again."""
    environment = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "HOME": str(root), **given}
    environment |= {name: value for name, value in os.environ.items() if name.startswith("PIP_")}
    workdir = root
    for stage in stages:
        for kind, value in stage.instructions:
            if kind == "ENV":
                for name, text in variables([Stage("", "", [(kind, value)])]).items():
                    environment[name] = below(root, text).replace("$PATH", environment["PATH"])
            elif kind == "WORKDIR":
                workdir = Path(below(root, value))
                workdir.mkdir(parents=True, exist_ok=True)
            elif kind == "COPY" and "--from" not in value:
                *names, _ = value.split()
                for name in sent_to_docker() if names == ["."] else names:
                    (workdir / name).parent.mkdir(parents=True, exist_ok=True)
                    shutil.copy(ROOT / name, workdir / name)
            elif kind == "RUN":
                command = ["sh", "-ec", below(root, shell(value))]
                done = run(command, cwd=workdir, env=environment, timeout=300)
                assert done.returncode == 0, f"{value}\n{done.stdout}{done.stderr}"
                for site in root.glob("opt/asynclane/lib/python*/site-packages"):
                    (site / "there-already.pth").write_text(sysconfig.get_path("purelib") + "\n")


@pytest.fixture(scope="module", params=TARGETS)
def built(request: pytest.FixtureRequest, folder: Path) -> tuple[str, Path]:
    """The target's name, and the folder in which the steps of its environment were carried out."""
    needed(os.environ.get("REQUIRE_TOOLS"), "installs from the package index; set REQUIRE_TOOLS")
    target, root = request.param, folder
    if not (root / "opt/sbom").exists():
        carry_out([STAGES["sbom"]], root, {})
    shutil.rmtree(root / "opt/asynclane", ignore_errors=True)
    shutil.rmtree(root / "src", ignore_errors=True)
    # No index: torch is there already, so that pip looks for none.
    carry_out(lineage(STAGES, f"build-{target}"), root, {"TORCH_INDEX": "file:///none"})
    return target, root


def test_the_steps_make_an_environment_with_a_bill_of_materials(built: tuple[str, Path]) -> None:
    _, root = built
    bill: Any = json.loads((root / "opt/asynclane/sbom.cdx.json").read_text())
    assert bill["bomFormat"] == "CycloneDX"
    found = {one["name"]: one for one in bill["components"]}
    assert {"asynclane", "torch", "fastapi", "transformers"} <= found.keys()
    assert "cyclonedx-bom" not in found
    assert all(one.get("version") for one in found.values())
    assert found["fastapi"]["purl"].startswith("pkg:pypi/fastapi@")
    python = str(root / "opt/asynclane/bin/python")
    here = run([python, "-I", "-c", "import asynclane.server as s; print(s.__file__)"])
    assert here.stdout.startswith(f"{root}/opt/asynclane/"), here.stdout + here.stderr  # the wheel, not this checkout


def test_without_an_index_of_torch_the_small_image_says_what_it_needs() -> None:
    first = STAGES["build-cpu"].all("RUN")[0]
    done = run(["sh", "-ec", shell(first)], env={"TORCH_INDEX": "", "PATH": os.environ["PATH"]})
    assert done.returncode == 1
    assert "TORCH_INDEX" in done.stdout


def closed_folder(path: Path) -> Path | None:
    """The highest folder above `path` that other users may not enter."""
    return next((parent for parent in reversed(path.parents) if not parent.stat().st_mode & 0o001), None)


def as_container(root: Path, command: list[str]) -> tuple[list[str], dict[str, str]]:
    """The command in a namespace like a container's, and the variables that set it up."""
    python = Path(sys.base_prefix)
    setup = {
        "CLOSED": str(closed_folder(python) or ""),
        "PYTHON": str(python),
        "VOLUME": str(root / "cache"),
        "WORKDIR": str(root / "home/asynclane"),
    }
    return ["unshare", "--mount", "sh", "-c", CONTAINER, "sh", *command], setup


def test_the_image_serves_on_a_read_only_root_and_drains(built: tuple[str, Path]) -> None:
    target, root = built
    can = os.geteuid() == 0 and run(["unshare", "--mount", "mount", "--make-rprivate", "/"]).returncode == 0
    if not can:
        pytest.skip("only root may make a namespace with a read-only root")
    stages = lineage(STAGES, target)
    for name in ("cache", "models", "home/asynclane"):
        (root / name).mkdir(parents=True, exist_ok=True)
    os.chown(root / "cache", 10001, 10001)
    for path in (root / "opt").rglob("*"):  # the image's files are readable; this process may have another umask
        if not path.is_symlink():
            path.chmod(path.stat().st_mode | (0o055 if path.is_dir() else 0o044))
    given = {name: below(root, value) for name, value in variables(stages).items()}
    given["PATH"] = given["PATH"].replace("$PATH", "/usr/bin:/bin")
    entry = [*exec_form(last(stages, "ENTRYPOINT")), *exec_form(last(stages, "CMD"))]
    entry[0] = str(root / "opt/asynclane/bin" / entry[0])
    port = free_port()
    command, setup = as_container(root, ["env", *(f"--unset={name}" for name in ("CLOSED", "PYTHON", "VOLUME"))])
    given |= setup | {"ASYNCLANE_PORT": str(port), "OMP_NUM_THREADS": "1"}
    url = f"http://127.0.0.1:{port}"

    def ready() -> bool:
        assert process.poll() is None, process.stderr.read() if process.stderr else ""
        try:
            return httpx.get(f"{url}/ready").status_code == 200
        except httpx.TransportError:
            return False

    with started([*command, *entry], env=given, cwd="/", stderr=subprocess.PIPE) as process:
        wait_for(ready)
        owner = Path(f"/proc/{process.pid}").stat().st_uid
        assert owner == 10001
        status = Path(f"/proc/{process.pid}/status").read_text()
        assert re.search(r"^CapEff:\t0+$", status, re.MULTILINE)
        with pytest.raises(OSError, match="Read-only file system"):
            (Path(f"/proc/{process.pid}/root{root}") / "opt/asynclane/written").write_text("")
        assert health_check(port) == 0
        chat = {"model": "tiny-chat", "messages": [{"role": "user", "content": PARIS}]}
        answer = httpx.post(f"{url}/v1/chat/completions", json=chat, timeout=60).json()
        assert "Paris" in answer["choices"][0]["message"]["content"]
        process.terminate()
        assert process.wait(timeout=40) == 0
