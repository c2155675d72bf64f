"""The accuracy and the cost of a decoder's answers, for table, plot and JSON line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from ...server.engine.messages import Finish, Usage
from ...server.text.lanes import LaneEvent
from ..eval.interval import Interval, wilson
from ..load.problems import Problem
from .checks import right
from .lane_figures import LaneFigures


class Reply(Protocol):
    """The part of an offline answer that is used here."""

    @property
    def text(self) -> str: ...
    @property
    def finish(self) -> Finish: ...
    @property
    def usage(self) -> Usage: ...
    @property
    def lanes(self) -> Sequence[LaneEvent]: ...


@dataclass(frozen=True, slots=True)
class Score:
    right: int
    count: int

    @property
    def share(self) -> float:
        return self.right / self.count


@dataclass(frozen=True, slots=True)
class Tally:
    """One decoder's figures over all problems.

    `answer_tokens` includes one end token for each answer, which is committed like any other token. `cut` is the number
    of answers that reached the limit before their end. `lanes` are empty unless the answers were watched.
    """

    decoder: str
    tasks: Mapping[str, Score]
    answer_tokens: int
    calls: int
    computed_tokens: int
    dropped_tokens: int
    cut: int
    wall_s: float
    lanes: LaneFigures

    @property
    def total(self) -> Score:
        return Score(sum(s.right for s in self.tasks.values()), sum(s.count for s in self.tasks.values()))

    @property
    def accuracy(self) -> float:
        return self.total.share

    @property
    def interval(self) -> Interval:
        return wilson(self.total.right, self.total.count)

    @property
    def calls_per_problem(self) -> float:
        return self.calls / self.total.count

    @property
    def tokens_per_call(self) -> float:
        return self.answer_tokens / max(1, self.calls)

    @property
    def computed_per_token(self) -> float:
        return self.computed_tokens / self.answer_tokens

    @property
    def dropped_per_token(self) -> float:
        """Positions that passed the first layers alone, which are not among those computed."""
        return self.dropped_tokens / self.answer_tokens


def tally(decoder: str, problems: Sequence[Problem], replies: Sequence[Reply], wall_s: float) -> Tally:
    """Grade each reply. Raises `ValueError` unless there is one for each problem, and at least one problem."""
    if not problems or len(replies) != len(problems):
        raise ValueError(f"{len(replies)} replies to {len(problems)} problems: need one for each, and one at least")
    passed = [(problem.task, right(problem, reply.text)) for problem, reply in zip(problems, replies, strict=True)]
    tasks = dict.fromkeys(task for task, _ in passed)
    return Tally(
        decoder=decoder,
        tasks={task: _score([good for name, good in passed if name == task]) for task in tasks},
        answer_tokens=sum(reply.usage.completion_tokens + 1 for reply in replies),
        calls=sum(reply.usage.stats.forwards for reply in replies),
        computed_tokens=sum(reply.usage.stats.computed_tokens for reply in replies),
        dropped_tokens=sum(reply.usage.stats.dropped_tokens for reply in replies),
        cut=sum(reply.finish is Finish.LENGTH for reply in replies),
        wall_s=wall_s,
        lanes=LaneFigures.of([reply.lanes for reply in replies]),
    )


def _score(passed: Sequence[bool]) -> Score:
    return Score(sum(passed), len(passed))
