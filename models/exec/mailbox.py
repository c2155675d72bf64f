"""Memory of several GPUs that each of them can read and write, for sums that `kernels.ranks` computes."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from importlib import import_module
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ...kernels.common.types import Mailbox
from ..checkpoint.split import Rank

FLAG_WORDS = 32  # a line of a GPU's cache
CALLS, REPLAYS = 8, 5  # of a measurement


def opened(rank: Rank, device: torch.device, rows: int, dim: int, dtype: torch.dtype) -> Mailbox | None:
    """The mailbox of a rank, whose group is connected; None if GPUs cannot reach each other's memory."""
    others = [number for number in range(rank.size) if number != rank.number]
    if not all(torch.cuda.can_device_access_peer(rank.number, number) for number in others):
        return None
    os.environ.setdefault("TORCH_SYMM_MEM_DISABLE_MULTICAST", "1")  # it would be set up, and is not used
    try:
        buffers = _shared(rank, device, (2, rows, dim), dtype)
        flags = _shared(rank, device, (2, rows + 1, rank.size, FLAG_WORDS), torch.int32)
    except RuntimeError as error:
        reason = str(error).splitlines()[0]
        logging.getLogger(__name__).warning("GPUs cannot reach each other's memory: %s", reason)
        return None
    return Mailbox.of(rank.number, buffers, flags)


def _shared(rank: Rank, device: torch.device, shape: tuple[int, ...], dtype: torch.dtype) -> list[Tensor]:
    """Zeros in the memory of each rank, by rank. Raises `RuntimeError`."""
    memory: Any = import_module("torch.distributed._symmetric_memory")  # it takes long to import
    own = memory.empty(*shape, dtype=dtype, device=device)
    own.zero_()
    torch.cuda.synchronize(device)
    handle = memory.rendezvous(own, dist.group.WORLD)
    found = [own if n == rank.number else handle.get_buffer(n, shape, dtype) for n in range(rank.size)]
    own.handle = handle  # the others' memory can be reached as long as it is there
    return found


def seconds_of(call: Callable[[int], object]) -> float:
    """Seconds of a call in a CUDA graph, on a device that all ranks measure at the same time. Its argument alternates
    between 0 and 1."""

    def several() -> None:
        for number in range(CALLS):
            call(number % 2)

    with torch.cuda.stream(torch.cuda.Stream()):  # type: ignore[no-untyped-call]
        several()  # libraries take their workspaces
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        graph.capture_begin(capture_error_mode="thread_local")
        try:
            several()
        finally:
            graph.capture_end()
        started, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        graph.replay()
        started.record()
        for _ in range(REPLAYS):
            graph.replay()
        ended.record()
        torch.cuda.synchronize()
    return float(started.elapsed_time(ended)) / 1e3 / REPLAYS / CALLS
