"""Answers have OpenAI's shapes, and a stream says what the whole answer says."""

from __future__ import annotations

import asyncio
import json
import math
import threading
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from fastapi import Request
from starlette.types import Message
from tokenizers.processors import TemplateProcessing

from asynclane.scheduler import RequestStats
from asynclane.server import errors
from asynclane.server.api.generation import Backend
from asynclane.server.engine.messages import Delta, Finish, Usage
from asynclane.server.http.sse import ClientGone
from asynclane.server.off_loop import OffLoop
from asynclane.server.structured.fair_worker import FairWorker
from asynclane.server.text.logprobs import Token, TokenLogprob
from asynclane.server.text.tokenizer import Tokenizer

from ...support.fake_engine import SCRIPT, USAGE, FakeEngine
from ...support.http import chunks_of, error_of
from ...support.tools import write_checkpoint_with

DETAILS = {"reasoning_tokens": 0, "forwards": 2, "computed_tokens": 64, "lanes": 2, "forks": 1, "refreshes": 1}


async def test_a_chat_has_the_shape_that_openai_documents(api: Any) -> None:
    engine = FakeEngine()
    async with api(engine) as client:
        response = await client.chat()
    body = response.json()
    assert body.pop("id").startswith("chatcmpl-")
    assert isinstance(body.pop("created"), int)
    prompt_tokens = len(engine.prompts[0])
    assert body == {
        "object": "chat.completion",
        "model": "tiny-llada",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "Hello wörld", "refusal": None},
                "logprobs": None,
                "finish_reason": "stop",
            }
        ],
        "usage": {
            "prompt_tokens": prompt_tokens,
            "completion_tokens": 3,
            "total_tokens": prompt_tokens + 3,
            "prompt_tokens_details": {"cached_tokens": 16},
            "completion_tokens_details": DETAILS,
        },
    }


async def test_a_completion_has_the_shape_that_openai_documents(api: Any) -> None:
    async with api() as client:
        body = (await client.complete()).json()
    assert body["object"] == "text_completion"
    assert body["id"].startswith("cmpl-")
    assert body["choices"] == [{"index": 0, "text": "Hello wörld", "logprobs": None, "finish_reason": "stop"}]


async def test_a_chat_stream_opens_with_the_role_and_closes_with_the_reason(api: Any) -> None:
    async with api() as client:
        response = await client.chat(stream=True)
    chunks = chunks_of(response)
    texts = [{"content": "Hel"}, {"content": "lo"}, {"content": " wörld"}]
    assert [chunk["choices"][0]["delta"] for chunk in chunks] == [{"role": "assistant", "content": ""}, *texts, {}]
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == [None] * 4 + ["stop"]
    assert all(set(chunk["choices"][0]) == {"index", "delta", "logprobs", "finish_reason"} for chunk in chunks)
    assert len({(chunk["id"], chunk["created"], chunk["model"]) for chunk in chunks}) == 1
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    assert not any("usage" in chunk for chunk in chunks), "usage is only for requests that include it"
    assert response.headers["cache-control"] == "no-cache"
    assert response.headers["x-accel-buffering"] == "no"


@pytest.mark.parametrize("finish", list(Finish))
async def test_a_stream_says_what_the_whole_answer_says(api: Any, finish: Finish) -> None:
    engine = FakeEngine([Delta("a"), Delta(""), Delta("\n\ndata: b\r"), Delta("c"), Delta("", finish, USAGE)])
    async with api(engine) as client:
        whole = (await client.complete()).json()["choices"][0]
        chunks = chunks_of(await client.complete(stream=True))
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == whole["text"] == "a\n\ndata: b\rc"
    assert chunks[-1]["choices"][0]["finish_reason"] == whole["finish_reason"] == finish
    assert all(chunk["choices"][0]["text"] for chunk in chunks[:-1]), "a delta without text is no chunk"


