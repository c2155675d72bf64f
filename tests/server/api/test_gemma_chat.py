"""DiffusionGemma's chats: its template with thoughts and tools, answers that all endpoints divide alike, and what its
form of calls and its canvases do not allow."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest

from asynclane.server.app import build_service
from asynclane.server.engine.messages import Delta, Finish
from asynclane.server.settings import Settings
from asynclane.server.text.answer_formats import answer_formats
from asynclane.server.text.detokenizer import AnswerText
from asynclane.server.text.tokenizer import Tokenizer

from ...support.checkpoints import GEMMA, write_checkpoint
from ...support.fake_engine import USAGE, FakeEngine
from ...support.http import chunks_of, error_of
from ...support.tools import NOW, WEATHER, add_tokens

TEMPLATE = Path(__file__).parents[2] / "support" / "gemma_chat.jinja"
SPECIAL = """<|turn> <turn|> <|think|> <|channel> <channel|> <|tool> <tool|> <|tool_call> <tool_call|> <|tool_response>
<tool_response|> <|"|>""".split()
USER = {"role": "user", "content": "Hi"}
THOUGHT, CALL = (
    "<|channel>thought\nIt may rain.\n<channel|>",
    '<|tool_call>call:get_weather{city:<|"|>Paris<|"|>}<tool_call|>',
)
ARGUMENTS = '{"city": "Paris"}'
CALLED = {"id": "c", "type": "function", "function": {"name": "get_weather", "arguments": ARGUMENTS}}


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = write_checkpoint(tmp_path_factory.mktemp("gemma") / "model", GEMMA, vocab_size=1424)
    add_tokens(made, SPECIAL, special=True)
    path = made / "tokenizer_config.json"
    named = json.loads(path.read_text())
    del named["chat_template"]
    path.write_text(json.dumps(named))
    (made / "chat_template.jinja").write_text(TEMPLATE.read_text())
    response = Tokenizer(made).tokens_of(["<|tool_response>"])["<|tool_response>"]
    said = {"max_denoising_steps": 2, "eos_token_id": [1, response]}
    (made / "generation_config.json").write_text(json.dumps(said))
    return made


@pytest.fixture(scope="module")
def gemma(directory: Path) -> Tokenizer:
    return Tokenizer(directory)


def shown_of(text: Tokenizer) -> tuple[int, ...]:
    formats = answer_formats(text.template)
    assert formats.tools is not None
    assert formats.reasoning is not None
    assert (formats.tools.name, formats.reasoning.name) == ("gemma", "gemma")
    return tuple(text.tokens_of((*formats.tools.markers, *formats.reasoning.markers)).values())


def script(text: Tokenizer, said: str, size: int) -> list[Delta]:
    """The deltas of an answer, so many tokens in each: canvases of a model that writes its markers as tokens."""
    ids = text.encode(f"{said}<|tool_response>", specials=False)
    answer = AnswerText(text, shown=shown_of(text))
    pieces = [answer.feed([token])[0] for token in ids[:-1]] + [answer.flush()]
    assert "".join(pieces) == said
    deltas = [Delta("".join(pieces[at : at + size])) for at in range(0, len(pieces), size)]
    return [*deltas, Delta("", Finish.STOP, USAGE)]


MODEL = "<|turn>user\nHi<turn|>\n<|turn>model\n"
SPELT = {"role": "tool", "tool_call_id": "c", "content": "21 <turn|>"}
ANSWERED = [USER, {"role": "assistant", "reasoning_content": "It may rain.", "tool_calls": [CALLED]}, SPELT]
NOW_SHOWN = '<|tool>declaration:now{description:<|"|><|"|>,parameters:{}}<tool|>'
RESULT = '<|tool_response>response:get_weather{value:<|"|>21 <turn|><|"|>}<tool_response|>'
PROMPTS: list[tuple[dict[str, Any], str]] = [
    ({}, f"{MODEL}<|channel>thought\n<channel|>"),
    ({"chat_template_kwargs": {"enable_thinking": True}}, f"<|turn>system\n<|think|>\n<turn|>\n{MODEL}"),
    ({"tools": [NOW]}, f"<|turn>system\n{NOW_SHOWN}<turn|>\n{MODEL}<|channel>thought\n<channel|>"),
    ({"messages": ANSWERED}, f"{MODEL}{THOUGHT}{CALL}{RESULT}"),
]


@pytest.mark.parametrize(("fields", "prompt"), PROMPTS, ids=range(len(PROMPTS)))
async def test_a_prompt_has_thoughts_tools_calls_and_results(
    api: Any, gemma: Tokenizer, fields: dict[str, Any], prompt: str
) -> None:
    engine = FakeEngine()
    async with api(engine, tokenizer=gemma) as client:
        answer = await client.chat(**{"messages": [USER], **fields})
    assert answer.status_code == 200, answer.text
    (ids,) = engine.prompts
    assert gemma.decode(ids, specials=True) == f"<|startoftext|>{prompt}"
    turn = gemma.tokens_of(["<turn|>"])["<turn|>"]
    assert ids.count(turn) == prompt.replace("21 <turn|>", "").count("<turn|>")  # what a client spells is text


# (answer, (reasoning, text, arguments of calls))
SAID: list[tuple[str, tuple[str, str, list[str]]]] = [
    (f"{THOUGHT}It rains.", ("It may rain.", "It rains.", [])),
    ("<|channel>thought\n<channel|>It rains.", ("", "It rains.", [])),
    (f"{THOUGHT}I look.{CALL}{CALL}", ("It may rain.", "I look.", [ARGUMENTS] * 2)),
    (CALL.removesuffix("<tool_call|>"), ("", "", [ARGUMENTS])),
    (CALL.replace("weather", "storm"), ("", CALL.replace("weather", "storm"), [])),
]


