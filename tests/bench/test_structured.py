"""The benchmark of structured output, on a sample."""

from __future__ import annotations

import json

import pytest
from jsonschema import Draft202012Validator

from asynclane.bench.quality.structured import SCHEMAS, SchemaTally, main
from asynclane.server.engine.messages import Finish

from ..support.scale import LONG


@LONG
def test_answers_of_schemas_parse_and_validate(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--requests", "4", "--threads", "1", "--max-tokens", "64"]) == 0
    figures = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert figures["requests"] == figures["parse"] == figures["valid"] == 4
    assert figures["stopped"] > 0
    assert figures["with_schema"]["calls"] > 0 < figures["without"]["calls"]


def test_what_does_not_validate_is_not_counted() -> None:
    tally = SchemaTally("x").plus(Finish.STOP, {"type": "object"}, "[]").plus(Finish.LENGTH, {"type": "object"}, "{")
    assert tally == SchemaTally("x", answers=2, stopped=1, parse=1, valid=0)


def test_the_schemas_are_twenty_and_proper() -> None:
    schemas = json.loads(SCHEMAS.read_text())
    assert len(schemas) == 20
    for schema in schemas.values():
        Draft202012Validator.check_schema(schema)