async def test_include_usage_adds_a_last_chunk_without_choices(api: Any) -> None:
    async with api() as client:
        *chunks, last = chunks_of(await client.chat(stream=True, stream_options={"include_usage": True}))
        whole = (await client.chat()).json()
    assert last["choices"] == []
    assert last["usage"] == whole["usage"]
    assert all(chunk["usage"] is None for chunk in chunks)


async def test_n_answers_share_a_prompt_which_counts_once(api: Any) -> None:
    engine = FakeEngine([Delta("a", Finish.STOP, USAGE)], [Delta("b", Finish.LENGTH, USAGE)])
    async with api(engine) as client:
        body = (await client.chat(n=4, seed=2**63 - 2, temperature=1)).json()
    assert [choice["index"] for choice in body["choices"]] == [0, 1, 2, 3]
    assert [choice["message"]["content"] for choice in body["choices"]] == ["a", "b", "a", "b"]
    assert [choice["finish_reason"] for choice in body["choices"]] == ["stop", "length"] * 2
    assert body["usage"]["prompt_tokens"] == len(engine.prompts[0])
    assert body["usage"]["completion_tokens"] == 12
    assert [options.seed for options in engine.options] == [2**63 - 2, 2**63 - 1, 0, 1]


async def test_choices_of_a_stream_come_interleaved_and_each_is_complete(api: Any) -> None:
    engine = FakeEngine(SCRIPT, [Delta("x"), Delta("y"), Delta("z", Finish.LENGTH, USAGE)])
    async with api(engine) as client:
        chunks = chunks_of(await client.chat(stream=True, n=2))
    choices = [chunk["choices"][0] for chunk in chunks]
    texts = ["", ""]
    for choice in choices:
        texts[choice["index"]] += choice["delta"].get("content", "")
    assert texts == ["Hello wörld", "xyz"]
    assert {c["index"]: c["finish_reason"] for c in choices if c["finish_reason"]} == {0: "stop", 1: "length"}
    order = [choice["index"] for choice in choices if choice["delta"].get("content")]
    assert order != sorted(order), "no choice waits for another"


async def test_several_prompts_times_n_are_indexed_prompt_by_prompt(api: Any, text: Tokenizer) -> None:
    engine = FakeEngine()
    async with api(engine) as client:
        body = (await client.complete(prompt=["One", "Two"], n=2, seed=7, temperature=0.5)).json()
    one, two = text.encode("One"), text.encode("Two")
    assert engine.prompts == [one, one, two, two]
    assert [options.seed for options in engine.options] == [7, 8, 7, 8]
    assert [choice["index"] for choice in body["choices"]] == [0, 1, 2, 3]
    assert body["usage"]["prompt_tokens"] == len(one) + len(two)


@pytest.mark.parametrize(("prompt", "prompts"), [([6, 7], [[6, 7]]), ([[6], [7, 8]], [[6], [7, 8]])])
async def test_token_ids_are_taken_as_they_are(api: Any, prompt: Any, prompts: Any) -> None:
    engine = FakeEngine()
    async with api(engine) as client:
        await client.complete(prompt=prompt)
    assert engine.prompts == prompts


@pytest.mark.parametrize(("given", "first"), [(None, [7]), (True, [7]), (False, [])])
async def test_a_prompt_that_has_its_first_token_does_not_get_another(
    api: Any, text: Tokenizer, monkeypatch: pytest.MonkeyPatch, given: bool | None, first: list[int]
) -> None:
    begun = TemplateProcessing(single="[BOS] $A", special_tokens=[("[BOS]", 7)])
    monkeypatch.setattr(text.backend, "post_processor", begun)
    engine = FakeEngine()
    async with api(engine) as client:
        await client.complete(prompt="Hi", add_special_tokens=given)
    assert engine.prompts == [[*first, *text.encode("Hi", specials=False)]]


