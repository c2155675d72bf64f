"""`asynclane bench` against `asynclane serve`: rates, times and the server's own counters."""

from __future__ import annotations

import json
import subprocess
import sys

from ..support.scale import LONG
from ..support.servers import Server


@LONG
def test_a_sweep_of_the_real_server_has_all_figures(server: Server) -> None:
    command = [sys.executable, "-P", "-m", "asynclane.server", "bench", "--url", server.url]
    command += ["--concurrency", "1,4", "--requests", "4", "--tasks", "code", "--max-tokens", "64", "--warmup", "1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout.splitlines()[-1])
    alone, batched = figures["loads"]
    assert (alone["completed"], batched["completed"], figures["model"]) == (4, 4, "tiny-llada")
    # The same answers batched with others, in fewer steps of the server: requests share them.
    assert alone["answer_tokens"] == batched["answer_tokens"] > 40
    assert alone["forwards_per_answer"] == batched["forwards_per_answer"] >= 1
    assert batched["tokens_per_forward"] > 1.3 * alone["tokens_per_forward"]
    assert 0 < alone["first_text_s"]["p50"] <= alone["end_to_end_s"]["p50"] < 10
    assert "Failed" not in done.stdout
