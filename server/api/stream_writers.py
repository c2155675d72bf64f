"""Writers of streams: from an answer's deltas to server-sent events, in the shape of an endpoint."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from ..engine.messages import Delta, Usage
from ..errors import ApiError
from ..http.sse import DONE, event
from ..schema.requests import GenerationRequest
from ..schema.responses import Finished, Json, Reply, Scores, usage_chunk, usage_json
from ..text.splitter import Piece

PartChunk = Callable[[int, Piece | None, Scores | None], Json]


class StreamWriter(Protocol):
    """Writes one stream. Each of its methods returns events; the first news opens the stream."""

    def write(self, index: int, delta: Delta, parts: Sequence[Piece]) -> Iterator[bytes]:
        """The news of one answer. `parts` are those of an answer that is read in parts."""
        ...

    def end(self) -> Iterator[bytes]:
        """The events after all answers."""
        ...

    def failure(self, error: ApiError) -> bytes:
        """An error in the middle of the stream, which ends it."""
        ...


@dataclass(frozen=True, slots=True)
class AnswerShape:
    """The shape of an endpoint's answers: a response for all choices and their usage, and a stream's writer for a
    prompt of so many tokens and the texts that its answers begin with."""

    whole: Callable[[Sequence[Finished], Json], Json]
    writer: Callable[[int, Sequence[str]], StreamWriter]


def openai_shape(reply: Reply, body: GenerationRequest, part: PartChunk | None = None) -> AnswerShape:
    """OpenAI's shape. With `part`, answers are read in parts, and it is the chunk of one."""
    return AnswerShape(reply.whole, lambda tokens, echoes: ChunkWriter(reply, body, tokens, echoes, part))


class ChunkWriter:
    """Writes OpenAI's chunks."""

    def __init__(
        self,
        reply: Reply,
        body: GenerationRequest,
        prompt_tokens: int,
        echoes: Sequence[str],
        part: PartChunk | None,
    ) -> None:
        self._reply = reply
        self._body = body
        self._prompt_tokens = prompt_tokens
        self._echoes = echoes
        self._part = part
        self._usages: dict[int, Usage] = {}
        self._begun = False

    def write(self, index: int, delta: Delta, parts: Sequence[Piece]) -> Iterator[bytes]:
        reply = self._reply
        if not self._begun:
            self._begun = True
            yield from self._opening()
        self._usages[index] = delta.usage or self._usages.get(index, Usage())
        if delta.lanes is not None:
            yield self._chunk(reply.lanes(index, delta.lanes))
        scores = delta.scores if self._body.shows_scores else None
        if self._part is not None:
            for part in parts or ((None,) if scores else ()):
                yield self._chunk(self._part(index, part, scores))
                scores = None
        elif delta.text or delta.scores:
            yield self._chunk(reply.delta(index, delta.text, scores))
        if delta.finish is not None:
            yield self._chunk(reply.closing(index, delta.finish))

    def end(self) -> Iterator[bytes]:
        if self._body.streaming.include_usage:
            yield event(usage_chunk(self._reply, self._usage()))
        yield DONE

    def failure(self, error: ApiError) -> bytes:
        """The stream ends without DONE."""
        return event(error.body(), "error")

    def _opening(self) -> Iterator[bytes]:
        for index, echo in enumerate(self._echoes):
            first = self._reply.opening(index)
            if first is not None:
                yield self._chunk(first)
            if echo:
                yield self._chunk(self._reply.delta(index, echo))

    def _chunk(self, payload: Json) -> bytes:
        continuous = self._body.streaming.continuous_usage_stats
        return event({**payload, "usage": self._usage()} if continuous else payload)

    def _usage(self) -> Json:
        return usage_json(self._prompt_tokens, self._usages, self._body.choices)
