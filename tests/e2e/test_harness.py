"""lm-evaluation-harness against a real server. Without its packages, most of a gigabyte, the test is skipped."""

from __future__ import annotations

import pytest

from ..support.programs import ENVIRONMENT, ask, python_program
from ..support.servers import Server


def test_the_harness_scores_choices_and_reads_texts_of_both_endpoints(open_server: Server) -> None:
    program = python_program("harness.py")
    if not any(ENVIRONMENT.glob("lib/*/site-packages/lm_eval")):
        pytest.skip(f"there is no lm_eval in {ENVIRONMENT}")
    found = ask(program, open_server.url, "tiny-chat", quiet=False)
    assert found == {"chosen": 1.0, "continued": 1.0, "answered": 1.0}
