"""A user's view: a real process, the embedded model, OpenAI's own client.

`test_client.py` compares streamed, whole and batched answers with random parameters.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from ..support.scale import part
from ..support.servers import (
    PARIS,
    STORY,
    TOM,
    Server,
    aborted,
    chat,
    cost,
    gauge,
    slow_body,
    text_of,
    wait_for,
)


def test_it_knows_the_capital_of_france_whole_and_streamed(client: openai.OpenAI) -> None:
    (choice,) = chat(client, PARIS).choices
    assert (choice.message.content, choice.finish_reason) == ("The capital of France is Paris.", "stop")
    text, reason = "", ""
    for chunk in chat(client, PARIS, stream=True):
        for each in chunk.choices:
            text += each.delta.content or ""
            reason = each.finish_reason or reason
    assert (text, reason) == ("The capital of France is Paris.", "stop")


def test_a_word_problem_is_solved_by_every_kind_of_decoder(client: openai.OpenAI) -> None:
    kinds: Any = (("asynclane", {}), ("dream", {"steps": 20}), ("fast-dllm", {}), ("llada", {}))
    for decoder, params in part(kinds, 2):
        extra = {"decoder": decoder, **params}
        assert "#### 20" in text_of(client, TOM, max_tokens=40, extra_body=extra), decoder


def test_decoding_parameters_change_what_an_answer_costs(client: openai.OpenAI) -> None:
    forwards = {}
    for steps in (4, 16):
        extra = {"decoder": "llada", "steps": steps}
        done = client.completions.create(model="tiny-llada", prompt="One morning", max_tokens=32, extra_body=extra)
        forwards[steps] = cost(done, "forwards")
    assert forwards[4] <= 4 < forwards[16] <= 16


def test_log_probabilities_join_to_the_text_and_name_the_step(client: openai.OpenAI) -> None:
    done = chat(client, STORY, max_tokens=48, temperature=1.2, seed=3, n=2, logprobs=True, top_logprobs=3)
    for choice in done.choices:
        scores = choice.logprobs.content
        assert b"".join(bytes(score.bytes) for score in scores) == choice.message.content.encode()
        assert all(score.logprob <= 0 and len(score.top_logprobs) == 3 for score in scores)
    sure = chat(client, PARIS, logprobs=True, top_logprobs=2)
    for score in sure.choices[0].logprobs.content:
        assert -0.2 < score.logprob <= 0
        assert score.top_logprobs[0].token == score.token
        assert score.model_extra["step"] < cost(sure, "forwards")
    old = client.completions.create(model="tiny-llada", prompt="One morning", max_tokens=12, logprobs=1)
    logprobs = old.choices[0].logprobs
    assert logprobs is not None
    for token, offset in zip(logprobs.tokens or [], logprobs.text_offset or [], strict=True):
        assert old.choices[0].text[offset:].startswith(token)


def test_an_answer_that_was_begun_is_continued(client: openai.OpenAI) -> None:
    begun: Any = [{"role": "user", "content": PARIS}, {"role": "assistant", "content": "The capital of France is"}]
    for extra in ({}, {"continue_final_message": True, "add_generation_prompt": False}):
        done = client.chat.completions.create(model="tiny-llada", messages=begun, extra_body=extra)
        assert done.choices[0].message.content == " Paris."


def test_choices_of_a_prompt_are_those_of_their_seeds_and_the_prompt_is_computed_once(client: openai.OpenAI) -> None:
    before = [{"role": "user", "content": PARIS}, {"role": "assistant", "content": "The capital of France is Paris."}]
    messages: Any = [*before, *before, {"role": "user", "content": STORY}]

    def answer(**options: Any) -> Any:
        return client.chat.completions.create(
            model="tiny-llada", messages=messages, temperature=1.0, max_tokens=64, **options
        )

    together, alone = answer(seed=3, n=3), [answer(seed=3 + at) for at in range(3)]
    texts = [choice.message.content for choice in together.choices]
    assert texts == [done.choices[0].message.content for done in alone]
    assert len(set(texts)) == 3
    shared = together.usage.prompt_tokens // 64 * 64  # whole pages
    assert shared
    assert cost(together, "computed_tokens") == sum(cost(done, "computed_tokens") for done in alone) - 2 * shared


@pytest.mark.parametrize("options", part([{}, {"suffix": " home."}], 2), ids=str)
def test_the_best_of_three_is_the_likeliest(client: openai.OpenAI, options: dict[str, Any]) -> None:
    def choices(**more: Any) -> Any:
        given = {"max_tokens": 20, "temperature": 1.2, "seed": 5, "logprobs": 0, **options, **more}
        return client.completions.create(model="tiny-llada", prompt="One morning Mia", **given).choices

    def mean(choice: Any) -> float:
        return float(sum(choice.logprobs.token_logprobs) / len(choice.logprobs.token_logprobs))

    (best,), three = choices(best_of=3), choices(n=3)
    assert best.text == max(three, key=mean).text
    assert len({choice.text for choice in three}) == 3


def test_a_client_that_hangs_up_frees_its_pages(server: Server) -> None:
    before = aborted(server.url)
    body = slow_body(stream=True)
    with httpx.stream("POST", f"{server.url}/v1/chat/completions", json=body, timeout=30) as response:
        next(response.iter_lines())
        wait_for(lambda: gauge(server.url, "kv_pages_used") > 0)
    wait_for(lambda: gauge(server.url, "kv_pages_used") == 0)
    assert gauge(server.url, "running_requests") == 0
    assert aborted(server.url) == before + 1


def test_memory_stays_within_what_the_readme_says(server: Server) -> None:
    """Resident memory is under 1.2 GB after all of the above."""
    status = Path(f"/proc/{server.process.pid}/status")
    if not status.exists():
        pytest.skip("needs /proc")
    resident_kb = next(int(line.split()[1]) for line in status.read_text().splitlines() if line.startswith("VmHWM"))
    assert resident_kb < 1.2e6
