"""Answers in OpenAI's shapes, whole or as the chunks of a stream, for both endpoints; and the model in `/v1/models`."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

from ..engine.messages import NO_EXTRAS, Delta, Extras, Finish, Usage
from ..errors import ApiError, UnknownModel
from ..http.sse import DONE, event
from ..text.lanes import LaneEvent
from ..text.logprobs import Token, TokenLogprob
from ..text.splitter import CallPart, Piece, Reasoning, Text
from .requests import GenerationRequest

Json = dict[str, Any]
Scores = Sequence[TokenLogprob]
CHAT_CHUNK = "chat.completion.chunk"
REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
COSTS = ("forwards", "computed_tokens", "lanes", "forks", "refreshes")  # of `completion_tokens_details`


@dataclass(frozen=True, slots=True)
class ModelCard:
    """The model as clients see it. `decoders` maps names to their parameters' defaults; `created` is the Unix time of
    the server's start; `words` are what each decoder's parameters may be besides numbers; `aliases` are further names
    of the model."""

    id: str
    max_model_len: int
    decoders: Mapping[str, Mapping[str, object]]
    default_decoder: str
    created: int = 0
    words: Mapping[str, Mapping[str, Sequence[object]]] = field(default_factory=dict)
    aliases: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        return (self.id, *self.aliases)

    def named(self, name: str | None) -> str:
        """The name by which a request wants the model, by default its first. Raises `UnknownModel`."""
        if name is None:
            return self.id
        if name not in self.names:
            raise UnknownModel(name, self.names)
        return name

    def json(self, name: str) -> Json:
        decoders = {decoder: dict(defaults) for decoder, defaults in self.decoders.items()}
        card = {**asdict(self), "id": name, "object": "model", "owned_by": "asynclane", "decoders": decoders}
        del card["words"], card["aliases"]  # `/openapi.json` has the words
        return card


@dataclass(frozen=True, slots=True)
class Finished:
    """One complete choice. `scores` is None if no log-probabilities were requested. `calls` have everything of a call
    in one part; `parts` are all pieces in their order, where the answer was read in parts. `stop` is the stop string
    that has ended the text."""

    text: str
    finish: Finish
    scores: Scores | None = None
    usage: Usage = field(default_factory=Usage)
    reasoning: str = ""
    calls: tuple[CallPart, ...] = ()
    parts: tuple[Piece, ...] = ()
    stop: str | None = None
    extras: Extras = NO_EXTRAS

    @classmethod
    def of(cls, text: str, scores: Scores, last: Delta) -> Finished:
        """The choice that ended with a `last` delta."""
        assert last.finish is not None
        return cls(text, last.finish, scores, last.usage or Usage(), stop=last.stop, extras=last.extras)

    @property
    def prompt(self) -> Json:
        """The scores of the prompt's tokens, if they were requested, in vLLM's form. The first token has none."""
        scores = self.extras.prompt_scores
        return {} if scores is None else {"prompt_logprobs": [None, *map(_ranked_tokens, scores)]}


@dataclass(frozen=True, slots=True)
class Envelope:
    """The fields that all chunks of a response share. With `usage_follows`, every chunk has `usage: null`."""

    id: str
    created: int
    model: str
    usage_follows: bool

    def wrap(self, kind: str, choices: list[Json] | Iterator[Json]) -> Json:
        chunk = {"id": self.id, "object": kind, "created": self.created, "model": self.model, "choices": choices}
        return {**chunk, "usage": None} if self.usage_follows else chunk


def new_envelope(prefix: str, model: str, usage_follows: bool) -> Envelope:
    return Envelope(f"{prefix}-{uuid.uuid4().hex}", int(time.time()), model, usage_follows)


class EventWriter(Protocol):
    """Writes the events of one streamed response: `begin` before its first delta, `write` for each, then `end` or
    `fail`. `parts` are those of a delta where answers are read in parts."""

    def begin(self) -> Iterator[bytes]: ...
    def write(self, index: int, delta: Delta, parts: Sequence[Piece] | None) -> Iterator[bytes]: ...
    def end(self) -> Iterator[bytes]: ...
    def fail(self, error: ApiError) -> Iterator[bytes]: ...


class Reply(Protocol):
    """The shapes of one endpoint, streamed and whole."""

    def writer(self, body: GenerationRequest, echoes: Sequence[str], prompt_tokens: int) -> EventWriter: ...
    def whole(self, choices: Sequence[Finished], usage: Json) -> Json:
        """The response. An iterator in it has the entries of a list, which may be large."""


class Chunks(Protocol):
    """The chunks of an endpoint. A choice in a stream opens, has deltas, and closes with its finish reason.

    A chunk with lanes has them next to its choice, whose delta is empty: clients that know nothing of lanes ignore it.
    """

    def opening(self, index: int) -> Json | None: ...
    def part(self, index: int, part: Piece | None, scores: Scores | None = None) -> Json: ...
    def lanes(self, index: int, event: LaneEvent) -> Json: ...
    def whole_so_far(self, index: int, parts: Sequence[Piece], last: Delta) -> Json:
        """The chunk that replaces those before it. The last one closes its choice."""

    def closing(self, index: int, last: Delta) -> Json: ...


class ChunkWriter:
    """Writes the chunks of both completion endpoints; each answer begins with its echo."""

    def __init__(self, chunks: Chunks, body: GenerationRequest, echoes: Sequence[str], prompt_tokens: int) -> None:
        self._chunks = chunks
        self._body = body
        self._echoes = echoes
        self._prompt_tokens = prompt_tokens
        self._usages: dict[int, Usage] = {}
        self._filled: set[int] = set()  # answers with text or calls
        self._shown: dict[int, Sequence[Piece]] = {}  # of diffusing answers

    def begin(self) -> Iterator[bytes]:
        for index, echo in enumerate(self._echoes):
            first = self._chunks.opening(index)
            if first is not None:
                yield self._event({**first, "diffusing": True} if self._body.diffusing else first)
            if echo and not self._body.diffusing:
                yield self._event(self._chunks.part(index, Text(echo)))

    def write(self, index: int, delta: Delta, parts: Sequence[Piece] | None) -> Iterator[bytes]:
        self._usages[index] = delta.usage or self._usages.get(index, Usage())
        if delta.lanes is not None:
            yield self._event(self._chunks.lanes(index, delta.lanes))
        if self._body.diffusing:
            yield from self._replace(index, delta, parts)
            return
        scores = delta.scores if self._body.shows_scores else None
        split = parts is not None
        if parts is None:
            parts = [Text(delta.text)] if delta.text or delta.scores else ()
        for part in parts or ((None,) if scores else ()):
            yield self._event(self._chunks.part(index, part, scores))
            scores = None
            if not isinstance(part, Reasoning | None):
                self._filled.add(index)
        if delta.finish is not None:
            if split and index not in self._filled:  # content is null only beside calls
                yield self._event(self._chunks.part(index, Text("")))
            yield self._event(self._chunks.closing(index, delta))

    def _replace(self, index: int, delta: Delta, parts: Sequence[Piece] | None) -> Iterator[bytes]:
        """The whole of a diffusing answer in one chunk, if it has changed."""
        if parts is None or (delta.finish is None and parts == self._shown.get(index, [])):
            return
        self._shown[index] = parts
        echo = [Text(self._echoes[index])] if self._echoes[index] else []
        yield self._event({**self._chunks.whole_so_far(index, [*echo, *parts], delta), "diffusing": True})

    def end(self) -> Iterator[bytes]:
        if self._body.streaming.include_usage:  # the chunk after all choices
            yield event({**self._chunks.part(0, None), "choices": [], "usage": self._usage()})
        yield DONE

    def fail(self, error: ApiError) -> Iterator[bytes]:
        """The stream ends without DONE."""
        yield event(error.body(), "error")

    def _event(self, chunk: Json) -> bytes:
        return event({**chunk, "usage": self._usage()} if self._body.streaming.continuous_usage_stats else chunk)

    def _usage(self) -> Json:
        return usage_json(self._prompt_tokens, self._usages, self._body.choices)


@dataclass(frozen=True, slots=True)
class ChatReply:
    """With `split`, an answer may be calls without text: its content is null then."""

    envelope: Envelope
    split: bool = False

    def writer(self, body: GenerationRequest, echoes: Sequence[str], prompt_tokens: int) -> EventWriter:
        return ChunkWriter(self, body, echoes, prompt_tokens)

    def opening(self, index: int) -> Json | None:
        return self._chunk(index, {"role": "assistant", "content": None if self.split else ""})

    def part(self, index: int, part: Piece | None, scores: Scores | None = None) -> Json:
        """The chunk of a part, or of log-probabilities alone."""
        if part is None:
            return self._chunk(index, {}, scores=scores)
        if isinstance(part, CallPart):
            return self._chunk(index, {"tool_calls": [_call_delta(part)]}, scores=scores)
        said = {"content": part.spaced} if isinstance(part, Text) else {"reasoning_content": part.text}
        return self._chunk(index, said, scores=scores)

    def lanes(self, index: int, event: LaneEvent) -> Json:
        return {**self._chunk(index, {}), "lanes": event.json()}

    def whole_so_far(self, index: int, parts: Sequence[Piece], last: Delta) -> Json:
        reasoning = "".join(part.text for part in parts if isinstance(part, Reasoning))
        said = {"content": text_of(parts), **({"reasoning_content": reasoning} if reasoning else {})}
        return self._last(index, said, last)

    def closing(self, index: int, last: Delta) -> Json:
        return self._last(index, {}, last)

    def _last(self, index: int, said: Json, last: Delta) -> Json:
        choice = {**_chat_choice(index, said, last.finish), **probabilities_json(last.extras)}
        return self.envelope.wrap(CHAT_CHUNK, [choice])

    def whole(self, choices: Sequence[Finished], usage: Json) -> Json:
        shaped = (
            {
                "index": index,
                "message": self._message(choice),
                "logprobs": _chat_logprobs(choice.scores),
                "finish_reason": choice.finish,
                **probabilities_json(choice.extras),
            }
            for index, choice in enumerate(choices)
        )
        return {**self.envelope.wrap("chat.completion", shaped), "usage": usage, **choices[0].prompt}

    def _message(self, choice: Finished) -> Json:
        content = None if choice.calls and not choice.text else choice.text
        message: Json = {"role": "assistant", "content": content, "refusal": None}
        if choice.reasoning:
            message["reasoning_content"] = choice.reasoning
        if choice.calls:
            message["tool_calls"] = [
                {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
                for call in choice.calls
            ]
        return message

    def _chunk(self, index: int, delta: Json, finish: Finish | None = None, scores: Scores | None = None) -> Json:
        return self.envelope.wrap(CHAT_CHUNK, [_chat_choice(index, delta, finish, scores)])


@dataclass(frozen=True, slots=True)
class TextReply:
    envelope: Envelope

    def writer(self, body: GenerationRequest, echoes: Sequence[str], prompt_tokens: int) -> EventWriter:
        return ChunkWriter(self, body, echoes, prompt_tokens)

    def opening(self, index: int) -> Json | None:
        return None

    def part(self, index: int, part: Piece | None, scores: Scores | None = None) -> Json:
        """Text is all that completions have."""
        text = part.text if isinstance(part, Text) else ""
        return self._wrap(_text_choice(index, text, scores=scores))

    def lanes(self, index: int, event: LaneEvent) -> Json:
        return {**self.part(index, None), "lanes": event.json()}

    def whole_so_far(self, index: int, parts: Sequence[Piece], last: Delta) -> Json:
        return self._last(index, text_of(parts), last)

    def closing(self, index: int, last: Delta) -> Json:
        return self._last(index, "", last)

    def _last(self, index: int, said: str, last: Delta) -> Json:
        found = {**_text_choice(index, said, last.finish), **probabilities_json(last.extras)}
        return self._wrap({**found, **_gaps(last.extras)})

    def whole(self, choices: Sequence[Finished], usage: Json) -> Json:
        shaped = (
            {
                **_text_choice(index, one.text, one.finish, one.scores),
                **probabilities_json(one.extras),
                **one.prompt,
                **_gaps(one.extras),
            }
            for index, one in enumerate(choices)
        )
        return {**self.envelope.wrap("text_completion", shaped), "usage": usage}

    def _wrap(self, choice: Json) -> Json:
        return self.envelope.wrap("text_completion", [choice])


def probabilities_json(extras: Extras) -> Json:
    """The probabilities of the texts of which an answer is one, if they were requested."""
    found = [{"choice": text, "probability": probability} for text, probability in extras.probabilities]
    return {"choice_probabilities": found} if found else {}


def _ranked_tokens(score: TokenLogprob) -> Json:
    """A token of a prompt and the likeliest ones at its place, by id."""
    table: Json = {}
    ranked = [(rank, *one) for rank, one in enumerate(score.ranked, 1)]
    for rank, token, logprob in (*ranked, (score.rank, score.token, score.logprob)):
        table.setdefault(str(token.id), {"logprob": logprob, "rank": rank, "decoded_token": token.text})
    return table


def _chat_choice(index: int, delta: Json, finish: Finish | None, scores: Scores | None = None) -> Json:
    return {"index": index, "delta": delta, "logprobs": _chat_logprobs(scores), "finish_reason": finish}


def text_of(parts: Sequence[Piece]) -> str:
    """The text of an answer in parts."""
    return "".join(part.spaced for part in parts if isinstance(part, Text))


def _gaps(extras: Extras) -> Json:
    return {"gaps": [{"text": text, "tokens": tokens} for text, tokens in extras.gaps]} if extras.gaps else {}


def _call_delta(part: CallPart) -> Json:
    """OpenAI's shape: a call begins with its name and empty arguments."""
    if not part.name:
        return {"index": part.index, "function": {"arguments": part.arguments}}
    function = {"name": part.name, "arguments": part.arguments}
    return {"index": part.index, "id": part.id, "type": "function", "function": function}


