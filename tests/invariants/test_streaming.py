"""Streamed tokens are final: joined, they are the answer, without masks and end tokens, and within its grammar."""

from __future__ import annotations

import json

import numpy as np
import pytest
from jsonschema import Draft202012Validator

from asynclane.scheduler import Outcome
from asynclane.scheduler.decoding.vocabulary import END

from ..support.cases import NETWORKS, TEXT, cases, network, together
from ..support.fakes import IDS
from ..support.grammars import ORDER, Verses


@pytest.mark.parametrize("name", NETWORKS)
def test_streamed_tokens_are_the_answer_up_to_its_end(name: str) -> None:
    vocabulary = network(name).vocabulary
    for case, answer in together(name).items():
        assert answer.streamed == answer.text, case
        assert vocabulary.mask_id not in answer.text, case
        assert not (vocabulary.classes[answer.text] & END).any(), case
        if answer.outcome is Outcome.LENGTH:
            assert answer.sent == cases(name)[case].max_tokens, case
        else:
            assert answer.outcome is Outcome.STOP, case


@pytest.mark.parametrize("name", [name for name in NETWORKS if any(spec.constraint for spec in cases(name).values())])
def test_an_answer_keeps_to_its_grammar_with_every_decoder(name: str) -> None:
    for case, spec in cases(name).items():
        text = together(name)[case].text
        if spec.constraint is Verses:
            assert len(text) >= 9, case
            assert set(text[2::3]) == {IDS[","]}, case
            assert (np.delete(text, slice(2, None, 3)) % 2 == 1).all(), case
        elif spec.constraint is not None:
            assert together(name)[case].outcome is Outcome.STOP, case
            Draft202012Validator(ORDER).validate(json.loads(TEXT.decode(text)))
