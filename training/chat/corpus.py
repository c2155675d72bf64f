"""The mixture that tiny-chat learns: the problems and stories of the first models, and conversations."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

from tokenizers import Tokenizer

from ..corpus import Example
from ..corpus import examples as first_corpus
from .chores import settled
from .conversation import Conversation, conversations, refused
from .write import ChatWriter

FIRST = 0.36  # share of examples that are those of the first models


def mixture(seed: str) -> Iterator[Conversation]:
    """Conversations without end; the same seed gives the same ones on every machine."""
    r = Random(seed)
    first, talked = first_corpus(seed), conversations(r)
    while True:
        if r.random() < FIRST:
            prompt, answer = next(first)
            if not refused(prompt):
                yield Conversation((("user", prompt),), settled(answer))
        else:
            yield next(talked)


def encoded(seed: str, tokenizer: Tokenizer) -> Iterator[Example]:
    writer = ChatWriter(tokenizer)
    for conversation in mixture(seed):
        yield writer.example(conversation)
