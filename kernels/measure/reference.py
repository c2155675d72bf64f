"""Measures of confidence in torch."""

from __future__ import annotations

import torch
from torch import Tensor

from ..common.noise import gumbel, position_noise
from ..common.types import Draws, Prediction

PROBABILITY, MARGIN, ENTROPY, RANDOM, SINGLE = range(5)  # the numbers of `scheduler.contract.Measure`
STAND_IN_OFFSET = 64.0  # ranks a stand-in for an end token last: no vocabulary has an entropy of so many nats


def measure(logits: Tensor, found: Prediction, kinds: Tensor, noise: Tensor, draws: Draws) -> Tensor:
    """Confidence [N] float64 by the `measure` and `noise` of `scheduler.contract.DeviceCommitRule`, finite where
    probabilities are.

    logits [N, V] as `predict` left them; kinds [N] int32; noise [N] float32. Noise depends on (seed, position, step)
    alone. The largest Gumbel noise plus log-weights is a draw without replacement (Efraimidis and Spirakis, 2006;
    Kool et al., 2019). SINGLE has the bits of torch's float32 softmax here: published rules compare such numbers, of
    which many are equal, so that their last bits decide. A GPU rounds the probability and reads no logits.
    """
    found = _with_singles(logits, found, kinds)
    drawn = position_noise(draws).double()
    last = found.commit_probability - STAND_IN_OFFSET
    stands_in = found.tokens != found.proposals
    plain = torch.stack(
        (
            found.commit_probability,
            torch.where(stands_in, last, found.margin),
            torch.where(stands_in, last, -found.entropy.double()),
            drawn,
            found.commit_probability.float().double(),
        )
    )
    chosen = plain.gather(0, kinds.long()[None])[0]
    wide = noise.double()
    return torch.where(noise > 0, chosen / torch.where(noise > 0, wide, 1.0) + gumbel(drawn), chosen)


def _with_singles(logits: Tensor, found: Prediction, kinds: Tensor) -> Prediction:
    where = (kinds == SINGLE).nonzero()[:, 0]
    if not len(where):
        return found
    shares = logits[where].float().softmax(-1).gather(-1, found.tokens[where, None])[:, 0]
    return found._replace(commit_probability=found.commit_probability.index_copy(0, where, shares.double()))
