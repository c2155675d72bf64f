"""Makes the scheduler's request of what an answer was asked to be."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...scheduler.contract import Sampling
from ...scheduler.decoding.attention_pattern import AttentionPattern
from ...scheduler.decoding.resolve import resolve
from ...scheduler.request import Request
from .messages import AnswerOptions


def request_of(
    number: int, prompt: Sequence[int], options: AnswerOptions, decoder: str, pattern: AttentionPattern
) -> Request:
    """`decoder` is for options that name none, `pattern` the network's. Raises `ParamError`."""
    name = decoder if options.decoder is None else options.decoder
    return Request(
        id=number,
        prompt=np.array(prompt, np.int32),
        max_tokens=options.max_tokens,
        decoder=resolve(name, options.knobs, options.max_tokens, pattern),
        sampling=Sampling(options.temperature, options.top_p, options.seed, options.top_k, options.min_p),
        watched=options.watch,
        preferences=options.preferences,
        ranks=options.ranks,
        share_group=options.share_group,
        constraint=None if options.constraint is None else options.constraint(),
        suffix=np.array(options.suffix, np.int32),
        cache_salt=options.cache_salt,
    )
