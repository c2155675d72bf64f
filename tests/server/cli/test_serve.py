"""`asynclane serve` before its first request."""

from __future__ import annotations

import gc
from typing import Any

import pytest

from asynclane.server.cli import serve
from asynclane.server.settings import Settings


def test_collections_leave_out_what_was_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    frozen = []

    def serve_nothing(*parts: Any) -> int:
        frozen.append(gc.get_freeze_count())
        return 0

    monkeypatch.setattr(serve, "_serve", serve_nothing)
    try:
        assert serve.serve_main(Settings(port=0)) == 0
    finally:
        gc.unfreeze()
    assert frozen[0] > 10_000
