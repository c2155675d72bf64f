"""The likelihood of a prompt, as evaluation tools request it; and the probabilities of the texts of which an answer is
one. Answers that score tokens go to the engine beside those that are sent, which get their scores."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from itertools import islice

from .. import errors
from ..engine.messages import Delta, Finish, GivenTokens, Usage
from ..schema.requests import CompletionRequest, GenerationRequest
from ..schema.responses import Finished
from ..text.detokenizer import AnswerText
from ..text.logprobs import TokenLogprob, token_of
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
    return start, GivenTokens((tuple(ids[start:]),), proposes, 0 if proposes else body.samples)


def option_tokens(tokenizer: Tokenizer, options: Sequence[str], context: int, param: str) -> GivenTokens:
    """The tokens of each option of a parameter. Raises `TextTooLong`."""
    encoded = [tokenizer.encode(text, specials=False, most_tokens=context, plain=True) for text in options]
    return GivenTokens(tuple(map(tuple, encoded)), param=param)


def prompt_tokens(ids: Sequence[int]) -> GivenTokens:
    """All tokens of a prompt but the first, to be scored after that. Of a prompt without others it is the network's
    own, since a step has at least one token to compute."""
    return GivenTokens((tuple(ids[1:]),), proposes=len(ids) == 1, param="prompt_logprobs")


Scores = tuple[TokenLogprob, ...]


@dataclass(frozen=True, slots=True)
class Scoring:
    """An answer to `ids` that scores tokens `given`, with `ranks` likeliest ones each, for all answers to a prompt, by
    its number. `join` adds the scores to their last deltas."""

    prompt: int
    ids: list[int]
    given: GivenTokens
    ranks: int
    join: Callable[[GivenTokens, Delta, Scores], Delta]


def join_options(given: GivenTokens, delta: Delta, scores: Scores) -> Delta:
    """A delta with the log-probability of each option, the sum over its tokens."""
    logprobs = iter([score.logprob for score in scores])
    sums = [math.fsum(islice(logprobs, len(chain))) for chain in given.chains]
    return replace(delta, option_logprobs=tuple(sums))


def join_prompt(given: GivenTokens, delta: Delta, scores: Scores) -> Delta:
    """A delta with the scores of the prompt's tokens."""
    return replace(delta, prompt_scores=scores[: len(given.chains[0])])


@dataclass(frozen=True, slots=True)
class ScoredAnswers:
    """Answers to several prompts, whose numbers are the `owners`, that are followed by others which only score: the
    `scorings`. `texts` are the options of which each answer is one. If each has one token, these are the `tokens`,
    which the first forwards of the answers score."""

    owners: Sequence[int]
    scorings: Sequence[Scoring]
    texts: Sequence[str]
    tokens: tuple[int, ...]

    @classmethod
    def of(
        cls, body: GenerationRequest, prompts: Sequence[list[int]], owners: Sequence[int], options: GivenTokens
    ) -> ScoredAnswers:
        """The scores that a request wants. `options` are the tokens of those texts of which the answer is one."""
        single = all(len(chain) == 1 for chain in options.chains)
        ranks, scorings = body.prompt_logprobs, list[Scoring]()
        for number, ids in enumerate(prompts):
            if not single:
                scorings.append(Scoring(number, ids, options, 0, join_options))
            if ranks is not None:
                scorings.append(Scoring(number, ids[:1], prompt_tokens(ids), ranks, join_prompt))
        tokens = tuple([token for chain in options.chains for token in chain]) if single else ()
        return cls(owners, scorings, body.scored_options, tokens)

    @property
    def needed(self) -> bool:
        """False for answers without anything of this."""
        return bool(self.scorings or self.texts)

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
        for scoring, scored in found:
            delta = scoring.join(scoring.given, delta, scored.scores)
        if self.texts:
            delta = replace(delta, probabilities=tuple(zip(self.texts, _shares(delta.option_logprobs), strict=True)))
        if delta.usage is not None and index == self.owners.index(self.owners[index]):
            total = Usage.total([delta.usage, *(one.usage for _, one in found if one.usage is not None)])
            delta = replace(delta, usage=replace(delta.usage, stats=total.stats))
        return delta


def _shares(logprobs: Sequence[float]) -> Iterator[float]:
    """The exponential of each, over the sum of all."""
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
    found = list(choice.scores or ())
    start = body.likelihood_start or 1
    scored, own = found[: len(ids) - start], found[len(ids) - start :]
    places = AnswerText(tokenizer, placed=True)
    shown = places.feed(ids)[0] + places.flush()
    offsets = [place.start for place in places.take_places()]
    before = [TokenLogprob(token_of(tokenizer, token), math.nan, 0, 0, ()) for token in ids[:start]]
    scores = [replace(one, offset=at) for one, at in zip((*before, *scored), offsets, strict=True)]
    if not body.max_tokens:
        return replace(choice, text=text, scores=scores, finish=Finish.LENGTH)
    token = replace(own[0], offset=len(shown))
    tokens = int(choice.finish is not Finish.STOP)  # an end token is not counted
    usage = replace(choice.usage, completion_tokens=tokens)
    return replace(choice, text=text + token.token.text * tokens, scores=[*scores, token], usage=usage)
