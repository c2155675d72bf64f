"""Token for token, further methods give the output of their authors' own code, in as many forwards."""

from __future__ import annotations

import hashlib

import pytest

from asynclane.scheduler import Scheduler, Vocabulary

from ..support.cases import CHATS, network
from ..support.driver import BLOCKS_MODEL, MODEL, Spec, serve
from ..support.methods import CASES, CHECKED, RECORDED, assert_checked, assert_published, checked_entries, entries
from ..support.scale import part


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
    checked = {(method, entry) for method, entry in recorded if method.startswith("s2d2")}
    assert {entry.split("_seed")[0].removesuffix("_half") for _, entry in checked} == {*CHECKED}
    assert recorded - checked == {(method, entry) for method, (_, found) in CASES.items() for entry in found}


@pytest.mark.parametrize(("method", "entry"), part(entries(), 2), ids=str)
def test_a_decoder_gives_the_published_tokens_in_the_published_number_of_forwards(method: str, entry: str) -> None:
    assert_published(method, entry)


@pytest.mark.parametrize("entry", checked_entries())
def test_drafts_are_checked_as_the_authors_check_them(entry: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert_checked(entry, monkeypatch)


def test_s2d2_that_never_checks_is_the_decoder_that_it_begins_with() -> None:
    plain = {"threshold": 0.85, "early_stop": False}
    never = {**plain, "cached": "block", "drafted": "block", "least_score": 4096.0}
    specs = [
        Spec(prompt, 40, decoder, params)
        for decoder, params in (("fast-dllm", plain), ("s2d2", never))
        for prompt in CHATS[:3]
    ]
    answers = [
        (answer.canvas.tolist(), answer.steps, answer.computed_tokens + answer.cached_tokens)
        for answer in network("tiny-sdar").run(specs)
    ]
    assert answers[:3] == answers[3:]


def test_causal_keys_of_a_prompt_are_shared_with_causal_requests_alone(vocabulary: Vocabulary) -> None:
    prompt, sdar = (CHATS[3] * 3)[:64] + CHATS[0], network("tiny-sdar")
    scheduler = Scheduler(sdar.limits, vocabulary, pattern=sdar.pattern)
    specs = [Spec(prompt, 12, "s2d2", {"cached": kind}) for kind in ("causal", "block", "causal", "block")]
    answers = [serve(scheduler, sdar.runner, [spec], first=number)[0] for number, spec in enumerate(specs)]
    assert [answer.cached_tokens for answer in answers] == [0, 0, *[len(prompt) // 16 * 16] * 2]
    alone = [answer.canvas.tolist() for answer in sdar.run(specs[:2])]
    assert [answer.canvas.tolist() for answer in answers] == alone * 2
