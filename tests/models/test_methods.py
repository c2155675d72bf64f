"""Token for token, further methods give the output of their authors' own code, in as many forwards."""

from __future__ import annotations

import hashlib

import pytest

from ..support.driver import BLOCKS_MODEL, MODEL
from ..support.methods import CASES, RECORDED, assert_published, entries


def test_the_outputs_belong_to_the_embedded_weights() -> None:
    for method, found in RECORDED.items():
        model = MODEL if method.endswith(MODEL.name) else BLOCKS_MODEL
        for name, digest in found["sha256"].items():
            assert hashlib.sha256((model / name).read_bytes()).hexdigest() == digest, (method, name)


def test_every_entry_is_tested() -> None:
    recorded = {
        (method, entry)
        for method, found in RECORDED.items()
        for prompt in found["prompts"].values()
        for entry in prompt["entries"]
    }
    assert recorded == {(method, entry) for method, (_, found) in CASES.items() for entry in found}


@pytest.mark.parametrize(("method", "entry"), [*entries()], ids=str)
def test_a_decoder_gives_the_published_tokens_in_the_published_number_of_forwards(method: str, entry: str) -> None:
    assert_published(method, entry)
