"""`asynclane serve` before its first request."""

from __future__ import annotations

import gc
from typing import Any

import pytest

from asynclane.server.cli import serve
from asynclane.server.collector import YOUNG
from asynclane.server.settings import Settings


def test_collections_are_rare_and_leave_out_what_was_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    frozen, usual = [], gc.get_threshold()

    def serve_nothing(*parts: Any) -> int:
        frozen.append((gc.get_freeze_count(), gc.get_threshold()[0]))
        return 0

    monkeypatch.setattr(serve, "_serve", serve_nothing)
    try:
        assert serve.serve_main(Settings(port=0)) == 0
    finally:
        gc.unfreeze()
        gc.set_threshold(*usual)
    assert frozen[0][0] > 10_000
    assert frozen[0][1] == YOUNG
