"""CONTRIBUTING.md's commit rule works as it says: one file and one entry, and every part of the server knows it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]

PROOF = """
import numpy as np
from asynclane.scheduler.decoding import commit
from asynclane.scheduler.decoding.resolve import resolve
from asynclane.scheduler.memory.pages import Limits
from asynclane.scheduler.request import Outcome, Request
from asynclane.scheduler.scheduler import Scheduler
from asynclane.server.schema.requests import DecoderParams
from tests.support.fakes import ScriptedExecutor, add, vocabulary

sure = {3, 4, 5, 9}
scheduler = Scheduler(Limits(2, 64, 16, 512, 256, 4), vocabulary())
executor = ScriptedExecutor(lambda slot, position: (7, 0.95 if position in sure else 0.1))
decoder = resolve("fast-dllm", {"rule": "leftward", "sure_from": 0.95, "cache": "none", "block_length": 8}, 8)
sequence = add(scheduler, Request(0, np.full(3, 6, np.int32), 8, decoder))
shown = []
while (plan := scheduler.plan()) is not None:
    scheduler.commit(executor.execute(plan))
    shown.append("".join("_x"[token != 0] for token in sequence.canvas.tolist()))
print(*shown)
print("sure_from" in DecoderParams.model_fields, sequence.outcome)
"""


def test_the_example_is_one_file_and_one_entry(tmp_path: Path) -> None:
    section = (ROOT / "CONTRIBUTING.md").read_text().split("### A commit rule")[1].split("\n### ")[0]
    (file,) = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    assert "the entry `Leftward,` of `_RULES`" in section
    scheduler = tmp_path / "asynclane" / "scheduler"
    shutil.copytree(ROOT / "scheduler", scheduler)
    for name in ("bench", "clients", "kernels", "models", "server"):
        (scheduler.parent / name).symlink_to(ROOT / name)
    (scheduler.parent / "__init__.py").symlink_to(ROOT / "python" / "__init__.py")
    (scheduler / "decoding" / "commit" / "host" / "leftward.py").write_text(file)
    table = scheduler / "decoding" / "commit" / "__init__.py"
    text = table.read_text().replace("\nfrom .host.lo", "\nfrom .host.leftward import Leftward\nfrom .host.lo", 1)
    table.write_text(text.replace("    LocalLeap,\n", "    Leftward,\n    LocalLeap,\n"))
    path = os.pathsep.join([str(tmp_path), str(ROOT), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, "-P", "-c", PROOF]
    done = subprocess.run(command, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    shown, known = done.stdout.splitlines()
    assert shown.split() == ["xxx_____", "xxxx____", "xxxxx___", "xxxxxx__", "xxxxxxx_", "xxxxxxxx"]
    assert known == "True Outcome.LENGTH"
