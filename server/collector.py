"""Python's garbage collector in a process that serves."""

from __future__ import annotations

import gc

# Objects between two collections. A step of 256 requests makes thousands that live until it is committed: with Python's
# 700 they would be looked at several times, for 5 to 8 % of the host's time.
YOUNG = 10_000


def spare_collections() -> None:
    """Leave what exists out of all later collections, which would stop everybody for 0.1 s, and make them rare."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG, *gc.get_threshold()[1:])
