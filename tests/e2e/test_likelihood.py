"""The likelihood of prompts over HTTP, as lm-evaluation-harness requests and reads it."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any

import httpx
import numpy as np
import openai
import pytest

from asynclane.models.checkpoint.registry import EMBEDDED

from ..support.likelihood import BLOCK, Setting
from ..support.scale import ALL, crossed
from ..support.servers import Server

Ask = Callable[[random.Random, Setting], tuple[str, list[str]]]

QUESTIONS = 25 if ALL else 2  # of each kind
PROMPT = "Tom has 12 eggs and finds 11 more."


@pytest.fixture(scope="module")
def setting() -> Setting:
    return Setting(EMBEDDED / "tiny-llada")


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
    for _ in range(12 if ALL else 2):
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


def sums(draws: random.Random, setting: Setting) -> tuple[str, list[str]]:
    """A question, and options of several tokens, three of which begin alike."""
    one, two = draws.randrange(2, 60), draws.randrange(2, 40)
    numbers = [f" {one + two + more}" for more in draws.sample(range(-9, 10), 3)]
    return f"#### {one} + {two} =", [*numbers, f" {one} eggs are left"]


def words(draws: random.Random, setting: Setting) -> tuple[str, list[str]]:
    """A question, and options of one token each."""
    pieces = [text for at, text in enumerate(setting.text.pieces) if text and setting.ids(text).tolist() == [at]]
    return f"{draws.choice(('Tom', 'Mia', 'Sam'))} has {draws.randrange(2, 99)}", draws.sample(pieces, 4)


@pytest.mark.parametrize("ask", [sums, words])
def test_probabilities_of_options_are_those_of_their_chains(client: openai.OpenAI, setting: Setting, ask: Ask) -> None:
    """Each option is forced, and its chain scored by itself: in a canvas of the longest option and the masks after it,
    or if each option is one token, in that of the answer."""
    draws = random.Random(3)
    for number in range(QUESTIONS):
        prompt, options = ask(draws, setting)
        chains = [setting.ids(text) for text in options]
        longest = max(map(len, chains))
        bias = {str(int(chains[0][0])): 1.5} if number % 2 else {}
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
        if longest == 1:
            assert done.usage.completion_tokens_details.model_extra["forwards"] == 1
            best = max(found, key=lambda one: one["probability"])
            assert done.usage.completion_tokens == 1
            assert number % 2 or choice.text == best["choice"]
        canvas = 16 if longest == 1 else BLOCK + longest
        biases = {int(token): value for token, value in bias.items()}
        forced = [setting.direct(setting.ids(prompt), one, canvas - len(one), biases) for one in chains]
        weights = np.exp([math.fsum(one) for one in forced])
        np.testing.assert_allclose([one["probability"] for one in found], weights / weights.sum(), atol=1e-4)


def test_options_that_a_bias_bans_all_have_probabilities(client: openai.OpenAI, setting: Setting) -> None:
    texts = ["A", "B and a"]
    done = client.completions.create(
        model="tiny-llada",
        prompt="Tom has",
        max_tokens=16,
        logprobs=0,
        logit_bias={str(token): -100 for text in texts for token in setting.ids(text)},
        extra_body={"guided_choice": texts},
    )
    found = done.choices[0].model_extra["choice_probabilities"]
    assert math.fsum(one["probability"] for one in found) == pytest.approx(1)


LETTERS: dict[str, Any] = {
    "model": "tiny-llada",
    "messages": [{"role": "user", "content": "Say a letter."}],
    "max_tokens": 4,
}


@pytest.mark.parametrize("texts", [["A", "B", "C"], ["Ada", "Bob", "Cleo is"]])
def test_options_of_one_token_take_no_forward_beside_the_answer(
    client: openai.OpenAI, setting: Setting, texts: list[str]
) -> None:
    """Longer ones take one step more, in which all their rows are."""
    single = all(len(setting.ids(text)) == 1 for text in texts)
    assert single == (texts[0] == "A")
    plain = client.chat.completions.create(**LETTERS, extra_body={"guided_choice": texts})
    scored = client.chat.completions.create(**LETTERS, logprobs=True, extra_body={"guided_choice": texts})
    assert "choice_probabilities" not in plain.choices[0].model_extra
    assert scored.choices[0].message.content == plain.choices[0].message.content
    found = scored.choices[0].model_extra["choice_probabilities"]
    best = max(found, key=lambda one: one["probability"])
    cost = [done.usage.completion_tokens_details.model_extra["forwards"] for done in (plain, scored)]
    if single:
        assert scored.choices[0].message.content == best["choice"]
        assert cost == [1, 1]
    else:
        assert cost[1] == cost[0] + 1


@pytest.mark.parametrize(("texts", "choices"), crossed([["A", "B", "C"], ["Ada", "Bob", "Cleo is"]], [1, 3]))
def test_the_last_chunk_of_each_choice_has_the_probabilities(
    client: openai.OpenAI, texts: list[str], choices: int
) -> None:
    more: Any = {"n": choices, "temperature": 1, "seed": 5, "extra_body": {"guided_choice": texts}}
    more["stream_options"] = {"include_usage": True}
    for create, fields in (
        (client.chat.completions.create, {**LETTERS, "logprobs": True}),
        (client.completions.create, {"model": "tiny-llada", "prompt": "A letter:", "max_tokens": 6, "logprobs": 0}),
    ):
        whole = create(**fields, **{name: value for name, value in more.items() if name != "stream_options"})
        chunks = [chunk.to_dict() for chunk in create(**fields, **more, stream=True)]
        assert chunks[-1]["usage"] == whole.usage.to_dict()
        ended = [one for chunk in chunks for one in chunk["choices"] if one["finish_reason"]]
        assert sorted(one["index"] for one in ended) == list(range(choices))
        for one in ended:
            choice = whole.choices[one["index"]].to_dict()
            assert one["finish_reason"] == choice["finish_reason"]
            assert one["choice_probabilities"] == choice["choice_probabilities"]
            assert len(one["choice_probabilities"]) == len(texts)
        others = [one for chunk in chunks for one in chunk["choices"] if not one["finish_reason"]]
        assert not any("choice_probabilities" in one for one in others)


def test_equal_options_have_no_probabilities(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="two options") as raised:
        client.completions.create(
            model="tiny-llada", prompt="A", logprobs=0, extra_body={"guided_choice": ["a", "b", "a"]}
        )
    assert raised.value.param == "guided_choice"


def checked(entries: list[Any], ids: np.ndarray, ranks: int, setting: Setting) -> None:
    """Entries in vLLM's form: the token itself and the likeliest ones, by id."""
    assert entries[0] is None
    assert len(entries) == len(ids)
    rows = setting.rows(ids[:1], ids[1:])
    for token, entry, row in zip(ids[1:].tolist(), entries[1:], rows, strict=True):
        own = entry[str(token)]
        assert own["logprob"] == pytest.approx(float(row[token]), abs=1e-4)
        least, most = (int((row > own["logprob"] + more).sum()) for more in (1e-4, -1e-4))
        assert least < own["rank"] <= most
        assert ranks <= len(entry) <= ranks + 1
        ranked = sorted(entry.values(), key=lambda one: one["rank"])
        assert [one["rank"] for one in ranked][:ranks] == list(range(1, ranks + 1))
        logprobs = [one["logprob"] for one in ranked]
        assert logprobs == sorted(logprobs, reverse=True)
        assert [entry[name]["decoded_token"] for name in entry] == [setting.text.pieces[int(name)] for name in entry]


