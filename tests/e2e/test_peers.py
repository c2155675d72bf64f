"""Reports and requests of users of other servers of diffusion models, tested with this one over HTTP.

Each test names a promise, and links to the report that it comes from. More of them are promises elsewhere in the tests.
"""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from ..support.driver import BLOCKS_ONLY, CANVASES_ONLY, CAUSAL_ONLY
from ..support.scale import LONG as FOR_GOLDEN
from ..support.scale import part
from ..support.servers import PARIS, STORY, Server, chat, cost, gauge

DECODING = Path(__file__).parents[2] / "docs" / "decoding.md"
LONG: dict[str, Any] = {"max_tokens": 400, "extra_body": {"decoder": "llada", "early_stop": False}}
OTHERS: list[dict[str, Any]] = [{"decoder": "fast-dllm"}, {"decoder": "llada", "steps": 6}]
DECODERS: list[Any] = [{}, *(pytest.param(decoder, marks=FOR_GOLDEN) for decoder in OTHERS)]


@pytest.mark.parametrize("decoder", DECODERS, ids=str)
def test_prompts_of_any_length_in_one_call_are_answered_as_each_is_alone(
    client: openai.OpenAI, decoder: dict[str, Any]
) -> None:
    """Padding that is attended to, and prompts that do not fill their last block, changed answers or raised:

    https://github.com/NVlabs/Fast-dLLM/issues/7, https://github.com/NVlabs/Fast-dLLM/issues/39,
    https://github.com/inclusionAI/dInfer/issues/9, https://github.com/ML-GSAI/LLaDA/issues/89,
    https://github.com/ML-GSAI/LLaDA/issues/78, https://github.com/ML-GSAI/LLaDA/issues/101,
    https://github.com/huggingface/diffusers/issues/13598
    """
    text = "One morning Mia went to the park with her dog and there they saw a small red fox. " * 4
    tokens = httpx.post(f"{str(client.base_url).removesuffix('/v1/')}/tokenize", json={"prompt": text}).json()["tokens"]
    prompts = [tokens[:length] for length in (1, 31, 33, 64)]

    def complete(prompt: Any) -> list[str]:
        done = client.completions.create(model="tiny-llada", prompt=prompt, max_tokens=8, extra_body=decoder)
        return [choice.text for choice in done.choices]

    assert complete(prompts) == [complete(prompt)[0] for prompt in prompts]


@pytest.mark.parametrize("decoder", DECODERS, ids=str)
def test_every_decoder_honours_temperature_so_that_choices_differ(
    client: openai.OpenAI, decoder: dict[str, Any]
) -> None:
    """A temperature that is ignored, and rollouts that are all the same:

    https://github.com/sgl-project/sglang/issues/16615, https://github.com/sgl-project/sglang/pull/27943,
    https://github.com/yjyddq/DARE/issues/20
    """

    def texts(**options: Any) -> list[str]:
        extra = {**decoder, **options.pop("more", {})}
        done = chat(client, STORY, n=3, seed=1, max_tokens=8, extra_body=extra, **options)
        return [choice.message.content for choice in done.choices]

    assert len(set(texts(temperature=1.0))) == 3
    (greedy,) = set(texts(temperature=0))
    # The likeliest token alone is left, by each of the three.
    narrow: list[dict[str, Any]] = [{"top_p": 1e-6}, {"more": {"top_k": 1}}, {"more": {"min_p": 1.0}}]
    assert [set(texts(temperature=1.0, **options)) for options in narrow] == [{greedy}] * 3


def test_each_token_has_the_step_that_committed_it_and_lanes_have_the_same(client: openai.OpenAI) -> None:
    """https://github.com/InternLM/lmdeploy/pull/4057, https://github.com/vllm-project/vllm/pull/57414"""
    steps: list[int] = []
    commits: dict[int, int] = {}
    lanes: Any = {"include_lanes": True}
    for chunk in chat(client, STORY, stream=True, logprobs=True, stream_options=lanes):
        for choice in chunk.choices:
            steps += [score.model_extra["step"] for score in (choice.logprobs.content if choice.logprobs else [])]
        if chunk.model_extra.get("lanes"):
            event = chunk.model_extra["lanes"]
            commits |= {commit["position"]: event["step"] for commit in event["commits"]}
    assert len(steps) > 20
    assert steps == [commits[position] for position in range(len(steps))]


