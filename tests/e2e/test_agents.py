"""Libraries for agents against a real server, with the embedded model that knows tools: they call a function and answer
its result, whole and streamed, and read values of a schema.
"""

from __future__ import annotations

import asyncio
from importlib.util import find_spec
from typing import Any, Literal

import httpx
import pytest
from pydantic import BaseModel, Field

from asynclane import clients

from ..support.programs import ask, needed, node_program, python_program
from ..support.scale import LONG
from ..support.servers import Server
from ..support.tools import CITY

MODEL = "tiny-chat"
QUESTION = "What is the weather in Paris?"
EGGS = "Tom has 12 eggs."
RESULT = '{"temperature": 21}'
SAID = "The temperature is 21."
PARIS = {"city": "Paris"}
COUNTED = {"item": "books", "count": 12}  # as the model has it


class Answer(BaseModel):
    item: Literal["books", "eggs"]
    count: int = Field(ge=0, le=99)


class Report(BaseModel):
    degrees: int = Field(ge=0, le=99)


def get_weather(city: str) -> str:
    """Get the weather in a city"""
    assert city == "Paris"
    return RESULT


def test_the_projects_own_client_calls_a_tool_and_reads_options(open_server: Server) -> None:
    tool: clients.Tool = {"type": "function", "function": {"name": "get_weather", "parameters": CITY}}
    asked: list[clients.Message] = [{"role": "user", "content": QUESTION}]
    with clients.Client(open_server.url) as client:
        answer = client.chat(asked, model=MODEL, tools=[tool], tool_choice="required", parallel_tool_calls=False)
        with client.stream_chat(asked, model=MODEL, tools=[tool], parallel_tool_calls=False) as stream:
            streamed = clients.Answer.of(stream)
        for first in (answer, streamed):
            (call,) = first.choices[0].tool_calls
            assert (call.function.name, call.values()) == ("get_weather", PARIS)
            turn = [*asked, first.message, call.result(RESULT)]
            assert client.chat(turn, model=MODEL, tools=[tool]).text == SAID
        options = client.chat(asked, model=MODEL, guided_choice=["yes", "no"], logprobs=True).choices[0]
    assert sum(one.probability for one in options.choice_probabilities) == pytest.approx(1)
    assert "".join(score.token for score in options.scores) == options.text


def test_openais_client_for_node_runs_tools_and_parses_answers(open_server: Server) -> None:
    found = ask(node_program("agents.mjs", "openai"), open_server.url, "openai")
    assert found["chat"] == {"calls": [PARIS, PARIS], "loop": SAID, "streamed": SAID, "parsed": COUNTED}
    turn = {"place": PARIS, "text": SAID}
    assert found["responses"] == {"whole": turn, "streamed": turn, "parsed": COUNTED}


def test_the_ai_sdk_runs_tools_and_reads_objects_by_both_of_its_providers(open_server: Server) -> None:
    found = ask(node_program("agents.mjs", "ai"), open_server.url, "ai")
    turns = {"calls": [["get_weather", PARIS]], "text": SAID, "finish": "stop", "tokens": 12}
    expected = {"whole": turns, "streamed": turns, "object": COUNTED, "both": {"degrees": 21}}
    assert found == {"responses": expected, "compatible": expected}


# LangChain keeps what the SDK has parsed in a field for something else.
@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings:UserWarning")
@pytest.mark.parametrize("responses", [False, pytest.param(True, marks=LONG)], ids=["chat", "responses"])
def test_langchain_binds_tools_and_reads_models_of_pydantic(open_server: Server, responses: bool) -> None:
    needed(find_spec("langchain_openai"), "there is no langchain-openai here")
    from langchain_core.messages import AIMessageChunk, HumanMessage
    from langchain_core.tools import tool
    from langchain_openai import ChatOpenAI

    weather: Any = tool(get_weather)
    asked: list[Any] = [HumanMessage(QUESTION)]
    with httpx.Client(timeout=60) as http:
        options: Any = {"model": MODEL, "max_retries": 0, "max_tokens": 96, "http_client": http}
        chat = ChatOpenAI(base_url=f"{open_server.url}/v1", api_key="none", use_responses_api=responses, **options)
        agent = chat.bind_tools([weather])
        whole: Any = agent.invoke(asked)
        pieces = list(agent.stream(asked))
        streamed = sum(pieces[1:], start=pieces[0])
        assert isinstance(streamed, AIMessageChunk)
        forced: Any = chat.bind_tools([weather], tool_choice="any", strict=True).invoke(asked)
        for message in (whole, streamed, forced):
            (call,) = message.tool_calls
            assert (call["name"], call["args"]) == ("get_weather", PARIS)
        assert agent.invoke([*asked, whole, weather.invoke(whole.tool_calls[0])]).text == SAID
        for method in ("json_schema", "function_calling"):
            found = chat.with_structured_output(Answer, method=method).invoke(EGGS)
            assert found == Answer.model_validate(COUNTED)


@pytest.mark.parametrize("responses", [False, pytest.param(True, marks=LONG)], ids=["chat", "responses"])
def test_pydantic_ai_runs_tools_and_returns_outputs_of_each_kind(open_server: Server, responses: bool) -> None:
    needed(find_spec("pydantic_ai"), "there is no pydantic-ai-slim here")
    import httpx2
    from pydantic_ai import Agent, NativeOutput, ToolOutput
    from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
    from pydantic_ai.providers.openai import OpenAIProvider

    async def run() -> None:
        async with httpx2.AsyncClient(timeout=60) as http:
            provider = OpenAIProvider(base_url=f"{open_server.url}/v1", api_key="none", http_client=http)
            model: Any = (OpenAIResponsesModel if responses else OpenAIChatModel)(MODEL, provider=provider)
            options: Any = {"model": model, "model_settings": {"max_tokens": 96}, "retries": 0}
            agent: Any = Agent(tools=[get_weather], **options)
            assert (await agent.run(QUESTION)).output == SAID
            async with agent.run_stream(QUESTION) as stream:
                assert "".join([piece async for piece in stream.stream_text(delta=True)]) == SAID
            for kind in (NativeOutput, ToolOutput):
                output: Any = kind(Answer)
                assert (await Agent(output_type=output, **options).run(EGGS)).output == Answer.model_validate(COUNTED)
            report: Any = Agent(output_type=NativeOutput(Report), tools=[get_weather], **options)
            assert (await report.run(QUESTION)).output == Report(degrees=21)

    asyncio.run(run())


@LONG
def test_litellm_completes_streams_calls_and_holds_a_schema(open_server: Server) -> None:
    found = ask(python_program("agents.py"), open_server.url, "litellm", quiet=False)
    text = "The capital of France is Paris."
    turn = ["get_weather", PARIS, SAID]
    assert found == {"whole": text, "streamed": text, "turns": [turn, turn], "formatted": COUNTED}


@LONG
def test_instructor_fills_models_in_each_of_its_modes(open_server: Server) -> None:
    found = ask(python_program("agents.py"), open_server.url, "instructor", quiet=False)
    assert found == {mode: [COUNTED, COUNTED] for mode in ("tool_call", "json_schema_mode", "responses_tools")}