async def test_the_name_of_who_speaks_goes_to_the_template(api: Any, tmp_path: Path) -> None:
    template = "{% for m in messages %}{{ m.name | default('no one') }}: {{ m.content }}\n{% endfor %}"
    engine, named = FakeEngine(), Tokenizer(write_checkpoint_with(tmp_path / "model", template))
    messages = [{"role": "user", "name": "Ann<|endoftext|>", "content": "Hi"}, {"role": "user", "content": "Hello"}]
    async with api(engine, tokenizer=named) as client:
        assert (await client.chat(messages=messages)).status_code == 200
    (prompt,) = engine.prompts
    assert named.decode(prompt) == "Ann<|endoftext|>: Hi\nno one: Hello\n", "its special tokens are text"


@pytest.mark.parametrize(("given", "first"), [(None, []), (False, []), (True, [7])])
async def test_a_chat_gets_the_tokenizers_first_token_on_request(
    api: Any, text: Tokenizer, monkeypatch: pytest.MonkeyPatch, given: bool | None, first: list[int]
) -> None:
    begun = TemplateProcessing(single="[BOS] $A", special_tokens=[("[BOS]", 7)])
    monkeypatch.setattr(text.backend, "post_processor", begun)
    engine = FakeEngine()
    chat = {"messages": [{"role": "user", "content": "Hi"}], "add_special_tokens": given}
    async with api(engine) as client:
        await client.chat(**chat)
        shown = (await client.http.post("/tokenize", json=chat)).json()["tokens"]
    assert engine.prompts == [shown] == [[*first, *text.encode_chat(chat["messages"])]]


async def test_every_option_reaches_the_engine(api: Any) -> None:
    engine = FakeEngine()
    async with api(engine) as client:
        await client.chat(
            max_completion_tokens=9,
            temperature=0.5,
            top_p=0.25,
            seed=-1,
            stop=["a", "b"],
            top_k=-1,
            min_p=0.125,
            presence_penalty=-1,
            frequency_penalty=0.5,
            repetition_penalty=1.5,
            include_stop_str_in_output=True,
            logit_bias={"6": -100, "7": 2, "8": 0},
            stop_token_ids=[9],
            ignore_eos=True,
            logprobs=True,
            top_logprobs=3,
            decoder="fast-dllm",
            threshold=1,
            cache="dual",
            lookahead="canvas",
            early_stop=False,
            cache_salt="s",
            user="me",
            prompt_cache_key="a",
            prompt_cache_retention="24h",
            safety_identifier="b",
            verbosity="high",
            metadata={"a": "b"},
            store=True,
        )
    (options,) = engine.options
    assert (options.max_tokens, options.temperature, options.top_p) == (9, 0.5, 0.25)
    assert (options.seed, options.stop, options.decoder) == (2**63 - 1, ("a", "b"), "fast-dllm")
    assert (options.top_k, options.min_p, options.stop_ids, options.ranks) == (0, 0.125, (9,), 3)
    assert options.cache_salt == "s"
    assert (options.presence_penalty, options.frequency_penalty, options.ignore_end) == (-1, 0.5, True)
    assert (options.repetition_penalty, options.include_stop) == (1.5, True)
    assert options.logit_bias == ((6, -math.inf), (7, 2))
    assert dict(options.params) == {"threshold": 1, "cache": "dual", "lookahead": "canvas", "early_stop": False}


async def test_without_options_answers_are_greedy_and_as_long_as_context_and_setting_allow(api: Any) -> None:
    engine = FakeEngine()
    async with api(engine, default_max_tokens=100) as client:
        await client.complete(prompt=[6] * 10)
        await client.complete(prompt=[6] * 200)
    assert [options.max_tokens for options in engine.options] == [100, 56]
    assert (engine.options[0].temperature, engine.options[0].top_p, engine.options[0].seed) == (0.0, 1.0, 0)
    assert engine.options[0].stop == ()
    assert (engine.options[0].presence_penalty, engine.options[0].logit_bias) == (0.0, ())
    assert (engine.options[0].ranks, engine.options[0].share_group) == (None, None)
    assert engine.options[0].decoder is None
    assert engine.options[0].params == ()


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"max_tokens": 101}, "max_tokens"),
        ({"max_tokens": 101, "n": 2}, "max_tokens"),
        ({"max_tokens": 51, "n": 2}, "n"),
        ({"max_tokens": 51, "best_of": 2}, "best_of"),
        ({"max_tokens": 51, "prompt": ["One", "Two"]}, "prompt"),
        ({"n": 16}, "n"),  # of the default length
        ({"max_tokens": 50, "n": 2}, None),
    ],
)
async def test_one_request_wants_no_more_tokens_than_the_limit(api: Any, fields: Any, param: str | None) -> None:
    engine = FakeEngine()
    async with api(engine, max_request_tokens=100, default_max_tokens=20) as client:
        response = await client.complete(**fields)
    if param is None:
        assert response.status_code == 200
    else:
        assert error_of(response, 400)["param"] == param
        assert "up to 100 in one request" in error_of(response)["message"]
        assert engine.prompts == []


