"""Filling in the middle with `suffix`: how both sides are read, which lengths are tried, and what is reported."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asynclane.server.api.infill_lengths import LENGTHS
from asynclane.server.engine.messages import Delta, Finish
from asynclane.server.text.logprobs import Token, TokenLogprob
from asynclane.server.text.tokenizer import Tokenizer

from ...support.fake_engine import USAGE, FakeAnswer, FakeEngine
from ...support.http import CONTEXT, TINY, chunks_of, error_of
from ...support.scale import ALL

TEXT = Tokenizer(TINY)


@pytest.mark.parametrize("prompt", ["def f(x):", [6, 7]], ids=["text", "ids"])
async def test_a_suffix_is_encoded_apart_and_gains_neither_a_special_token_nor_a_space(api: Any, prompt: Any) -> None:
    engine = FakeEngine()
    async with api(engine) as client:
        body = (await client.complete(prompt=prompt, suffix="end ö", max_tokens=9)).json()
    (options,), (ids,) = engine.options, engine.prompts
    assert ids == (TEXT.encode(prompt) if isinstance(prompt, str) else prompt)
    assert TEXT.decode(options.suffix) == "end ö"
    assert not set(options.suffix) & TEXT.special_ids
    assert (options.max_tokens, options.ranks) == (9, None)
    assert body["choices"][0]["text"] == "Hello wörld"
    assert body["usage"]["prompt_tokens"] == len(ids) + len(options.suffix)


@given(st.text(min_size=1), st.text(), st.text(min_size=1))
@settings(max_examples=100 if ALL else 30, deadline=None)
def test_prefix_middle_and_suffix_decode_to_the_text_they_were(prefix: str, middle: str, suffix: str) -> None:
    ids = [*TEXT.encode(prefix), *TEXT.encode(middle, specials=False), *TEXT.encode(suffix, specials=False)]
    assert TEXT.decode(ids, specials=True) == prefix + middle + suffix


async def test_an_empty_suffix_changes_nothing(api: Any) -> None:
    engine = FakeEngine()
    async with api(engine) as client:
        for suffix in ("", None):
            assert (await client.complete(suffix=suffix, stream=True)).status_code == 200
        assert (await client.chat(suffix="")).status_code == 200
    assert len(engine.options) == 3
    assert all(options.suffix == () for options in engine.options)


class Tries(FakeEngine):
    """Answers with its length, and thinks that one of 12 tokens is likeliest."""

    def submit(self, prompt: list[int], options: Any) -> FakeAnswer:
        length = options.max_tokens
        score = TokenLogprob(Token("a", b"a", 7), -abs(length - 12) / 10 - options.seed / 100, 0, 0, ())
        self._scripts = ([Delta(f"{length}/{options.seed}", Finish.LENGTH, USAGE, scores=(score,))],)
        return super().submit(prompt, options)


async def test_without_max_tokens_some_lengths_are_tried_and_the_likeliest_is_kept(api: Any) -> None:
    engine = Tries()
    async with api(engine, max_queue=1000) as client:
        body = (await client.complete(suffix=" end", n=2, seed=3, temperature=1)).json()
        best = (await client.complete(suffix=" end", best_of=2, seed=3, temperature=1, logprobs=0)).json()
    assert [choice["text"] for choice in body["choices"]] == ["12/3", "12/4"]
    assert [choice["text"] for choice in best["choices"]] == ["12/3"]
    assert [options.max_tokens for options in engine.options[: len(LENGTHS)]] == list(LENGTHS)
    # The likeliest is known by its log-probability, which only requests with logprobs show.
    assert all(options.ranks == 0 for options in engine.options)
    assert body["choices"][0]["logprobs"] is None
    assert best["choices"][0]["logprobs"]["token_logprobs"] == [-0.03]
    # Choices share their prompt's pages with those of the same length.
    families = {(options.max_tokens, options.share_group) for options in engine.options[: 2 * len(LENGTHS)]}
    assert len(families) == len({family for _, family in families}) == len(LENGTHS)


async def test_tokens_are_those_of_what_is_kept_and_its_cost_is_that_of_all_tries(api: Any) -> None:
    async with api(Tries()) as client:
        body = (await client.complete(suffix=" end")).json()
    assert body["usage"]["completion_tokens"] == USAGE.completion_tokens
    assert body["usage"]["completion_tokens_details"]["computed_tokens"] == len(LENGTHS) * USAGE.stats.computed_tokens
    assert body["usage"]["completion_tokens_details"]["forwards"] == len(LENGTHS) * USAGE.stats.forwards


async def test_a_middle_of_a_chosen_length_was_not_cut_and_one_of_max_tokens_has_used_them(api: Any) -> None:
    async with api(Tries()) as client:
        chosen = (await client.complete(suffix=" end")).json()["choices"][0]
        given = (await client.complete(suffix=" end", max_tokens=12)).json()["choices"][0]
        one = (await client.complete(suffix=" end", min_tokens=LENGTHS[-1])).json()["choices"][0]
    assert (chosen["text"], chosen["finish_reason"]) == ("12/0", "stop")
    assert (one["text"], one["finish_reason"]) == (f"{LENGTHS[-1]}/0", "stop"), "one length was left to try"
    assert (given["text"], given["finish_reason"]) == ("12/0", "length")


@pytest.mark.parametrize(
    ("prompt", "least", "tried"),
    [
        (1, 0, list(LENGTHS)),
        (1, 20, [length for length in LENGTHS if length >= 20]),
        (1, 100, [100]),
        (CONTEXT - 11, 0, [length for length in LENGTHS if length <= 10]),
        (CONTEXT - 2, 0, [1]),
        (CONTEXT - 4, 0, [3]),
    ],
)
async def test_only_lengths_that_may_be_and_fit_are_tried(api: Any, prompt: int, least: int, tried: list[int]) -> None:
    engine = Tries()
    async with api(engine) as client:
        response = await client.complete(prompt=[6] * prompt, suffix=".", min_tokens=least)
    assert response.status_code == 200, response.text
    assert [options.max_tokens for options in engine.options] == tried


async def test_echo_puts_the_prompt_before_the_middle_and_no_suffix_after_it(api: Any) -> None:
    async with api() as client:
        fields = {"prompt": "A", "suffix": "Z", "echo": True, "max_tokens": 5}
        whole = (await client.complete(**fields)).json()["choices"][0]["text"]
        chunks = chunks_of(await client.complete(**fields, stream=True))
    assert whole == "".join(chunk["choices"][0]["text"] for chunk in chunks) == "AHello wörld"


@pytest.mark.parametrize(
    ("options", "param", "words"),
    [
        ({"suffix": 5}, "suffix", "string"),
        ({"suffix": "\ud800"}, "suffix", "Unicode"),
        ({"suffix": "end", "stream": True}, "suffix", "give max_tokens"),
        ({"suffix": "end", "max_tokens": 5, "response_format": {"type": "json_object"}}, "suffix", "response_format"),
        ({"suffix": "end", "max_tokens": 5, "guided_choice": ["a", "b"]}, "suffix", "guided_choice"),
        ({"suffix": "end", "n": 16, "prompt": ["a", "b"]}, "suffix", "give max_tokens"),
        ({"suffix": " a" * CONTEXT, "max_tokens": 1}, "prompt", "in the suffix"),
        ({"suffix": "end", "max_tokens": CONTEXT}, "max_tokens", "in the suffix"),
    ],
    ids=lambda case: ascii(case)[:40],
)
async def test_a_suffix_that_cannot_be_honoured_is_refused(
    api: Any, options: dict[str, Any], param: str, words: str
) -> None:
    async with api(max_queue=100) as client:
        error = error_of(await client.complete(**options), 400)
    assert error["param"] == param
    assert words in error["message"]
