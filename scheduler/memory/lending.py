"""Which pages a request shares with others: what it may find, when it may begin, and what it leaves behind."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np

from ..contract import Ints
from .prefix_cache import NO_HASHES, BlockHashes, PrefixCache

if TYPE_CHECKING:
    from ..sequence import Sequence
    from ..work import PlannedRequest


def block_hashes(sequence: Sequence, prefixes: PrefixCache) -> BlockHashes:
    """Of the pages of its prompt that others may have too: whole ones, if nothing computes them again."""
    request, decoder = sequence.request, sequence.request.decoder
    # A network that predicts from the position before computes the prompt's last one together with the canvas.
    prompt = request.prompt[: max(0, sequence.prompt_length - sequence.pattern.logit_shift)]
    if not sequence.cache.keeps_prompt:
        return NO_HASHES
    if prefixes.keeps:
        return prefixes.names("salt " + request.cache_salt, prompt, grows=True)
    if request.share_group is None or decoder.branches or decoder.adaptive:
        return NO_HASHES
    return prefixes.names("family " + request.share_group, prompt, grows=False)


def may_begin(sequence: Sequence, flight: Iterable[PlannedRequest]) -> bool:
    """Whether what it does not compute itself in its first step is known, or is computed in a step with `flight`."""
    if sequence.steps or sequence.lease is None:
        return True
    return sequence.lease.there([work.sequence.id for work in flight])


def lend(sequence: Sequence, work: PlannedRequest) -> None:
    """Pages that its step `work` has left as they will stay are for others, too."""
    lease, prompt = sequence.lease, sequence.request.prompt
    if lease is None:
        return
    if sequence.steps == 1:
        sequence.cached_tokens = work.window.start
        lease.computed()

    def text(start: int, end: int) -> Ints:
        behind = sequence.canvas[max(start - len(prompt), 0) : max(end - len(prompt), 0)]
        return np.concatenate((prompt[start:end], behind))

    grown = lease.grow(work.reach.frontier, text, sequence.held.pages)
    sequence.held = sequence.held._replace(pages=sequence.held.pages[grown:])
