"""A running answer in the engine: makes messages of what the scheduler reports. It makes no text, except where text
decides the end of an answer."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Sequence

from ...scheduler import LaneEvents, Outcome, Scored, Update
from ..text.detokenizer import AnswerText
from ..text.lanes import LaneRow, LaneStep
from ..text.tokenizer import Tokenizer
from .messages import ENGINE_FAILED, AnswerOptions, Failed, Failure, Fault, Finish, Progress, Scores
from .port import Port

FINISH = {Outcome.STOP: Finish.STOP, Outcome.LENGTH: Finish.LENGTH}


class EngineAnswer:
    """An answer from its submission to its end. The front end that reads it knows it as `request_id`."""

    def __init__(self, port: Port, request_id: int, options: AnswerOptions, text: Tokenizer) -> None:
        self.port = port
        self.request_id = request_id
        self.timer: asyncio.TimerHandle | None = None  # of its deadline
        self.completion_tokens = 0
        self._options = options
        self._tokens = 0  # those that were given among them
        self._ending: StopText | StopTokens | None = None
        if options.stop:
            self._ending = StopText(text, options.stop, options.stop_ids, options.shown)
        elif options.stop_ids:
            self._ending = StopTokens(options.stop_ids)
        self.queue_s: float | None = None  # until its first step
        self._arrived = time.perf_counter()
        self._first_forward_s: float | None = None

    def written(self, tokens: int) -> int:
        """How many of the next `tokens` tokens were not given."""
        return self._options.written(self._tokens + tokens) - self.completion_tokens

    def fail(self, failure: Failure) -> None:
        self.port.post(Failed(self.request_id, failure))

    def take(self, update: Update, began: float, ended: float) -> Outcome | None:
        """Send what a step that `began` and `ended` then brought. Returns how the answer has ended, or None: a stop
        string or a stop token ends it here."""
        queue_s, first_forward_s = self.queue_s, self._first_forward_s
        if queue_s is None:
            queue_s = self.queue_s = max(0.0, began - self._arrived)
        if first_forward_s is None and update.stats.forwards:  # a chunk of the prompt is none
            first_forward_s = self._first_forward_s = max(0.0, ended - self._arrived - queue_s)
        outcome, tokens = update.outcome, update.tokens
        if outcome is Outcome.FAILED:
            failure = update.failure
            self.fail(ENGINE_FAILED if failure is None else Failure(Fault.PARAMETER, failure.message, failure.param))
            return outcome
        if self._ending is not None:
            used, stopped = self._ending.take(tokens.tolist(), outcome is not None)
            tokens = tokens[:used]
            outcome = Outcome.STOP if stopped else outcome
        self._tokens += len(tokens)
        self.completion_tokens = self._options.written(self._tokens)
        candidates = update.candidate_logprobs
        events, scored, canvas = update.lane_events, update.scores, update.canvas
        if outcome is not None or len(tokens) or events is not None or canvas is not None:
            self.port.post(
                Progress(
                    self.request_id,
                    tokens.tobytes(),
                    update.stats,
                    queue_s,
                    None if outcome is None else FINISH[outcome],
                    None if events is None else lane_step(events),
                    None if scored is None else _scores(scored),
                    first_forward_s or 0.0,
                    b"" if outcome is None or candidates is None else candidates.tobytes(),
                    None if canvas is None else canvas.tobytes(),
                )
            )
        return outcome


class StopTokens:
    """Ends an answer before the first stop token."""

    def __init__(self, stop_ids: Collection[int]) -> None:
        self._stop_ids = stop_ids

    def take(self, ids: Sequence[int], ended: bool) -> tuple[int, bool]:
        """Return how many of `ids` the answer has used, and whether a stop ends it."""
        used = next((at for at, token in enumerate(ids) if token in self._stop_ids), len(ids))
        return used, used < len(ids)


class StopText:
    """Ends an answer before the first stop string or stop token. Its front end makes the same text of the same tokens,
    and so finds the same end."""

    def __init__(
        self, text: Tokenizer, stops: Sequence[str], stop_ids: Collection[int], shown: Collection[int] = ()
    ) -> None:
        self._text = AnswerText(text, stops, stop_ids, shown=shown)

    def take(self, ids: Sequence[int], ended: bool) -> tuple[int, bool]:
        """As `StopTokens.take`. The text of an answer that has `ended` otherwise may still end with a stop string."""
        _, used, stopped = self._text.feed(ids)
        if ended and not stopped:
            self._text.flush()
            stopped = self._text.stopped
        return used, stopped


def lane_step(events: LaneEvents) -> LaneStep:
    """Lane events as plain data."""
    lanes = tuple(
        LaneRow(lane.id, lane.parent, lane.role.value, lane.start, lane.end, lane.fate.value, lane.tokens.tobytes())
        for lane in events.lanes
    )
    return LaneStep(
        events.step,
        events.start,
        events.end,
        events.refresh,
        lanes,
        events.positions.tobytes(),
        events.tokens.tobytes(),
    )


def _scores(scored: Scored) -> Scores:
    return Scores(
        scored.logprobs.tobytes(),
        scored.steps.tobytes(),
        scored.ranked.tobytes(),
        scored.ranked_logprobs.tobytes(),
        scored.ranked.shape[1],
        b"" if scored.token_ranks is None else scored.token_ranks.tobytes(),
    )
