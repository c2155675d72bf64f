"""Leaves some positions of rows out of a network's later layers: FOCUS, arXiv 2601.23278.

How many go on is known on the host, so all sizes are; which ones is found on the device, without a wait. Only
candidates of one row are compared, so an answer does not depend on the other rows of a step. The body of a step finds
the tokens that go on, its tail what is predicted of them: both may be CUDA graphs, so nothing here reads a number.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from .pack import CANDIDATE, GOES_ON, NOWHERE, STOPS, Batch, Measures, Predicting, Selecting

AFTER_ALL = torch.iinfo(torch.int64).max  # the number of padding among tokens


@dataclass(frozen=True, slots=True)
class Selected:
    """The tokens that go on, in order, and padding after them; which of all T tokens are read for a prediction."""

    ordered: Tensor  # [K or more] int64: index among all tokens; AFTER_ALL for padding
    read: Tensor  # [T or more] bool

    @classmethod
    def room(cls, tokens: int, device: torch.device) -> Selected:
        """Room for so many tokens, none of which goes on."""
        ordered = torch.full((tokens,), AFTER_ALL, dtype=torch.int64, device=device)
        return cls(ordered, torch.zeros(tokens, dtype=torch.bool, device=device))

    def fill(self, found: Selected) -> None:
        """Copy what was `found` for at most as many tokens as there is room for."""
        self.ordered[: len(found.ordered)].copy_(found.ordered)
        self.ordered[len(found.ordered) :].fill_(AFTER_ALL)
        self.read[: len(found.read)].copy_(found.read)


@dataclass(frozen=True, slots=True)
class GoingOn:
    """Picks the entries of the tokens that go on from tensors with an entry for each of all T tokens."""

    selected: Selected
    tokens: Tensor  # [K] int64: index among all tokens; that of any token for padding
    real: Tensor  # [K] bool: False for padding

    def of(self, each: Tensor) -> Tensor:
        """The part of `each` [T, ...] that belongs to tokens that go on."""
        return each[self.tokens]

    def places(self, each: Tensor) -> Tensor:
        """The same of places [T] of keys and values, of which padding has none."""
        return torch.where(self.real, self.of(each), NOWHERE)


@dataclass(frozen=True, slots=True)
class Predicted:
    """The M projected positions that are predicted, in order, and padding after them."""

    projected: Tensor  # [M] int64: index among all projected positions, each at most once
    real: Tensor  # [M] bool: False for padding
    batch: Batch  # of these projected positions alone; rows and all that belongs to tokens are those of the whole

    def spread(self, lines: Tensor, tokens: Tensor, proposal: int) -> Tensor:
        """Lines [L, M] int32 of a result for all N projected positions, [L, N]: at those that were left out `tokens`
        [N], the `proposal`, and zeros."""
        whole = lines.new_zeros((len(lines), len(tokens)))
        whole[1].fill_(proposal)
        whole[:, self.projected] = torch.where(self.real, lines, whole[:, self.projected])
        whole[0].copy_(tokens)
        return whole


def select(selecting: Selecting, gains: Tensor) -> GoingOn:
    """The tokens that go on: of each row the candidates with the highest `gains` [C], of equal ones the first."""
    device, total = gains.device, len(selecting.fates)
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
    tokens, tokens_real = _first(going[:total], selecting.kept, selecting.row_starts[-1])
    return GoingOn(Selected(torch.where(tokens_real, tokens, AFTER_ALL), read[:total]), tokens, tokens_real)


def predicted(batch: Batch, predicting: Predicting, selected: Selected) -> Predicted:
    """The projected positions that are predicted, where the states of the tokens that go on are those of `selected`."""
    there = torch.arange(len(batch.projected), device=selected.read.device) < batch.projected_starts[-1]
    projected, real = _first(selected.read[batch.projected] & there, predicting.kept, predicting.starts[-1])
    within = torch.searchsorted(selected.ordered, batch.projected[projected])
    within = within.clamp_max(len(selected.ordered) - 1)  # of padding, too
    ordered = torch.where(real, projected, AFTER_ALL)
    return Predicted(projected, real, _of_predicted(batch, predicting, projected, ordered, within))


def _first(flags: Tensor, size: int, count: Tensor) -> tuple[Tensor, Tensor]:
    """The first `count` places where `flags` [any] are set, `size` of them with padding, and which of them are real.
    `size` is at most the number of flags."""
    places = (~flags).to(torch.uint8).argsort(stable=True)[:size]
    return places, torch.arange(size, device=flags.device) < count


def _of_predicted(batch: Batch, predicting: Predicting, chosen: Tensor, ordered: Tensor, within: Tensor) -> Batch:
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
        projected_starts=predicting.starts,
        projected_attention=predicting.attention,
        endless=batch.endless[chosen],
        rules=batch.rules._replace(starts=predicting.span_starts),
        draws=draws,
        measures=measures,
        biases=biases,
        restrictions=restrictions,
        scored=None if batch.scored is None else batch.scored[chosen],
        selecting=None,
        predicting=None,
    )
