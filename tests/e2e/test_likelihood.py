"""The likelihood of prompts over HTTP, as lm-evaluation-harness requests and reads it."""

from __future__ import annotations

import math
import random
from typing import Any

import httpx
import numpy as np
import openai
import pytest

from ..support.likelihood import BLOCK, Setting
from ..support.servers import Server

PROMPT = "Tom has 12 eggs and finds 11 more."


@pytest.fixture(scope="module")
def setting() -> Setting:
    return Setting("tiny-llada")


def scored(client: openai.OpenAI, prompt: Any, **options: Any) -> Any:
    given: dict[str, Any] = {"max_tokens": 1, "logprobs": 1, **options}
    return client.completions.create(model="tiny-llada", prompt=prompt, echo=True, **given)


def test_a_prompt_is_scored_as_the_network_does_it_and_one_token_follows(
    client: openai.OpenAI, setting: Setting
) -> None:
    ids = setting.ids(PROMPT)
    whole, only = scored(client, PROMPT), scored(client, PROMPT, max_tokens=0)
    found, prompt = whole.choices[0].logprobs, only.choices[0].logprobs
    assert only.choices[0].text == PROMPT
    assert (only.choices[0].finish_reason, only.usage.completion_tokens) == ("length", 0)
    assert only.usage.prompt_tokens == len(ids)
    assert len(prompt.token_logprobs) == len(ids)
    assert prompt.token_logprobs[0] is prompt.top_logprobs[0] is None
    np.testing.assert_allclose(prompt.token_logprobs[1:], setting.direct(ids[:1], ids[1:]), atol=1e-4)
    assert "".join(prompt.tokens) == PROMPT
    places = zip(prompt.text_offset, prompt.tokens, strict=True)
    assert all(PROMPT[at:].startswith(token) for at, token in places)
    assert found.token_logprobs[:-1] == prompt.token_logprobs
    assert len(found.tokens) == len(ids) + 1
    token = setting.ids(found.tokens[-1])
    assert found.token_logprobs[-1] == pytest.approx(setting.direct(ids, token, BLOCK - 1)[0], abs=1e-4)
    assert max(found.top_logprobs[-1].values()) == found.token_logprobs[-1]
    assert whole.choices[0].text == PROMPT + found.tokens[-1]


def test_the_entry_after_a_prompt_is_there_for_an_end_token(client: openai.OpenAI, setting: Setting) -> None:
    end = next(iter(setting.text.end_ids))
    choice = scored(client, PROMPT, extra_body={"logit_bias": {str(end): 100}}).choices[0]
    assert choice.finish_reason == "stop"
    assert choice.text == PROMPT
    assert len(choice.logprobs.tokens) == len(setting.ids(PROMPT)) + 1
    assert choice.logprobs.tokens[-1] == ""
    assert choice.logprobs.token_logprobs[-1] == pytest.approx(0, abs=1e-3)


def test_monte_carlo_is_seeded_and_scores_what_follows_the_start(client: openai.OpenAI) -> None:
    def scores(seed: int) -> list[float | None]:
        more = {"likelihood": "monte-carlo", "likelihood_samples": 16, "likelihood_start": 4}
        done = scored(client, PROMPT, max_tokens=0, logprobs=0, seed=seed, extra_body=more)
        found: list[float | None] = done.choices[0].logprobs.token_logprobs
        return found

    first = scores(1)
    assert first[:4] == [None] * 4
    assert all(score is not None and score < 0 for score in first[4:])
    assert scores(1) == first
    assert scores(2) != first


def test_one_token_has_no_score_and_the_context_bounds_prompts(client: openai.OpenAI, server: Server) -> None:
    one = scored(client, "T", max_tokens=0).choices[0]
    assert (one.text, one.logprobs.token_logprobs) == ("T", [None])
    context = httpx.get(f"{server.url}/v1/models").json()["data"][0]["max_model_len"]
    with pytest.raises(openai.BadRequestError, match="context"):
        scored(client, [6] * context)


