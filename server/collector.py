"""Python's garbage collector in a process that serves."""

from __future__ import annotations

import gc

# Objects between two collections. A step of 256 requests makes thousands that live until it is committed: with Python's
# 700 they would be looked at several times, for 5 to 8 % of the host's time. Modules that are imported make objects
# that stay: with 700 a start would take 10 % longer.
YOUNG = 10_000


def make_collections_rare() -> None:
    gc.set_threshold(YOUNG, *gc.get_threshold()[1:])


def spare_collections() -> None:
    """Leave what exists out of all later collections, which would stop everybody for 0.1 s, and make them rare."""
    gc.collect()
    gc.freeze()
    make_collections_rare()
