"""The lengths that are tried for an answer before a suffix, if the request gives none; the likeliest answer is kept.

A masked diffusion model fills its canvas to the last position, so a canvas before a suffix must have the right
length.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ..engine.messages import Finish, Usage
from ..schema.responses import Finished
from ..text.logprobs import mean_logprob

LENGTHS = (4, 6, 8, 10, 12, 14, 16, 20, 24, 28, 32, 40, 48, 64)


def lengths(room: int, least: int) -> list[int]:
    """The lengths to try for an answer of `least` to `room` tokens."""
    fitting = [length for length in LENGTHS if least <= length <= room]
    return fitting or [max(least, min(room, LENGTHS[0]))]


def likeliest(tries: Sequence[Finished]) -> Finished:
    """The answer with the highest mean log-probability, with the cost of all tries. Its finish reason is `stop`: no
    limit cut it, it ends where the suffix begins."""
    best = max(tries, key=lambda choice: mean_logprob(choice.scores or ()))
    cost = Usage.total([choice.usage for choice in tries])
    return replace(best, finish=Finish.STOP, usage=replace(cost, completion_tokens=best.usage.completion_tokens))
