"""A canvas that ends in a suffix: steps see all of it, and write nothing of it."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from asynclane.scheduler.decoding.params import ParamError
from asynclane.scheduler.decoding.resolve import resolve
from asynclane.scheduler.memory.pages import Limits
from asynclane.scheduler.request import Outcome, Request
from asynclane.scheduler.scheduler import Scheduler
from asynclane.scheduler.sequence import Sequence

from ..support.fakes import END, IDS, MASK, ScriptedExecutor, add, random_executor, vocabulary
from ..support.grammars import Verses

PROMPT, SUFFIX, CANVAS = [IDS["w"]] * 10, [IDS["x"], IDS["."], IDS["y"]], 40
LIMITS = Limits(slots=8, pages=64, page_size=4, step_tokens=256, max_model_len=128, max_queue=8)


def request(decoder: str = "asynclane", length: int = CANVAS, suffix: list[int] = SUFFIX, **params: Any) -> Request:
    prompt = np.array(PROMPT, np.int32)
    return Request(0, prompt, length, resolve(decoder, params, length), suffix=np.array(suffix, np.int32))


def run(executor: ScriptedExecutor, wanted: Request) -> tuple[Sequence, list[int]]:
    """The request after its last step, and the tokens that were handed out."""
    scheduler, text = Scheduler(LIMITS, vocabulary()), list[int]()
    sequence = add(scheduler, wanted)
    while (plan := scheduler.plan()) is not None:
        for update in scheduler.commit(executor.execute(plan)):
            text += update.tokens.tolist()
    scheduler.check_integrity()
    return sequence, text


@pytest.mark.parametrize(
    ("decoder", "params"),
    [
        ("asynclane", {"lookahead": 8, "block_length": 8}),
        ("asynclane", {"refresh_every": 1, "cache": "compact"}),
        ("asynclane", {"cache": "dual", "lookahead": "canvas"}),
        ("asynclane", {"siblings": "coupled"}),
        ("fast-dllm", {"block_length": 8}),
        ("fast-dllm", {"cache": "prefix"}),
        ("llada", {"steps": 20, "block_length": 10}),
        ("dream", {"steps": 8, "cache": "dual"}),
        ("fast-dllm", {"cache": "delayed"}),
        ("asynclane", {"cache": "d2", "candidates": 4}),
        ("asynclane", {"cache": "settled"}),
        ("window", {"cycle": 4, "window_tokens": 4, "active_tokens": 2}),
    ],
    ids=str,
)
def test_every_step_sees_the_suffix_and_none_writes_it(decoder: str, params: dict[str, Any]) -> None:
    for seed in range(3):
        executor = random_executor(seed)
        sequence, text = run(executor, request(decoder, **params))
        (slot,) = sequence.holding.slots
        total, canvas = len(PROMPT) + CANVAS + len(SUFFIX), slice(len(PROMPT), len(PROMPT) + CANVAS)
        for plan in executor.plans:
            for row in plan.rows:
                assert row.visible == total
                assert all(canvas.start <= span.start < span.end <= canvas.stop for span in row.spans)
        left = executor.canvases[slot]
        assert left[canvas.stop : total].tolist() == SUFFIX
        assert text == left[canvas][: len(text)].tolist()
        assert len(sequence.holding.pages) * LIMITS.page_size >= total


def test_an_end_token_ends_the_middle_and_what_lies_before_the_suffix_stays_open() -> None:
    end = len(PROMPT) + 5
    executor = ScriptedExecutor(lambda slot, at: (END, 0.99) if at == end else (IDS["w"], 0.9))
    sequence, text = run(executor, request(threshold=0.9, draft_threshold="off", block_length=8))
    assert (text, sequence.outcome) == ([IDS["w"]] * 5, Outcome.STOP)
    assert (sequence.canvas[8:] == MASK).all()


@pytest.mark.parametrize(
    ("stop", "open_at", "steps"), [("off", None, 2), (None, None, 1), (None, 3, 2), (0.95, None, 1), (0.995, None, 2)]
)
def test_an_end_that_is_proposed_after_the_lanes_stops_an_answer_without_gaps(
    stop: float | str | None, open_at: int | None, steps: int
) -> None:
    """The lane has 8 positions, and drafts write the two after it. Where one is open, another step has to fill it. No
    parameter is as 0.95."""

    def propose(slot: int, at: int) -> tuple[int, float]:
        place = at - len(PROMPT)
        return (END, 0.99) if place == 10 else (IDS["w"], 0.5 if place == open_at else 0.9)

    given = {} if stop is None else {"stop_threshold": stop}
    wanted = request(suffix=[], threshold=0.9, draft_threshold=0.9, block_length=8, lookahead=8, **given)
    sequence, text = run(ScriptedExecutor(propose), wanted)
    assert (text, sequence.outcome, sequence.steps) == ([IDS["w"]] * 10, Outcome.STOP, steps)


def test_a_grammar_decides_where_to_end_whatever_is_proposed_after_the_lanes() -> None:
    """The first step fills a lane of six and proposes an end after it, where a verse may end after nine tokens only."""

    def answer(**given: str) -> tuple[list[int], Outcome | None, int]:
        def propose(slot: int, at: int) -> tuple[int, float]:
            place, ends = at - len(PROMPT), 6 if len(executor.plans) == 1 else 9
            return (END if place >= ends else IDS[","] if place % 3 == 2 else 5), 0.99

        executor = ScriptedExecutor(propose)
        wanted = request(suffix=[], draft_threshold=0.9, threshold=0.9, block_length=6, lookahead=8, **given)
        sequence, text = run(executor, dataclasses.replace(wanted, constraint=Verses()))
        return text, sequence.outcome, sequence.steps

    assert answer() == answer(stop_threshold="off")
    assert answer()[:2] == ([5, 5, IDS[","]] * 3, Outcome.STOP)
    wanted = dataclasses.replace(request(suffix=[], stop_threshold=0.95), constraint=Verses())
    with pytest.raises(ParamError, match=r"stop_threshold and .* exclude each other"):
        Scheduler(LIMITS, vocabulary()).add(wanted)


def test_a_middle_that_meets_its_suffix_has_used_its_length() -> None:
    sequence, text = run(ScriptedExecutor(lambda slot, at: (IDS["w"], 0.9)), request())
    assert (len(text), sequence.outcome) == (CANVAS, Outcome.LENGTH)


def test_a_suffix_counts_where_room_is_counted() -> None:
    room = LIMITS.max_model_len - len(PROMPT) - len(SUFFIX)
    Scheduler(LIMITS, vocabulary()).add(request(length=room))
    with pytest.raises(ValueError, match="129 tokens exceed max_model_len 128"):
        Scheduler(LIMITS, vocabulary()).add(request(length=room + 1))


def test_isolated_siblings_would_not_see_a_suffix_and_are_refused() -> None:
    with pytest.raises(ParamError, match=r"isolated siblings .* exclude a suffix"):
        Scheduler(LIMITS, vocabulary()).add(request(siblings="isolated"))
