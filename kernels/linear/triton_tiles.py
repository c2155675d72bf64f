"""The tile of a program, as data for tables of tuned sizes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Tile:
    """The work of one program: `m` rows by `n` columns, `k` of the inner dimension at a time.

    `registers`: the most of a thread, where fewer let more programs share a multiprocessor; None: any number.
    """

    m: int
    n: int
    k: int
    warps: int
    stages: int
    registers: int | None = None
