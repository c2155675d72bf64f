"""The likelihood of a prompt, as evaluation tools request it; and the probabilities of the texts of which an answer is
one. Answers that score tokens go to the engine beside those that are sent, which get their scores."""

from __future__ import annotations

import math
from array import array
from collections import Counter, defaultdict
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from itertools import chain, islice, repeat
from typing import Protocol

from .. import errors
from ..engine.messages import Delta, Extras, Finish, GivenTokens
from ..schema.completion_request import CompletionRequest
from ..schema.requests import GenerationRequest
from ..schema.responses import Finished
from ..text.detokenizer import AnswerText
from ..text.logprobs import Logprobs, TokenLogprob, token_of
from ..text.tokenizer import Tokenizer


def given_tokens(body: CompletionRequest, ids: Sequence[int], context: int) -> tuple[int, GivenTokens]:
    """The number of tokens before the first that is scored, and what is scored after them. Raises `InvalidValue` and
    `ContextLengthExceeded`."""
    size, start = len(ids), body.likelihood_start or 1
    if size > context:
        raise errors.ContextLengthExceeded(context, size, param="prompt")
    if start > size:
        raise errors.InvalidValue("likelihood_start", f"likelihood_start: {start} is more than the {size} tokens given")
    # A step has at least one token to compute: where none is given, it is the network's own.
    proposes = bool(body.max_tokens) or start == size
    samples = 0 if proposes else body.samples
    return start, GivenTokens(*_flat([ids[start:]]), proposes=proposes, samples=samples)


def candidate_tokens(tokenizer: Tokenizer, texts: Sequence[str], context: int, param: str) -> GivenTokens:
    """The tokens of each text of a parameter. Raises `TextTooLong`."""
    encoded = [tokenizer.encode(text, specials=False, most_tokens=context, plain=True) for text in texts]
    return GivenTokens(*_flat(encoded), sums=True, param=param)


def prompt_tokens(ids: Sequence[int]) -> GivenTokens:
    """All tokens of a prompt but the first, to be scored after that. Of a prompt without others it is the network's
    own, since a step has at least one token to compute."""
    return GivenTokens(*_flat([ids[1:]]), proposes=len(ids) == 1, param="prompt_logprobs")


def _flat(chains: Sequence[Sequence[int]]) -> tuple[bytes, tuple[int, ...]]:
    """The tokens of chains, one after another, and their lengths."""
    return array("i", chain.from_iterable(chains)).tobytes(), tuple(map(len, chains))


@dataclass(frozen=True, slots=True)
class Scoring:
    """An answer to `ids` that scores tokens `given`, with `ranks` likeliest ones each, for all answers to a prompt, by
    its number."""

    prompt: int
    ids: list[int]
    given: GivenTokens
    ranks: int


class Found(Protocol):
    """The end of an answer that scores tokens."""

    @property
    def scores(self) -> Sequence[TokenLogprob]: ...
    @property
    def candidate_logprobs(self) -> Sequence[float]: ...


