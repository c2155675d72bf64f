"""Times whole steps of the served networks' shapes, with random weights, beside a step made of library calls alone.

Usage: python -m asynclane.bench.offline [--shape llada-8b] [--keys 512] [--json FILE]
Both run as CUDA graphs in this process, on the same weights: ours is what the server replays, sampling and commit
included; the reference has cuBLAS products, scaled_dot_product_attention over contiguous keys and torch's norms.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ..models.config import ModelConfig
from ..models.families import tensor_shapes
from ..models.kv_pages import KvPages
from ..models.numerics import Numerics
from ..models.runner import Runner
from ..models.transformer import Transformer, allocate
from ..scheduler.contract import GREEDY, Placement, Row, Span, StepPlan, Transfer
from .report import check_outputs, json_line, table
from .timing import captured, gpu_facts, replay_ms, require_gpu

SHAPES = {
    "llada-8b": ModelConfig(
        "LLaDAModelLM",
        4096,
        32,
        32,
        32,
        12288,
        126464,
        4096,
        1e-5,
        500000.0,
        tied_head=False,
        mask_id=126336,
        head_dim=128,
    ),
    "dream-7b": ModelConfig(
        "DreamModel",
        3584,
        28,
        28,
        4,
        18944,
        152064,
        4096,
        1e-6,
        1000000.0,
        tied_head=False,
        mask_id=151666,
        head_dim=128,
        qkv_bias=True,  # of its shift, rows of the scheduler take account: a step costs the same
    ),
    "small": ModelConfig(
        "LLaDAModelLM", 256, 2, 4, 4, 768, 1408, 2048, 1e-5, 10000.0, tied_head=False, mask_id=5, head_dim=64
    ),
}
TOKENS = (32, 128, 256, 512, 1024, 2048)
ROW = 64  # positions of a denoising row: a block and its look-ahead
COMMITS = Transfer(sure=1, threshold=2.0)
PAGE_SIZE = 64


@dataclass(frozen=True, slots=True)
class Load:
    """Rows of a step: (positions, keys) each."""

    label: str
    rows: tuple[tuple[int, int], ...]

    @property
    def tokens(self) -> int:
        return sum(size for size, _ in self.rows)


def loads(keys: int) -> list[Load]:
    even = [Load(str(n), ((min(n, ROW), keys),) * max(1, n // ROW)) for n in TOKENS]
    mixed = Load("mixed", ((1024, 1024), *((ROW, keys),) * 30))
    return [*even, mixed, Load("one row", ((mixed.tokens, mixed.tokens),))]


def random_tensor(shape: tuple[int, ...], device: torch.device) -> Tensor:
    """A matrix that keeps the size of what it multiplies, or ones."""
    return (
        torch.ones(shape, device=device) if len(shape) == 1 else torch.randn(shape, device=device) * shape[-1] ** -0.5
    )


def random_network(config: ModelConfig, numerics: Numerics, device: torch.device) -> Transformer:
    """Weights of a plausible size: what they are does not change what a step costs."""
    torch.manual_seed(0)
    weights, parts = allocate(config, numerics, device)
    for name, shape in tensor_shapes(config).items():
        parts[name].put(random_tensor(shape, device).to(numerics.dtype))
    return Transformer(config, numerics, weights)


def plan_of(load: Load, step: int) -> StepPlan:
    """Every position of a denoising row is projected; of a longer one, as of a prefill, the last block."""
    rows = tuple(
        Row(slot, keys - size, keys, keys, (Span(keys - min(size, ROW), keys, COMMITS),), GREEDY, step)
        for slot, (size, keys) in enumerate(load.rows)
    )
    return StepPlan((), rows)


def place(runner: Runner, load: Load, mask_id: int) -> None:
    """Prompts up to the rows, masks in them, pages one after the other."""
    placements, page = [], 0
    for slot, (size, keys) in enumerate(load.rows):
        count = -(-keys // PAGE_SIZE)
        tokens = np.full(keys, mask_id, np.int32)
        tokens[: keys - size] = np.arange(keys - size) % 1000 + 10
        placements.append(Placement(slot, tokens, tuple(range(page, page + count))))
        page += count
    runner.execute(StepPlan(tuple(placements), plan_of(load, 0).rows))


class Reference:
    """The same step from library calls: rows of equal length in one batch, keys contiguous and written before."""

    def __init__(self, network: Transformer, load: Load, device: torch.device, dtype: torch.dtype) -> None:
        self.network, self.load, config = network, load, network.config
        self.kv = [
            torch.randn((2, config.kv_heads, keys, config.head_dim), device=device, dtype=dtype)
            for _, keys in load.rows
        ]
        self.tokens = torch.randint(10, 1000, (load.tokens,), device=device)
        projected = sum(min(size, ROW) for size, _ in load.rows)
        self.projected = torch.arange(load.tokens - projected, load.tokens, device=device)
        same = len(set(load.rows)) == 1
        self.batched = torch.stack(self.kv, 1) if same else None  # [2, rows, G, keys, D]

    def __call__(self) -> Tensor:
        network: Any = self.network.weights  # matrices of torch's own types
        config = self.network.config
        x = network.embedding[self.tokens]
        for block in network.blocks:
            h = F.rms_norm(x, (config.dim,), block.attn_norm, config.norm_eps)
            qkv = F.linear(h, block.qkv, block.heads.bias).view(len(h), -1, config.head_dim)
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
def measure(config: ModelConfig, keys: int) -> list[dict[str, object]]:
    device, dtype = torch.device("cuda"), torch.bfloat16
    network = random_network(config, Numerics(dtype), device)
    steps = []
    for load in loads(keys):
        slots = max(64, len(load.rows))
        pages = KvPages(config, sum(-(-k // PAGE_SIZE) for _, k in load.rows), PAGE_SIZE, slots, dtype, device)
        runner = Runner(network, pages, slots, [config.mask_id], [1])
        place(runner, load, config.mask_id)
        ours = replay_ms(runner.graph_for(plan_of(load, 1)))
        reference = replay_ms(captured(Reference(network, load, device, dtype)))
        steps.append(
            {
                "load": load.label,
                "tokens": load.tokens,
                "ours_ms": round(ours, 3),
                "reference_ms": round(reference, 3),
                "ratio": round(ours / reference, 3),
            }
        )
        print(steps[-1], file=sys.stderr, flush=True)
        del runner, pages
        torch.cuda.empty_cache()
    return steps


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m asynclane.bench.offline",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--shape", choices=SHAPES, default="llada-8b")
    parser.add_argument("--keys", type=int, default=512, help="of a denoising row (default: %(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the last line to a file, too")
    options = parser.parse_args(argv)
    check_outputs(parser, None, options.json)
    require_gpu(parser)
    steps = measure(SHAPES[options.shape], options.keys)
    head = ("load", "tokens", "ours_ms", "reference_ms", "ratio")
    print(table(head, [[str(step[name]) for name in head] for step in steps]))
    line = json_line(
        {"benchmark": "offline", "shape": options.shape, "keys": options.keys, "steps": steps, **gpu_facts()}
    )
    if options.json:
        options.json.write_text(line + "\n", encoding="utf-8")
    print(line)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
