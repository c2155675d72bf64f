"""Log-probabilities that are made as they are read are the same each time, from any place on."""

from __future__ import annotations

import numpy as np
import pytest

from asynclane.scheduler import Scored
from asynclane.server.text.logprobs import LogprobReader, Place, in_a_row
from asynclane.server.text.tokenizer import Tokenizer

IDS = [300, 301, 302, 303, 304]


def scored(start: int, count: int) -> Scored:
    """Those of so many tokens, of which each has a log-probability of its own, and two likeliest ones."""
    at = np.arange(start, start + count, dtype=np.int32)
    ranked = np.stack((at + 10, at + 20), axis=1)
    return Scored(-at.astype(np.float32), at, ranked, -ranked.astype(np.float32), at + 1)


@pytest.mark.parametrize("sizes", [(5,), (1, 4), (2, 0, 3), (1, 1, 1, 1, 1)], ids=str)
def test_tokens_have_their_scores_however_steps_and_places_come(text: Tokenizer, sizes: tuple[int, ...]) -> None:
    """A place comes with its token or later, and parts of a text are one text."""
    (whole,) = [LogprobReader(text).read(IDS, [Place(at, at + 1) for at in range(5)], scored(0, 5))]
    reader, parts, done, placed = LogprobReader(text), [], 0, 0
    for size in sizes:
        late = placed if done + size < 5 else 5
        places = [Place(at, at + 1) for at in range(placed, late)]
        parts.append(reader.read(IDS[: done + size], places, scored(done, size)))
        placed, done = late, done + size
    joined = in_a_row(parts)
    assert [*joined] == [*joined] == [*whole]
    assert [(one.token.id, one.offset, one.step, one.rank) for one in whole] == [
        (token, at, at, at + 1) for at, token in enumerate(IDS)
    ]
    assert [[token.id for token, _ in one.ranked] for one in whole] == [[at + 10, at + 20] for at in range(5)]


def test_a_part_is_that_of_all(text: Tokenizer) -> None:
    reader = LogprobReader(text)
    first = reader.read(IDS, [Place(0, 1), Place(1, 2)], scored(0, 5))
    rest = reader.read(IDS, [Place(2, 3), Place(3, 4), Place(4, 5)], None)
    joined = in_a_row([first, rest])
    whole = [*joined]
    assert len(joined) == len(whole) == 5
    for start in range(6):
        for end in range(start, 6):
            assert [*joined[start:end]] == whole[start:end]
            assert [*joined[start:end][1:]] == whole[start:end][1:]
    assert [joined[at] for at in range(-5, 5)] == whole * 2
    with pytest.raises(IndexError):
        joined[5]
    with pytest.raises(ValueError, match="have a place"):
        reader.read([*IDS, 305], [Place(5, 6)], None)
