"""Torch version of `measure`: what counts as a position's confidence where that is not plain probability."""

from __future__ import annotations

import torch
from torch import Tensor

from .noise import gumbel, position_noise
from .prediction import Draws, Prediction

PROBABILITY, MARGIN, ENTROPY, RANDOM, SINGLE = range(5)  # as `scheduler.contract.Measure` has them
BEHIND = 64.0  # how far stand-ins lie behind: no vocabulary has an entropy of so many nats


def measure(found: Prediction, kinds: Tensor, noise: Tensor, draws: Draws) -> Tensor:
    """Confidence [N] float64, finite where probabilities are, by the `measure` and `noise` of
    `scheduler.contract.DeviceCommitRule`.

    kinds [N] int32; noise [N] float32. Noise depends on (seed, position, step) of the draws alone. Largest Gumbel
    noise plus log-weights is a draw without replacement (Efraimidis and Spirakis, 2006; Kool et al., 2019).
    """
    drawn = position_noise(draws).double()
    behind = found.commit_probability - BEHIND
    stands_in = found.tokens != found.proposals
    plain = torch.stack(
        (
            found.commit_probability,
            torch.where(stands_in, behind, found.margin),
            torch.where(stands_in, behind, -found.entropy.double()),
            drawn,
            found.commit_probability.float().double(),
        )
    )
    chosen = plain.gather(0, kinds.long()[None])[0]
    wide = noise.double()
    return torch.where(noise > 0, chosen / torch.where(noise > 0, wide, 1.0) + gumbel(drawn), chosen)


def with_singles(found: Prediction, logits: Tensor, kinds: Tensor) -> Prediction:
    """`found` in logits [N, V], but where kinds [N] int32 are SINGLE, with chances of torch's own softmax in float32:
    published rules compare such, of which many are equal, so that their last bits decide."""
    where = (kinds == SINGLE).nonzero()[:, 0]
    if not len(where):
        return found
    shares = logits[where].float().softmax(-1).gather(-1, found.tokens[where, None])[:, 0]
    return found._replace(commit_probability=found.commit_probability.index_copy(0, where, shares.double()))
