"""What a start says of the model it has loaded."""

from __future__ import annotations

import logging

import pytest

from asynclane.scheduler.decoding.vocabulary import Vocabulary
from asynclane.server.engine.wiring import build_parts, warn_of_missing_boundaries
from asynclane.server.settings import Settings


def test_a_tokenizer_without_boundaries_is_warned_of_at_start(caplog: pytest.LogCaptureFixture) -> None:
    warn_of_missing_boundaries(Vocabulary(["a", "b", ""], mask_id=2, end_ids=[]))
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert "auto, prose, code, comma" in record.getMessage()
    assert "where proposals have settled" in record.getMessage()


def test_a_tokenizer_with_boundaries_is_not(caplog: pytest.LogCaptureFixture) -> None:
    warn_of_missing_boundaries(Vocabulary([".", "\n", ""], mask_id=2, end_ids=[]))
    assert not caplog.records


def test_the_context_is_what_one_step_computes_unless_more_is_asked_for(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        assert build_parts(Settings(max_step_tokens=512, threads=1)).limits.max_model_len == 512
    assert "the context is 512 of the model's 1024 positions, which is what --max-step-tokens computes" in caplog.text


@pytest.mark.parametrize(
    ("model", "decoder", "message"),
    [
        ("tiny-llada", "tccf", "is for block-causal models"),
        ("tiny-sdar", "tccf", "turn 'think' needs a token"),
        ("tiny-sdar", "dream", "fills the whole canvas in any order"),
    ],
)
def test_a_default_decoder_that_no_request_could_use_is_refused_at_start(
    model: str, decoder: str, message: str
) -> None:
    with pytest.raises(ValueError, match=f"cannot have '{decoder}', whose defaults fail: .*{message}"):
        build_parts(Settings(model=model, decoder=decoder, threads=1))
