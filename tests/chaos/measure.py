"""What chaos is measured by."""

from __future__ import annotations

from pathlib import Path


def memory_mb(process: int, name: str = "VmRSS") -> float:
    """The resident memory of a process; with `VmHWM` its peak."""
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1000 for line in lines if line.startswith(name))
