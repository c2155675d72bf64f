"""WeDLM: known tokens are read before masks, so keys are exact, and lanes see what is known after them.

Tokens, forwards and logits are compared with those of the authors' code (`tests.support.wedlm`).
"""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from asynclane.models.checkpoint.config import read_config
from asynclane.models.checkpoint.registry import Hardware, load_runner
from asynclane.models.checkpoint.weights import SINGLE
from asynclane.models.exec.memory import Memory
from asynclane.models.exec.runner import Runner
from asynclane.scheduler import (
    PLAIN,
    Outcome,
    ParamError,
    Preferences,
    Sampling,
    Scheduler,
    Vocabulary,
    resolve,
)

from ..support.cases import TEXT, comparable, network
from ..support.checkpoints import write_checkpoint
from ..support.driver import LIMITS, Answer, Spec, full_logits, run, serve
from ..support.fakes import END, MASK
from ..support.golden import WHOLE
from ..support.likelihood import Setting, scoring
from ..support.scale import LONG, part
from ..support.small_network import small_runner
from ..support.wedlm import FORMS, GOLDEN, write_golden_checkpoint

NET = network("known-first")
PROMPTS = [NET.prompts[1], NET.prompts[4]]
LENGTH = 24
SEVERAL = {"entropy_threshold": 2.4}  # most calls commit some
Calls = list[tuple[int, int]]  # the width and the commits of each


def answers(params: dict[str, Any], decoder: str = "wedlm", **more: Any) -> list[Answer]:
    return NET.run([Spec(prompt, LENGTH, decoder, params, watched=True, **more) for prompt in PROMPTS])


def calls_of(answer: Answer) -> Calls:
    return [(event.end - max(event.start, 0), len(event.positions)) for event in answer.events]


@pytest.fixture(scope="module")
def runners(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Runner]:
    memory = Memory(8, 16, LIMITS.step_tokens, 4096)
    found = {}
    for form, digest in GOLDEN["sha256"].items():
        path = write_golden_checkpoint(tmp_path_factory.mktemp(form), form)
        assert hashlib.sha256((path / SINGLE).read_bytes()).hexdigest() == digest, "the outputs are of other weights"
        found[form] = load_runner(path, read_config(path), memory, Hardware("cpu", "float32"), [1]).runner
    return found


@pytest.mark.parametrize("setting", [name for name in GOLDEN["settings"] if name.startswith("engine")])
@pytest.mark.parametrize("form", FORMS)
def test_the_window_decoder_gives_the_tokens_and_commits_of_the_published_engine(
    runners: dict[str, Runner], form: str, setting: str
) -> None:
    """Each forward reads as many positions, too. The engine's last one only reads final tokens once more. Its window
    goes on past the last token, so the canvas here does."""
    given, entries = GOLDEN["settings"][setting], GOLDEN["outputs"][form][setting]
    names = {
        "window": "window_length",
        "entropy_threshold": "entropy_threshold",
        "position_penalty": "position_penalty",
    }
    params = {ours: given[theirs] for theirs, ours in names.items()}
    stops = [*range(0, 1408, given["stop_every"])] if "stop_every" in given else [1]
    vocabulary = Vocabulary(TEXT.pieces, TEXT.mask_id, stops)
    length = GOLDEN["max_new_tokens"] + given["window"]
    some = part(entries, 6, seed=setting)
    specs = [Spec(GOLDEN["prompts"][int(number)], length, "wedlm", params, watched=True) for number in some]
    for number, answer in zip(some, run(runners[form], vocabulary, specs, pattern=NET.pattern), strict=True):
        tokens, steps = entries[number]["tokens"], [*map(tuple, entries[number]["steps"])]
        assert answer.canvas[: len(tokens)].tolist() == tokens
        assert calls_of(answer)[: len(steps) - 1] == steps[:-1]
        if tokens[-1] in stops:
            assert (answer.outcome, answer.steps) == (Outcome.STOP, len(steps) - 1)


