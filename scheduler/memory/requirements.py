"""What a request can ever need of the device, all of which it gets when it is admitted."""

from __future__ import annotations

from ..decoding.attention_pattern import Geometry
from ..decoding.params import KnobError
from ..request import Request
from .pages import Limits


def needs(request: Request, limits: Limits, geometry: Geometry) -> tuple[int, int]:
    """Slots and pages."""
    decoder = request.decoder
    each = limits.pages_for(_branch_tokens(request, limits, geometry))
    return 1 + decoder.branches, limits.pages_for(request.room) + decoder.branches * each


def check_branches(request: Request, limits: Limits, geometry: Geometry) -> None:
    """Raises `KnobError` if rows in slots of their own can never all be held, or never be in one step."""
    branches, knob = request.decoder.branches, request.decoder.branch_knob
    if not branches:
        return
    slots, pages = needs(request, limits, geometry)
    tokens = geometry.ceil(request.length) + branches * _branch_tokens(request, limits, geometry)
    if slots > limits.slots or pages > limits.pages or tokens > limits.step_tokens:
        raise KnobError(
            knob,
            f"{slots} rows at a time need {slots} requests' places, {pages} pages and {tokens} tokens in a step;"
            f" there are {limits.slots}, {limits.pages} and {limits.step_tokens}: lower {knob}",
        )


def _branch_tokens(request: Request, limits: Limits, geometry: Geometry) -> int:
    """Positions of a branch's row, at most: it may begin with a page."""
    longest = request.decoder.branch_row + limits.page_size - 1 + geometry.shift
    return min(longest, geometry.ceil(request.length))
