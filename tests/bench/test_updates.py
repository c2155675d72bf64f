"""The time to deliver an update is measured on every way to a front end."""

from __future__ import annotations

import json
from typing import Any

import pytest

from asynclane.bench.steps import updates


def test_every_way_is_timed(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["updates", "--requests", "2"])
    monkeypatch.setattr(updates, "ROUNDS", 3)  # a machine may be busy
    updates.main()
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    times = found["us_per_update"]
    assert found["requests"] == 2
    assert list(times) == ["link", "memory", "memory and text", "stop strings"]
    assert 0 < times["memory"] < times["memory and text"]
