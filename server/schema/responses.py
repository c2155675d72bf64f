"""Writes answers in OpenAI's shapes: whole, or as the chunks of a stream, for both endpoints."""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from ..engine.messages import Finish, Usage
from ..text.lanes import LaneEvent
from ..text.logprobs import Token, TokenLogprob

Json = dict[str, Any]

COSTS = ("forwards", "computed_tokens", "lanes", "forks", "refreshes")


@dataclass(frozen=True, slots=True)
class Finished:
    """One choice, complete; `scores` None: nobody asked."""

    text: str
    finish: Finish
    scores: Sequence[TokenLogprob] | None = None
    usage: Usage = field(default_factory=Usage)


class Reply(Protocol):
    """One endpoint's shapes. A choice in a stream opens, has deltas, and closes with its finish reason.

    Chunks with lanes have them beside their choice, whose delta is empty, so that clients who know nothing of lanes
    pass over them.
    """

    @property
    def envelope(self) -> Envelope: ...

    def opening(self, index: int) -> Json | None: ...
    def delta(self, index: int, text: str, scores: Sequence[TokenLogprob] | None = None) -> Json: ...
    def lanes(self, index: int, event: LaneEvent) -> Json: ...
    def closing(self, index: int, finish: Finish) -> Json: ...
    def whole(self, choices: Sequence[Finished], usage: Json) -> Json: ...


@dataclass(frozen=True, slots=True)
class Envelope:
    """What all chunks of a response have in common. With `usage_follows`, chunks say that theirs is null."""

    id: str
    created: int
    model: str
    usage_follows: bool

    def wrap(self, kind: str, choices: list[Json]) -> Json:
        chunk = {
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "choices": choices,
        }
        return {**chunk, "usage": None} if self.usage_follows else chunk


def new_envelope(prefix: str, model: str, usage_follows: bool) -> Envelope:
    return Envelope(f"{prefix}-{uuid.uuid4().hex}", int(time.time()), model, usage_follows)


@dataclass(frozen=True, slots=True)
class ChatReply:
    envelope: Envelope

    def opening(self, index: int) -> Json | None:
        return self._chunk(index, {"role": "assistant", "content": ""}, None)

    def delta(self, index: int, text: str, scores: Sequence[TokenLogprob] | None = None) -> Json:
        return self._chunk(index, {"content": text}, None, scores)

    def lanes(self, index: int, event: LaneEvent) -> Json:
        return {**self._chunk(index, {}, None), "lanes": event.json()}

    def closing(self, index: int, finish: Finish) -> Json:
        return self._chunk(index, {}, finish)

    def _chunk(
        self, index: int, delta: Json, finish: Finish | None, scores: Sequence[TokenLogprob] | None = None
    ) -> Json:
        choice = {"index": index, "delta": delta, "logprobs": _chat_logprobs(scores), "finish_reason": finish}
        return self.envelope.wrap("chat.completion.chunk", [choice])

    def whole(self, choices: Sequence[Finished], usage: Json) -> Json:
        shaped = [
            {
                "index": index,
                "message": {"role": "assistant", "content": choice.text, "refusal": None},
                "logprobs": _chat_logprobs(choice.scores),
                "finish_reason": choice.finish,
            }
            for index, choice in enumerate(choices)
        ]
        return {**self.envelope.wrap("chat.completion", shaped), "usage": usage}


@dataclass(frozen=True, slots=True)
class TextReply:
    envelope: Envelope

    def opening(self, index: int) -> Json | None:
        return None

    def delta(self, index: int, text: str, scores: Sequence[TokenLogprob] | None = None) -> Json:
        return self.envelope.wrap("text_completion", [self._choice(index, text, None, scores)])

    def lanes(self, index: int, event: LaneEvent) -> Json:
        return {**self.delta(index, ""), "lanes": event.json()}

    def closing(self, index: int, finish: Finish) -> Json:
        return self.envelope.wrap("text_completion", [self._choice(index, "", finish)])

    def whole(self, choices: Sequence[Finished], usage: Json) -> Json:
        shaped = [
            self._choice(index, choice.text, choice.finish, choice.scores) for index, choice in enumerate(choices)
        ]
        return {**self.envelope.wrap("text_completion", shaped), "usage": usage}

    @staticmethod
    def _choice(index: int, text: str, finish: Finish | None, scores: Sequence[TokenLogprob] | None = None) -> Json:
        return {"index": index, "text": text, "logprobs": _text_logprobs(scores), "finish_reason": finish}


def _chat_logprobs(scores: Sequence[TokenLogprob] | None) -> Json | None:
    """`step` is ours: the request's own step that committed the token."""
    if scores is None:
        return None
    content = [
        {
            **_chat_token(score.token, score.logprob),
            "step": score.step,
            "top_logprobs": [_chat_token(token, logprob) for token, logprob in score.ranked],
        }
        for score in scores
    ]
    return {"content": content, "refusal": None}


def _chat_token(token: Token, logprob: float) -> Json:
    return {"token": token.text, "logprob": logprob, "bytes": list(token.raw)}


def _text_logprobs(scores: Sequence[TokenLogprob] | None) -> Json | None:
    """OpenAI's older form: lists, and a table by text, where of two tokens with one text the likelier stays, and the
    answer's own token is always there. `steps` is ours."""
    if scores is None:
        return None
    return {
        "tokens": [score.token.text for score in scores],
        "token_logprobs": [score.logprob for score in scores],
        "top_logprobs": [_by_text([*score.ranked, (score.token, score.logprob)]) for score in scores],
        "text_offset": [score.offset for score in scores],
        "steps": [score.step for score in scores],
    }


def _by_text(ranked: Sequence[tuple[Token, float]]) -> dict[str, float]:
    table: dict[str, float] = {}
    for token, logprob in ranked:
        table.setdefault(token.text, logprob)
    return table


def usage_chunk(reply: Reply, usage: Json) -> Json:
    """The chunk behind all choices, for those who asked."""
    return {**reply.delta(0, ""), "choices": [], "usage": usage}


def usage_json(prompt_tokens: int, usages: Mapping[int, Usage], choices: int) -> Json:
    """Of answers by their number, so many `choices` for each prompt. A prompt counts once, with what its first choice
    found computed; answers and what they cost add up, those of `best_of` that were not chosen, too."""
    total = Usage.total(usages.values())
    completion_tokens = total.completion_tokens
    cached_tokens = sum(usage.stats.cached_tokens for number, usage in usages.items() if number % choices == 0)
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
        "prompt_tokens_details": {"cached_tokens": cached_tokens},
        "completion_tokens_details": {name: getattr(total.stats, name) for name in COSTS},
    }
