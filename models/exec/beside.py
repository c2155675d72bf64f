"""Lets two parts of a layer that do not need each other run at once, on a GPU in two streams.

Experts begin with a chain of small operations that leave most multiprocessors idle: which they are, and which tokens
choose them. An MLP that every token passes fills that time.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


class Beside:
    """A second stream of a device, if it is a GPU. In a CUDA graph it becomes a branch."""

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]

    def start(self, work: Callable[[], Tensor]) -> Callable[[], Tensor]:
        """Start `work` beside what the caller does next. Returns a function that returns its result, which the current
        stream waits for. Until it is called, what `work` reads must neither change nor be freed.
        """
        side = self._stream
        if side is None:
            return work
        side.wait_stream(torch.cuda.current_stream(side.device))
        with torch.cuda.stream(side):
            result = work()

        def finish() -> Tensor:
            # The result's memory is the side stream's: it is used again after the next `start` alone, which waits.
            torch.cuda.current_stream(side.device).wait_stream(side)
            return result

        return finish
