"""The corpus of tiny-chat: no question of the evaluation, answers that follow, and the form of the chat template."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import islice
from pathlib import Path
from random import Random
from typing import cast

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer

from asynclane.bench.quality.openers import good_call, good_json, good_text, questions, right_values
from asynclane.models.checkpoint.registry import find_model
from asynclane.server.text.chat_template import ChatTemplate
from asynclane.training import train
from asynclane.training.batches import batches, shelves
from asynclane.training.chat import chores, knowledge, limits, numbers, smalltalk, styles, tools
from asynclane.training.chat.conversation import Conversation, conversations, kept_for_evaluation, normal, refused
from asynclane.training.chat.corpus import encoded, mixture
from asynclane.training.chat.structured import structured
from asynclane.training.chat.surface import parsed, say
from asynclane.training.chat.tools import TOOLS, tool_call
from asynclane.training.chat.turn import Turn
from asynclane.training.chat.write import TEMPLATE, ChatWriter, rendered
from asynclane.training.corpus import MARKS
from asynclane.training.diets import DIETS
from asynclane.training.network import Network
from asynclane.training.noise import canvas
from asynclane.training.shapes import SHAPES, Shape

from ..support.scale import ALL, LONG

TOKENIZER = find_model("tiny-llada") / "tokenizer.json"


def test_training_has_no_question_of_the_evaluation() -> None:
    kept = kept_for_evaluation()
    assert len(kept) == 60
    for conversation in islice(mixture("corpus 0 0"), 6000 if ALL else 2000):
        for role, text in conversation.messages:
            assert role != "user" or normal(text) not in kept


@pytest.mark.parametrize(
    "text", ["2 + 2", "WHAT IS 17+25", "hey, what is 17 + 25?", "guten tag", "Bonjour, comment ca va?"]
)
def test_a_question_of_the_evaluation_is_refused_however_it_is_written(text: str) -> None:
    assert refused(text)


def test_other_questions_of_its_kind_are_not_refused() -> None:
    assert not any(map(refused, ("What is 18 + 25?", "2+3", "Guten Abend!", "hello")))


def test_the_corpus_is_the_same_every_time() -> None:
    tokenizer = Tokenizer.from_file(str(TOKENIZER))
    one, again = (list(islice(encoded("corpus 3 1", tokenizer), 200)) for _ in range(2))
    assert all(np.array_equal(a, b) and p == q for (a, p), (b, q) in zip(one, again, strict=True))
    assert all(ids[-1] == MARKS.turn_end and 0 < prompt < len(ids) for ids, prompt in one)


def openai(conversation: Conversation) -> list[dict[str, object]]:
    return [{"role": role, "content": text} for role, text in conversation.messages]


def test_a_conversation_is_written_as_the_template_renders_it() -> None:
    variables = {"bos_token": "<|startoftext|>"}
    template = ChatTemplate(TEMPLATE.read_text(encoding="utf-8").rstrip("\n"), variables)
    raw = template._template  # the server passes tools once it knows them
    tokenizer = Tokenizer.from_file(str(TOKENIZER))
    writer = ChatWriter(tokenizer)
    shown = 0
    for conversation in islice(mixture("template"), 300):
        template._sandbox.allow(10**9)
        text = raw.render(
            {
                **variables,
                "messages": openai(conversation),
                "tools": list(conversation.tools),
                "add_generation_prompt": True,
            }
        )
        assert tokenizer.encode(text, add_special_tokens=False).ids == writer.prompt(conversation)
        shown += bool(conversation.tools)
    assert shown > 10


def test_the_template_writes_calls_and_results_as_training_does() -> None:
    call = {"id": "1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1, "b": 2}'}}
    template = ChatTemplate(TEMPLATE.read_text(encoding="utf-8"), {"bos_token": "<|startoftext|>"})
    template._sandbox.allow(10**9)
    text = template._template.render(
        bos_token="",
        messages=[{"role": "assistant", "content": None, "tool_calls": [call]}, {"role": "tool", "content": "3"}],
        tools=[{"type": "function", "function": {"name": "now"}}, questions().tools[1].tools[0]],
        add_generation_prompt=False,
    )
    assert tools.call_text("add", {"a": 1, "b": 2}) in text
    assert (
        "Tools:\nnow()\nget_temperature(city: string, unit: celsius|fahrenheit): Get the temperature in a city" in text
    )
    assert text.endswith("<|start_header_id|>tool<|end_header_id|>\n\n3<|eot_id|>")


def test_every_wording_of_every_part_can_be_written() -> None:
    r = Random(5)
    draws = (numbers.numbers, smalltalk.small_talk, limits.limit, knowledge.knowledge, chores.chore, tool_call)
    for draw in draws:
        for _ in range(1500 if ALL else 500):
            turn: Turn = draw(r)
            assert turn.answer
            assert "{" not in turn.ask or turn.fixed or "json" in turn.ask.lower(), turn.ask
            if turn.follow:
                assert turn.follow(r).answer


def test_json_is_valid_and_calls_name_a_tool_with_its_parameters() -> None:
    r = Random(6)
    for _ in range(800):
        _, turn = structured(r)
        assert isinstance(json.loads(turn.answer), dict)
        call = tool_call(r)
        found = json.loads(call.answer.removeprefix("<tool_call>\n").removesuffix("\n</tool_call>"))
        (tool,) = (spec["function"] for spec in call.tools if spec["function"]["name"] == found["name"])  # type: ignore[index]
        assert set(found["arguments"]) == set(tool.get("parameters", {}).get("properties", {}))


@pytest.mark.parametrize("tool", TOOLS, ids=lambda tool: tool.names[0])
def test_a_request_names_every_value_that_its_call_has(tool: tools.Tool) -> None:
    r = Random(7)
    for wording in tool.wordings:
        assert all(f"{{{key}}}" in wording for key in tool.slots), wording
        say(r, wording, **{key: slot.value(r) for key, slot in tool.slots.items()})


def test_styles_change_answers_as_their_messages_say() -> None:
    turn = Turn("What is 1 + 1?", "1 + 1 = 2.", "2", languages=(("French", "1 + 1 = 2."),))
    assert (styles.brief(turn), styles.shouted(Turn("", "ab")), styles.as_json(turn)) == ("2", "AB", '{"answer": "2"}')
    assert styles.around("Arr! ", " Aye!")(turn) == "Arr! 1 + 1 = 2. Aye!"
    named = styles.called("Bob")
    assert named(Turn("", f"My name is {smalltalk.NAME}.")) == "My name is Bob."
    assert named(Turn("", smalltalk.WHO)).startswith("I am Bob. ")


def test_tools_stand_in_the_system_message() -> None:
    spec = {
        "type": "function",
        "function": {
            "name": "f",
            "description": "Does it",
            "parameters": {"type": "object", "properties": {"x": {"type": "integer"}}, "required": []},
        },
    }
    with_system = Conversation((("system", "Be kind."), ("user", "Hi")), "", (spec,))
    assert rendered(with_system)[0] == ("system", "Be kind.\n\nTools:\nf(x?: integer): Does it")
    assert rendered(Conversation((("user", "Hi"),), "", (spec,)))[0][0] == "system"


def test_a_pattern_with_unequal_brackets_is_refused() -> None:
    for pattern in ("(a|b", "a)"):
        with pytest.raises(ValueError, match="bracket"):
            parsed(pattern)


def test_conversations_end_with_a_question() -> None:
    for conversation in islice(conversations(Random(8)), 500):
        assert conversation.messages[-1][0] in ("user", "tool")
        assert conversation.answer.strip() == conversation.answer


def test_checks_of_the_evaluation() -> None:
    asked = questions()
    assert (len(asked.openers), len(asked.second_turns), len(asked.schemas), len(asked.tools)) == (30, 10, 10, 10)
    assert good_text([r"\b42\b"], "17 + 25 = 42.")
    assert not good_text([r"\b42\b"], "421")
    row = asked.schemas[0]
    assert right_values(row, '{"name": "Anna", "age": 31}')
    assert good_json(row, '{"name": "Bo", "age": 3}')
    assert not right_values(row, '{"name": "Bo", "age": 3}')
    assert not good_json(row, '{"name": "Bo"')
    call = asked.tools[0]
    assert good_call(call, tools.call_text("get_weather", {"city": "Paris"}))
    assert not good_call(call, "It is sunny.")
    assert good_call(asked.tools[-1], "I am fine.")
    assert not good_call(asked.tools[-1], tools.call_text("get_stock_price", {"symbol": "HI"}))


def test_the_tokenizer_spells_what_is_needed() -> None:
    tokenizer = Tokenizer.from_file(str(TOKENIZER))
    for text in ("¡Buenos días!", '<tool_call>\n{"name": "f"}\n</tool_call>', "grün, weiß, niño", "a@b.de"):
        assert tokenizer.decode(tokenizer.encode(text).ids) == text


def test_its_folder_is_where_the_wheel_takes_templates_from() -> None:
    assert Path(TEMPLATE).suffix == ".jinja"


def test_with_a_clock_the_rate_falls_to_nothing_at_the_end_of_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter((100.0, 150.0, 175.0, 200.0))
    monkeypatch.setattr(train.time, "monotonic", lambda: next(times))
    plan = train.Plan(steps=10, decay=0.5, tokens=1, started=100.0, deadline=200.0, clock=True)
    rates = [plan.rate(step=999, since_start=10**6) for _ in range(4)]
    assert rates == [1.0, 1.0, 0.5, 0.0]
    shape = SHAPES["tiny-chat"]
    assert train.stages(shape, plan, resumes=False) == [(16, shape.causal_first), (0, 1.0)]
    assert train.stages(shape, plan, resumes=True)[0][1] == 0.0


@LONG
def test_a_short_run_by_the_clock_writes_a_checkpoint_with_the_template(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = replace(SHAPES["tiny-chat"], dim=32, layers=1, heads=2, kv_heads=1, ff=48)
    monkeypatch.setitem(cast("dict[str, Shape]", SHAPES), "tiny-chat", small)
    flags = ["tiny-chat", str(tmp_path / "out"), "--examples", "256", "--tokens", "1100", "--seconds", "1", "--clock"]
    assert train.main([*flags, "--problems", "0"]) == 0
    config = json.loads((tmp_path / "out" / "tokenizer_config.json").read_text(encoding="utf-8"))
    assert config["chat_template"] == TEMPLATE.read_text(encoding="utf-8").rstrip("\n")
    assert (tmp_path / "out" / "model.safetensors").is_file()


def test_roomier_shelves_hold_the_same_examples_with_more_ends() -> None:
    found = list(islice(encoded("shelves", Tokenizer.from_file(str(TOKENIZER))), 400))
    sizes = DIETS["tiny-chat"].sizes
    tight, roomy = (shelves(found, 0, torch.device("cpu"), sizes, share) for share in (0.0, 0.5))
    assert sum(len(shelf.prompt) for shelf in tight) == sum(len(shelf.prompt) for shelf in roomy) > 390
    assert sum(shelf.ids.numel() for shelf in roomy) > 1.2 * sum(shelf.ids.numel() for shelf in tight)


def test_the_file_is_below_10_mb() -> None:
    assert 2 * sum(weight.numel() for weight in Network(SHAPES["tiny-chat"]).parameters()) < 9_950_000


def test_earlier_answers_are_learnt_and_their_ids_are_whole() -> None:
    tokenizer = Tokenizer.from_file(str(TOKENIZER))
    found = list(islice(encoded("earlier", tokenizer), 400))
    assert any((ids < 0).any() for ids, _ in found)
    kept = shelves(found, 0, torch.device("cpu"), DIETS["tiny-chat"].sizes)
    torch.manual_seed(0)
    source = batches(kept, 4096, 0.25, Random(0), torch.Generator().manual_seed(0), 0.65)
    learnt = 0
    for rows, _ in islice(source, 12):
        assert rows.earlier is not None
        assert rows.ids.min() >= 0
        assert MARKS.turn_end in rows.ids[rows.earlier] or not rows.earlier.any()
        seen = canvas(rows, 0.5)
        hidden = seen.ids == MARKS.mask
        assert torch.equal(seen.weights > 0, hidden)
        learnt += int((hidden & rows.earlier).sum())
    assert learnt > 100