async def test_answers_of_one_request_are_a_bundle_and_one_answer_is_none(api: Any) -> None:
    engine = FakeEngine()
    async with api(engine) as client:
        await client.complete(n=2, prompt=["One", "Two"])
        await client.complete(n=2)
        await client.complete()
    bundles = [options.bundle for options in engine.options]
    assert len({*bundles[:4]}) == len({*bundles[4:6]}) == 1
    assert len({*bundles}) == 3
    assert bundles[6] is None


async def test_the_time_limit_is_the_requests_or_the_servers(api: Any) -> None:
    engine = FakeEngine()
    async with api(engine, request_timeout_s=7.0) as client:
        await client.chat()
        await client.chat(timeout=2)
        refused = error_of(await client.chat(timeout=7.5), 400)
    assert [options.timeout_s for options in engine.options] == [7, 2]
    assert refused["param"] == "timeout"
    assert "at most 7 seconds here" in refused["message"]


async def test_an_answer_that_is_late_is_408_or_an_error_event_and_no_sdk_sends_it_again(api: Any) -> None:
    late = errors.TimedOut("no complete answer within 1 seconds")
    async with api(FakeEngine([late], [late], [Delta("Hel"), late])) as client:
        before = [await client.chat(timeout=1, stream=stream) for stream in (False, True)]
        streamed = await client.chat(timeout=1, stream=True)
    for response in before:
        assert error_of(response, 408)["code"] == "request_timeout"
        assert response.headers["x-should-retry"] == "false"
    assert streamed.status_code == 200
    assert "event: error" in streamed.text
    assert "no complete answer" in streamed.text


async def test_no_prompt_has_the_mask(api: Any, text: Tokenizer) -> None:
    engine, mask = FakeEngine(), text.backend.id_to_token(text.mask_id)
    async with api(engine) as client:
        for ids in ([text.mask_id], [7, text.mask_id]):
            assert "mask token" in error_of(await client.complete(prompt=ids), 400)["message"]
        await client.complete(prompt=f"a{mask}b", suffix=f"c{mask}", max_tokens=4)
        await client.chat(messages=[{"role": "user", "content": mask}])
    given = [*engine.prompts, *(list(options.suffix) for options in engine.options)]
    assert len(given) == 4
    assert not any(text.mask_id in ids for ids in given)


async def test_without_a_seed_random_answers_differ_from_call_to_call(api: Any) -> None:
    engine = FakeEngine()
    async with api(engine) as client:
        for _ in range(8):
            await client.chat(temperature=1)
    seeds = {options.seed for options in engine.options}
    assert len(seeds) == 8
    assert all(0 <= seed < 2**63 for seed in seeds)


@pytest.mark.parametrize("role", ["system", "developer"])
async def test_developer_is_another_name_for_system(api: Any, text: Tokenizer, role: str) -> None:
    engine = FakeEngine()
    parts = [{"type": "text", "text": "Be "}, {"type": "text", "text": "brief."}]
    async with api(engine) as client:
        await client.chat(messages=[{"role": role, "content": parts}, {"role": "user", "content": "Hi"}])
    expected = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    assert engine.prompts == [text.encode_chat(expected)]


