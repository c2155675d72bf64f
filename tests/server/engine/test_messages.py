"""Messages are plain data: whatever lies between a front end and an engine, they arrive as they were sent."""

from __future__ import annotations

import math
import types
from dataclasses import is_dataclass
from enum import StrEnum
from typing import Any, Union, get_args, get_origin, get_type_hints

import msgspec
import pytest

from asynclane.scheduler import RequestStats
from asynclane.server import errors
from asynclane.server.engine.engine import failure_of
from asynclane.server.engine.messages import (
    Abort,
    AnswerOptions,
    AnswerTimes,
    Counts,
    Exposition,
    Failed,
    Failure,
    Fault,
    Finish,
    Free,
    FromEngine,
    GivenTokens,
    Grammar,
    Health,
    Progress,
    Reload,
    Reserve,
    Reserved,
    Scores,
    Scrape,
    Serving,
    Stop,
    Submit,
    ToEngine,
)
from asynclane.server.frontend.stream import error_of
from asynclane.server.text.lanes import LaneRow, LaneStep

STATS = RequestStats(prompt_tokens=9, forwards=2, lanes=1)
TO_ENGINE = [
    Submit(7, (1, 2, 3), AnswerOptions(8)),
    Submit(
        8,
        (1,),
        AnswerOptions(
            8,
            logit_bias=((5, -math.inf), (6, 0.5)),
            stop=("\n", "é"),
            stop_ids=(4,),
            grammar=Grammar("response_format", "start: /a+/", 100),
            suffix=(9, 9),
            ranks=2,
            candidates=(3, 4),
            seed=2**63 - 1,
            client="2001:db8::/64",
            timeout_s=0.5,
            params=(("threshold", 0.9), ("cache", "dual"), ("settle", True), ("max_lanes", 4), ("factor", 1.0)),
        ),
    ),
    Submit(9, (1,), AnswerOptions(8, scoring=GivenTokens(bytes(12), (2, 1), sums=True, proposes=True, samples=3))),
    Abort(7),
    Abort(7, failed=True),
    Reserve(3, "alice"),
    Free(3),
    Scrape(4),
    Counts(((200, 5), (429, 1)), (AnswerTimes(7, 1.5, 0.25), AnswerTimes(0, 1.5)), 2, (0, 3, 1), 0.75),
    Serving(),
]
FROM_ENGINE = [
    Progress(7, b"\0\1\2\3" * 2, STATS),
    Progress(
        7,
        b"",
        STATS,
        0.5,
        Finish.STOP,
        LaneStep(1, -3, 8, True, (LaneRow(0, None, "refine", 0, 2, "live", b"\0" * 8),), b"\0" * 4, b"\1" * 4),
        Scores(b"\0" * 4, b"\0" * 4, b"\0" * 8, b"\0" * 8, 2, b"\1" * 4),
        0.25,
        b"\1" * 8,
    ),
    Failed(7, Failure(Fault.PARAMETER, "no token goes on from here", "response_format")),
    Failed(7, Failure(Fault.CONTEXT, "too long", lengths=(256, 200, 100, 0, 0))),
    Reserved(3),
    Reserved(3, retry_after_s=9),
    Exposition(4, b"asynclane_engine_up 1.0\n"),
    Health(ready=True),
    Health(ready=False, failure="the device is lost"),
    Reload(),
    Stop(),
]
PLAIN = (int, float, str, bool, bytes, types.NoneType)


def impurities(kind: Any, path: str) -> list[str]:
    """The fields below a type that are no plain data."""
    if kind in PLAIN or kind is Ellipsis or (isinstance(kind, type) and issubclass(kind, StrEnum)):
        return []
    if get_origin(kind) in (tuple, Union, types.UnionType):
        return [found for part in get_args(kind) for found in impurities(part, path)]
    frozen = is_dataclass(kind) and kind.__dataclass_params__.frozen  # type: ignore[attr-defined]
    frozen = frozen or (isinstance(kind, type) and issubclass(kind, msgspec.Struct) and kind.__struct_config__.frozen)
    if not frozen and not hasattr(kind, "_fields"):  # a NamedTuple
        return [f"{path}: {kind}"]
    return [
        found
        for name, part in get_type_hints(kind).items()
        if not name.startswith("__")
        for found in impurities(part, f"{path}.{name}")
    ]


@pytest.mark.parametrize("kind", get_args(ToEngine | FromEngine), ids=lambda kind: kind.__name__)
def test_every_field_of_a_message_is_plain(kind: type) -> None:
    assert impurities(kind, kind.__name__) == []


def test_what_is_not_plain_is_found() -> None:
    assert impurities(tuple[dict[str, int], ...], "x") == ["x: dict[str, int]"]


def test_every_message_has_an_example() -> None:
    assert {type(message) for message in TO_ENGINE} == set(get_args(ToEngine))
    assert {type(message) for message in FROM_ENGINE} == set(get_args(FromEngine))


@pytest.mark.parametrize(("messages", "kind"), [(TO_ENGINE, ToEngine), (FROM_ENGINE, FromEngine)])
def test_messages_survive_a_process_boundary(messages: list[Any], kind: Any) -> None:
    """Their types too: a decoding parameter that is a whole number stays one."""
    found = msgspec.msgpack.decode(msgspec.msgpack.encode(messages), type=list[kind])
    assert found == messages
    assert repr(found) == repr(messages)


@pytest.mark.parametrize(
    "error",
    [
        errors.InvalidValue("decoder", "no such decoder"),
        errors.InvalidValue(None, "too many"),
        errors.ContextLengthExceeded(256, 200, 100, suffix_tokens=5),
        errors.Overloaded("the queue is full: 3 of 3 requests wait", retry_after_s=7),
        errors.Draining(),
        errors.EngineDown("the engine has failed: the device is lost"),
        errors.EngineFailure("formats cannot be compiled"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_a_refusal_is_the_same_error_in_the_front_end(error: errors.ApiError) -> None:
    found = error_of(failure_of(error))
    assert (type(found), found.status, found.body(), found.headers) == (
        type(error),
        error.status,
        error.body(),
        error.headers,
    )
