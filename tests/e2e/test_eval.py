"""`asynclane eval` with an embedded model: in this process, and over HTTP."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from asynclane.bench.eval.answers import expected
from asynclane.bench.eval.export import main as export
from asynclane.bench.eval.tasks import find
from asynclane.bench.quality.checks import first_result
from asynclane.server.cli import main as cli

from ..support.scale import ALL
from ..support.servers import Server

COUNT = 100 if ALL else 6
COMMON = ("eval", "gsm8k", "--shots", "0", "--max-tokens", "128")


def answers(path: Path) -> dict[str, dict[str, Any]]:
    """All that a file says of each problem, but for the time."""
    records = [json.loads(line) for line in path.read_text().splitlines()[1:-1]]
    return {record["answer"]: {**record, "seconds": None} for record in records}


def test_accuracy_is_that_of_our_own_grader_in_any_order_and_over_http(open_server: Server, tmp_path: Path) -> None:
    """The same answers from this process in batches, and one at a time, in another order, from a server."""
    data, here, served = (tmp_path / name for name in ("own.jsonl", "here.jsonl", "served.jsonl"))
    assert export(["gsm8k", str(data), "--problems", str(COUNT)]) == 0
    assert cli.main([*COMMON, "--model", "tiny-chat", "--data", str(data), "--out", str(here)]) == 0
    found = answers(here)
    lines = find("gsm8k").read(data)
    own = [first_result(int(expected(line.fields["answer"])), found[line.key]["text"]) for line in lines]
    assert [found[line.key]["points"]["strict"] for line in lines] == [[int(right), 1] for right in own]
    assert sum(own) / COUNT > 0.6
    assert all(one["forwards"] > 0 and 0 < one["script_tokens"] <= one["tokens"] for one in found.values())
    data.write_text("\n".join(reversed(data.read_text().splitlines())))
    url = ["--url", open_server.url, "--batch", "1"]
    assert cli.main([*COMMON, *url, "--data", str(data), "--out", str(served)]) == 0
    assert answers(served) == found


def test_a_server_refuses_a_decoder_in_one_line(
    open_server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = tmp_path / "own.jsonl"
    export(["gsm8k", str(data), "--problems", "1"])
    given = ["--data", str(data), "--out", str(tmp_path / "o"), "--url", open_server.url]
    assert cli.main([*COMMON, *given, "--decoder", "lada"]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert "lada" in err
    assert cli.main([*COMMON, *given, "--model", "tiny-lada"]) == 2
    assert "the server has no model 'tiny-lada': it serves 'tiny-chat'" in capsys.readouterr().err