async def test_an_answer_without_a_reason_is_our_fault_and_no_truncated_success(api: Any) -> None:
    engine = FakeEngine([Delta("half")])
    async with api(engine) as client:
        whole = await client.chat()
        streamed = await client.chat(stream=True)
    assert error_of(whole, 500)["type"] == "server_error"
    assert "[DONE]" not in streamed.text
    last = streamed.text.rstrip().rpartition("\n\n")[2]
    assert last.startswith("event: error\ndata: ")
    assert json.loads(last.partition("data: ")[2])["error"]["type"] == "server_error"


def scored(text: str, logprob: float, step: int, offset: int = 0) -> TokenLogprob:
    other = Token("\N{REPLACEMENT CHARACTER}", b"\xc3", 7)
    return TokenLogprob(
        Token(text, text.encode(), 8), logprob, step, offset, ((other, -0.5), (Token("x", b"x", 9), -2.0))
    )


SCORED = (
    Delta("a", scores=(scored("a", -0.25, 3),)),
    Delta("b", Finish.STOP, USAGE, scores=(scored("b", -1.0, 1, 1),)),
)


async def test_logprobs_of_a_chat_have_openais_shape_and_the_committing_step(api: Any) -> None:
    async with api(FakeEngine(SCORED)) as client:
        whole = (await client.chat(logprobs=True, top_logprobs=2)).json()["choices"][0]["logprobs"]
        chunks = chunks_of(await client.chat(logprobs=True, top_logprobs=2, stream=True))
    assert whole["refusal"] is None
    assert whole["content"][0] == {
        "token": "a",
        "logprob": -0.25,
        "bytes": [97],
        "step": 3,
        "top_logprobs": [
            {"token": "\N{REPLACEMENT CHARACTER}", "logprob": -0.5, "bytes": [0xC3]},
            {"token": "x", "logprob": -2.0, "bytes": [120]},
        ],
    }
    parts = [chunk["choices"][0]["logprobs"] for chunk in chunks]
    assert [entry for part in parts if part for entry in part["content"]] == whole["content"]


async def test_logprobs_of_a_completion_have_the_older_shape(api: Any) -> None:
    async with api(FakeEngine(SCORED)) as client:
        whole = (await client.complete(logprobs=2)).json()["choices"][0]["logprobs"]
    assert whole == {
        "tokens": ["a", "b"],
        "token_logprobs": [-0.25, -1.0],
        "top_logprobs": [
            {"bytes:\\xc3": -0.5, "x": -2.0, "a": -0.25},
            {"bytes:\\xc3": -0.5, "x": -2.0, "b": -1.0},
        ],
        "text_offset": [0, 1],
        "steps": [3, 1],
    }


async def test_the_best_of_several_has_the_highest_mean_logprob_and_all_are_paid_for(api: Any) -> None:
    scripts = [
        [Delta(str(at), Finish.STOP, USAGE, scores=(scored("a", chance, 0),))] for at, chance in enumerate(CHANCES)
    ]
    engine = FakeEngine(*scripts)
    async with api(engine) as client:
        body = (await client.complete(prompt=["One", "Two"], n=2, best_of=4, temperature=1, seed=0)).json()
        shown = (await client.complete(best_of=4, logprobs=0)).json()["choices"]
    assert [choice["text"] for choice in body["choices"]] == ["2", "0", "2", "0"]
    assert [choice["index"] for choice in body["choices"]] == [0, 1, 2, 3]
    assert all(choice["logprobs"] is None for choice in body["choices"])
    assert shown[0]["logprobs"]["token_logprobs"] == [-0.5]
    assert body["usage"]["completion_tokens"] == 8 * USAGE.completion_tokens
    assert len({options.share_group for options in engine.options[:8]}) == 2, "each prompt's choices share it"


CHANCES = [-1.0, -2.0, -0.5, -3.0]


@pytest.mark.parametrize("prompt", ["Hi ö", [6, 7]], ids=["text", "ids"])
async def test_echo_puts_the_prompt_before_each_answer(api: Any, text: Tokenizer, prompt: Any) -> None:
    said = prompt if isinstance(prompt, str) else text.decode(prompt)
    async with api() as client:
        whole = (await client.complete(prompt=prompt, echo=True, n=2)).json()["choices"]
        chunks = chunks_of(await client.complete(prompt=prompt, echo=True, stream=True))
    assert [choice["text"] for choice in whole] == [said + "Hello wörld"] * 2
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == said + "Hello wörld"


