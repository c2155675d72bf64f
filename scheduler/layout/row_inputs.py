"""What a row of a request tells the device besides its positions, and what it asks to be told."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ..contract import Bias, Ints

if TYPE_CHECKING:
    from ..sequence import Sequence


def ranks(sequence: Sequence) -> int | None:
    """How many likeliest tokens its steps must tell."""
    judged = None if sequence.judging is None else sequence.judging.ranks
    return sequence.request.ranks if judged is None else judged  # a judge is told as many as there are


def biases(sequence: Sequence, draft: Ints | None = None) -> tuple[Bias, ...]:
    """What the next step adds to its logits, on the canvas or a `draft` of it."""
    if sequence.biasing is None:
        return ()
    canvas, end = sequence.canvas, sequence.end_at
    if draft is not None and sequence.judging is not None:
        canvas, end = draft, min(end, sequence.judging.first_end(draft))
    return sequence.biasing.of(sequence.prompt_length, canvas, end)


def held_by(sequence: Sequence, start: int, end: int, draft: Ints | None = None) -> Ints:
    """What stands at the absolute positions `[start, end)`, with a `draft` in the place of the canvas; masks behind
    all, where a block has not ended."""
    prompt, suffix = sequence.request.prompt, sequence.request.suffix
    canvas = sequence.canvas if draft is None else draft
    first, behind = sequence.prompt_length, sequence.prompt_length + len(canvas)
    if first <= start and end <= behind:  # nearly always
        return canvas[start - first : end - first].copy()
    parts = (prompt[start:end], canvas[max(start - first, 0) : max(end - first, 0)])
    found = np.concatenate((*parts, suffix[max(start - behind, 0) : max(end - behind, 0)]))
    return np.pad(found, (0, end - start - len(found)), constant_values=sequence.tree.mask_id)
