"""Bodies drawn at random from the server's own document, good ones and bad ones."""

from __future__ import annotations

import subprocess

from ..support.scale import ALL
from ..support.servers import Server
from .fuzz import WORKERS, command, environment

SEED, EXAMPLES = 7, 10 if ALL else 3


def test_whatever_is_sent_gets_what_the_openapi_document_promises(server: Server) -> None:
    """`make fuzz` does the same for longer."""
    flags = ["--phases", "fuzzing", "--max-examples", str(EXAMPLES), "--workers", str(WORKERS)]
    run = command(server.url, SEED, *flags, "--no-shrink")
    done = subprocess.run(run, env=environment(), text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert done.returncode == 0, done.stdout
