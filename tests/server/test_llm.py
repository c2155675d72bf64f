"""`LLM` answers as the server does, alone or together, and refuses what the server refuses."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import weakref
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from asynclane import LLM, ContextLengthExceeded, InvalidValue, ModelError, SamplingParams, SettingsError
from asynclane.models.checkpoint.registry import EMBEDDED
from asynclane.server.engine.messages import Finish

from ..support.checkout import ROOT

QUESTION = [{"role": "user", "content": "Ana has 3 apples and buys 4 more. How many apples does Ana have?"}]
SHORT = SamplingParams(max_tokens=32)
DRAWN = SamplingParams(max_tokens=8, temperature=1.0, seed=7, n=2)


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM("tiny-llada", max_num_seqs=4, max_model_len=256) as made:
        yield made


def test_a_chat_is_answered_with_its_cost(llm: LLM) -> None:
    (found,) = llm.chat(QUESTION, SHORT, use_tqdm=False)
    (answer,) = found.outputs
    assert "7" in answer.text
    assert answer.finish_reason == "stop"
    assert 0 < answer.usage.stats.forwards < answer.usage.completion_tokens == len(answer.token_ids)
    assert answer.usage.stats.prompt_tokens == len(found.prompt_token_ids)
    assert answer.logprobs is None
    assert answer.lanes == ()


def test_prompts_together_are_answered_as_alone_in_their_order(llm: LLM) -> None:
    prompts = ["One two three", [9, 8, 7], {"prompt": "Once upon a time"}, {"prompt_token_ids": [20, 21]}, "Ana"]
    together = llm.generate(prompts, DRAWN, use_tqdm=False)
    alone = [llm.generate(prompt, DRAWN, use_tqdm=False)[0] for prompt in prompts]
    assert [[each.text for each in found.outputs] for found in together] == [
        [each.text for each in found.outputs] for found in alone
    ]
    assert [found.prompt for found in together] == ["One two three", None, "Once upon a time", None, "Ana"]
    assert [found.outputs[1].index for found in together] == [1] * 5


def test_each_prompt_may_have_parameters_of_its_own(llm: LLM) -> None:
    params = [SamplingParams(max_tokens=4, ignore_eos=True), SamplingParams(max_tokens=8, ignore_eos=True)]
    short, longer = llm.generate(["a", "a"], params, use_tqdm=False)
    assert [len(found.outputs[0].token_ids) for found in (short, longer)] == [4, 8]
    with pytest.raises(InvalidValue, match="1 sampling_params for 2 prompts"):
        llm.generate(["a", "b"], [SHORT])


def test_a_stream_brings_the_same_text_in_parts(llm: LLM) -> None:
    (whole,) = llm.chat(QUESTION, SHORT, use_tqdm=False)
    deltas = list(llm.stream(QUESTION, SHORT))
    assert "".join(delta.text for delta in deltas) == whole.outputs[0].text
    assert sum(bool(delta.text) for delta in deltas) > 1
    assert deltas[-1].finish is Finish.STOP
    assert "".join(delta.text for delta in llm.stream("One two", SHORT)) == (
        llm.generate("One two", SHORT, use_tqdm=False)[0].outputs[0].text
    )


def test_leaving_a_stream_frees_its_place(llm: LLM) -> None:
    for _ in range(5):  # more than may run at once
        stream = llm.stream(QUESTION, SamplingParams(max_tokens=200, ignore_eos=True))
        next(stream)
        stream.close()
    assert llm.chat(QUESTION, SHORT, use_tqdm=False)[0].outputs[0].text


def test_lanes_and_logprobs_come_with_the_answer_if_requested(llm: LLM) -> None:
    (found,) = llm.chat(QUESTION, SamplingParams(max_tokens=32, lanes=True, logprobs=2), use_tqdm=False)
    (answer,) = found.outputs
    assert len(answer.lanes) == answer.usage.stats.forwards
    assert answer.logprobs is not None
    assert "".join(each.token.text for each in answer.logprobs) == answer.text
    assert all(len(each.ranked) == 2 for each in answer.logprobs)


@pytest.mark.parametrize(
    "texts", [["7", "8", "9"], ["seven apples", "eight apples", "none"]], ids=["one token each", "several tokens"]
)
def test_a_choice_has_the_probabilities_of_all_its_texts(llm: LLM, texts: list[str]) -> None:
    params = SamplingParams(structured_outputs={"choice": texts}, logprobs=0, n=2, max_tokens=32)
    found, plain = (
        llm.chat(QUESTION, each, use_tqdm=False)[0].outputs for each in (params, replace(params, logprobs=None))
    )
    assert [one.text for one in found] == [one.text for one in plain]
    assert plain[0].choice_probabilities is None
    assert found[0].choice_probabilities == found[1].choice_probabilities
    assert found[0].choice_probabilities is not None
    assert list(found[0].choice_probabilities) == texts
    assert sum(found[0].choice_probabilities.values()) == pytest.approx(1)
    more = [one.usage.stats.forwards - other.usage.stats.forwards for one, other in zip(found, plain, strict=True)]
    assert (more[0] > 0, more[1]) == (len(texts[0]) > 1, 0)
    if len(texts[0]) == 1:
        assert found[0].text == max(texts, key=lambda text: (found[0].choice_probabilities or {})[text])


def test_a_prompt_is_scored_beside_its_answer(llm: LLM) -> None:
    prompts = ["The capital of France is Paris.", [20, 21, 22]]
    params = SamplingParams(max_tokens=8, prompt_logprobs=2, lanes=True)
    for found, plain in zip(
        llm.generate(prompts, params, use_tqdm=False), llm.generate(prompts, SHORT, use_tqdm=False), strict=True
    ):
        assert plain.prompt_logprobs is None
        assert found.prompt_logprobs is not None
        first, *scores = found.prompt_logprobs
        assert first is None
        assert [score.token.id for score in scores if score is not None] == list(found.prompt_token_ids[1:])
        assert all(score is not None and score.logprob < 0 and len(score.ranked) == 2 for score in scores)
        assert found.outputs[0].lanes


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"prompt_logprobs": 0}, "^prompt_logprobs: a stream has no probabilities of its prompt"),
        ({"logprobs": 0, "structured_outputs": {"choice": ["a", "b"]}}, "^logprobs: a stream has no probabilities"),
    ],
)
def test_a_stream_refuses_what_only_a_whole_answer_has(llm: LLM, given: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidValue, match=message):
        next(llm.stream("Hello", SamplingParams(**given)))


@pytest.mark.parametrize(
    "prompt", [["a", "b"], ["a"], {"promt": "a"}, {"prompt": "a", "multi_modal_data": {}}, {}, b"a", None]
)
def test_a_prompt_is_one_text_or_its_ids_and_nothing_else(llm: LLM, prompt: Any) -> None:
    with pytest.raises(InvalidValue, match=r"^prompt: must be a text, token ids, or an object with"):
        asyncio.run(llm.answer(prompt))


def test_an_answer_has_the_required_format(llm: LLM) -> None:
    wanted = SamplingParams(max_tokens=16, structured_outputs={"choice": ["red", "blue"]}, decoder="fast-dllm")
    assert llm.chat(QUESTION, wanted, use_tqdm=False)[0].outputs[0].text in ("red", "blue")


def test_words_tokens_and_repetitions_are_restricted_as_over_http(llm: LLM) -> None:
    def text(**given: Any) -> str:
        return llm.chat(QUESTION, SamplingParams(max_tokens=48, **given), use_tqdm=False)[0].outputs[0].text

    plain = text()
    assert "apples" in plain
    assert "apples" not in text(bad_words=("apples",))
    assert set(text(allowed_token_ids=np.array([70, 71, 72]))) <= set("abc")
    assert text(repetition_penalty=3.0) != plain
    assert text(stop="apples", include_stop_str_in_output=True).endswith("apples")


def test_a_notebook_whose_event_loop_runs_may_call_it(llm: LLM) -> None:
    async def cell() -> str:
        return llm.chat(QUESTION, SHORT, use_tqdm=False)[0].outputs[0].text

    assert "7" in asyncio.run(cell())


def test_a_program_with_an_event_loop_awaits_answers_and_ends_them_by_cancelling(llm: LLM) -> None:
    endless = SamplingParams(max_tokens=200, ignore_eos=True, decoder="llada")

    async def program() -> list[str]:
        left = [asyncio.create_task(llm.answer("One two", endless)) for _ in range(4)]  # all that may run at once
        await asyncio.sleep(0.1)
        for task in left:
            task.cancel()
        both = await asyncio.gather(llm.answer(QUESTION, SHORT), llm.answer("Ana", DRAWN))
        assert all(task.cancelled() for task in left)
        return [answer.text for found in both for answer in found.outputs]

    wanted = [*llm.chat(QUESTION, SHORT, use_tqdm=False), *llm.generate("Ana", DRAWN, use_tqdm=False)]
    assert asyncio.run(program()) == [answer.text for found in wanted for answer in found.outputs]


def test_more_answers_than_may_wait_are_awaited_at_once() -> None:
    async def program(llm: LLM) -> list[str]:
        found = await asyncio.gather(*(llm.answer("Ana", SamplingParams(max_tokens=4, n=2)) for _ in range(6)))
        return [answer.text for each in found for answer in each.outputs]

    with LLM("tiny-chat", max_num_seqs=2, max_queue=3, max_model_len=64) as llm:
        assert len({*asyncio.run(program(llm))}) == 1


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"temperature": 9}, "temperature: must be less than or equal to 2"),
        ({"decoder": "nope"}, "unknown decoder 'nope'"),
        ({"params": {"treshold": 0.5}}, "^params: no decoder has 'treshold': did you mean 'threshold'.$"),
        ({"params": {"threshold": 7}}, "threshold"),
        ({"params": {"stream": True}}, "no decoder has 'stream'; there are: .*threshold"),
        ({"logit_bias": {10**6: 1}}, "logit_bias.1000000: token ids are from 0"),
        ({"max_tokens": 0}, "^max_tokens: must be greater than or equal to 1, not 0$"),
        ({"logprobs": 21}, "^logprobs: must be less than or equal to 20"),
        ({"lanes": "on"}, "^lanes: must be true or false, not 'on'"),
        ({"structured_outputs": {"json": {"type": "nope"}}}, "structured_outputs"),
        ({"min_tokens": 99, "max_tokens": 9}, "min_tokens 99 exceeds the answer's 9"),
        ({"stop": 5}, "stop: must be a string or a list"),
        ({"stop_token_ids": 5}, "stop_token_ids: must be a list, not 5"),
        ({"params": None}, "params: must be a mapping of names to values, not null"),
        ({"logit_bias": 5}, "logit_bias: must be an object, not 5"),
    ],
)
def test_a_wrong_parameter_is_named_in_the_exception(llm: LLM, given: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidValue, match=message):
        llm.chat(QUESTION, SamplingParams(**given))


def test_one_wrong_prompt_ends_the_call_before_any_is_answered(llm: LLM) -> None:
    with pytest.raises(
        ContextLengthExceeded, match=r"the context is 256 tokens.* leaves none for an answer: shorten it"
    ):
        llm.generate(["a", [9] * 300])
    with pytest.raises(InvalidValue, match="prompt: token ids are from 0"):
        llm.generate([[10**6]])
    with pytest.raises(InvalidValue, match="prompt"):
        llm.generate("")
    with pytest.raises(InvalidValue, match="messages"):
        llm.chat([])
    with pytest.raises(InvalidValue, match="a stream has one answer"):
        llm.stream("a", DRAWN)


@pytest.mark.parametrize("prompt", [None, 5, True, b"x", [1.5], ["a", 5], [[1.5]], {"text": "a"}, [""]], ids=repr)
def test_a_prompt_of_the_wrong_kind_is_shown_in_the_exception(llm: LLM, prompt: Any) -> None:
    with pytest.raises(InvalidValue, match=r"prompt: must be a text, .*not ") as refused:
        llm.generate(prompt)
    assert refused.value.param == "prompt"
    with pytest.raises(InvalidValue):
        next(llm.stream(prompt))


@pytest.mark.parametrize("messages", ["hi", None, 5, ["a", "b"], [QUESTION, "x"], [[5]]], ids=repr)
def test_a_conversation_of_the_wrong_kind_is_shown_in_the_exception(llm: LLM, messages: Any) -> None:
    with pytest.raises(InvalidValue, match="messages: a conversation is a list of objects with 'role'"):
        llm.chat(messages)


@pytest.mark.parametrize("params", [{"max_tokens": 5}, 5, [5], "greedy"], ids=repr)
def test_only_sampling_params_are_sampling_params(llm: LLM, params: Any) -> None:
    with pytest.raises(InvalidValue, match="sampling_params: give SamplingParams, not"):
        llm.chat([QUESTION] * len(params) if isinstance(params, str | list) else QUESTION, params)


def test_an_array_of_token_ids_is_a_prompt(llm: LLM) -> None:
    ids = [9, 8, 7]
    (array,) = llm.generate(np.array(ids), SHORT, use_tqdm=False)  # type: ignore[arg-type]
    (listed,) = llm.generate(ids, SHORT, use_tqdm=False)
    assert array.prompt_token_ids == listed.prompt_token_ids == tuple(ids)
    assert array.outputs[0].token_ids == listed.outputs[0].token_ids


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({"model": "nope"}, ModelError, "no model 'nope': it is no directory here.* the embedded models are tiny-"),
        ({"model": 7}, SettingsError, "model must be a text, not 7"),
        ({"max_seqs": 4}, SettingsError, "'max_seqs' is no setting: did you mean 'max_num_seqs'"),
        ({"port": 8000}, SettingsError, "'port' is for a server, and an LLM is none: leave it out"),
        ({"max_num_seqs": 0}, SettingsError, "max_num_seqs must be from 1"),
        ({"max_num_seqs": "4"}, SettingsError, "max_num_seqs must be a whole number, not '4'"),
        ({"max_model_len": 4096}, SettingsError, "--max-model-len 4096 exceeds the model's 1024"),
        ({"decoder": "nope"}, SettingsError, "unknown decoder 'nope'; known: asynclane"),
    ],
)
def test_a_wrong_model_or_setting_is_named(given: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        LLM(**given)


def test_a_path_is_a_model_and_a_closed_one_says_so() -> None:
    made = LLM(EMBEDDED / "tiny-sdar", max_num_seqs=1)
    made.close()
    with pytest.raises(RuntimeError, match="this model is closed"):
        made.chat(QUESTION)
    with pytest.raises(RuntimeError, match="this model is closed"):
        next(made.stream(QUESTION))


def test_a_model_that_nobody_holds_is_closed() -> None:
    made = LLM("tiny-sdar", max_num_seqs=1)
    gone = weakref.ref(made)
    made.close()
    made.close()
    del made
    gc.collect()
    assert gone() is None


def test_importing_the_package_loads_nothing_and_its_names_are_known() -> None:
    code = "import sys, asynclane as a; assert 'torch' not in sys.modules and 'LLM' in dir(a); print(a.__version__)"
    done = subprocess.run([sys.executable, "-P", "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip()
