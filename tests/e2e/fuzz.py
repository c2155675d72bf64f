"""Fuzzes a server from its own OpenAPI document: `make fuzz` does so for five minutes, the test for seconds.

Whatever is sent, there must be no 5xx, no silence, and no status, header or body that the document does not promise;
what it forbids must be refused, in OpenAI's error shape, which is part of it.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

from .conftest import start_server, stop_server

SILENCE_S = 20
KEY = "fuzz"
HOOKS = Path(__file__).with_name("fuzz_hooks.py")
# A JSON Schema cannot say all that a parameter must be (together with others, within the context): what it allows may
# be refused.
LEFT_OUT = "positive_data_acceptance"


def fuzz(
    url: str, seed: int, *flags: str, wild: bool = False, key: str | None = None
) -> subprocess.CompletedProcess[str]:
    """With `wild`, bodies go out as they were drawn; else most are led on to the engine (`fuzz_hooks`)."""
    command = [str(Path(sys.executable).with_name("st")), "run", f"{url}/openapi.json"]
    command += ["--seed", str(seed), "--request-timeout", str(SILENCE_S), "--exclude-checks", LEFT_OUT, "--no-color"]
    command += ["--header", f"Authorization: Bearer {key}"] if key else []
    environment = {**os.environ, "SCHEMATHESIS_HOOKS": str(HOOKS), **({"FUZZ_WILD": "1"} if wild else {})}
    return subprocess.run(
        [*command, "--warnings", "off", *flags],
        env=environment,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    server = start_server("--api-key", KEY)
    failed = False
    try:
        for wild in (True, False):
            limit = [
                "--max-time",
                str(arguments.seconds // 2),
                "--phases",
                "coverage,fuzzing,stateful",
                "--workers",
                "4",
            ]
            done = fuzz(server.url, arguments.seed, *limit, "--continue-on-failure", wild=wild, key=KEY)
            sys.stdout.write(done.stdout)
            failed |= done.returncode != 0
    finally:
        stop_server(server)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
