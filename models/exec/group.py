"""The devices that compute a network together: what they add up and gather, by torch.distributed.

Each rank runs the same operations in the same order. Sums and gathered numbers are the same to the bit on all ranks, so
that each commits the same tokens by itself.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from threading import Thread

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from ...kernels.common.types import Mailbox, Matrix
from ...kernels.elementwise import add_rms_norm
from ...kernels.linear import linear
from ...kernels.ranks import linear_sum_add_rms_norm, sum_add_rms_norm
from ..checkpoint.config import ModelError
from ..checkpoint.split import Rank
from .mailbox import opened, seconds_of

START_S = 120.0  # in which the processes of all ranks run: they import torch, from a slow disk perhaps
JOIN_S = 60.0  # in which all ranks are connected, once their processes run
SKEW = timedelta(hours=1)  # by which one rank may come later to an operation than another: it may read a slow disk
MEASURED = (32, 64, 256, 1024, 4096)  # rows
BACKENDS = {"cpu": "gloo", "cuda": "nccl"}


class Group:
    """The ranks of a network, as one of them sees them."""

    def __init__(self, rank: Rank, device: torch.device, ordered: bool) -> None:
        """`ordered`: a sum's bits do not depend on the number of rows. They do not with two ranks."""
        self.rank = rank
        self._device = device
        self._gathered = ordered and rank.size > 2
        self._silent = False
        self._mailbox: Mailbox | None = None
        self.most_rows = 0  # that the mailbox adds up

    @contextmanager
    def silent(self) -> Iterator[None]:
        """Let nothing pass between the ranks: results have the right shapes and no meaning."""
        self._silent = True
        try:
            yield
        finally:
            self._silent = False

    def use_mailbox(self, most_rows: int, dim: int, dtype: torch.dtype) -> bool:
        """Let GPUs that can read each other's memory add up steps of at most so many rows that way, where it is faster
        than NCCL. Return whether it is."""
        mailbox = opened(self.rank, self._device, most_rows, dim, dtype)
        if not self.least(mailbox is not None):
            return False
        self._mailbox = mailbox
        self.most_rows = self._worthwhile(most_rows, dim, dtype)
        return bool(self.most_rows)

    def _worthwhile(self, most_rows: int, dim: int, dtype: torch.dtype) -> int:
        """The most rows up to which the mailbox is not slower, by measurement: the same on all ranks."""
        found = 0
        for rows in sorted({min(rows, most_rows) for rows in MEASURED}):
            x, residual = torch.zeros((2, rows, dim), dtype=dtype, device=self._device)
            summed = partial(self.add_rms_norm, x, residual, torch.zeros_like(x[0]), 1.0)
            times = []
            for most in (rows, 0):
                self.most_rows = most
                times.append(-self.least(-int(1e9 * seconds_of(summed))))  # nanoseconds of the slowest rank
            if times[0] > times[1]:
                break
            found = rows
        return found

    def linear_add_rms_norm(
        self, x: Tensor, weight: Matrix, residual: Tensor, norm: Tensor, eps: float, fixed: bool, turn: int
    ) -> tuple[Tensor, Tensor]:
        """The operation of this name, of all ranks' products. `turn` alternates between 0 and 1."""
        if self._mailbox is not None and not self._silent and len(x) <= self.most_rows:
            return linear_sum_add_rms_norm(x, weight, residual, norm, eps, self._mailbox, turn, fixed)
        return add_rms_norm(self.sum(linear(x, weight, fixed)), residual, norm, eps)

    def add_rms_norm(self, x: Tensor, residual: Tensor, norm: Tensor, eps: float, turn: int) -> tuple[Tensor, Tensor]:
        """The operation of this name, of the sum over all ranks of x [T, dim], which may be overwritten."""
        if self._mailbox is not None and not self._silent and len(x) <= self.most_rows:
            return sum_add_rms_norm(x[None], residual, norm, eps, self._mailbox, turn)
        return add_rms_norm(self.sum(x), residual, norm, eps)

    def sum(self, x: Tensor) -> Tensor:
        """The sum over all ranks of x [T, dim], which may be overwritten."""
        if self._silent:
            return x
        if self._gathered:
            total, *others = self._all(x).float().unbind(0)
            for other in others:
                total += other
            return total.to(x.dtype)
        dist.all_reduce(x)
        return x

    def gather(self, columns: Tensor, total: int) -> Tensor:
        """`total` columns [N, total] of which each rank has some, [N, any], as `Rank.span` says. Rows may lie apart."""
        own = -(-total // self.rank.size)
        if columns.shape[1] < own:
            columns = F.pad(columns, (0, own - columns.shape[1]))
        if self._silent:
            return columns.repeat(1, self.rank.size)[:, :total]
        return torch.cat(self._all(columns).unbind(0), dim=1)[:, :total]

    def least(self, number: int) -> int:
        """The smallest of all ranks' numbers."""
        found = torch.tensor(number, device=self._device)
        dist.all_reduce(found, dist.ReduceOp.MIN)
        return int(found)

    def _all(self, x: Tensor) -> Tensor:
        """[ranks, *shape of x]."""
        found = x.new_empty((self.rank.size * len(x), *x.shape[1:]))
        all_gather = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)  # its name since torch 2.13
        all_gather(found, x.contiguous())
        return found.view(self.rank.size, *x.shape)


def _nothing(stage: str, limit_s: float | None) -> None:
    """See `Meeting`."""


@dataclass(frozen=True, slots=True)
class Meeting:
    """The way in which the ranks, each in its process, become a group: through a file that does not exist before.

    `passed` is called at each stage of a start. It may wait until others have passed it, so many seconds at most, and
    raises `ModelError` if one of them has not, or has failed.
    """

    rank: Rank
    path: str
    passed: Callable[[str, float | None], None] = _nothing

    def join(self, device: torch.device, ordered: bool) -> Group:
        """Raises `ModelError` if not all ranks are connected within `JOIN_S`."""
        self.passed("running", START_S)
        failed = list[BaseException]()

        def connect() -> None:
            try:
                self._connect(device)
            except BaseException as error:  # noqa: BLE001 - raised in the thread that waits
                failed.append(error)

        # In a thread: libraries wait without a limit for a rank that hangs.
        connecting = Thread(target=connect, name="join", daemon=True)
        connecting.start()
        connecting.join(JOIN_S)
        if connecting.is_alive():
            self.passed("connected", 0.0)
            raise ModelError(f"rank {self.rank.number} was not connected within {JOIN_S:g} s")
        if failed:
            reason = str(failed[0]).splitlines() or [repr(failed[0])]
            raise ModelError(f"rank {self.rank.number} cannot be connected with the others: {reason[0]}")
        self.passed("connected", None)
        return Group(self.rank, device, ordered)

    def _connect(self, device: torch.device) -> None:
        backend = BACKENDS[device.type]
        if backend == "gloo":
            os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # else it needs a host name that can be resolved
        else:
            torch.cuda.set_device(device)  # of this thread
        dist.init_process_group(
            backend,
            store=dist.FileStore(self.path, self.rank.size),  # type: ignore[attr-defined]
            rank=self.rank.number,
            world_size=self.rank.size,
            timeout=SKEW,
            device_id=device if device.type == "cuda" else None,
        )
        dist.all_reduce(torch.zeros(1, device=device))  # the first takes its buffers
        if device.type == "cuda":
            torch.cuda.synchronize(device)
