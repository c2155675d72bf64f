"""The slots, pages and tokens that a request needs at most. It gets slots and pages when it is admitted."""

from __future__ import annotations

from ..decoding.attention_pattern import AttentionPattern
from ..decoding.compatibility import RequestFacts
from ..decoding.vocabulary import Vocabulary
from ..request import Request
from .pages import Limits


def needs(request: Request, limits: Limits, pattern: AttentionPattern) -> tuple[int, int]:
    """Slots and pages."""
    decoder = request.decoder
    each = limits.pages_for(_branch_tokens(request, limits, pattern))
    return 1 + decoder.branches, limits.pages_for(request.room) + decoder.branches * each


def facts_of(
    request: Request, vocabulary: Vocabulary, limits: Limits, pattern: AttentionPattern, measured: bool
) -> RequestFacts:
    """The facts by which `compatibility.refuse` refuses a request; `measured`: the time of steps is known."""
    tokens = pattern.ceil(request.length) + request.decoder.branches * _branch_tokens(request, limits, pattern)
    return RequestFacts(
        decoder=request.decoder,
        vocabulary=vocabulary,
        pattern=pattern,
        positions=request.length,
        max_positions=limits.max_model_len,
        suffix=bool(len(request.suffix)),
        grammar="" if request.constraint is None else request.constraint.name,
        logprobs=request.ranks is not None,
        measured=measured,
        needs=(*needs(request, limits, pattern), tokens),
        limits=(limits.slots, limits.pages, limits.step_tokens),
    )


def _branch_tokens(request: Request, limits: Limits, pattern: AttentionPattern) -> int:
    """Positions of a branch's row, at most: it may begin with a page."""
    longest = request.decoder.branch_row + limits.page_size - 1 + pattern.logit_shift
    return min(longest, pattern.ceil(request.length))