def parts_of_chat(choices: Sequence[Any]) -> tuple[str, str, list[str]]:
    messages = [choice.get("message") or choice["delta"] for choice in choices]
    calls = [call["function"]["arguments"] for message in messages for call in message.get("tool_calls") or ()]
    reasoning, text = (
        "".join(message.get(key) or "" for message in messages) for key in ("reasoning_content", "content")
    )
    return reasoning, text, [arguments for arguments in calls if arguments]


def parts_of_response(output: list[Any]) -> tuple[str, str, list[str]]:
    texts = {
        kind: "".join(part["text"] for item in output if item["type"] == kind for part in item["content"])
        for kind in ("reasoning", "message")
    }
    calls = [item["arguments"] for item in output if item["type"] == "function_call"]
    return texts["reasoning"], texts["message"], calls


def parts_of_message(blocks: list[Any]) -> tuple[str, str, list[str]]:
    thinking, text = ("".join(block.get(key, "") for block in blocks) for key in ("thinking", "text"))
    return thinking, text, [json.dumps(block["input"]) for block in blocks if block["type"] == "tool_use"]


def events_of(answer: httpx.Response) -> list[Any]:
    lines = (line.removeprefix("data: ") for line in answer.text.splitlines() if line.startswith("data: {"))
    return [json.loads(line) for line in lines]


@pytest.mark.parametrize(("said", "expected"), SAID, ids=range(len(SAID)))
@pytest.mark.parametrize("size", [1, 16])
async def test_all_endpoints_divide_an_answer_alike_streamed_and_whole(
    api: Any, gemma: Tokenizer, said: str, expected: tuple[str, str, list[str]], size: int
) -> None:
    function = WEATHER["function"]
    named = {key: function[key] for key in ("name", "description")}
    thinking = {"chat_template_kwargs": {"enable_thinking": True}}
    bodies: dict[str, dict[str, Any]] = {
        "chat/completions": {"messages": [USER], "tools": [WEATHER], **thinking},
        "responses": {"input": "Hi", "tools": [{"type": "function", "strict": False, **function}], **thinking},
        "messages": {
            "messages": [USER],
            "max_tokens": 50,
            "tools": [{**named, "input_schema": function["parameters"]}],
            "thinking": {"type": "enabled"},
        },
    }
    engine = FakeEngine(script(gemma, said, size))
    async with api(engine, tokenizer=gemma) as client:
        answers = {
            (path, stream): await client.raw(f"/v1/{path}", json.dumps({**body, "stream": stream}))
            for path, body in bodies.items()
            for stream in (False, True)
        }
    (prompt,) = {tuple(prompt) for prompt in engine.prompts}
    assert gemma.decode(prompt, specials=True).endswith("<|turn>model\n")
    assert all(set(options.shown) == set(shown_of(gemma)) for options in engine.options)
    assert all(answer.status_code == 200 for answer in answers.values()), answers
    whole = answers["chat/completions", False].json()["choices"]
    assert whole[0]["finish_reason"] == ("tool_calls" if expected[2] else "stop")
    assert parts_of_chat(whole) == expected
    chunks = chunks_of(answers["chat/completions", True])
    assert parts_of_chat([choice for chunk in chunks for choice in chunk["choices"]]) == expected
    assert parts_of_response(answers["responses", False].json()["output"]) == expected
    assert parts_of_response(events_of(answers["responses", True])[-1]["response"]["output"]) == expected
    assert parts_of_message(answers["messages", False].json()["content"]) == expected
    deltas = [
        event["delta"] for event in events_of(answers["messages", True]) if event["type"] == "content_block_delta"
    ]
    pieces = {key: "".join(delta.get(key, "") for delta in deltas) for key in ("thinking", "text", "partial_json")}
    assert tuple(pieces.values()) == (expected[0], expected[1], "".join(expected[2]))


NAMED = {"type": "function", "function": {"name": "get_weather"}}
STRICT = {**WEATHER, "function": {**WEATHER["function"], "strict": True}}
NO_JSON, CHANGES = "the arguments of this model's calls are no JSON", "the tokens of a canvas change until it is done"


async def test_a_server_answers_chats_and_says_why_it_enforces_no_calls(directory: Path) -> None:
    chat: dict[str, Any] = {"messages": [USER], "max_tokens": 20, "tools": [WEATHER]}
    app = build_service(Settings(model=str(directory), device="cpu", max_model_len=256)).app
    client = httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test")
    async with app.router.lifespan_context(app), client as http:
        prompts = []
        for thinks in (False, True):
            body = {**chat, "chat_template_kwargs": {"enable_thinking": thinks}, "ignore_eos": True}
            answer = await http.post("/v1/chat/completions", json=body)
            assert answer.status_code == 200, answer.text
            usage = answer.json()["usage"]
            assert usage["completion_tokens"] == 20
            prompts.append(usage["prompt_tokens"])
        assert prompts[0] != prompts[1]
        for param, reason, fields in (
            ("tool_choice", NO_JSON, {"tool_choice": "required"}),
            ("tool_choice", NO_JSON, {"tool_choice": NAMED}),
            ("tools", NO_JSON, {"tools": [STRICT]}),
            ("response_format", CHANGES, {"tools": [], "response_format": {"type": "json_object"}}),
        ):
            error = error_of(await http.post("/v1/chat/completions", json={**chat, **fields}), 400)
            assert error["param"] == param, error
            assert reason in error["message"]
