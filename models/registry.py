"""Finds a model by name or directory and builds the runner that serves it."""

from __future__ import annotations

import os
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

import torch

from .config import ModelConfig, ModelError
from .kv_pages import KvPages
from .llada import Llada, tensor_shapes
from .runner import Runner
from .weights import load_weights

EMBEDDED = Path(__file__).parent / "embedded"
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def find_model(name: str) -> Path:
    """The directory of an embedded model's name, or of a path. Raises `ModelError`."""
    embedded = sorted(path.name for path in EMBEDDED.iterdir() if (path / "config.json").exists())
    if name in embedded:
        return EMBEDDED / name
    path = Path(name).expanduser()
    if path.is_dir():
        return path
    raise ModelError(f"no model {name!r}: not a directory, and the embedded models are {', '.join(embedded)}")


@dataclass(frozen=True, slots=True)
class Memory:
    """How much the runner may hold: requests at once, pages of keys and values, positions in a page."""

    slots: int
    pages: int
    page_size: int


@dataclass(frozen=True, slots=True)
class Hardware:
    """Where the network runs and in which numbers. `threads` None takes every core that the
    process may use, or what `OMP_NUM_THREADS` says."""

    device: str = "auto"
    dtype: str = "auto"
    threads: int | None = None


def _device(name: str) -> torch.device:
    """A GPU where there is one, unless the CPU was asked for. Raises `ModelError`."""
    there = torch.cuda.is_available()
    if name == "cuda" and not there:
        raise ModelError("device 'cuda' was asked for, and torch sees no GPU: use 'cpu', or install torch for CUDA")
    return torch.device("cuda" if there and name != "cpu" else "cpu")


def _cores() -> int:
    """Those that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def load_runner(
    directory: Path, config: ModelConfig, memory: Memory, hardware: Hardware, end_ids: Collection[int]
) -> Runner:
    """Loads the weights and takes the memory; `end_ids` end an answer. Raises `ModelError`."""
    device = _device(hardware.device)
    if hardware.threads or "OMP_NUM_THREADS" not in os.environ:  # OpenMP's own setting is for several processes
        torch.set_num_threads(hardware.threads or _cores())
    # float32 where nothing is said: on a CPU it is the fastest, and a row's bits do not depend on its neighbours.
    automatic = "bfloat16" if device.type == "cuda" else "float32"
    dtype = DTYPES[automatic if hardware.dtype == "auto" else hardware.dtype]
    network = Llada(config, load_weights(directory, tensor_shapes(config), dtype, device))
    try:
        pages = KvPages(config, memory.pages, memory.page_size, memory.slots, dtype, device)
    except RuntimeError:
        tokens = memory.pages * memory.page_size
        raise ModelError(f"no memory for keys and values of {tokens} positions: lower kv_cache_tokens") from None
    return Runner(network, pages, memory.slots, [config.mask_id], sorted(end_ids))