def test_the_tokenizer_is_described_as_evaluation_tools_read_it(server: Server, setting: Setting) -> None:
    info = httpx.get(f"{server.url}/tokenizer_info").json()
    tokens = httpx.post(f"{server.url}/tokenize", json={"prompt": info["eos_token"], "add_special_tokens": False})
    assert tokens.json()["tokens"][0] in setting.text.end_ids
    assert info["vocab_size"] == setting.text.vocab_size
    assert info["chat_template"]


def test_the_harness_finds_the_choices_that_the_network_prefers(client: openai.OpenAI, setting: Setting) -> None:
    """Its requests, and its way to read the answers: the sum from the context's end to the entry before the last."""
    draws = random.Random(7)
    for _ in range(12):
        one, two = draws.randrange(2, 60), draws.randrange(2, 40)
        context = setting.ids(f"#### {one} + {two} =")
        options = [setting.ids(f" {number}") for number in (one + two, one + two + draws.choice([-10, -1, 1, 10]))]
        prompts = [np.concatenate((context, option)) for option in options]
        found, direct = [], []
        for prompt, option in zip(prompts, options, strict=True):
            logprobs = scored(client, prompt.tolist(), temperature=0, seed=1234).choices[0].logprobs.token_logprobs
            found.append(math.fsum(logprobs[len(context) : -1]))
            direct.append(math.fsum(setting.direct(context, option)))
        np.testing.assert_allclose(found, direct, atol=1e-4)
        assert np.argmax(found) == np.argmax(direct)


def test_probabilities_of_options_are_those_of_their_chains(client: openai.OpenAI, setting: Setting) -> None:
    """Each option is forced, and its chain scored by itself."""
    draws = random.Random(3)
    for number in range(8):
        one, two = draws.randrange(2, 60), draws.randrange(2, 40)
        prompt = f"#### {one} + {two} ="
        options = [f" {one + two + more}" for more in draws.sample(range(-9, 10), 3)] + [f" {one} eggs are left"]
        bias = {str(int(setting.ids(options[0])[0])): 1.5} if number % 2 else {}
        done = client.completions.create(
            model="tiny-llada",
            prompt=prompt,
            max_tokens=16,
            logprobs=0,
            temperature=number % 2,
            logit_bias=bias,
            extra_body={"guided_choice": options},
        )
        (choice,) = done.choices
        found = choice.model_extra["choice_probabilities"]
        assert [one["choice"] for one in found] == options
        assert math.fsum(one["probability"] for one in found) == pytest.approx(1)
        assert choice.text in options
        chains = [setting.ids(text) for text in options]
        longest = max(map(len, chains))
        biases = {int(token): value for token, value in bias.items()}
        forced = [setting.direct(setting.ids(prompt), one, BLOCK + longest - len(one), biases) for one in chains]
        weights = np.exp([math.fsum(one) for one in forced])
        np.testing.assert_allclose([one["probability"] for one in found], weights / weights.sum(), atol=1e-4)


def test_options_of_one_token_take_one_forward_more_than_the_answer(client: openai.OpenAI, setting: Setting) -> None:
    options = ["A", "B", "C"]
    assert [len(setting.ids(text)) for text in options] == [1, 1, 1]
    messages: Any = [{"role": "user", "content": "Say a letter."}]

    def ask(**more: Any) -> Any:
        return client.chat.completions.create(
            model="tiny-llada", messages=messages, max_tokens=4, extra_body={"guided_choice": options}, **more
        )

    plain, scored = ask(), ask(logprobs=True)
    assert "choice_probabilities" not in plain.choices[0].model_extra
    found = scored.choices[0].model_extra["choice_probabilities"]
    assert math.fsum(one["probability"] for one in found) == pytest.approx(1)
    best = max(found, key=lambda one: one["probability"])
    assert scored.choices[0].message.content == best["choice"]
    cost = [done.usage.completion_tokens_details.model_extra["forwards"] for done in (plain, scored)]
    assert cost[1] == cost[0] + 1


def test_equal_options_have_no_probabilities(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="two options") as raised:
        client.completions.create(
            model="tiny-llada", prompt="A", logprobs=0, extra_body={"guided_choice": ["a", "b", "a"]}
        )
    assert raised.value.param == "guided_choice"
