"""LLaDA's repositories are served as they were downloaded: by name, from the cache."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from asynclane.server.app import build_service
from asynclane.server.settings import Settings
from asynclane.server.text.tokenizer import Tokenizer

from ...support.http import error_of
from ...support.published import cached, write_json, write_llada, write_qwen_tokenizer

INSTRUCT, BASE = "GSAI-ML/LLaDA-8B-Instruct", "GSAI-ML/LLaDA-8B-Base"
CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4}

Serve = Callable[..., AbstractAsyncContextManager[httpx.AsyncClient]]


@pytest.fixture
def serve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Serve:
    """`async with serve(repository, chat=True)`: a server on a repository in the cache."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.chdir(tmp_path)

    @asynccontextmanager
    async def serve(
        repository: str, *, chat: bool, revision: str = "", template: object = None
    ) -> AsyncIterator[httpx.AsyncClient]:
        source = write_llada(tmp_path / "source", chat=chat)
        if template is not None:
            path = source / "tokenizer_config.json"
            write_json(path, json.loads(path.read_text()) | {"chat_template": template})
        cached(tmp_path, repository, source, revision or "main")
        model = f"{repository}@{revision}" if revision else repository
        app = build_service(Settings(model=model, threads=1)).app
        async with (
            app.router.lifespan_context(app),
            httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as client,
        ):
            yield client

    return serve


@pytest.mark.parametrize(("repository", "revision"), [(INSTRUCT, "v2"), ("GSAI-ML/LLaDA-1.5", "")])
async def test_a_chat_model_is_served_under_its_repositorys_name(serve: Serve, repository: str, revision: str) -> None:
    async with serve(repository, chat=True, revision=revision) as client:
        (card,) = (await client.get("/v1/models")).json()["data"]
        assert card["id"] == repository
        assert card["max_model_len"] == 512
        answer = await client.post("/v1/chat/completions", json={"model": repository, **CHAT})
        assert answer.status_code == 200, answer.text
        assert 0 < answer.json()["usage"]["completion_tokens"] <= 4


async def test_a_base_model_completes_and_says_why_it_does_not_chat(serve: Serve) -> None:
    async with serve(BASE, chat=False) as client:
        refused = await client.post("/v1/chat/completions", json={"model": BASE, **CHAT})
        assert refused.status_code == 400
        error = refused.json()["error"]
        assert error["param"] == "messages"
        assert "this model has no chat template: use /v1/completions" in error["message"]
        done = await client.post("/v1/completions", json={"model": BASE, "prompt": "Hi", "max_tokens": 4})
        assert done.status_code == 200, done.text


async def test_a_model_whose_templates_have_no_default_completes_and_says_why_it_does_not_chat(serve: Serve) -> None:
    templates = [{"name": name, "template": "{{ messages }}"} for name in ("tool_use", "rag")]
    async with serve(INSTRUCT, chat=True, template=templates) as client:
        refused = await client.post("/v1/chat/completions", json={"model": INSTRUCT, **CHAT})
        error = error_of(refused, 400)
        assert error["param"] == "messages"
        assert "none of this model's chat templates (rag, tool_use) is called default" in error["message"]
        done = await client.post("/v1/completions", json={"model": INSTRUCT, "prompt": "Hi", "max_tokens": 4})
        assert done.status_code == 200, done.text


async def test_a_template_that_fails_at_some_messages_is_named_and_the_server_goes_on(serve: Serve) -> None:
    template = "{{ messages[0].content }}{% if messages|length > 2 %}{{ messages + 1 }}{% endif %}"
    async with serve(INSTRUCT, chat=True, template=template) as client:
        chat = {"model": INSTRUCT, **CHAT, "messages": CHAT["messages"] * 3}
        for path, body in (("/v1/chat/completions", chat), ("/tokenize", {"messages": chat["messages"]})):
            error = error_of(await client.post(path, json=body), 500)
            assert error["type"] == "server_error"
            assert "the chat template fails: TypeError" in error["message"]
        done = await client.post("/v1/chat/completions", json={"model": INSTRUCT, **CHAT})
        assert done.status_code == 200, done.text


def test_answers_of_a_chat_model_end_with_the_turn_and_those_of_a_base_model_with_the_text(tmp_path: Path) -> None:
    chat, base = Tokenizer(write_llada(tmp_path / "chat")), Tokenizer(write_llada(tmp_path / "base", chat=False))
    assert set(chat.token_strings(sorted(chat.end_ids))) == {"<|endoftext|>", "<|eot_id|>"}
    assert set(base.token_strings(sorted(base.end_ids))) == {"<|endoftext|>"}
    assert chat.token_strings([chat.mask_id]) == ["<|mdm_mask|>"]


def test_a_template_that_always_opens_an_answer_opens_one(tmp_path: Path) -> None:
    text = Tokenizer(write_llada(tmp_path / "chat"))
    opened = "<|startoftext|><|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|><|start_header_id|>assistant"
    question = {"role": "user", "content": "Hi"}
    assert text.decode(text.encode_chat([question]), specials=True) == f"{opened}<|end_header_id|>\n\n"
    begun = text.encode_chat([question, {"role": "assistant", "content": "It "}])
    assert text.decode(begun, specials=True) == f"{opened}<|end_header_id|>\n\nIt "


def test_qwens_tokenizer_is_read_from_its_vocabulary_and_merges(tmp_path: Path) -> None:
    directory = write_llada(tmp_path / "dream", mask_token_id=1403)
    (directory / "tokenizer.json").unlink()
    write_qwen_tokenizer(directory)
    text = Tokenizer(directory)
    assert text.token_strings([text.mask_id]) == ["<|mask|>"]
    assert {"<|endoftext|>", "<|im_end|>"} <= set(text.token_strings(sorted(text.end_ids)))
    prompt = text.encode_chat([{"role": "user", "content": "What's 12 + été?\n\n"}])
    assert text.decode(prompt, specials=True).startswith("<|im_start|>user\nWhat's 12 + été?\n\n<|im_end|>\n<|im_sta")
    assert text.token_strings(text.encode("x12"))[-2:] == ["1", "2"]