def _text_choice(index: int, text: str, finish: Finish | None = None, scores: Scores | None = None) -> Json:
    return {"index": index, "text": text, "logprobs": _text_logprobs(scores), "finish_reason": finish}


def _chat_logprobs(scores: Scores | None) -> Json | None:
    if scores is None:
        return None
    return {"content": [scored_token(score) for score in scores], "refusal": None}


def scored_token(score: TokenLogprob) -> Json:
    """`step` is an extension: the request's own step that committed the token."""
    return {
        **_chat_token(score.token, score.logprob),
        "step": score.step,
        "top_logprobs": [_chat_token(token, logprob) for token, logprob in score.ranked],
    }


def _chat_token(token: Token, logprob: float) -> Json:
    return {"token": token.text, "logprob": logprob, "bytes": list(token.raw)}


def _text_logprobs(scores: Scores | None) -> Json | None:
    """OpenAI's older form: lists, and at each position a table from text to log-probability. It always has the answer's
    own token; of two tokens with the same name it has the likelier. `steps` is an extension. One without score has
    null."""
    if scores is None:
        return None
    tokens, logprobs, tables, offsets, steps = [], [], [], [], []
    for score in scores:  # once: they are made as they are read
        tokens.append(_name(score.token))
        logprobs.append(score.logprob if score.known else None)
        tables.append(_by_text([*score.ranked, (score.token, score.logprob)]) if score.known else None)
        offsets.append(score.offset)
        steps.append(score.step if score.known else None)
    return {
        "tokens": tokens,
        "token_logprobs": logprobs,
        "top_logprobs": tables,
        "text_offset": offsets,
        "steps": steps,
    }


def _by_text(ranked: Sequence[tuple[Token, float]]) -> dict[str, float]:
    table: dict[str, float] = {}
    for token, logprob in ranked:
        table.setdefault(_name(token), logprob)
    return table


def _name(token: Token) -> str:
    """A token's text, or OpenAI's spelling of its bytes where they are a part of a character."""
    if REPLACEMENT not in token.text or token.text.encode() == token.raw:
        return token.text
    return "bytes:" + "".join(f"\\x{byte:02x}" for byte in token.raw)


def usage_json(prompt_tokens: int, usages: Mapping[int, Usage], choices: int) -> Json:
    """Sum up the usage of answers, given by number, `choices` for each prompt. Cached tokens of a prompt count once,
    from its first choice. Answers that `best_of` did not choose count too."""
    total = Usage.total(usages.values())
    completion_tokens = total.completion_tokens
    cached_tokens = sum(usage.stats.cached_tokens for number, usage in usages.items() if number % choices == 0)
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
        "prompt_tokens_details": {"cached_tokens": cached_tokens},
        "completion_tokens_details": {
            "reasoning_tokens": total.reasoning_tokens,
            **{name: getattr(total.stats, name) for name in COSTS},
        },
    }
