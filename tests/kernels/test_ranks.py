"""Sums over devices: two ranks in one process, one after the other, so that each finds what it waits for."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from asynclane.kernels.common.types import Mailbox
from asynclane.kernels.elementwise import reference as small
from asynclane.kernels.ranks import linear_sum_add_rms_norm, reference

from ..support.kernel_cases import DEVICE, assert_near, drawn, kernels_of

kernels = kernels_of("ranks")
ROWS = 8


def mailboxes(dim: int, dtype: torch.dtype) -> tuple[Mailbox, Mailbox]:
    """Those of two ranks, with what no row has yet."""
    buffers = [torch.full((2, ROWS, dim), torch.nan, dtype=dtype, device=DEVICE) for _ in range(2)]
    flags = [torch.zeros((2, ROWS + 1, 2, 4), dtype=torch.int32, device=DEVICE) for _ in range(2)]
    return Mailbox.of(0, buffers, flags), Mailbox.of(1, buffers, flags)


def posted(mailbox: Mailbox, turn: int, part: Tensor, rows: range) -> None:
    """Write and raise the flags of these rows, as the second rank does before the first one looks."""
    mailbox.buffers[1][turn, : len(part)] = part
    mailbox.flags[0][turn, rows.start : rows.stop, 1, 0] = 1


@pytest.mark.parametrize(("count", "tokens", "dim"), [(1, 1, 64), (2, 5, 100), (3, ROWS, 128)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("few", [True, False], ids=["a flag for each row", "one flag"])
def test_each_rank_has_the_normed_sum_of_all_parts_and_flags_are_lowered(
    monkeypatch: pytest.MonkeyPatch, few: bool, count: int, tokens: int, dim: int, dtype: torch.dtype
) -> None:
    monkeypatch.setattr(kernels, "MOST_FLAGS", ROWS if few else 0)
    rows = range(tokens) if few else range(ROWS, ROWS + 1)
    kind = dtype if count == 1 else torch.float32
    parts = [drawn(count, tokens, dim, seed=seed).to(kind) for seed in (1, 2)]
    residual, weight = drawn(tokens, dim, dtype=dtype, seed=3), drawn(dim, dtype=dtype, seed=4)
    own = [part.sum(0).to(dtype) for part in parts]
    want = small.add_rms_norm((own[0].float() + own[1].float()).to(dtype), residual, weight, 1e-5)
    first, second = mailboxes(dim, dtype)
    for turn in (0, 1):
        posted(first, turn, own[1], rows)
        for mailbox, part in zip((first, second), parts, strict=True):
            found = kernels.sum_add_rms_norm(part, residual, weight, 1e-5, mailbox, turn)
            for got, expected in zip(found, want, strict=True):
                assert_near(got, expected)
        assert not first.flags[1].any()
        assert first.flags[0].nonzero().tolist() == [[turn, row, 1, 0] for row in rows], "for the next who looks"
        first.flags[0].zero_()
        found = reference.sum_add_rms_norm(parts[0], residual, weight, 1e-5, first, turn)
        for got, expected in zip(found, want, strict=True):
            assert_near(got, expected)


def test_a_product_is_added_up_too() -> None:
    x, weight = [drawn(5, 32, seed=seed) for seed in (1, 2)], [drawn(64, 32, seed=seed) for seed in (3, 4)]
    residual, norm = drawn(5, 64, seed=5), drawn(64, seed=6)
    own = [one @ two.T for one, two in zip(x, weight, strict=True)]
    first, second = mailboxes(64, torch.float32)
    posted(first, 0, own[1], range(5))
    want = small.add_rms_norm(own[0] + own[1], residual, norm, 1e-5)
    for mailbox, one, two in zip((first, second), x, weight, strict=True):
        found = linear_sum_add_rms_norm(one, two, residual, norm, 1e-5, mailbox, 0)
        for got, expected in zip(found, want, strict=True):
            assert_near(got, expected)


def test_more_rows_than_the_mailbox_has_are_refused() -> None:
    first, _ = mailboxes(64, torch.float32)
    x = drawn(ROWS + 1, 64)
    with pytest.raises(ValueError, match="9 rows do not fit a mailbox of 8"):
        kernels.sum_add_rms_norm(x[None], x, x[0], 1e-5, first, 0)
