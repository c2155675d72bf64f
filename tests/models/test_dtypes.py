"""The model answers in every number format that it offers on a CPU."""

from __future__ import annotations

import pytest

from asynclane.scheduler.decoding.vocabulary import Vocabulary
from asynclane.server.text.tokenizer import Tokenizer

from ..support.driver import MODEL, Spec, embedded_runner, run


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_it_knows_the_capital_of_france(dtype: str, vocabulary: Vocabulary) -> None:
    text = Tokenizer(MODEL)
    prompt = text.encode_chat([{"role": "user", "content": "What is the capital of France?"}])
    (sequence,) = run(embedded_runner(dtype), vocabulary, [Spec(prompt, 64)])
    assert text.decode(sequence.canvas[: sequence.frontier].tolist()) == "The capital of France is Paris."
