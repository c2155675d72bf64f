"""Divides a device's memory: weights first, then the workspace of the largest step, the rest for keys and values."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from ...kernels.attention.tiles import LARGEST_TILE, split_floats
from ..checkpoint.canvas import Heads
from ..checkpoint.config import ModelConfig, ModelError
from ..checkpoint.split import WHOLE, Rank
from ..kv_cache import KvPages
from ..network import Transformer, allocate
from ..numerics import Numerics
from .pack import logit_rows

CPU_TOKENS = 16384  # positions whose keys and values a CPU keeps by default
GIB = 2**30
INDEX_BYTES = 40  # of a position of a step: its slot, its place, and the like


@dataclass(frozen=True, slots=True)
class Memory:
    """The memory requested.

    `slots`: requests at once; `page_size`: positions of a page; `step_tokens`: positions of the largest step;
    `cache_tokens`: positions whose keys and values fit, over all requests (None: a CPU's default, or the rest of a
    GPU); `share`: of a GPU's memory that may be in use; `keeps_pages`: pages beyond those of the requests are of use;
    `context`: positions that a request must be able to have.
    """

    slots: int
    page_size: int
    step_tokens: int
    cache_tokens: int | None = None
    share: float = 0.9
    keeps_pages: bool = False
    context: int | None = None


@dataclass(frozen=True, slots=True)
class Footprint:
    """The memory taken, on each device. The workspace is that of the largest step besides weights and pages: measured
    at start, or computed (`step_bytes`), if that is more."""

    weights_bytes: int
    pages: int
    page_bytes: int
    workspace_bytes: int = 0
    computed_bytes: int = 0

    @property
    def pages_bytes(self) -> int:
        return self.pages * self.page_bytes

    def __str__(self) -> str:
        parts = {
            "weights": self.weights_bytes,
            f"{self.pages} pages of keys and values": self.pages_bytes,
            "workspace": self.workspace_bytes,
        }
        return ", ".join(f"{name} {gib(size)}" for name, size in parts.items() if size)


def weights_bytes(config: ModelConfig, numerics: Numerics, rank: Rank = WHOLE) -> int:
    """Bytes of all weights in memory, or of a rank's part of them."""
    _, parts = allocate(config, numerics, torch.device("meta"), rank)
    return sum({id(part.weight): part.weight.nbytes for part in parts.values()}.values())


@dataclass(frozen=True, slots=True)
class StepBytes:
    """The memory of the largest step on a GPU, by what the network computes. Tensors that live at once: in the `body`
    of the step, in the rest of the `last` layer, and where `logits` are read; `fixed`: those of the runner."""

    body: int
    last: int
    logits: int
    fixed: int

    @property
    def workspace(self) -> int:
        """A step runs with a graph or without, and both ways keep their memory."""
        return 2 * (max(self.body, self.last) + self.logits) + self.fixed


