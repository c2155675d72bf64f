"""Leaves some positions of rows out of a network's later layers: FOCUS, arXiv 2601.23278.

How many go on is known on the host, so all sizes are; which ones is found on the device, without a wait. Only
candidates of one row are compared, so an answer does not depend on the other rows of a step.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from .pack import CANDIDATE, GOES_ON, NOWHERE, STOPS, Batch, Measures, Selecting


@dataclass(frozen=True, slots=True)
class Selected:
    """The K tokens and M projected positions that go on, in order, and padding after them."""

    tokens: Tensor  # [K] int64: index among all tokens
    real: Tensor  # [K] bool: False for padding
    projected: Tensor  # [M] int64: index among all projected positions, each at most once
    projected_real: Tensor  # [M] bool
    batch: Batch  # of these projected positions alone; rows and all that belongs to tokens are those of the whole

    def of(self, each: Tensor) -> Tensor:
        """The part of `each` [T, ...] that belongs to tokens that go on."""
        return each[self.tokens]

    def spread(self, lines: Tensor, tokens: Tensor, proposal: int) -> Tensor:
        """Lines [L, M] int32 of a result for all N projected positions, [L, N]: at those that were left out `tokens`
        [N], the `proposal`, and zeros."""
        whole = lines.new_zeros((len(lines), len(tokens)))
        whole[1] = proposal
        whole[:, self.projected] = torch.where(self.projected_real, lines, whole[:, self.projected])
        whole[0] = tokens.int()
        return whole


def select(batch: Batch, selecting: Selecting, gains: Tensor) -> Selected:
    """The tokens that go on: of each row the candidates with the highest `gains` [C], of equal ones the first."""
    device, total = gains.device, len(batch.positions)
    starts = selecting.candidate_starts.long()
    candidates = torch.arange(len(gains), device=device)
    rows = torch.searchsorted(starts[1:], candidates, right=True)
    order = gains.argsort(descending=True, stable=True)
    order = order[rows[order].argsort(stable=True)]  # row by row, the highest first
    owners = rows[order].clamp_max(len(starts) - 2)
    chosen = candidates - starts[owners] < selecting.keeps[owners]
    real = order < starts[-1]
    chosen_tokens = torch.where(real & chosen, selecting.candidates[order], total)
    fates = selecting.fates
    going = torch.cat(((fates != STOPS) & (fates != CANDIDATE), fates.new_zeros(1, dtype=torch.bool)))
    read = torch.cat((fates == GOES_ON, going[-1:]))
    going.index_fill_(0, chosen_tokens, True)
    read.index_fill_(0, chosen_tokens, True)
    tokens, tokens_real, ordered = _first(going[:total], selecting.kept, selecting.row_starts[-1])
    there = torch.arange(len(batch.projected), device=device) < batch.projected_starts[-1]
    projected, projected_real, ordered_projected = _first(
        read[batch.projected] & there, selecting.kept_projected, selecting.projected_starts[-1]
    )
    within = torch.searchsorted(ordered, batch.projected[projected]).clamp_max(selecting.kept - 1)
    own = _of_projected(batch, selecting, projected, ordered_projected, within)
    return Selected(tokens, tokens_real, projected, projected_real, own)


def _first(flags: Tensor, size: int, count: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The first `count` places where `flags` [any] are set: `size` of them with padding, which of them are real, and
    the places with numbers after all others as padding. `size` is at most the number of flags."""
    places = (~flags).to(torch.uint8).argsort(stable=True)[:size]
    real = torch.arange(size, device=flags.device) < count
    return places, real, torch.where(real, places, len(flags))


def _of_projected(batch: Batch, selecting: Selecting, chosen: Tensor, ordered: Tensor, within: Tensor) -> Batch:
    """The batch with the projected positions `chosen` [M] alone, which are predicted `within` [M] tokens that go on."""
    draws = None if batch.draws is None else type(batch.draws)(*(each[chosen] for each in batch.draws))
    measures, biases, restrictions = batch.measures, batch.biases, batch.restrictions
    if measures is not None:
        of_measures = type(measures.draws)(*(each[chosen] for each in measures.draws))
        measures = Measures(measures.kinds[chosen], measures.noise[chosen], of_measures)
    if biases is not None:
        begins, ends = (torch.searchsorted(ordered, each.long()).int() for each in (biases.begins, biases.ends))
        biases = biases._replace(begins=begins, ends=ends)
    if restrictions is not None:
        places = torch.searchsorted(ordered, restrictions.places.long()).int()
        restrictions = restrictions._replace(places=torch.where(restrictions.places < 0, NOWHERE, places))
    return replace(
        batch,
        projected=within,
        targets=batch.targets[chosen],
        target_slots=batch.target_slots[chosen],
        projected_stored=None if batch.projected_stored is None else batch.projected_stored[chosen],
        projected_starts=selecting.projected_starts,
        projected_attention=selecting.projected_attention,
        endless=batch.endless[chosen],
        rules=batch.rules._replace(starts=selecting.span_starts),
        draws=draws,
        measures=measures,
        biases=biases,
        restrictions=restrictions,
        scored=None if batch.scored is None else batch.scored[chosen],
        selecting=None,
    )
