"""Lets `python -m asynclane.server` stand for the command `asynclane`."""

from .cli import main

raise SystemExit(main())
