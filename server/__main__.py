"""Lets `python -m asynclane.server` stand for the command `asynclane`."""

from .cli.main import main

raise SystemExit(main())
