"""What a request can ever need of the device, all of which it gets when it is admitted."""

from __future__ import annotations

from ..decoding.attention_pattern import AttentionPattern
from ..decoding.params import ParamError
from ..request import Request
from .pages import Limits


def needs(request: Request, limits: Limits, pattern: AttentionPattern) -> tuple[int, int]:
    """Slots and pages."""
    decoder = request.decoder
    each = limits.pages_for(_branch_tokens(request, limits, pattern))
    return 1 + decoder.branches, limits.pages_for(request.room) + decoder.branches * each


def check_branches(request: Request, limits: Limits, pattern: AttentionPattern) -> None:
    """Raises `ParamError` if rows in slots of their own can never all be held, or never be in one step."""
    branches, knob = request.decoder.branches, request.decoder.branch_param
    if not branches:
        return
    slots, pages = needs(request, limits, pattern)
    tokens = pattern.ceil(request.length) + branches * _branch_tokens(request, limits, pattern)
    if slots > limits.slots or pages > limits.pages or tokens > limits.step_tokens:
        raise ParamError(
            knob,
            f"{slots} rows at a time need {slots} requests' places, {pages} pages and {tokens} tokens in a step;"
            f" there are {limits.slots}, {limits.pages} and {limits.step_tokens}: lower {knob}",
        )


def _branch_tokens(request: Request, limits: Limits, pattern: AttentionPattern) -> int:
    """Positions of a branch's row, at most: it may begin with a page."""
    longest = request.decoder.branch_row + limits.page_size - 1 + pattern.logit_shift
    return min(longest, pattern.ceil(request.length))
