"""Times of a GPU, taken with CUDA graphs so that launches do not count, and the facts of the card."""

from __future__ import annotations

import argparse
import statistics
import subprocess
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol

import torch

REPEATS, ROUNDS = 5, 7
MIN_CALLS = 10  # of one graph: what starting a replay costs is spread over them
MOST_SETS = 256
CACHES = 3  # one round over all inputs moves so many times what the L2 cache holds


def captured(compute: Callable[[], object]) -> torch.cuda.CUDAGraph:
    """Return a graph of `compute`. It is called once before, to compile kernels and allocate workspaces."""
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        compute()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        compute()
    return graph


class Replayed(Protocol):
    """A graph, or several in a row."""

    def replay(self) -> None: ...


def replay_ms(graph: Replayed) -> float:
    """Median milliseconds of a replay."""
    graph.replay()
    torch.cuda.synchronize()
    return statistics.median(_elapsed_ms(graph.replay, REPEATS) for _ in range(ROUNDS))


def cold_ms(call: Callable[..., object], inputs: Sequence[tuple[Any, ...]]) -> float:
    """Milliseconds of one call within a graph of many, each on the next of `inputs`: see `sets_of`.

    Results are kept for a round, so that they are written to other memory each time as well.
    """
    calls = len(inputs) * -(-MIN_CALLS // len(inputs))

    def several() -> None:
        kept: deque[object] = deque(maxlen=len(inputs))
        for number in range(calls):
            kept.append(call(*inputs[number % len(inputs)]))

    return replay_ms(captured(several)) / calls


def launched_ms(call: Callable[..., object], inputs: Sequence[tuple[Any, ...]]) -> float:
    """Median milliseconds of one call from Python: for what waits for the device, so that no graph can hold it."""
    call(*inputs[0])
    torch.cuda.synchronize()
    return statistics.median(_elapsed_ms(partial(call, *inputs[number % len(inputs)]), 1) for number in range(ROUNDS))


def _elapsed_ms(work: Callable[[], object], repeats: int) -> float:
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    begin.record()
    for _ in range(repeats):
        work()
    end.record()
    torch.cuda.synchronize()
    return float(begin.elapsed_time(end)) / repeats


def sets_of(moved_bytes: int, cache_bytes: int) -> int:
    """Return the number of sets of inputs that ensures that none is still in the cache when its turn comes again.

    At least two: a part of a single large set would still be there.
    """
    return max(2, min(MOST_SETS, -(-CACHES * cache_bytes // max(moved_bytes, 1))))


def require_gpu(parser: argparse.ArgumentParser) -> None:
    """Ends the program in one line where there is none."""
    if not torch.cuda.is_available():
        parser.exit(2, f"{parser.prog}: this needs a GPU that torch sees\n")


def gpu_facts() -> dict[str, object]:
    """Return the facts of the GPU for the last line of a measurement."""
    return {"card": torch.cuda.get_device_name(), "driver": _driver(), "cuda": torch.version.cuda}


def _driver() -> str | None:
    """None where nvidia-smi does not answer: torch knows only which CUDA the driver can run."""
    ask = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader", "--id=0"]
    try:
        done = subprocess.run(ask, capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
