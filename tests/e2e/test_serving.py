"""What a user gets: a real process, the embedded model, OpenAI's own client."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from asynclane.scheduler.decoding.attention_pattern import PLAIN
from asynclane.scheduler.decoding.registry import DECODERS
from asynclane.scheduler.decoding.resolve import suits

from ..support.servers import Server, aborted, gauge, start_server, stop_server, wait_for

PARIS = "What is the capital of France?"
TOM = "Tom has 12 books. Then he finds 8 books at the park. How many books does Tom have now?"
STORY = "Tell me a short story about Mia and a fox at the park."


@pytest.fixture
def client(server: Server) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=60)


def whole(client: openai.OpenAI, question: str, **options: object) -> tuple[str, str]:
    done = client.chat.completions.create(
        model="tiny-llada", messages=[{"role": "user", "content": question}], **options
    )
    return done.choices[0].message.content or "", done.choices[0].finish_reason


def streamed(client: openai.OpenAI, question: str, **options: object) -> tuple[str, str]:
    text, reason = "", ""
    for chunk in client.chat.completions.create(
        model="tiny-llada", messages=[{"role": "user", "content": question}], stream=True, **options
    ):
        for choice in chunk.choices:
            text += choice.delta.content or ""
            reason = choice.finish_reason or reason
    return text, reason


def test_it_knows_the_capital_of_france(client: openai.OpenAI) -> None:
    text, reason = whole(client, PARIS)
    assert text == "The capital of France is Paris."
    assert reason == "stop"


@pytest.mark.parametrize("question", [PARIS, TOM, STORY])
@pytest.mark.parametrize(
    "options", [{"temperature": 0}, {"temperature": 0.8, "seed": 7}, {"max_tokens": 9}, {"stop": ["."]}], ids=str
)
def test_a_streamed_answer_equals_the_whole_one(
    client: openai.OpenAI, question: str, options: dict[str, object]
) -> None:
    assert streamed(client, question, **options) == whole(client, question, **options)


def test_a_word_problem_is_solved_by_every_decoder(client: openai.OpenAI) -> None:
    for decoder, knobs in (("asynclane", {}), ("dream", {"steps": 32}), ("fast-dllm", {}), ("llada", {})):
        text, _ = whole(client, TOM, max_tokens=128, extra_body={"decoder": decoder, **knobs})
        assert "#### 20" in text, decoder


def test_knobs_change_what_an_answer_costs(client: openai.OpenAI) -> None:
    calls = {}
    for steps in (4, 16):
        done = client.completions.create(
            model="tiny-llada", prompt="One morning", max_tokens=32, extra_body={"decoder": "llada", "steps": steps}
        )
        assert done.usage is not None
        details = done.usage.completion_tokens_details
        assert details is not None
        calls[steps] = details.model_extra["forwards"]  # type: ignore[index]
    assert calls[4] <= 4 < calls[16] <= 16


def test_choices_with_a_seed_differ_and_repeat(client: openai.OpenAI) -> None:
    def choices() -> list[str | None]:
        done = client.chat.completions.create(
            model="tiny-llada",
            messages=[{"role": "user", "content": STORY}],
            temperature=1.0,
            seed=3,
            n=3,
        )
        return [choice.message.content for choice in done.choices]

    first = choices()
    assert len(set(first)) == 3
    assert choices() == first


PARAMETERS: list[dict[str, Any]] = [
    {"presence_penalty": 1.0, "frequency_penalty": 0.5},
    {"logit_bias": {"300": -100, "40": 4}, "temperature": 0.7, "seed": 5},
    {"stop": ["the "], "temperature": 1.0, "seed": 1},
    {"extra_body": {"top_k": 5, "min_p": 0.05}, "temperature": 1.2, "seed": 3},
    {"extra_body": {"ignore_eos": True}, "max_tokens": 40},
    {"extra_body": {"min_tokens": 60, "stop_token_ids": [40]}},
    {"n": 3, "temperature": 1.0, "seed": 9},
]


@pytest.mark.parametrize(
    "options", PARAMETERS, ids=lambda options: " ".join([*options, *options.get("extra_body", {})])
)
def test_with_any_parameter_answer_and_logprobs_are_the_same_alone_in_a_crowd_and_streamed(
    client: openai.OpenAI, options: dict[str, Any]
) -> None:
    asked = {"logprobs": True, "top_logprobs": 3, "max_tokens": 64, **options}

    def ask() -> list[tuple[str, list[Any]]]:
        done = create(client, STORY, **asked)
        return [(choice.message.content or "", choice.logprobs.content) for choice in done.choices]

    alone = ask()
    with ThreadPoolExecutor(4) as pool:
        others = [pool.submit(whole, client, question) for question in (TOM, PARIS, STORY)]
        crowded = ask()
    streamed = [("", []) for _ in alone]
    for chunk in create(client, STORY, stream=True, **asked):
        for choice in chunk.choices:
            text, scores = streamed[choice.index]
            new = choice.logprobs.content if choice.logprobs else []
            streamed[choice.index] = (text + (choice.delta.content or ""), scores + new)
    assert alone == crowded == streamed
    assert all(other.result() for other in others)
    for text, scores in alone:
        said = b"".join(bytes(score.bytes) for score in scores)
        assert said == text.encode() or (options.get("stop") and text.encode().startswith(said))
        assert all(score.logprob <= 0 for score in scores)
        assert all(len(score.top_logprobs) == 3 for score in scores)


def create(client: openai.OpenAI, question: str, **options: Any) -> Any:
    return client.chat.completions.create(
        model="tiny-llada", messages=[{"role": "user", "content": question}], **options
    )


def test_logprobs_of_a_certain_answer_are_near_zero_and_name_the_step(client: openai.OpenAI) -> None:
    done = create(client, PARIS, logprobs=True, top_logprobs=2)
    for score in done.choices[0].logprobs.content:
        assert -0.2 < score.logprob <= 0
        assert score.top_logprobs[0].token == score.token
        assert score.model_extra["step"] < done.usage.completion_tokens_details.model_extra["forwards"]
    old = client.completions.create(model="tiny-llada", prompt="One morning", max_tokens=12, logprobs=1)
    logprobs = old.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.text_offset is not None
    for token, offset in zip(logprobs.tokens or [], logprobs.text_offset, strict=True):
        assert old.choices[0].text[offset:].startswith(token)


def test_an_answer_that_was_begun_is_continued(client: openai.OpenAI) -> None:
    begun = [{"role": "user", "content": PARIS}, {"role": "assistant", "content": "The capital of France is"}]
    for extra in ({}, {"continue_final_message": True, "add_generation_prompt": False}):
        done = client.chat.completions.create(model="tiny-llada", messages=begun, extra_body=extra)  # type: ignore[arg-type]
        assert done.choices[0].message.content == " Paris."


def test_choices_of_a_prompt_are_those_of_their_seeds_and_the_prompt_is_computed_once(client: openai.OpenAI) -> None:
    before = [{"role": "user", "content": PARIS}, {"role": "assistant", "content": "The capital of France is Paris."}]
    messages: Any = [*before, *before, {"role": "user", "content": STORY}]

    def ask(**options: Any) -> Any:
        return client.chat.completions.create(
            model="tiny-llada", messages=messages, temperature=1.0, max_tokens=64, **options
        )

    def computed(done: Any) -> int:
        return int(done.usage.completion_tokens_details.model_extra["computed_tokens"])

    together, alone = ask(seed=3, n=3), [ask(seed=3 + at) for at in range(3)]
    assert [c.message.content for c in together.choices] == [done.choices[0].message.content for done in alone]
    shared = together.usage.prompt_tokens // 64 * 64  # whole pages
    assert shared
    assert computed(together) == sum(map(computed, alone)) - 2 * shared


def test_the_best_of_three_is_the_likeliest(client: openai.OpenAI) -> None:
    def ask(**options: Any) -> Any:
        return client.completions.create(
            model="tiny-llada", prompt="One morning", max_tokens=24, temperature=1.2, seed=5, logprobs=0, **options
        )

    def mean(choice: Any) -> float:
        return float(sum(choice.logprobs.token_logprobs) / len(choice.logprobs.token_logprobs))

    (best,), three = ask(best_of=3).choices, ask(n=3).choices
    assert best.text == max(three, key=mean).text
    assert len({choice.text for choice in three}) == 3


def test_many_clients_at_once_each_get_their_own_answer(server: Server, client: openai.OpenAI) -> None:
    questions = [PARIS, TOM, STORY, "Who are you?"] * 4
    alone = {question: whole(client, question)[0] for question in set(questions)}

    async def ask_all() -> list[str | None]:
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", timeout=60) as many:
            answers = await asyncio.gather(
                *(
                    many.chat.completions.create(model="tiny-llada", messages=[{"role": "user", "content": question}])
                    for question in questions
                )
            )
        return [answer.choices[0].message.content for answer in answers]

    assert asyncio.run(ask_all()) == [alone[question] for question in questions]


def test_a_client_that_hangs_up_frees_its_pages(server: Server) -> None:
    body = {
        "model": "tiny-llada",
        "messages": [{"role": "user", "content": STORY}],
        "stream": True,
        "max_tokens": 800,
        "decoder": "llada",
        "early_stop": False,
    }
    before = aborted(server.url)
    with httpx.stream("POST", f"{server.url}/v1/chat/completions", json=body, timeout=30) as response:
        next(response.iter_lines())
        wait_for(lambda: gauge(server.url, "kv_pages_used") > 0)
    wait_for(lambda: gauge(server.url, "kv_pages_used") == 0)
    assert gauge(server.url, "running_requests") == 0
    assert aborted(server.url) == before + 1


def test_a_server_that_drains_tells_those_it_cannot_finish() -> None:
    """After SIGTERM and the time for draining: 503 in OpenAI's shape, an error event in a stream, exit code 0."""
    server = start_server("--drain-s", "1")
    url = f"{server.url}/v1/chat/completions"
    body = {
        "model": "tiny-llada",
        "messages": [{"role": "user", "content": STORY}],
        "max_tokens": 900,
        "decoder": "llada",
        "early_stop": False,
    }
    try:
        with ThreadPoolExecutor() as pool:
            whole = pool.submit(httpx.post, url, json=body, timeout=60)
            streamed = pool.submit(httpx.post, url, json={**body, "stream": True}, timeout=60)
            wait_for(lambda: gauge(server.url, "running_requests") == 2)
            server.process.terminate()
            wait_for(lambda: httpx.get(f"{server.url}/ready").status_code == 503)
            late = httpx.post(url, json=body, timeout=60)
        assert [late.status_code, whole.result().status_code] == [503, 503]
        assert late.json()["error"]["code"] == whole.result().json()["error"]["code"] == "draining"
        assert "event: error" in streamed.result().text
        assert "draining" in streamed.result().text
        assert server.process.wait(timeout=20) == 0
    finally:
        stop_server(server)


