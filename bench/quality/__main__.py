"""Runs `python -m asynclane.bench.quality`."""

from .run import main

if __name__ == "__main__":
    raise SystemExit(main())