@pytest.mark.parametrize("setting", [name for name in GOLDEN["settings"] if name.startswith("hf")])
@pytest.mark.parametrize("form", FORMS)
def test_serial_blocks_give_the_tokens_and_commits_of_generate_wedlm(
    runners: dict[str, Runner], form: str, setting: str
) -> None:
    given, entries = GOLDEN["settings"][setting], GOLDEN["outputs"][form][setting]
    threshold, params = given["confidence_threshold"], {"block_length": given["block_size"], **WHOLE}
    decoder, params = ("fast-dllm", params | {"threshold": threshold}) if threshold else ("llada", params)
    some, length = part(entries, 5, seed=setting), GOLDEN["max_new_tokens"]
    specs = [Spec(GOLDEN["prompts"][int(number)], length, decoder, params, watched=True) for number in some]
    for number, answer in zip(some, run(runners[form], TEXT.vocabulary, specs, pattern=NET.pattern), strict=True):
        assert answer.canvas.tolist() == entries[number]["tokens"]
        assert [commits for _, commits in calls_of(answer)] == entries[number]["steps"]


@pytest.mark.parametrize("form", FORMS)
def test_logits_are_those_of_the_published_model(runners: dict[str, Runner], form: str) -> None:
    """Each query attends alone here, and torch attends to all of a row at once: its order of sums is kept."""
    entry = GOLDEN["logits"][form]
    got = full_logits(runners[form], np.array(entry["text"], np.int32), TEXT.mask_id)[entry["order"]]
    for row, (ids, values) in enumerate(zip(entry["top5_ids"], entry["top5_logits"], strict=True)):
        torch.testing.assert_close(got[row, ids].float(), torch.tensor(values), atol=1e-4, rtol=0)


def test_an_answer_ends_once_all_before_its_end_token_is_committed() -> None:
    """The window goes on past an end token until then, as in the published code."""
    likely = {"preferences": Preferences(bias={END: 3.5})}
    for whole, answer in zip(answers(SEVERAL | WHOLE, **likely), answers(SEVERAL, **likely), strict=True):
        text = whole.canvas.tolist()
        assert answer.streamed == text[: text.index(END)]
        assert calls_of(answer) == calls_of(whole)[: answer.steps]
        assert answer.steps < whole.steps
        assert not set(answer.canvas[text.index(END) :].tolist()) <= {END, MASK}


def test_a_window_of_one_is_autoregressive_and_a_high_penalty_is_left_to_right() -> None:
    """Each call reads the last token and a mask."""
    for answer in answers({"window_length": 1, **WHOLE}):
        assert calls_of(answer)[1:] == [(2, 1)] * (LENGTH - 1)
    for answer in answers({"position_penalty": 20.0, **WHOLE}):
        positions = [position for event in answer.events for position in event.positions.tolist()]
        assert positions == [*range(LENGTH)]


@pytest.mark.parametrize(
    ("decoder", "params"),
    [
        ("wedlm", SEVERAL),
        pytest.param("fast-dllm", {"threshold": 0.3}, marks=LONG),
        ("asynclane", {"threshold": 0.3, "draft_threshold": 0.5}),
    ],
)
def test_answers_are_those_of_no_cache_to_the_bit_whatever_the_page_size(decoder: str, params: dict[str, Any]) -> None:
    """Keys are kept of tokens that were read with all before them, and of no others."""
    specs = [Spec(prompt, LENGTH, decoder, params, ranks=2) for prompt in PROMPTS]
    cached = NET.run(specs)
    for answer, whole in zip(
        cached, NET.run([replace(s, params={**params, "cache": "none"}) for s in specs]), strict=True
    ):
        assert comparable(answer) | {"positions": 0} == comparable(whole) | {"positions": 0}
        assert answer.computed_tokens < whole.computed_tokens
    for size in part((1, 5, 64), 2):
        limits = replace(NET.limits, page_size=size)
        other = replace(NET, runner=small_runner(NET.pattern, page_size=size), limits=limits)
        assert [*map(comparable, other.run(specs))] == [*map(comparable, cached)]


def test_the_next_turn_starts_after_the_last_answer() -> None:
    """All of it but the last tokens, which no forward has read after they were committed."""
    scheduler = Scheduler(replace(NET.limits, prefix_sharing=True), NET.vocabulary, pattern=NET.pattern)
    (first,) = serve(scheduler, NET.runner, [Spec(PROMPTS[0], LENGTH, "wedlm", WHOLE)])
    following = Spec([*PROMPTS[0], *first.canvas.tolist(), 5, 6, 7], 9, "wedlm", ranks=2)
    (second,) = serve(scheduler, NET.runner, [following], first=1)
    assert (len(PROMPTS[0]), second.cached_tokens) == (16, 32)
    assert comparable(second) == comparable(NET.run([following])[0])


