"""A Ray cluster of this machine for a test: a process with a folder of its own, and applications on it."""

from __future__ import annotations

import re
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import yaml

from ..support.processes import environment, started
from .tools import DEPLOY, free_port, needed, run

WAIT_S = 120.0
DRAIN_S = 120  # a machine may be busy
QUICK = {  # what a cluster does seldom, so that a test need not wait for it
    "RAY_SERVE_HANDLE_AUTOSCALING_METRIC_PUSH_INTERVAL_S": "0.5",
    "RAY_SERVE_REPLICA_AUTOSCALING_METRIC_PUSH_INTERVAL_S": "0.5",
}


def ray_program(name: str) -> str:
    """The path of a command that Ray installs."""
    found = Path(sys.executable).with_name(name)
    needed(found.is_file(), f"there is no {name} beside this Python: install the extra ray")
    return str(found)


def variables() -> dict[str, str]:
    """The variables that `deploy/README.md` gives to a cluster."""
    found = re.findall(r"^export (RAY_\w+)=(\S+)$", (DEPLOY / "README.md").read_text(), re.MULTILINE)
    assert found
    return dict(found)


@dataclass(frozen=True, slots=True)
class Cluster:
    address: str
    url: str
    folder: Path
    variables: dict[str, str]

    def deploy(self, args: dict[str, Any], **options: Any) -> None:
        """Deploy the shipped file for tiny-llada on this cluster's port, with other arguments and options."""
        config = yaml.safe_load((DEPLOY / "ray" / "serve.yaml").read_text())
        config["http_options"]["port"] = int(self.url.rpartition(":")[2])
        (application,) = config["applications"]
        application["args"] |= {"model": "tiny-llada", "drain_s": DRAIN_S, **args}
        if options:
            application["deployments"] = [{"name": "asynclane", **options}]
        path = self.folder / "serve.yaml"
        path.write_text(yaml.safe_dump(config))
        command = [ray_program("serve"), "run", "--non-blocking", "--address", self.address, str(path)]
        done = run(command, env=self.variables)
        assert done.returncode == 0, done.stderr

    def replicas(self) -> list[int]:
        """The processes of this cluster's replicas."""
        found = []
        for path in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):  # it has ended meanwhile
                if not (path / "cmdline").read_bytes().startswith(b"ray::ServeReplica:asynclane:"):
                    continue
                if f"HOME={self.folder}\0".encode() in (path / "environ").read_bytes():
                    found.append(int(path.name))
        return found

    def values(self, name: str) -> dict[str, float]:
        """A metric's value of each replica that answers, by the replica's name."""
        page = httpx.get(f"{self.url}/metrics", timeout=30).text
        pattern = rf'^asynclane_{name}\{{replica="(\w+)"\}} (\S+)$'
        return {replica: float(value) for replica, value in re.findall(pattern, page, re.MULTILINE)}

    def wait_for(self, condition: Callable[[], bool], seconds: float = WAIT_S) -> None:
        deadline = time.monotonic() + seconds
        while True:
            try:
                if condition():
                    return
            except httpx.TransportError:
                pass
            assert time.monotonic() < deadline, self.log()
            time.sleep(0.2)

    def log(self) -> str:
        """The last lines of the controller, which say why a replica does not start."""
        files = sorted(self.folder.glob("session_*/logs/serve/controller*"))
        return "\n".join(line for file in files for line in file.read_text().splitlines()[-20:])


@contextmanager
def ray_cluster(cpus: int) -> Iterator[Cluster]:
    """A cluster whose processes end with the block. Paths of its sockets must be short."""
    folder = Path(tempfile.mkdtemp(prefix="ray", dir="/tmp"))
    given = environment(**variables(), **QUICK, HOME=str(folder), RAY_USAGE_STATS_ENABLED="0")
    port, proxy = free_port(), free_port()
    command = f"{ray_program('ray')} start --head --block --port={port} --node-ip-address=127.0.0.1 --num-cpus={cpus}"
    command += f" --include-dashboard=false --temp-dir={folder}"
    with open(folder / "log", "w") as log, started(command.split(), env=given, stdout=log, stderr=log) as process:
        try:
            yield Cluster(f"127.0.0.1:{port}", f"http://127.0.0.1:{proxy}", folder, given)
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(timeout=60)
    shutil.rmtree(folder, ignore_errors=True)
