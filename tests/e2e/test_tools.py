"""Tools that people already have, as they come: OpenAI's client for Node, LangChain and curl."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import AsyncIterator
from importlib.util import find_spec
from typing import Any

import httpx
import pytest

from ..support.programs import ask, needed, node_program
from ..support.servers import Server, aborted, gauge, wait_for

ANSWER = "The capital of France is Paris."
QUESTION = "What is the capital of France?"
CHAT = json.dumps({"model": "tiny-llada", "messages": [{"role": "user", "content": QUESTION}], "seed": 1})


@pytest.fixture
def node() -> list[str]:
    return node_program("ask.mjs", "openai")


def test_the_node_client_gets_the_same_answer_whole_streamed_and_through_its_helper(
    node: list[str], server: Server
) -> None:
    whole, streamed = ask(node, server.url, "chat"), ask(node, server.url, "stream")
    assert (whole["text"], whole["finish"]) == (ANSWER, "stop")
    assert streamed == whole
    assert ask(node, server.url, "helper") == {"text": ANSWER, "finish": "stop"}


def test_the_node_client_completes_text_and_lists_models(node: list[str], server: Server) -> None:
    texts = ask(node, server.url, "completions")
    assert texts["whole"] == texts["streamed"] != ""
    assert ask(node, server.url, "models") == {"listed": ["tiny-llada"], "single": "tiny-llada"}


@pytest.mark.parametrize(
    ("case", "kind", "status", "param"),
    [
        ("badValue", "BadRequestError", 400, "temperature"),
        ("badStream", "BadRequestError", 400, "top_p"),
        ("badModel", "NotFoundError", 404, "model"),
    ],
)
def test_the_node_client_throws_the_error_of_its_kind(
    node: list[str], server: Server, case: str, kind: str, status: int, param: str
) -> None:
    error = ask(node, server.url, case)
    assert (error["kind"], error["status"], error["param"]) == (kind, status, param)
    assert error["typed"]
    assert error["code"]
    assert error["type"] == "invalid_request_error"


def test_a_stream_that_the_node_client_aborts_frees_its_request(node: list[str], server: Server) -> None:
    before = aborted(server.url)
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([*node, server.url, "abort"], **pipes) as process:
        try:
            assert process.stdout is not None
            assert json.loads(process.stdout.readline()) == {"aborted": True}
            wait_for(lambda: aborted(server.url) == before + 1 and gauge(server.url, "kv_pages_used") == 0)
            assert gauge(server.url, "running_requests") == 0
            assert process.poll() is None
        finally:
            process.stdin.close()
            process.wait(timeout=10)


@pytest.fixture
async def chain(server: Server) -> AsyncIterator[Any]:
    needed(find_spec("langchain_openai"), "there is no langchain-openai here")
    from langchain_openai import ChatOpenAI

    # Its own connections would stay open after the test.
    with httpx.Client(timeout=60) as http:
        async with httpx.AsyncClient(timeout=60) as http_async:
            yield ChatOpenAI(
                base_url=f"{server.url}/v1",
                api_key="none",
                model="tiny-llada",
                max_retries=0,
                http_client=http,
                http_async_client=http_async,
            )


def test_langchain_invokes_streams_and_batches(chain: Any) -> None:
    whole = chain.invoke(QUESTION)
    assert whole.content == ANSWER
    assert whole.response_metadata["finish_reason"] == "stop"
    assert whole.usage_metadata is not None
    assert whole.usage_metadata["output_tokens"] == 7
    chunks = list(chain.stream([("system", "Be short."), ("human", QUESTION)], stream_usage=True))
    assert (
        "".join(str(chunk.content) for chunk in chunks)
        == chain.invoke([("system", "Be short."), ("human", QUESTION)]).content
    )
    assert sum(chunk.usage_metadata["output_tokens"] for chunk in chunks if chunk.usage_metadata) > 0
    questions = [QUESTION, "Who are you?", "Reverse this list: 5, 3, 8."]
    assert [said.content for said in chain.batch(questions)] == [chain.invoke(one).content for one in questions]


async def test_langchain_does_so_without_blocking(chain: Any) -> None:
    assert (await chain.ainvoke(QUESTION)).content == ANSWER
    assert "".join([str(chunk.content) async for chunk in chain.astream(QUESTION)]) == ANSWER


@pytest.fixture
def curl() -> str:
    program = shutil.which("curl")
    needed(program, "there is no curl here")
    return str(program)


def run_curl(curl: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [curl, "--silent", "--show-error", "--max-time", "60", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=70, check=False)


def test_curl_reads_an_answer_and_a_stream(curl: str, server: Server) -> None:
    url, kind = f"{server.url}/v1/chat/completions", ["--header", "content-type: application/json"]
    whole = json.loads(run_curl(curl, url, *kind, "--data", CHAT).stdout)
    assert whole["choices"][0]["message"]["content"] == ANSWER
    body = json.dumps({**json.loads(CHAT), "stream": True})
    *events, done, rest = run_curl(curl, "--no-buffer", url, *kind, "--data", body).stdout.split("\n\n")
    assert (done, rest) == ("data: [DONE]", "")
    chunks = [json.loads(event.removeprefix("data: "))["choices"][0] for event in events]
    assert "".join(chunk["delta"].get("content", "") for chunk in chunks) == ANSWER
    # In chunks of unknown length in all, and after "Expect: 100-continue".
    more = ["--header", "transfer-encoding: chunked", "--header", "expect: 100-continue"]
    assert json.loads(run_curl(curl, url, *kind, *more, "--data", CHAT).stdout)["choices"] == whole["choices"]