def test_the_models_card_tells_decoders_and_their_defaults(client: openai.OpenAI) -> None:
    (model,) = client.models.list().data
    assert model.id == "tiny-llada"
    assert model.model_extra is not None
    assert set(model.model_extra["decoders"]) == {name for name in DECODERS if suits(name, PLAIN)}
    assert model.model_extra["max_model_len"] == 1024


def test_generate_answers_without_a_server() -> None:
    done = subprocess.run(
        [sys.executable, "-P", "-m", "asynclane.server", "generate", PARIS],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert "Paris" in done.stdout
    assert "tokens per call" in done.stdout


@pytest.mark.parametrize("flags", [["--model", "/nowhere"], ["--decoder", "beam"], ["--max-model-len", "4000"]])
def test_a_start_in_vain_is_one_line_and_exit_code_2(flags: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-P", "-m", "asynclane.server", "serve", "--port", "0", *flags],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith("asynclane: ")


def test_a_taken_port_is_one_line_and_exit_code_2(server: Server) -> None:
    port = server.url.rpartition(":")[2]
    done = subprocess.run(
        [sys.executable, "-P", "-m", "asynclane.server", "serve", "--port", port],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2
    assert port in done.stderr
    assert done.stderr.count("\n") == 1


def test_memory_stays_within_what_the_readme_says(server: Server) -> None:
    """After all of the above: resident memory under 1.2 GB."""
    status = Path(f"/proc/{server.process.pid}/status")
    if not status.exists():
        pytest.skip("needs /proc")
    resident_kb = next(int(line.split()[1]) for line in status.read_text().splitlines() if line.startswith("VmHWM"))
    assert resident_kb < 1.2e6
