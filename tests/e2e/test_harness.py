"""lm-evaluation-harness against a real server. Without its packages, most of a gigabyte, the test is skipped."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from asynclane.bench.eval.export import main as export
from asynclane.server.cli import main as cli

from ..support.programs import ENVIRONMENT, ask, python_program
from ..support.servers import Server


def test_the_harness_scores_choices_and_reads_texts_of_both_endpoints(open_server: Server, tmp_path: Path) -> None:
    """On word problems it counts as many answers of a decoder as right as `asynclane eval` does."""
    program = python_program("harness.py")
    if not any(ENVIRONMENT.glob("lib/*/site-packages/lm_eval")):
        pytest.skip(f"there is no lm_eval in {ENVIRONMENT}")
    data, out = tmp_path / "own.jsonl", tmp_path / "out.jsonl"
    assert export(["gsm8k", str(data), "--problems", "20"]) == 0
    found = ask([*program, str(data)], open_server.url, "tiny-chat", quiet=False)
    given = ["--shots", "0", "--max-tokens", "128", "--decoder", "fast-dllm:threshold=0.8", "--url", open_server.url]
    assert cli.main(["eval", "gsm8k", "--data", str(data), "--out", str(out), *given]) == 0
    (own,) = json.loads(out.read_text().splitlines()[-1])["summary"]
    counted = {name: metric["accuracy"] for name, metric in own["metrics"].items()}
    assert found == {"chosen": 1.0, "continued": 1.0, "answered": 1.0, **counted}
    assert counted["strict"] > 0.5
