"""`/tokenize` and `/detokenize` say what the completion endpoints read, in vLLM's shapes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from asynclane.server.text.tokenizer import Tokenizer

from ...support.fake_engine import FakeEngine
from ...support.http import CONTEXT, error_of
from ...support.tools import NOW

USER = {"role": "user", "content": "Hi"}


async def test_a_text_becomes_the_ids_that_a_completion_reads(api: Any) -> None:
    engine = FakeEngine()
    async with api(engine) as client:
        found = (await client.http.post("/tokenize", json={"prompt": "Hi wörld", "return_token_strs": True})).json()
        await client.complete(prompt="Hi wörld")
    assert engine.prompts == [found["tokens"]]
    assert (found["count"], found["max_model_len"]) == (len(found["tokens"]), CONTEXT)
    assert len(found["token_strs"]) == found["count"]


@pytest.mark.parametrize(
    "messages", [[USER], [USER, {"role": "assistant", "content": "Yes, "}]], ids=["opened", "continued"]
)
async def test_a_conversation_becomes_the_ids_that_a_chat_reads(api: Any, messages: Any) -> None:
    engine = FakeEngine()
    async with api(engine) as client:
        found = (await client.http.post("/tokenize", json={"model": "tiny-llada", "messages": messages})).json()
        await client.chat(messages=messages)
    assert engine.prompts == [found["tokens"]]
    assert found["token_strs"] is None


async def test_a_conversation_with_tools_becomes_the_ids_that_a_chat_reads(api: Any, tool_text: Tokenizer) -> None:
    engine = FakeEngine()
    async with api(engine, tokenizer=tool_text) as client:
        found = (await client.http.post("/tokenize", json={"messages": [USER], "tools": [NOW]})).json()
        await client.chat(messages=[USER], tools=[NOW])
    assert engine.prompts == [found["tokens"]]


async def test_ids_become_text_with_special_tokens_as_they_are_spelt(api: Any, text: Tokenizer) -> None:
    ids = text.encode_chat([USER])
    async with api() as client:
        found = await client.http.post("/detokenize", json={"tokens": ids})
    assert text.encode(found.json()["prompt"], specials=False) == ids


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": "a", "messages": [USER]}, "prompt"),
        ("/tokenize", {"prompt": 5}, "prompt"),
        ("/tokenize", {"prompt": "\ud800"}, "prompt"),
        ("/tokenize", {"prompt": "a", "add_generation_prompt": True}, "add_generation_prompt"),
        ("/tokenize", {"messages": []}, "messages"),
        ("/tokenize", {"messages": [USER], "continue_final_message": True}, "continue_final_message"),
        ("/tokenize", {"prompt": "a", "colour": 1}, "colour"),
        ("/tokenize", {"prompt": "a", "tools": [NOW]}, "tools"),
        ("/tokenize", {"messages": [USER], "tools": [NOW]}, "tools"),  # this model's template shows none
        ("/tokenize", {"messages": [USER], "chat_template_kwargs": {"a": 1}}, "chat_template_kwargs.a"),
        ("/tokenize", {"messages": [{"role": "tool", "content": "1", "tool_call_id": "a"}]}, "messages.0.tool_call_id"),
        ("/detokenize", {}, "tokens"),
        ("/detokenize", {"tokens": [6, 1405]}, "tokens.1"),
        ("/detokenize", {"tokens": [-1]}, "tokens.0"),
        ("/detokenize", {"tokens": ["6"]}, "tokens.0"),
    ],
)
async def test_what_is_wrong_is_named(api: Any, path: str, body: Any, param: str) -> None:
    async with api() as client:
        assert error_of(await client.raw(path, json.dumps(body)), 400)["param"] == param


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        ("/tokenize", {"prompt": "a" * 100_000}, "prompt"),
        ("/tokenize", {"messages": [{"role": "user", "content": "a" * 100_000}]}, "messages"),
        ("/detokenize", {"tokens": [6] * (CONTEXT + 1)}, "tokens"),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a" * 100_000}]}, "messages"),
        ("/v1/completions", {"prompt": "a" * 100_000}, "prompt"),
        ("/v1/completions", {"prompt": ["a", "a" * 100_000]}, "prompt"),
        ("/v1/completions", {"prompt": "a", "suffix": "a" * 100_000}, "suffix"),
    ],
)
async def test_what_cannot_fit_the_context_is_not_encoded(api: Any, path: str, fields: Any, param: str) -> None:
    async with api() as client:
        error = error_of(await client.raw(path, json.dumps({"model": "tiny-llada", **fields})), 400)
    assert (error["code"], error["param"]) == ("context_length_exceeded", param)
    assert path == "/detokenize" or "at least" in error["message"], "its tokens were counted"


async def test_another_model_is_a_404(api: Any) -> None:
    async with api() as client:
        response = await client.http.post("/tokenize", json={"model": "gpt-4", "prompt": "a"})
    assert response.status_code == 404
