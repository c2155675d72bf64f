"""Compiles kernels before they are needed, several at a time. Triton is imported only when that is done."""

from __future__ import annotations

import os
import tempfile
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

MOST_WORKERS = 16  # a compilation takes some 100 MB


@dataclass(frozen=True, slots=True)
class Missing:
    """Kernels of launches that are not compiled: the function and Triton's description of each."""

    kernels: dict[tuple[str, str, str], tuple[Any, str]] = field(default_factory=dict)

    def compile(self, report: Callable[[int, int], None]) -> None:
        """Compile all of them, or load them from Triton's cache. Threads do, since the compiler works outside of
        Python's lock. An error is left to the launch that needs the kernel."""
        report(0, len(self.kernels))
        workers = min(MOST_WORKERS, len(os.sched_getaffinity(0)))
        device = torch.cuda.current_device()  # of this thread: others begin with the first
        with ThreadPoolExecutor(workers, "compile", torch.cuda.set_device, (device,)) as threads:
            jobs: list[Future[object]] = [
                threads.submit(function.preload, description) for function, description in self.kernels.values()
            ]
            for number, job in enumerate(as_completed(jobs)):
                job.exception()
                report(number + 1, len(jobs))


@contextmanager
def collected() -> Iterator[Missing]:
    """Leave out launches of kernels that are not compiled, and note them. What they would write stays undefined."""
    runtime = import_module("triton.knobs").runtime
    missing = Missing()

    def note(*, key: str, fn: Any, compile: Any, **_: Any) -> bool:
        name = fn.module, fn.name, key
        missing.kernels[name] = fn.jit_function, compile["specialization_data"]
        return True  # do not compile, do not launch

    before = runtime.jit_cache_hook
    runtime.jit_cache_hook = note
    try:
        yield missing
    finally:
        runtime.jit_cache_hook = before


class CompiledKernels:
    """The number of kernels that Triton has compiled since `watch`. One that it finds in its cache does not count."""

    def __init__(self) -> None:
        self.count = 0
        self._lock = threading.Lock()  # several threads compile

    def watch(self) -> None:
        compilation = import_module("triton.knobs").compilation
        other = compilation.listener

        def note(*, cache_hit: bool, **details: Any) -> None:
            with self._lock:
                self.count += not cache_hit
            if other is not None:
                other(cache_hit=cache_hit, **details)

        compilation.listener = note


def keep_compiled(directory: Path) -> None:
    """Have Triton keep what it compiles in a directory, which is made. Raises `OSError` if it cannot be written."""
    directory.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=directory):
        pass
    os.environ["TRITON_CACHE_DIR"] = str(directory.absolute())