@dataclass(frozen=True, slots=True)
class ScoredAnswers:
    """Answers to several prompts, whose numbers are the `owners`, that are followed by others which only score: the
    `scorings`. `candidates` are the texts of which each answer is one."""

    owners: Sequence[int]
    scorings: Sequence[Scoring]
    candidates: Sequence[str]

    @classmethod
    def of(
        cls, body: GenerationRequest, prompts: Sequence[list[int]], owners: Sequence[int], chains: GivenTokens | None
    ) -> ScoredAnswers:
        """The scores that a request wants. `chains` are the tokens of its candidates; None: it has no candidates, or
        each is one token, and the first forward of an answer scores them."""
        ranks, scorings = body.prompt_logprobs, list[Scoring]()
        for number, ids in enumerate(prompts):
            if chains is not None:
                scorings.append(Scoring(number, ids, chains, 0))
            if ranks is not None:
                scorings.append(Scoring(number, ids[:1], prompt_tokens(ids), ranks))
        return cls(owners, scorings, body.candidate_texts)

    @property
    def needed(self) -> bool:
        """False for answers without anything of this."""
        return bool(self.scorings or self.candidates)

    async def deltas(self, merged: AsyncGenerator[tuple[int, Delta], None]) -> AsyncGenerator[tuple[int, Delta], None]:
        """Those of the answers among the `merged` deltas of all. The last one of each waits for the scores."""
        due = Counter([scoring.prompt for scoring in self.scorings])
        held = defaultdict[int, list[tuple[int, Delta]]](list)
        found = defaultdict[int, list[tuple[Scoring, Delta]]](list)
        async with aclosing(merged):
            async for index, delta in merged:
                answers = index < len(self.owners)
                if delta.finish is None:
                    if answers:
                        yield index, delta
                    continue
                if answers:
                    prompt = self.owners[index]
                    held[prompt].append((index, delta))
                else:
                    scoring = self.scorings[index - len(self.owners)]
                    prompt = scoring.prompt
                    found[prompt].append((scoring, delta))
                if len(found[prompt]) == due[prompt]:
                    for number, last in held.pop(prompt, ()):
                        yield number, self._complete(number, last, found[prompt])

    def _complete(self, index: int, delta: Delta, found: Sequence[tuple[Scoring, Delta]]) -> Delta:
        """The last delta of an answer. The first answer to a prompt bears the cost of its scores."""
        usage, extras = delta.usage, self.extras(delta.candidate_logprobs, found)
        if usage is not None and index == self.owners.index(self.owners[index]):
            usage = usage.with_costs([one.usage for _, one in found if one.usage is not None])
        return replace(delta, usage=usage, extras=extras._replace(gaps=delta.extras.gaps))

    def extras(self, logprobs: Sequence[float], found: Sequence[tuple[Scoring, Found]]) -> Extras:
        """The additions to an answer from scores that were `found`. `logprobs` are those of candidates of one token
        each, which the answer's first forward has scored."""
        prompt_scores = None
        for scoring, scored in found:
            if scoring.given.sums:
                logprobs = scored.candidate_logprobs
            else:
                prompt_scores = scored.scores[: sum(scoring.given.lengths)]
        shares = _shares(logprobs) if self.candidates else ()
        return Extras(tuple(zip(self.candidates, shares, strict=True)), prompt_scores)


def _shares(logprobs: Sequence[float]) -> Iterator[float]:
    """The exponential of each, over the sum of all. NaN, which broken weights give, has none."""
    logprobs = [-math.inf if math.isnan(total) else total for total in logprobs]
    best = max(logprobs)
    if best == -math.inf:  # a bias bans all of them
        return iter([1 / len(logprobs)] * len(logprobs))
    weights = [math.exp(total - best) for total in logprobs]
    whole = math.fsum(weights)
    return (weight / whole for weight in weights)


def with_prompt(
    tokenizer: Tokenizer, ids: Sequence[int], text: str, body: CompletionRequest, choice: Finished
) -> Finished:
    """A choice with the prompt's `text` and scores, and those of one more token if it was requested. `choice` has the
    scores of all tokens but the first."""
    scores, start = choice.scores or (), body.likelihood_start or 1
    size = len(ids) + bool(body.max_tokens)
    placed = Logprobs(size, lambda skipped: islice(_placed(tokenizer, ids, start, scores), skipped, size))
    if not body.max_tokens:
        return replace(choice, text=text, scores=placed, finish=Finish.LENGTH)
    token = scores[len(ids) - start]
    tokens = int(choice.finish is not Finish.STOP)  # an end token is not counted
    usage = replace(choice.usage, completion_tokens=tokens)
    return replace(choice, text=text + token.token.text * tokens, scores=placed, usage=usage)


def _placed(
    tokenizer: Tokenizer, ids: Sequence[int], start: int, scores: Sequence[TokenLogprob]
) -> Iterator[TokenLogprob]:
    """The tokens of a prompt, of which the first `start` have no scores, and what follows them, at their places."""
    text = AnswerText(tokenizer, placed=True)
    end = len(text.feed(ids)[0] + text.flush())
    places = chain((place.start for place in text.take_places()), repeat(end))
    before = (TokenLogprob(token_of(tokenizer, token), math.nan, 0, 0, ()) for token in ids[:start])
    for one, at in zip(chain(before, scores), places, strict=False):
        yield replace(one, offset=at)
