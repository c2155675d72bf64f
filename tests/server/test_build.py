"""What a start says of the model it has loaded."""

from __future__ import annotations

import pytest

from asynclane.scheduler.vocabulary import Vocabulary
from asynclane.server.build import warn_of_missing_boundaries


def test_a_tokenizer_without_boundaries_is_warned_of_at_start(caplog: pytest.LogCaptureFixture) -> None:
    warn_of_missing_boundaries(Vocabulary(["a", "b", ""], mask_id=2, end_ids=[]))
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert "auto, prose, code, comma" in record.getMessage()
    assert "where proposals have settled" in record.getMessage()


def test_a_tokenizer_with_boundaries_is_not(caplog: pytest.LogCaptureFixture) -> None:
    warn_of_missing_boundaries(Vocabulary([".", "\n", ""], mask_id=2, end_ids=[]))
    assert not caplog.records