def test_a_temperature_changes_tokens_but_no_entropy() -> None:
    """So the first call commits at the same positions. A seed repeats an answer."""
    params = SEVERAL | WHOLE
    greedy = answers(params)
    hot, again, other = (answers(params, sampling=Sampling(1.5, seed=seed)) for seed in (1, 1, 2))
    assert [*map(comparable, hot)] == [*map(comparable, again)] != [*map(comparable, other)]
    for one, cold in zip(hot, greedy, strict=True):
        assert one.events[0].positions.tolist() == cold.events[0].positions.tolist()
    assert any(one.canvas.tolist() != cold.canvas.tolist() for one, cold in zip(hot, greedy, strict=True))


def test_a_mask_sees_the_suffix_and_its_keys_are_not_kept() -> None:
    for prompt in PROMPTS:
        plain, *filled = NET.run([Spec(prompt, 9, "wedlm", WHOLE, suffix=suffix) for suffix in ((), (5, 6), (8, 2, 9))])
        assert len({tuple(answer.canvas) for answer in (plain, *filled)}) > 1
        for answer, suffix in zip(filled, ((5, 6), (8, 2, 9)), strict=True):
            text = np.array([*prompt, *[MASK] * 9, *suffix], np.int32)
            first = full_logits(NET.runner, text, MASK)[len(prompt) : len(prompt) + 9].softmax(-1).argmax(-1)
            (lone,) = NET.run([Spec(prompt, 9, "fast-dllm", {"threshold": 0.0, **WHOLE}, suffix=suffix)])
            assert lone.canvas.tolist() == first.tolist()
            assert answer.computed_tokens < answer.steps * len(text)


def test_a_mask_in_a_prompt_is_read_in_its_place() -> None:
    """So chunks of the prompt leave the same keys as all of it at once."""
    prompt = [7, MASK, 9, 10, MASK, MASK, 12, 5, 6, 7, MASK, 9, 8, 8, 9, 10, 11, 12, 13]
    specs = [Spec(prompt, 9, decoder, WHOLE, ranks=1) for decoder in ("wedlm", "fast-dllm")]
    whole, chunks = (NET.run(specs, replace(NET.limits, prefill_tokens=size)) for size in (0, 4))
    assert [*map(comparable, whole)] == [*map(comparable, chunks)]


def test_the_decoder_is_for_its_models() -> None:
    with pytest.raises(ParamError, match="is for models that read known tokens first") as refused:
        resolve("wedlm", {}, 16, PLAIN)
    assert refused.value.param == "decoder"


@pytest.fixture(scope="module")
def setting(tmp_path_factory: pytest.TempPathFactory) -> Setting:
    return Setting(write_checkpoint(tmp_path_factory.mktemp("wedlm"), "WeDLMForCausalLM"))


def test_likelihoods_are_those_of_the_network(setting: Setting) -> None:
    """The chain's, one mask after what is known; Monte Carlo's, where tokens after a mask are known."""
    prompt, chain = setting.ids("Tom has 12 eggs"), setting.ids(" and finds 11")
    (chained,), _ = setting.score([(prompt, scoring(chain))])
    assert chained.scores is not None
    np.testing.assert_allclose(chained.scores.logprobs, setting.direct(prompt, chain), atol=1e-4)
    pair = chain[:2]
    (sampled,), _ = setting.score([(prompt, scoring(pair, samples=200))], sampling=Sampling(seed=1))
    assert sampled.scores is not None
    shown = ([5, 5], 0), ([5, 5], 1), ([5, int(pair[1])], 0), ([int(pair[0]), 5], 1)
    found = [_logprob(setting.runner, [*prompt.tolist(), *tokens], at - 2, int(pair[at])) for tokens, at in shown]
    assert sum(sampled.scores.logprobs) == pytest.approx(sum(found) / 2, rel=0.1)


def _logprob(runner: Runner, tokens: list[int], place: int, token: int) -> float:
    return float(full_logits(runner, np.array(tokens, np.int32), 5)[place].log_softmax(-1)[token])


def test_a_checkpoint_reads_the_order_that_the_lanes_need(setting: Setting, tmp_path: Path) -> None:
    """A token that is known after a mask changes what the mask predicts, and no known token before it."""
    prompt = setting.ids("Tom has 12 eggs").tolist()
    one, other = (np.array([*prompt, 5, 5, token, 5], np.int32) for token in (40, 50))
    first, second = (full_logits(setting.runner, text, 5) for text in (one, other))
    assert torch.equal(first[: len(prompt)], second[: len(prompt)])
    assert not torch.allclose(first[len(prompt)], second[len(prompt)], atol=1e-3)
