"""Times whole steps of published shapes, with random weights, beside the same step of library calls.

Usage: python -m asynclane.bench.steps.offline [--shape llada-8b] [--keys 512] [--page-size 64]
       [--quantization fp8] [--kv-cache-dtype fp8] [--json FILE]
Both run as CUDA graphs in this process, on the same weights. Ours is what the server replays, with sampling and commit.
The reference has cuBLAS products, scaled_dot_product_attention over contiguous keys and torch's norms. It has neither
masks nor experts, nor quantized weights, so block-causal networks, mixtures and quantized networks have no reference.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ...models.checkpoint.config import ModelConfig
from ...models.checkpoint.split import WHOLE, Rank
from ...models.checkpoint.weights import fill_randomly
from ...models.exec.group import Group
from ...models.exec.runner import Runner
from ...models.gemma import network_of
from ...models.kv_cache import KvPages
from ...models.network import Transformer, allocate
from ...models.numerics import Numerics
from ...scheduler.contract import GREEDY, Denoising, DeviceCommitRule, Placement, Row, Span, StepPlan
from ...scheduler.layout.canvases import REPORTS
from ..kernels.timing import captured, gpu_facts, replay_ms, require_gpu
from ..load.output import check_outputs, finish, table
from .shapes import SHAPES

TOKENS = (32, 128, 256, 512, 1024, 2048)
CANVASES = (1, 2, 4, 8)
ROW = 64  # positions of a denoising row: a block and its look-ahead
COMMITS = DeviceCommitRule(sure=1, threshold=2.0)
PAGE_SIZE = 64
TEMPERATURE = 0.6  # of a canvas in mid-course
CONTEXT = 4096  # the default of a server
WORDS = (10, 1000)  # ids of ordinary words, from and below


@dataclass(frozen=True, slots=True)
class Load:
    """The rows of a step: (positions, keys) each."""

    label: str
    rows: tuple[tuple[int, int], ...]

    @property
    def tokens(self) -> int:
        return sum(size for size, _ in self.rows)


def loads(keys: int, canvas: int = 0) -> list[Load]:
    """Loads whose rows see so many keys, or whole canvases of so many positions after so many keys."""
    if canvas:
        return [Load(f"{n} canvases", ((canvas, keys + canvas),) * n) for n in CANVASES]
    even = [Load(str(n), ((min(n, ROW), keys),) * max(1, n // ROW)) for n in TOKENS]
    mixed = Load("mixed", ((1024, 1024), *((ROW, keys),) * 30))
    return [*even, mixed, Load("one row", ((mixed.tokens, mixed.tokens),))]


def random_network(
    config: ModelConfig, numerics: Numerics, device: torch.device, rank: Rank = WHOLE, group: Group | None = None
) -> Transformer:
    """Return a network, or a rank's part of it, with weights of a plausible scale: their values do not change the cost
    of a step."""
    weights, parts = allocate(config, numerics, device, rank)
    fill_randomly(config, parts, device)
    return network_of(rank.config(config), numerics, weights, group)


def projected(size: int, shift: int) -> int:
    """Return the number of positions of a row with logits: the last block, without those that it cannot predict."""
    return min(size - shift, ROW)


def plan_of(load: Load, step: int, shift: int = 0) -> StepPlan:
    """Return a plan in which a denoising row has logits everywhere, and a longer row, such as a prefill, in its last
    block."""
    rows = tuple(
        Row(slot, keys - size, keys, keys, (Span(keys - projected(size, shift), keys, COMMITS),), GREEDY, step)
        for slot, (size, keys) in enumerate(load.rows)
    )
    return StepPlan((), rows)


def canvas_plan(load: Load, step: int) -> StepPlan:
    """Return a plan in which each row is a canvas of random tokens that the step before has conditioned."""
    rows = []
    for slot, (size, keys) in enumerate(load.rows):
        tokens = np.random.default_rng(slot).integers(*WORDS, size).astype(np.int32)
        whole = (Span(keys - size, keys, REPORTS),)
        denoising = Denoising(TEMPERATURE, first=False)
        rows.append(Row(slot, keys - size, keys, keys, whole, GREEDY, step, host_tokens=tokens, denoising=denoising))
    return StepPlan((), tuple(rows))


def place(runner: Runner, load: Load, config: ModelConfig, page_size: int) -> None:
    """Place words, of which every second one of a row is masked: words choose other experts than masks. Pages are
    consecutive."""
    placements, page = [], 0
    for slot, (size, keys) in enumerate(load.rows):
        count = -(-keys // page_size)
        tokens = np.random.default_rng(slot).integers(*WORDS, keys).astype(np.int32)
        tokens[keys - size :: 2] = config.mask_id
        placements.append(Placement(slot, tokens, tuple(range(page, page + count))))
        page += count
    runner.execute(StepPlan(tuple(placements), plan_of(load, 0, config.logit_shift).rows))


class Reference:
    """The same step from library calls: rows of equal length in one batch, keys contiguous and written before."""

    def __init__(self, network: Transformer, load: Load, device: torch.device, dtype: torch.dtype) -> None:
        self.network, self.load, config = network, load, network.config
        self.kv = [
            torch.randn((2, config.kv_heads, keys, config.head_dim), device=device, dtype=dtype)
            for _, keys in load.rows
        ]
        self.tokens = torch.randint(10, 1000, (load.tokens,), device=device)
        count = sum(projected(size, config.logit_shift) for size, _ in load.rows)
        self.projected = torch.arange(load.tokens - count, load.tokens, device=device)
        same = len(set(load.rows)) == 1
        self.batched = torch.stack(self.kv, 1) if same else None  # [2, rows, G, keys, D]

    def __call__(self) -> Tensor:
        network: Any = self.network.weights  # matrices of torch's own types
        config = self.network.config
        x = network.embedding[self.tokens]
        for block in network.blocks:
            h = F.rms_norm(x, (config.dim,), block.attn_norm, config.norm_eps)
            qkv = F.linear(h, block.qkv, block.qk_norm.bias).view(len(h), -1, config.head_dim)
            x = x + F.linear(self._attend(qkv[:, : config.heads]), block.attn_out)
            h = F.rms_norm(x, (config.dim,), block.ff_norm, config.norm_eps)
            gate, up = F.linear(h, block.mlp.gate_up).chunk(2, -1)
            x = x + F.linear(F.silu(gate) * up, block.mlp.ff_out)
        logits = F.linear(F.rms_norm(x[self.projected], (config.dim,), network.norm, config.norm_eps), network.head)
        return logits.max(-1).indices

    def _attend(self, queries: Tensor) -> Tensor:
        grouped = self.network.config.heads != self.network.config.kv_heads
        if self.batched is not None:
            rows = len(self.load.rows)
            q = queries.view(rows, -1, *queries.shape[1:]).transpose(1, 2)
            out = F.scaled_dot_product_attention(q, self.batched[0], self.batched[1], enable_gqa=grouped)
            return out.transpose(1, 2).reshape(len(queries), -1)
        parts, start = [], 0
        for (size, _), kv in zip(self.load.rows, self.kv, strict=True):
            q = queries[start : start + size].transpose(0, 1)[None]
            out = F.scaled_dot_product_attention(q, kv[0][None], kv[1][None], enable_gqa=grouped)
            parts.append(out[0].transpose(0, 1).reshape(size, -1))
            start += size
        return torch.cat(parts)


@torch.inference_mode()
def measure(config: ModelConfig, keys: int, page_size: int, numerics: Numerics) -> list[dict[str, object]]:
    device, canvas = torch.device("cuda"), 0 if config.canvas is None else config.canvas.canvas_length
    config = replace(config, max_model_len=min(config.max_model_len, CONTEXT))
    network = random_network(config, numerics, device)
    steps = []
    for load in loads(keys, canvas):
        slots = max(64, len(load.rows))
        pages = KvPages(config, sum(-(-k // page_size) for _, k in load.rows), page_size, slots, numerics, device)
        runner = Runner(network, pages, slots, [config.mask_id], [1])
        place(runner, load, config, page_size)
        plan = canvas_plan(load, 1) if canvas else plan_of(load, 1, config.logit_shift)
        ours = replay_ms(runner.graph_for(plan))
        reference = None
        if config.experts is None and not config.block_size and not (numerics.fp8 or numerics.int4):
            reference = replay_ms(captured(Reference(network, load, device, numerics.dtype)))
        steps.append(
            {
                "load": load.label,
                "tokens": load.tokens,
                "ours_ms": round(ours, 3),
                "reference_ms": None if reference is None else round(reference, 3),
                "ratio": None if reference is None else round(ours / reference, 3),
            }
        )
        print(steps[-1], file=sys.stderr, flush=True)
        del runner, pages
        torch.cuda.empty_cache()
    return steps


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m asynclane.bench.steps.offline",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--shape", choices=SHAPES, default="llada-8b")
    parser.add_argument("--keys", type=int, default=512, help="of a denoising row (default: %(default)s)")
    parser.add_argument("--page-size", type=int, default=PAGE_SIZE, help="positions of a page (default: %(default)s)")
    parser.add_argument("--quantization", choices=("fp8", "int4"), help="of the blocks' matrices, for our step")
    parser.add_argument("--kv-cache-dtype", choices=("auto", "fp8"), default="auto", help="as in serving, for our step")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the last line to a file, too")
    options = parser.parse_args(argv)
    check_outputs(parser, None, options.json)
    require_gpu(parser)
    stored = options.quantization
    fp8_cache = options.kv_cache_dtype == "fp8"
    numerics = Numerics(torch.bfloat16, fp8=stored == "fp8", int4=stored == "int4", fp8_cache=fp8_cache)
    steps = measure(SHAPES[options.shape], options.keys, options.page_size, numerics)
    head = ("load", "tokens", "ours_ms", "reference_ms", "ratio")
    print(table(head, [["-" if step[name] is None else str(step[name]) for name in head] for step in steps]))
    arguments = {
        "shape": options.shape,
        "keys": options.keys,
        "page_size": options.page_size,
        "quantization": stored,
        "kv_cache_dtype": options.kv_cache_dtype,
    }
    finish({"benchmark": "offline", **arguments, "steps": steps, **gpu_facts()}, options.json)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
