"""Files of the checkout, by what takes them."""

from __future__ import annotations

import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]


def tracked(*under: str) -> list[str]:
    done = subprocess.run(["git", "ls-files", *under], cwd=ROOT, capture_output=True, text=True, check=True)
    return [name for name in done.stdout.splitlines() if (ROOT / name).is_file()]


def sent_to_docker() -> list[str]:
    """The tracked files that `.dockerignore` lets through."""
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    return tracked(*(line[1:] for line in lines if line.startswith("!")))
