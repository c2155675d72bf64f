"""Fuzzes a server from its own OpenAPI document: `make fuzz` does so for five minutes, the test for seconds.

Whatever is sent, there must be no 5xx, no silence, and no status, header or body that the document does not promise;
what it forbids must be refused, in OpenAI's error shape, which is part of it.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from itertools import product
from pathlib import Path

from ..support.servers import start_server, stop_server

SILENCE_S = 20
KEY = "fuzz"
HOOKS = Path(__file__).with_name("fuzz_hooks.py")
CONFIG = Path(__file__).with_name("schemathesis.toml")
# Python 3.11 loses count of its recursion when several threads parse source, as hypothesis does.
WORKERS = 1 if sys.version_info < (3, 12) else 4
# A JSON Schema cannot say all that a parameter must be (together with others, within the context): what it allows may
# be refused.
LEFT_OUT = "positive_data_acceptance"
INTERRUPTED = 130


def command(url: str, seed: int, *flags: str, key: str | None = None) -> list[str]:
    st = [str(Path(sys.executable).with_name("st")), "--config-file", str(CONFIG), "run", f"{url}/openapi.json"]
    st += ["--seed", str(seed), "--request-timeout", str(SILENCE_S), "--exclude-checks", LEFT_OUT, "--no-color"]
    st += ["--header", f"Authorization: Bearer {key}"] if key else []
    return [*st, "--warnings", "off", *flags]


def environment(*, wild: bool = False) -> dict[str, str]:
    """With `wild`, bodies go out as they were drawn; else most are led on to the engine (`fuzz_hooks`)."""
    return {**os.environ, "SCHEMATHESIS_HOOKS": str(HOOKS), **({"FUZZ_WILD": "1"} if wild else {})}


def watched(command: list[str], env: dict[str, str]) -> int:
    """Runs a command whose output is seen as it comes. After Ctrl-C it reports what it has found."""
    with subprocess.Popen(command, env=env) as process:
        while True:
            try:
                return process.wait()
            except KeyboardInterrupt:
                say("interrupted: it reports what it has found")


def say(text: str) -> None:
    sys.stderr.write(f"{text}\n")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    server = start_server("--api-key", KEY)
    seconds = arguments.seconds // 4
    limit = ["--max-time", str(seconds), "--workers", str(WORKERS), "--continue-on-failure"]
    failed = False
    try:
        for wild, phases in product((True, False), ("coverage", "fuzzing,stateful")):
            bodies = "as they are drawn" if wild else "led on to the engine"
            say(f"{phases}: bodies {bodies}, for {seconds} seconds")
            run = command(server.url, arguments.seed, *limit, "--phases", phases, key=KEY)
            code = watched(run, environment(wild=wild))
            failed |= code != 0
            if code == INTERRUPTED:
                break
    finally:
        stop_server(server)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
