"""Decoders that choose where blocks end, or work on several at once: without what is their own they are Fast-dLLM."""

from __future__ import annotations

import pytest

from asynclane.models.exec.runner import Runner
from asynclane.scheduler import ParamError, Vocabulary, resolve
from asynclane.scheduler.decoding.compatibility import VocabularyFacts, refuse

from ..support.driver import Spec, run
from ..support.golden import PROMPTS, WHOLE
from ..support.scale import LONG


def answers(runner: Runner, vocabulary: Vocabulary, decoder: str, **params: object) -> list[tuple[list[int], int]]:
    specs = [Spec(prompt, 48, decoder, WHOLE | params) for prompt in PROMPTS[:1]]
    return [(answer.canvas.tolist(), answer.steps) for answer in run(runner, vocabulary, specs)]


@pytest.mark.parametrize("cache", [pytest.param("none", marks=LONG), "dual"])
def test_without_what_is_its_own_each_is_fast_dllm(cache: str, runner: Runner, vocabulary: Vocabulary) -> None:
    """AdaBlock without a delimiter, D2F that adds a block after a full one, SlowFast that never gets fast."""
    plain = answers(runner, vocabulary, "fast-dllm", cache=cache)
    assert answers(runner, vocabulary, "adablock", cache=cache, window=0.0) == plain
    assert answers(runner, vocabulary, "d2f", cache=cache, add_threshold=1.0, active_threshold=1.0) == plain
    assert answers(runner, vocabulary, "slowfast", cache=cache, block_length=32, slow_calls=4096) == plain


@pytest.mark.parametrize("rule", [{"factor": 1.0}, {"rule": "localleap"}], ids=str)
def test_blocks_of_chosen_length_go_with_every_rule(
    rule: dict[str, object], runner: Runner, vocabulary: Vocabulary
) -> None:
    plain = answers(runner, vocabulary, "fast-dllm", **rule)
    assert answers(runner, vocabulary, "adablock", window=0.0, **rule) == plain


def test_a_block_that_starts_early_saves_forwards(runner: Runner, vocabulary: Vocabulary) -> None:
    serial = answers(runner, vocabulary, "d2f", cache="none", add_threshold=1.0)
    eager = answers(runner, vocabulary, "d2f", cache="none", add_threshold=0.1)
    assert sum(forwards for _, forwards in eager) < sum(forwards for _, forwards in serial)


def test_delimiters_that_a_vocabulary_lacks_are_refused_by_name() -> None:
    decoder = resolve("adablock", {}, 64)
    refuse(VocabularyFacts(decoder, Vocabulary(["", "a", "\n"], mask_id=0, end_ids=[])))
    for tokens, instead in (["", "a", ","], "give 'newline_period_comma'"), (["", "a"], "use another decoder"):
        with pytest.raises(ParamError, match=f"delimiters 'newline' needs a token .*: {instead}") as refused:
            refuse(VocabularyFacts(decoder, Vocabulary(tokens, mask_id=0, end_ids=[])))
        assert refused.value.param == "delimiters"


@pytest.mark.parametrize(
    ("name", "params", "param"),
    [("pc-sampler", {}, "decoder"), ("fast-dllm", {"rule": "pc-sampler"}, "rule"), ("llada", {}, None)],
)
def test_a_rule_that_weighs_tokens_is_refused_where_nothing_is_known_of_them(
    name: str, params: dict[str, object], param: str | None
) -> None:
    decoder, tokens = resolve(name, params, 64), ["", "a", "b"]
    refuse(VocabularyFacts(decoder, Vocabulary(tokens, mask_id=0, end_ids=[], counts=[0, 3, 1])))
    unknown = VocabularyFacts(decoder, Vocabulary(tokens, mask_id=0, end_ids=[]))
    if param is None:
        refuse(unknown)
        return
    with pytest.raises(ParamError, match=r"this model's folder has no token_frequencies\.json") as refused:
        refuse(unknown)
    assert refused.value.param == param


def test_a_token_that_was_not_seen_is_as_frequent_as_one_that_came_once() -> None:
    found = Vocabulary(["", "a", "b", "c"], mask_id=0, end_ids=[], counts=[0, 6, 1, 1]).frequencies
    assert found.tolist() == [1 / 8, 6 / 8, 1 / 8, 1 / 8]


def test_nothing_is_given_after_a_canvas_that_grows(runner: Runner, vocabulary: Vocabulary) -> None:
    for given, param in (({"suffix": [7]}, "suffix"), ({"template": [vocabulary.mask_id] * 16}, "template")):
        with pytest.raises(ParamError, match=f"{param} is not for decoder 'daedal', whose canvas grows") as refused:
            run(runner, vocabulary, [Spec([7], 16, "daedal", **given)])
        assert refused.value.param == param


def test_a_canvas_that_grows_computes_less_than_a_whole_one_and_never_exceeds_it(
    runner: Runner, vocabulary: Vocabulary
) -> None:
    grown, whole = run(
        runner, vocabulary, [Spec(PROMPTS[0], 120, name, {"cache": "none"}) for name in ("daedal", "fast-dllm")]
    )
    assert grown.computed_tokens / grown.steps < whole.computed_tokens / whole.steps
    endless = Spec(PROMPTS[0], 40, "daedal", {"canvas_start": 8, "grow_below": 1.0, "early_stop": False})
    (answer,) = run(runner, vocabulary, [endless])
    assert answer.sent == 40
