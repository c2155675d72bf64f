"""The host's time for a step is measured with lanes that live, whoever decides what commits."""

from __future__ import annotations

import json

import pytest

from asynclane.bench.steps.host import main


@pytest.mark.parametrize("rule", [None, "localleap"])
def test_plan_and_commit_are_timed_at_the_lanes_that_were_asked_for(
    rule: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--lanes", "16", "--steps", "5", *(["--rule", rule] if rule else [])]) == 0
    figures = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert figures["rule"] == rule
    assert figures["lanes"] >= 16
    assert 0 < figures["plan_ms"] < figures["host_ms"]
    assert ("rule_ms" in figures) == (rule is not None)


@pytest.mark.parametrize("load", ["lanes", "blocks"])
def test_any_number_of_requests_is_timed_with_packing(load: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--load", load, "--requests", "3", "--steps", "4"]) == 0
    figures = json.loads(capsys.readouterr().out.splitlines()[-1])
    parts = [figures[f"{part}_ms"] for part in ("plan", "commit", "pack")]
    assert 0 < max(parts) < figures["host_ms"] < 2 * sum(parts)
    assert figures["per_request_ms"] == figures["host_ms"] / 3
    assert (figures["load"], figures["lanes"] > 3) == (load, load == "lanes")


def test_more_lanes_than_requests_can_have_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--requests", "2", "--lanes", "9", "--steps", "2"])
    assert "had 9 lanes" in capsys.readouterr().err
