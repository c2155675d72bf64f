"""Answers of the client hold calls, reasoning and scores besides text; the deltas of a stream add up to one."""

from __future__ import annotations

import json
from typing import Any

import pytest

from asynclane.clients import Answer, Delta, OptionProbability, ToolCall, Usage

from .conftest import DONE, streamed

CALL = {"index": 0, "id": "call_1", "type": "function", "function": {"name": "now", "arguments": '{"zone": "UTC"}'}}


def test_the_message_of_an_answer_can_be_sent_back() -> None:
    message = {"content": None, "reasoning_content": "Hm.", "tool_calls": [CALL]}
    answer = Answer.model_validate({"choices": [{"message": message}]})
    sent = {name: value for name, value in CALL.items() if name != "index"}
    assert answer.message == {**message, "role": "assistant", "tool_calls": [sent]}
    (call,) = answer.choices[0].tool_calls
    assert call.values() == {"zone": "UTC"}
    assert call.result("12:00") == {"role": "tool", "tool_call_id": "call_1", "content": "12:00"}
    plain = Answer.model_validate({"choices": [{"message": {"content": "Hi"}}]})
    assert plain.message == {"role": "assistant", "content": "Hi"}


@pytest.mark.parametrize(("arguments", "values"), [("", {}), ("{}", {}), ('{"a"', None), ("[]", None), ("5", None)])
def test_arguments_are_an_object_or_an_error(arguments: str, values: object) -> None:
    call = ToolCall.model_validate({"function": {"name": "now", "arguments": arguments}})
    if values is None:
        with pytest.raises(ValueError, match=r"arguments|Expecting"):
            call.values()
    else:
        assert call.values() == values


def test_scores_are_read_in_the_form_of_either_endpoint() -> None:
    top = [{"token": "a", "logprob": -0.5, "bytes": [97]}, {"token": "b", "logprob": -1.0, "bytes": [98]}]
    chat = {"content": [{"token": "a", "logprob": -0.5, "bytes": [97], "step": 3, "top_logprobs": top}]}
    text = {"tokens": ["x", "a"], "token_logprobs": [None, -0.5], "steps": [None, 3], "text_offset": [0, 1]}
    text["top_logprobs"] = [None, {"a": -0.5, "b": -1.0}]
    answer = Answer.model_validate({"choices": [{"logprobs": chat}, {"logprobs": text}, {"logprobs": None}]})
    (one,) = answer.choices[0].scores
    assert one.model_dump() == {"token": "a", "logprob": -0.5, "step": 3, "others": {"a": -0.5, "b": -1.0}}
    first, second = answer.choices[1].scores
    assert (first.token, first.logprob, first.others) == ("x", None, {})
    assert second == one
    assert answer.choices[2].scores == []
    theirs = {"tokens": ["a"], "token_logprobs": [-0.5]}  # without what other servers do not send
    (only,) = Answer.model_validate({"choices": [{"logprobs": theirs}]}).choices[0].scores
    assert (only.logprob, only.step, only.others) == (-0.5, None, {})


def test_probabilities_of_options_and_reasoning_tokens_are_read() -> None:
    options = [{"choice": "yes", "probability": 0.75}, {"choice": "no", "probability": 0.25}]
    usage = {"completion_tokens": 9, "completion_tokens_details": {"reasoning_tokens": 4}}
    answer = Answer.model_validate({"choices": [{"choice_probabilities": options}], "usage": usage})
    assert answer.choices[0].choice_probabilities[1] == OptionProbability(choice="no", probability=0.25)
    assert answer.usage is not None
    assert answer.usage.reasoning_tokens == 4


def test_deltas_add_up_to_the_answer(connect_either: Any) -> None:
    named = {**CALL, "function": {"name": "now", "arguments": ""}}
    parts: list[dict[str, Any]] = [
        {"delta": {"reasoning_content": "Hm"}},
        {"delta": {"reasoning_content": "."}, "index": 1},
        {"delta": {"content": "I "}, "logprobs": {"content": [{"token": "I "}]}},
        {"delta": {"content": "look."}, "logprobs": {"content": [{"token": "look."}]}},
        {"delta": {"tool_calls": [named]}},
        {"delta": {"tool_calls": [{"index": 1, "id": "call_2", "function": {"name": "x", "arguments": ""}}]}},
        *(
            {"delta": {"tool_calls": [{"index": 0, "function": {"arguments": text}}]}}
            for text in ('{"zone":', ' "UTC"}')
        ),
        {"delta": {}, "finish_reason": "tool_calls"},
    ]
    events = (f"data: {json.dumps({'choices': [{'index': 0, **part}]})}\n\n" for part in parts)
    deltas, _ = streamed(connect_either, *events, DONE)
    usage = Usage(completion_tokens=3)
    answer = Answer.of(deltas, usage)
    one, two = answer.choices
    assert (one.text, one.reasoning, one.finish_reason) == ("I look.", "Hm", "tool_calls")
    assert [call.id for call in one.tool_calls] == ["call_1", "call_2"]
    assert one.tool_calls[0] == ToolCall.model_validate(CALL)
    assert [score.token for score in one.scores] == ["I ", "look."]
    assert (two.index, two.reasoning, two.logprobs) == (1, ".", None)
    assert answer.usage is usage


def test_each_delta_of_a_diffusing_answer_has_all_before_it() -> None:
    pieces = [("", "H"), ("a_", "Hm"), ("ab", "Hm.")]
    deltas = [Delta(text=text, reasoning=reasoning, diffusing=True) for text, reasoning in pieces]
    for added in (deltas, [*deltas, Delta(text="")]):
        answer = Answer.of(added)
        assert (answer.text, answer.choices[0].reasoning) == ("ab", "Hm.")


def test_no_deltas_are_no_answer() -> None:
    with pytest.raises(ValueError, match="choices"):
        Answer.of([])
    assert Answer.of([Delta(text="a")]).text == "a"