def step_bytes(config: ModelConfig, numerics: Numerics, slots: int, step_tokens: int, page_size: int) -> StepBytes:
    """The memory of steps of at most `step_tokens` positions of `slots` requests, as long as the network's context.
    CUDA's own, with kernels and the nodes of graphs, comes on top."""
    size, dim, length = numerics.dtype.itemsize, config.dim, config.max_model_len
    kinds = [config.heads_of(layer) for layer in range(config.layers)]
    rotated = [heads.head_dim for heads in dict.fromkeys(kinds)] if config.canvas else [config.rotary_dim]
    angles = 2 * 4 * sum(rotated)  # cosines and sines of a position
    each = [_layer_bytes(config, size, heads) + INDEX_BYTES for heads in kinds]
    widest = max(heads.head_dim for heads in kinds)
    splits = 0 if numerics.fixed else 4 * split_floats(LARGEST_TILE, config.kv_heads, widest)
    # While splits of keys are added up there are residual, queries, output, and what they have found; in a body there
    # is the input as well.
    adding = step_tokens * (size * (dim + 2 * config.heads * widest) + INDEX_BYTES) + splits
    body = max(step_tokens * (max(each[:-1] or each) + angles), step_tokens * (size * dim + angles) + adding)
    last = max(step_tokens * each[-1], adding)
    rows = logit_rows(step_tokens, several=config.canvas is not None)
    row = config.vocab_size * (size if config.canvas is None else 4 + size)  # capped in float32, and its shares
    queries = config.heads * kinds[-1].head_dim
    fixed = slots * (length * 8 + -(-length // page_size) * 4) + length * angles
    fixed += step_tokens * (queries + dim) * size  # what a body leaves for a tail
    fixed += step_tokens * 9 if config.pattern.selects else 0  # the same of a selection: an index and a flag
    if config.canvas is not None:
        fixed += (slots + 1) * config.canvas.canvas_length * dim * size + length * 2 * 4 * config.rotary_dim
        fixed += config.vocab_size * dim * size if numerics.fixed else 0
    return StepBytes(body, last, rows * row + step_tokens * dim * size, fixed)


def _layer_bytes(config: ModelConfig, size: int, heads: Heads) -> int:
    """Bytes of a position that live at once in a layer, in numbers of `size` bytes: residual, input, queries, and the
    widest part of what follows attention."""
    dim, queries, experts = config.dim, config.heads * heads.head_dim, config.experts
    routed = shared = 0
    if experts is not None:  # each choice has a hidden part, which goes before the outputs are added up, and an output
        routed = experts.routing.chosen * dim + max(experts.routing.chosen * experts.ff_dim, dim)
        shared = dim + 3 * experts.shared_ff_dim
    if config.canvas is not None:  # norms after each part, a router with an input in float32
        return size * (4 * dim + 2 * queries + routed) + 4 * dim
    dense = 3 * config.ff_dim if experts is None or experts.first_layer else 0
    return size * (2 * dim + queries + max(dense, routed, shared))


def require_room(
    config: ModelConfig, numerics: Numerics, share: float, device: torch.device, rank: Rank = WHOLE
) -> None:
    """Raises `ModelError` unless a GPU has room for the weights. Takes no memory."""
    needed, room = weights_bytes(config, numerics, rank), _room(share, device)
    if needed > room:
        raise ModelError(
            f"the weights need {gib(needed)} and {gib(max(room, 0))} of the GPU may be taken: free some, or raise"
            f" --gpu-memory-utilization{'' if numerics.fp8 or numerics.int4 else ', or try --quantization fp8'}"
        )


def pages_that_fit(
    network: Transformer, taken: int, memory: Memory, device: torch.device, workspace: Callable[[], int]
) -> Footprint:
    """The footprint with as many pages as fit, after the weights are loaded, which have `taken` bytes; `workspace`
    measures the bytes of the largest step. Raises `ModelError` if a GPU has room for too few."""
    config, group = network.config, network.group
    page_bytes = KvPages.page_bytes(config, memory.page_size, network.numerics)
    requested = None if memory.cache_tokens is None else -(-memory.cache_tokens // memory.page_size)
    most = memory.slots * -(-config.max_model_len // memory.page_size)  # more could not be used
    if device.type != "cuda":
        tokens = CPU_TOKENS if memory.context is None else max(CPU_TOKENS, memory.context)
        return Footprint(taken, requested or -(-tokens // memory.page_size), page_bytes)
    # torch keeps more for a runner than the GPU has back when that is gone.
    step = step_bytes(config, network.numerics, memory.slots, memory.step_tokens, memory.page_size)
    computed = step.workspace
    needed = max(workspace(), computed)
    fit = (_room(memory.share, device) - needed) // page_bytes
    if group is not None:  # all ranks have the same pages
        fit = group.least(fit)
    if fit < (requested or 1):
        wanted = (requested or 1) * memory.page_size
        raise ModelError(
            f"keys and values of {wanted} positions need {gib(wanted // memory.page_size * page_bytes)}; besides the"
            f" weights ({gib(taken)}) and a workspace of {gib(needed)} there is room for"
            f" {max(fit, 0) * memory.page_size} positions: lower --kv-cache-tokens or --max-step-tokens, or raise"
            f" --gpu-memory-utilization{'' if network.numerics.fp8_cache else ', or try --kv-cache-dtype fp8'}"
        )
    return Footprint(taken, requested or (fit if memory.keeps_pages else min(fit, most)), page_bytes, needed, computed)


def _room(share: float, device: torch.device) -> int:
    """Bytes of a GPU that may still be taken, so that at most `share` of it is in use."""
    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info(device)
    return free - int((1 - share) * total)


def gib(size: int) -> str:
    """A size for a message."""
    return f"{size / GIB:.2f} GiB"
