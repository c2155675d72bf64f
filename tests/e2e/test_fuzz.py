"""Bodies drawn at random from the server's own document, good ones and bad ones."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from ..support.processes import started
from ..support.servers import Server
from .fuzz import command, environment

SEED, EXAMPLES = 7, 25
ROOT = Path(__file__).parents[2]


def test_whatever_is_sent_gets_what_the_openapi_document_promises(server: Server) -> None:
    """`make fuzz` does the same for longer."""
    # One worker: Python 3.11 loses count of its recursion when several threads parse source, as hypothesis does.
    flags = ["--phases", "fuzzing", "--max-examples", str(EXAMPLES), "--workers", "1"]
    run = command(server.url, SEED, *flags, "--no-shrink")
    done = subprocess.run(run, env=environment(), text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert done.returncode == 0, done.stdout


def test_an_interrupted_fuzzer_reports_what_it_has_found() -> None:
    """Ctrl-C reaches all processes of a terminal at once; the one that fuzzes takes a while to report."""
    fuzzer = "import sys, time\ntry:\n  print('begun', flush=True); time.sleep(60)\n"
    fuzzer += "except KeyboardInterrupt: time.sleep(1); print('found: one'); sys.exit(130)"
    script = "import os, sys; from tests.e2e.fuzz import watched; sys.exit(watched(sys.argv[1:], os.environ))"
    run = [sys.executable, "-c", script, sys.executable, "-c", fuzzer]
    with started(run, cwd=ROOT, stdout=subprocess.PIPE, start_new_session=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n", "it is seen as it comes"
        os.killpg(process.pid, signal.SIGINT)
        assert process.stdout.read() == "found: one\n"
        assert process.wait(timeout=10) == 130