@pytest.mark.parametrize("ranks", [0, 2])
def test_prompts_are_scored_beside_their_answers(client: openai.OpenAI, setting: Setting, ranks: int) -> None:
    prompts, options = [PROMPT, "T"], {"max_tokens": 8, "n": 2, "extra_body": {"prompt_logprobs": ranks}}
    done = client.completions.create(model="tiny-llada", prompt=prompts, **options)
    plain = client.completions.create(model="tiny-llada", prompt=prompts, max_tokens=8, n=2)
    assert [one.text for one in done.choices] == [one.text for one in plain.choices]
    assert done.usage.completion_tokens == plain.usage.completion_tokens
    for at, choice in enumerate(done.choices):
        ids = setting.ids(prompts[at // 2])
        checked(choice.model_extra["prompt_logprobs"], ids, ranks, setting)
        assert choice.logprobs is None
    assert not any("prompt_logprobs" in one.model_extra for one in plain.choices)


def test_the_masks_after_what_is_scored_must_fit_the_context(client: openai.OpenAI, server: Server) -> None:
    context = httpx.get(f"{server.url}/v1/models").json()["data"][0]["max_model_len"]
    prompt = [6] * (context - 8)
    assert client.completions.create(model="tiny-llada", prompt=prompt, max_tokens=1).usage
    options: list[dict[str, Any]] = [{"prompt_logprobs": 0}, {"guided_choice": [" 1", " 10"]}]
    for more in options:
        with pytest.raises(openai.BadRequestError, match="context") as raised:
            client.completions.create(model="tiny-llada", prompt=prompt, max_tokens=4, logprobs=0, extra_body=more)
        assert raised.value.param == next(iter(more))
    long = {"guided_choice": ["x" * context]}
    with pytest.raises(openai.BadRequestError, match=r"guided_choice: .* exceed the context") as raised:
        client.completions.create(model="tiny-llada", prompt=[6], max_tokens=4, logprobs=0, extra_body=long)
    assert raised.value.param == "guided_choice"


def test_the_prompt_of_a_chat_is_scored_as_its_template_renders_it(
    client: openai.OpenAI, server: Server, setting: Setting
) -> None:
    body = {**LETTERS, "prompt_logprobs": 1}
    done = httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=60).json()
    rendered = httpx.post(f"{server.url}/tokenize", json={"messages": LETTERS["messages"]}, timeout=60).json()["tokens"]
    ids = np.array(rendered, np.int32)
    checked(done["prompt_logprobs"], ids, 1, setting)
    assert "prompt_logprobs" not in done["choices"][0]
    refused = httpx.post(f"{server.url}/v1/chat/completions", json={**body, "stream": True})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "prompt_logprobs")
