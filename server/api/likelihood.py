"""The likelihood of a prompt, `echo` with `logprobs`, as evaluation tools request it; and the probabilities of the
texts of which an answer is one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import islice

from .. import errors
from ..engine.messages import Finish, GivenTokens
from ..schema.requests import CompletionRequest
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


def option_tokens(tokenizer: Tokenizer, options: Sequence[str], context: int) -> GivenTokens:
    """The tokens of each option. Raises `TextTooLong`."""
    encoded = [tokenizer.encode(text, specials=False, most_tokens=context, plain=True) for text in options]
    return GivenTokens(tuple(map(tuple, encoded)))


def option_probabilities(given: GivenTokens, scores: Sequence[TokenLogprob]) -> list[float]:
    """The probability of each option: the exponential of the sum of its log-probabilities, over the sum of all."""
    logprobs = iter([score.logprob for score in scores])
    sums = [math.fsum(islice(logprobs, len(chain))) for chain in given.chains]
    best = max(sums)
    weights = [math.exp(total - best) for total in sums]
    return [weight / math.fsum(weights) for weight in weights]


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
