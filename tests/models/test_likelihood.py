"""Log-probabilities of given tokens are those that the network has, computed directly."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from asynclane.models.checkpoint.registry import EMBEDDED
from asynclane.scheduler import Halving, Outcome, Preferences, Sampling

from ..support.driver import LIMITS, TWO_IN_FLIGHT, Spec, full_logits
from ..support.likelihood import BLOCK, Setting, scoring
from ..support.scale import ALL, LONG, part

TEXTS = ["Tom has 12 eggs and finds 11 more.", "The capital of France is Paris.", "def f(x):\n    return x"]
MANY = [*TEXTS, *(f"#### {at} + {7 * at} = {8 * at}" for at in range(47))] if ALL else TEXTS[:2]


@pytest.fixture(scope="module", params=["tiny-llada", "tiny-sdar"])
def setting(request: pytest.FixtureRequest) -> Setting:
    return Setting(EMBEDDED / request.param)


def test_each_token_is_scored_given_those_before_it_with_all_later_ones_masked(setting: Setting) -> None:
    given = [setting.ids(text) for text in MANY]
    updates, _ = setting.score([(ids[:1], scoring(ids[1:])) for ids in given])
    for ids, update in zip(given, updates, strict=True):
        assert update.tokens.tolist() == ids[1:].tolist()
        assert update.outcome is Outcome.LENGTH
        assert update.scores is not None
        np.testing.assert_allclose(update.scores.logprobs, setting.direct(ids[:1], ids[1:]), atol=1e-4)


def test_a_chain_is_the_sum_of_its_parts(setting: Setting) -> None:
    """In the canvas of the whole: what is after a part is masked there, too."""
    given = [setting.ids(text) for text in MANY]
    wholes, _ = setting.score([(ids[:1], scoring(ids[1:])) for ids in given])
    # What comes first is scored the same before any other text of that length.
    first, _ = setting.score([(ids[:1], scoring(np.append(ids[1:5], ids[:-5]))) for ids in given])
    last, _ = setting.score([(ids[:5], scoring(ids[5:])) for ids in given])
    for whole, *parts in zip(wholes, first, last, strict=True):
        assert whole.scores is not None
        scores = [part.scores.logprobs for part in parts if part.scores is not None]
        np.testing.assert_array_equal(whole.scores.logprobs, np.concatenate((scores[0][:4], scores[1])))


def test_prompts_of_equal_length_share_the_scores_of_what_they_begin_with(setting: Setting) -> None:
    ids = setting.ids(TEXTS[0])
    other = np.concatenate((ids[:6], ids[:0:-1]))[: len(ids)]
    scores = [one.scores for one in setting.score([(text[:1], scoring(text[1:])) for text in (ids, other)])[0]]
    assert scores[0] is not None
    assert scores[1] is not None
    np.testing.assert_array_equal(scores[0].logprobs[:5], scores[1].logprobs[:5])
    assert scores[0].logprobs[6:].tolist() != scores[1].logprobs[6:].tolist()


@pytest.mark.parametrize("halving", part([None, TWO_IN_FLIGHT], 2))
def test_scores_are_the_same_alone_and_batched_with_others(setting: Setting, halving: Halving | None) -> None:
    given = [setting.ids(text) for text in MANY]
    requests = [(ids[:1], scoring(ids[1:])) for ids in given]
    narrow = replace(LIMITS, slots=2)  # one row at a time
    alone = [setting.score([one], limits=narrow)[0][0] for one in requests]
    others = [Spec(setting.ids(text).tolist(), 8) for text in TEXTS]
    together, plans = setting.score(requests, others, halving=halving)
    assert max(len(plan.rows) for plan in plans) > 4
    for one, other in zip(alone, together, strict=True):
        assert one.scores is not None
        assert other.scores is not None
        np.testing.assert_array_equal(one.scores.logprobs, other.scores.logprobs)


def test_the_entry_after_the_prompt_is_the_networks_own_token(setting: Setting) -> None:
    ids = setting.ids(TEXTS[1])
    ((update,), _) = setting.score([(ids[:1], scoring(ids[1:], proposes=True))], ranks=2)
    assert len(update.tokens) == len(ids)
    own = np.array([update.tokens[-1]], np.int32)
    assert update.scores is not None
    assert update.scores.logprobs[-1] == pytest.approx(setting.direct(ids, own, BLOCK - 1)[0], abs=1e-4)
    assert update.scores.ranked[-1, 0] == own[0]
    assert update.scores.ranked.shape == (len(ids), 2)
    assert (update.outcome is Outcome.STOP) == (own[0] in setting.text.end_ids)


def test_the_entry_after_the_prompt_is_drawn_at_the_temperature_given(setting: Setting) -> None:
    ids = setting.ids(TEXTS[1])
    requests = [(ids[:1], scoring(ids[1:], proposes=True))] * 2

    def own(seed: int, **fields: float) -> list[int]:
        sampling = Sampling(temperature=20.0, seed=seed, **fields)  # type: ignore[arg-type]
        one, other = (int(update.tokens[-1]) for update in setting.score(requests, sampling=sampling)[0])
        assert one == other
        return [one]

    assert len({*own(0), *own(1), *own(2)}) > 1
    assert own(1) == own(1)
    greedy = setting.score(requests[:1])[0][0].tokens[-1]
    assert own(1, top_k=1) == own(2, top_p=0.001) == [greedy]


def test_options_of_one_token_take_one_row_and_long_ones_share_prefixes(setting: Setting) -> None:
    prompt, text = setting.ids(TEXTS[0])[:9], setting.ids(TEXTS[1])
    single = tuple(text[at : at + 1] for at in range(3))
    ((update,), plans) = setting.score([(prompt, scoring(*single))])
    assert [len(plan.rows) for plan in plans] == [1]
    assert update.scores is not None
    for chain, logprob in zip(single, update.scores.logprobs, strict=True):
        assert logprob == pytest.approx(setting.direct(prompt, chain)[0], abs=1e-4)
    chains = text[:4], np.append(text[:3], text[0]).astype(np.int32), text[:2]
    ((update,), plans) = setting.score([(prompt, scoring(*chains))])
    assert sum(len(plan.rows) for plan in plans) == 4
    assert update.scores is not None
    scores = np.split(update.scores.logprobs, [4, 8])
    for chain, found in zip(chains, scores, strict=True):
        np.testing.assert_allclose(found, setting.direct(prompt, chain, BLOCK + 4 - len(chain)), atol=1e-4)


def test_a_bias_is_a_part_of_the_scores(setting: Setting) -> None:
    prompt, text = setting.ids(TEXTS[0])[:9], setting.ids(TEXTS[1])
    options = scoring(text[:1], text[1:2])
    plain, biased = (
        setting.score([(prompt, options)], preferences=Preferences(bias=bias))[0][0].scores
        for bias in ({}, {int(text[0]): 3.0})
    )
    assert plain is not None
    assert biased is not None
    shift = np.diff(plain.logprobs) - np.diff(biased.logprobs)
    assert shift[0] == pytest.approx(3.0, abs=1e-3)


def test_monte_carlo_is_the_mean_over_masks_and_its_seed_counts(setting: Setting) -> None:
    """All masks of two tokens can be counted: each one alone, and both."""
    prompt, chain = setting.ids(TEXTS[0])[:9], setting.ids(TEXTS[1])[:2]

    def scores(samples: int, seed: int) -> list[float]:
        found = setting.score([(prompt, scoring(chain, samples=samples))], sampling=Sampling(seed=seed))[0][0].scores
        assert found is not None
        return [float(logprob) for logprob in found.logprobs]

    assert scores(20, seed=1) == scores(20, seed=1) != scores(20, seed=2)
    mask, block = np.array([setting.mask_id], np.int32), setting.pattern.block_size

    def logprob(tokens: np.ndarray, at: int) -> float:
        tokens = np.concatenate((prompt, tokens))
        tokens = np.pad(tokens, (0, -len(tokens) % (block or 1)), constant_values=setting.mask_id)
        position = len(prompt) + at
        return float(full_logits(setting.runner, tokens, setting.mask_id)[position].log_softmax(-1)[chain[at]])

    both = sum(logprob(np.concatenate((mask, mask)), at) for at in (0, 1))
    alone = logprob(np.concatenate((mask, chain[1:])), 0) + logprob(np.concatenate((chain[:1], mask)), 1)
    assert sum(scores(200 if ALL else 80, seed=1)) == pytest.approx((both + alone) / 2, rel=0.1)


@LONG
def test_scores_leave_room_for_answers(setting: Setting) -> None:
    """Beside a request that answers, the rows of all that score stay within a limit; alone, within half of a step."""
    ids = np.tile(setting.ids(TEXTS[0]), 3)
    requests = [(ids[:1], scoring(ids[1:]))] * 2
    _, alone = setting.score(requests)
    answer = Spec(ids.tolist(), 24, "llada")
    _, beside = setting.score(requests, [answer])
    row = len(ids) + BLOCK
    scored = [[one for one in plan.rows if one.scored is not None] for plan in beside]
    answering = [rows for rows, plan in zip(scored, beside, strict=True) if len(rows) < len(plan.rows)]
    assert len(answering) > 12  # it goes on in every step
    assert all(sum(one.tokens for one in rows) <= 512 for rows in answering)
    assert max(plan.tokens for plan in alone) > 1024
    assert max(plan.tokens for plan in alone) <= LIMITS.step_tokens
    assert row < 512
