"""Messages are plain data: whatever lies between a front end and an engine, they arrive as they were sent."""

from __future__ import annotations

import math
import pickle
import types
from dataclasses import is_dataclass
from enum import StrEnum
from typing import Any, Union, get_args, get_origin, get_type_hints

import pytest

from asynclane.scheduler import RequestStats
from asynclane.server.engine.messages import (
    Abort,
    AnswerOptions,
    Delta,
    Failure,
    Fault,
    Finish,
    Grammar,
    Health,
    Submit,
    Usage,
)
from asynclane.server.metrics import RequestReport, StepReport
from asynclane.server.text.lanes import Commit, LaneEvent, LaneView
from asynclane.server.text.logprobs import Token, TokenLogprob

STATS = RequestStats(prompt_tokens=9, forwards=2, lanes=1)
EXAMPLES = [
    Submit(7, (1, 2, 3), AnswerOptions(8)),
    Submit(
        8,
        (1,),
        AnswerOptions(
            8,
            logit_bias=((5, -math.inf), (6, 0.5)),
            stop=("\n", "é"),
            stop_ids=(4,),
            grammar=Grammar("response_format", "start: /a+/"),
            suffix=(9, 9),
            ranks=2,
            client="2001:db8::/64",
            timeout_s=0.5,
            params=(("threshold", 0.9), ("cache", "dual"), ("settle", True)),
        ),
    ),
    Abort(7),
    Delta("Hi", token_ids=(10, 11), usage=Usage(2, STATS)),
    Delta(
        "",
        Finish.STOP,
        Usage(2, STATS),
        LaneEvent(1, (-3, 8), True, (LaneView(0, None, "refine", 0, 2, "live", ("Hi", None)),), (Commit(0, "Hi"),)),
        (TokenLogprob(Token("\N{REPLACEMENT CHARACTER}", b"\xc3"), -0.5, 1, 0, ((Token("x", b"x"), -2.0),)),),
        (12,),
    ),
    Failure(Fault.PARAMETER, "no token goes on from here", "response_format"),
    Health(ready=True),
    StepReport(64, 128, 5, 0.001, 0.007),
    RequestReport(Usage(2, STATS), 1.5, 0.25),
]
PLAIN = (int, float, str, bool, bytes, types.NoneType)


def impurities(kind: Any, path: str) -> list[str]:
    """The fields below a type that are no plain data."""
    if kind in PLAIN or kind is Ellipsis or (isinstance(kind, type) and issubclass(kind, StrEnum)):
        return []
    if get_origin(kind) in (tuple, Union, types.UnionType):
        return [found for part in get_args(kind) for found in impurities(part, path)]
    frozen = is_dataclass(kind) and kind.__dataclass_params__.frozen  # type: ignore[attr-defined]
    if not frozen and not hasattr(kind, "_fields"):  # a NamedTuple
        return [f"{path}: {kind}"]
    return [found for name, part in get_type_hints(kind).items() for found in impurities(part, f"{path}.{name}")]


@pytest.mark.parametrize("kind", sorted({type(example) for example in EXAMPLES}, key=lambda kind: kind.__name__))
def test_every_field_of_a_message_is_plain(kind: type) -> None:
    assert impurities(kind, kind.__name__) == []


def test_what_is_not_plain_is_found() -> None:
    assert impurities(tuple[dict[str, int], ...], "x") == ["x: dict[str, int]"]


@pytest.mark.parametrize("message", EXAMPLES, ids=lambda message: type(message).__name__)
def test_a_message_survives_a_process_boundary(message: Any) -> None:
    assert pickle.loads(pickle.dumps(message)) == message