def test_text_comes_while_the_answer_is_still_being_written(client: openai.OpenAI) -> None:
    """https://github.com/sgl-project/sglang-omni/pull/1455"""
    options: Any = {"include_usage": True, "continuous_usage_stats": True}
    chunks = list(chat(client, STORY, stream=True, stream_options=options))
    texts = [chunk for chunk in chunks if chunk.choices and chunk.choices[0].delta.content]
    assert len(texts) >= 3
    assert cost(texts[0], "forwards") < cost(texts[-1], "forwards") <= cost(chunks[-1], "forwards")
    assert chunks[-1].choices == []
    assert chunks[-1].usage.completion_tokens > texts[0].usage.completion_tokens


@pytest.mark.parametrize("decoder", DECODERS, ids=str)
def test_after_the_end_of_an_answer_nothing_more_is_computed(client: openai.OpenAI, decoder: dict[str, Any]) -> None:
    """https://github.com/NVlabs/Fast-dLLM/issues/10"""
    decoder = {name: value for name, value in decoder.items() if name != "steps"}
    short, long = (chat(client, PARIS, max_tokens=limit, extra_body=decoder) for limit in (32, 64))
    assert short.choices[0].message.content == long.choices[0].message.content == "The capital of France is Paris."
    assert cost(long, "forwards") == cost(short, "forwards")
    assert long.usage.completion_tokens == short.usage.completion_tokens == 7


def test_no_special_token_is_seen_however_wild_the_answer(client: openai.OpenAI) -> None:
    """https://github.com/unslothai/unsloth/issues/6732"""
    done = chat(client, STORY, temperature=2.0, seed=4, n=4, max_tokens=32, extra_body={"ignore_eos": True})
    for choice in done.choices:
        assert choice.message.content
        assert not re.search(r"<\|.*?\|>|<mask>|\[MASK\]", choice.message.content)


def test_a_short_answer_does_not_wait_for_a_long_one(server: Server, client: openai.OpenAI) -> None:
    """https://github.com/sgl-project/sglang/pull/25280"""
    with chat(client, STORY, stream=True, **LONG) as long:
        next(iter(long))
        assert chat(client, PARIS).choices[0].message.content == "The capital of France is Paris."
        assert gauge(server.url, "running_requests") == 1


def test_prompts_that_arrive_share_the_model_calls_of_answers_that_run(server: Server, client: openai.OpenAI) -> None:
    """https://github.com/sgl-project/sglang/pull/33196, https://github.com/sgl-project/sglang/issues/33322"""

    def ask(number: int) -> int:
        return cost(chat(client, STORY, max_tokens=12 + number, extra_body={"decoder": "llada"}), "forwards")

    before = gauge(server.url, "forwards_total")
    with ThreadPoolExecutor(8) as pool:
        alone = sum(pool.map(ask, range(8)))
    assert gauge(server.url, "forwards_total") - before < alone / 2


def test_the_documented_decoders_are_those_that_are_served(client: openai.OpenAI) -> None:
    """https://github.com/sgl-project/sglang/issues/29904"""
    (model,) = client.models.list().data
    table = DECODING.read_text().partition("| decoder | what it is |")[2].partition("\n\n")[0]
    named = re.findall(r"^\| `([a-z0-9-]+)`", table, re.M)
    served = (model.model_extra or {})["decoders"]
    assert sorted(named) == sorted([*served, *BLOCKS_ONLY, *CANVASES_ONLY, *CAUSAL_ONLY, "wedlm"])
    for decoder in part(served, 4):
        assert chat(client, PARIS, max_tokens=4, extra_body={"decoder": decoder}).choices[0].message.content
    with pytest.raises(openai.BadRequestError) as caught:
        chat(client, PARIS, extra_body={"decoder": "beam"})
    assert [decoder for decoder in named if decoder not in caught.value.message] == []
