"""Runs `python -m asynclane.bench.quality`."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from . import run
from .field import field_main


def main(argv: Sequence[str] | None = None) -> int:
    arguments = sys.argv[1:] if argv is None else list(argv)
    if "--all" in arguments:
        return field_main([argument for argument in arguments if argument != "--all"])
    return run.main(arguments)


if __name__ == "__main__":
    raise SystemExit(main())
