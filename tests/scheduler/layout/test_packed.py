"""Where a network predicts each token at the position before it, rows take that position along, and nothing else."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from asynclane.scheduler.decoding.attention_pattern import AttentionPattern
from asynclane.scheduler.decoding.resolve import resolve
from asynclane.scheduler.memory.pages import Limits
from asynclane.scheduler.request import Request
from asynclane.scheduler.scheduler import Scheduler
from asynclane.scheduler.sequence import Sequence

from ...support.fakes import IDS, PIECES, ScriptedExecutor, add, vocabulary

LIMITS = Limits(slots=8, pages=128, page_size=8, step_tokens=512, max_model_len=128, max_queue=8)
LENGTH = 48


def propose(slot: int, position: int) -> tuple[int, float]:
    """The same at a position whatever has happened: plans then depend on lanes and caches alone."""
    return 2 + position * 7 % (len(PIECES) - 2), position * 37 % 100 / 100


def run(shift: int, *requests: Request) -> tuple[list[Sequence], ScriptedExecutor]:
    scheduler, executor = (
        Scheduler(LIMITS, vocabulary(), pattern=AttentionPattern(shift)),
        ScriptedExecutor(propose, 256, shift),
    )
    sequences = [add(scheduler, request) for request in requests]
    while (plan := scheduler.plan()) is not None:
        scheduler.commit(executor.execute(plan))
        scheduler.check_integrity()
    return sequences, executor


def request(decoder: str, params: dict[str, Any], prompt: int = 20, number: int = 0, **more: Any) -> Request:
    return Request(number, np.full(prompt, IDS["w"], np.int32), LENGTH, resolve(decoder, params, LENGTH), **more)


@pytest.mark.parametrize("prompt", [1, 16])
@pytest.mark.parametrize(
    ("decoder", "params"),
    [
        ("asynclane", {"threshold": 0.7, "block_length": 16, "lookahead": 8}),
        ("asynclane", {"threshold": 0.7, "block_length": 16, "settle": False, "refresh_every": 1}),
        ("asynclane", {"threshold": 0.7, "cache": "prefix", "lookahead": "canvas"}),
        ("asynclane", {"threshold": 0.9, "block_length": 16, "siblings": "isolated", "boundary": "comma"}),
        ("asynclane", {"threshold": 0.9, "reuse": False, "refresh_every": 2, "refresh_on": "steps"}),
        ("fast-dllm", {"threshold": 0.7, "block_length": 8}),
        ("llada", {"steps": 12, "block_length": 12}),
        ("dream", {"steps": 12, "cache": "prefix"}),
    ],
    ids=str,
)
def test_a_row_begins_at_most_one_position_earlier_and_everything_else_stays(
    decoder: str, params: dict[str, Any], prompt: int
) -> None:
    wanted = request(decoder, params, prompt)
    (plain,), executor = run(0, wanted)
    (shifted,), other = run(1, wanted)
    assert plain.canvas.tolist() == shifted.canvas.tolist()
    assert plain.steps == shifted.steps
    moved = 0
    for one, two in zip(executor.plans, other.plans, strict=True):
        for row, taken in zip(one.rows, two.rows, strict=True):
            assert (taken.end, taken.visible, taken.spans) == (row.end, row.visible, row.spans)
            first = min(row.start, row.spans[0].start - 1) if row.spans else row.start
            assert taken.start == first
            moved += row.start - taken.start
    assert shifted.computed_tokens == plain.computed_tokens + moved
    assert moved or params.get("cache") == "none" or decoder == "llada"


@pytest.mark.parametrize(("prompt", "common"), [(15, 1), (16, 1), (17, 2)])
def test_no_choice_writes_a_page_that_others_have_but_the_first_that_computes_it(prompt: int, common: int) -> None:
    params = {"threshold": 0.7, "block_length": 16}
    wanted = [request("asynclane", params, prompt, number, share_group="one") for number in range(3)]
    sequences, executor = run(1, *wanted)
    pages = {placement.slot: placement.pages for plan in executor.plans for placement in plan.placements}
    assert sequences[0].lease is not None
    shared = sequences[0].lease.numbers
    assert len(shared) == common
    writes = [
        page
        for plan in executor.plans
        for row in plan.rows
        for page in pages[row.slot][row.start // 8 : -(-row.end // 8)]
        if page in shared
    ]
    assert sorted(writes) == sorted(shared)


def test_a_prompt_of_no_token_is_refused_where_the_first_could_not_be_predicted() -> None:
    Scheduler(LIMITS, vocabulary()).add(request("llada", {}, prompt=0))
    with pytest.raises(ValueError, match="prompt must begin with a token"):
        Scheduler(LIMITS, vocabulary(), pattern=AttentionPattern(logit_shift=1)).add(request("llada", {}, prompt=0))
