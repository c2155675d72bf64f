"""A rank that does not come, or fails: `asynclane.models.ranks` without a model."""

from __future__ import annotations

import sys
import time
from typing import NoReturn

from asynclane.models.exec.followers import FirstRank


def main() -> NoReturn:
    """The fault is what the first rank sends."""
    first = FirstRank(int(sys.argv[1]))
    meeting, fault = first.first_message()
    match fault:
        case "hangs":
            time.sleep(600)
        case "fails":
            meeting.passed("running", None)
            first.fail("no memory\nfor the weights")
        case "ends":
            sys.exit(3)
    raise ValueError(fault)