async def test_continuous_usage_is_in_every_chunk(api: Any) -> None:
    half = Usage(1, RequestStats(forwards=1, computed_tokens=32, lanes=1))
    engine = FakeEngine([Delta("a", usage=half), Delta("b", Finish.STOP, USAGE)])
    options = {"include_usage": True, "continuous_usage_stats": True}
    async with api(engine) as client:
        chunks = chunks_of(await client.complete(stream=True, stream_options=options))
    assert [chunk["usage"]["completion_tokens"] for chunk in chunks] == [1, 3, 3, 3]
    assert all(chunk["usage"]["prompt_tokens"] == len(engine.prompts[0]) for chunk in chunks)
    assert chunks[-1]["choices"] == []


async def test_what_was_found_computed_of_a_prompt_counts_once_however_many_choices_it_has(api: Any) -> None:
    body = {"prompt": ["One", "Two"], "n": 3, "seed": 7, "temperature": 0.5}
    async with api() as client:
        whole = (await client.complete(**body)).json()
        *_, last = chunks_of(await client.complete(**body, stream=True, stream_options={"include_usage": True}))
    assert whole["usage"]["prompt_tokens_details"] == {"cached_tokens": 2 * USAGE.stats.cached_tokens}
    assert last["usage"] == whole["usage"]


@pytest.mark.parametrize(
    ("prompt", "limits", "param"),
    [
        (256, {}, "prompt"),
        (256, {"max_tokens": 1}, "prompt"),
        (255, {"max_tokens": 2}, "max_tokens"),
        (200, {"max_tokens": 57}, "max_tokens"),
        (None, {"max_tokens": 256}, "max_tokens"),
        (None, {"max_completion_tokens": 256}, "max_completion_tokens"),
        (None, {"messages": [{"role": "user", "content": "word " * 30_000}]}, "messages"),
    ],
    ids=lambda case: str(case)[:40],
)
async def test_a_request_that_exceeds_the_context_gets_both_numbers(
    api: Any, prompt: int | None, limits: Any, param: str
) -> None:
    async with api() as client:
        assert (await client.complete(prompt=[6] * 200, max_tokens=56)).status_code == 200, "the last token can be used"
        response = await (client.chat(**limits) if prompt is None else client.complete(prompt=[6] * prompt, **limits))
    error = error_of(response, 400)
    assert (error["code"], error["param"]) == ("context_length_exceeded", param)
    assert "the context is 256 tokens" in error["message"]
    assert f"{prompt or ''} in the prompt" in error["message"]


async def test_a_format_is_compiled_in_the_turn_of_its_client(api: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    submit, clients = FairWorker.submit, list[str]()

    def seen(self: FairWorker[Any], client: str, job: Any) -> Any:
        clients.append(client)
        return submit(self, client, job)

    monkeypatch.setattr(FairWorker, "submit", seen)
    async with api() as client:
        assert (await client.chat(guided_regex="in turn [a-f]{3}")).status_code == 200
    assert clients == ["127.0.0.1"]


async def test_a_text_whose_client_leaves_before_its_turn_is_not_encoded() -> None:
    async def gone() -> Message:
        return {"type": "http.disconnect"}

    encoding, encoded = OffLoop(short=0, at_once=1, max_waiting=1), Mock()
    backend = Backend(Mock(), Mock(), Mock(), Mock(), Mock(), encoding, encoding, Mock())
    opened = threading.Event()
    running = asyncio.create_task(encoding.run("another", 1, opened.wait))
    await asyncio.sleep(0)
    with pytest.raises(ClientGone):
        await backend.encode(Request({"type": "http"}, gone), "prompt", 1, encoded)
    opened.set()
    await running
    await encoding.run("another", 1, Mock())
    encoded.assert_not_called()
