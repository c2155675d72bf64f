"""Measures of confidence in one launch."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..common.checks import expect, expect_each
from ..common.noise import POSITION
from ..common.triton_noise import counter_key, mixed
from ..common.types import Draws, Prediction
from . import reference

MARGIN, ENTROPY, RANDOM, SINGLE = (
    tl.constexpr(kind) for kind in (reference.MARGIN, reference.ENTROPY, reference.RANDOM, reference.SINGLE)
)
STAND_IN_OFFSET = tl.constexpr(reference.STAND_IN_OFFSET)
NOISE_ID = tl.constexpr(POSITION)
BLOCK = 128  # positions of a program


def measure(logits: Tensor, found: Prediction, kinds: Tensor, noise: Tensor, draws: Draws) -> Tensor:
    """As the reference, whose SINGLE it rounds; `logits` are not read."""
    expect("kinds", kinds, ("N",), (torch.int32,))
    count = len(kinds)
    expect("noise", noise, (count,), (torch.float32,))
    expect_each((count,), torch.float64, commit_probability=found.commit_probability, margin=found.margin)
    expect_each((count,), torch.int64, tokens=found.tokens, proposals=found.proposals)
    expect_each((count,), torch.float32, entropy=found.entropy)
    expect_each((count,), torch.int64, seeds=draws.seeds, positions=draws.positions, steps=draws.steps)
    out = torch.empty_like(found.commit_probability)
    if count:
        _measure[(triton.cdiv(count, BLOCK),)](
            found.commit_probability, found.margin, found.entropy, found.tokens, found.proposals, kinds, noise,
            draws.seeds, draws.positions, draws.steps, out, count, BLOCK=BLOCK,
        )  # fmt: skip
    return out


@triton.jit(do_not_specialize=["count"])
def _measure(
    commit_probability_ptr, margin_ptr, entropy_ptr, tokens_ptr, proposals_ptr, kinds_ptr, noise_ptr, seeds_ptr,
    positions_ptr, steps_ptr, out_ptr, count, BLOCK: tl.constexpr,
):  # fmt: skip
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < count
    kind = tl.load(kinds_ptr + at, mask=inside, other=0)
    chance = tl.load(commit_probability_ptr + at, mask=inside, other=0.0)
    tokens = tl.load(tokens_ptr + at, mask=inside, other=0)
    stands_in = tokens != tl.load(proposals_ptr + at, mask=inside, other=0)
    margin = tl.load(margin_ptr + at, mask=inside, other=0.0)
    certainty = -tl.load(entropy_ptr + at, mask=inside, other=0.0).to(tl.float64)
    key = counter_key(
        tl.load(seeds_ptr + at, mask=inside, other=0),
        tl.load(positions_ptr + at, mask=inside, other=0),
        tl.load(steps_ptr + at, mask=inside, other=0),
    )
    bits = mixed(key + tl.full([BLOCK], NOISE_ID, tl.uint32) * 0x9E3779B9)
    drawn = (((bits >> 9).to(tl.float32) + 0.5) * (1.0 / (1 << 23))).to(tl.float64)

    chosen = tl.where(kind == RANDOM, drawn, chance)
    chosen = tl.where(kind == SINGLE, chance.to(tl.float32).to(tl.float64), chosen)
    chosen = tl.where(kind == MARGIN, tl.where(stands_in, chance - STAND_IN_OFFSET, margin), chosen)
    chosen = tl.where(kind == ENTROPY, tl.where(stands_in, chance - STAND_IN_OFFSET, certainty), chosen)
    noise = tl.load(noise_ptr + at, mask=inside, other=0.0).to(tl.float64)
    noisy = chosen / tl.where(noise > 0, noise, 1.0) - tl.log(-tl.log(drawn))
    tl.store(out_ptr + at, tl.where(noise > 0, noisy, chosen), mask=inside)
