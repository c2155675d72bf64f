"""Trains an embedded model on one GPU, from a seed, in calls of limited time that go on where the last one ended.

Usage: python -m asynclane.recipe.train tiny-dream OUT [--seconds 540] [--resume DIR]
The rate of learning is constant and then falls linearly to zero over the last `--decay` of `--steps`: a run that was
cut before the fall can go on to any number of steps. Results are the same for the same seed, device and calls.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from tokenizers import Tokenizer
from torch import Tensor, nn

from ..models.registry import find_model
from .batches import batches, shelves
from .corpus import corpus
from .export import export, restore
from .muon import Muon
from .network import Network
from .noise import Rows, canvas, copies
from .probe import accuracy
from .shapes import SHAPES, Shape

TOKENIZER = "tiny-llada"  # the model whose tokenizer all have
STATE = "state.json"
WARMUP = 200  # steps, after every start: momentum is not kept between calls
MUON_RATE, ADAM_RATE = 0.02, 3e-3
REPORT_S = 20.0
HELD_OUT = 4096  # examples
PROBE_SEED = 1  # of problems
CROPPED = 0.25  # share of batches


@dataclass(frozen=True, slots=True)
class Plan:
    """`tokens` of a batch; the rate falls over the last `decay` of `steps`."""

    steps: int
    decay: float
    tokens: int

    def rate(self, step: int, since_start: int) -> float:
        """Of the full rate, at a step that is so many behind the start of this call."""
        falling = (self.steps - step) / max(1, int(self.steps * self.decay))
        return min(1.0, (since_start + 1) / WARMUP, max(0.0, falling))


class Trainer:
    def __init__(self, shape: Shape, device: torch.device) -> None:
        self.network = Network(shape).to(device)
        self._shape, self._device = shape, device
        matrices = [p for n, p in self.network.named_parameters() if p.dim() == 2 and n.startswith("blocks.")]
        chosen = {id(matrix) for matrix in matrices}
        others = [p for p in self.network.parameters() if id(p) not in chosen]
        self._muon = Muon(matrices)
        self._adam = torch.optim.AdamW(others, lr=ADAM_RATE, betas=(0.9, 0.95), weight_decay=0.0)
        if device.type == "cuda":
            for block in self.network.blocks:  # one compilation serves all blocks
                block.compile(dynamic=False)
            self._loss_of = torch.compile(loss_of, dynamic=False)
        else:
            self._loss_of = loss_of

    def step(self, rows: Rows, room: int, random: torch.Generator, rate: float) -> Tensor:
        """One update; the loss, still on the device."""
        loss = self.loss(rows, room, random)
        self.network.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(self.network.parameters(), 1.0)
        self._adam.param_groups[0]["lr"] = ADAM_RATE * rate
        self._adam.step()
        self._muon.step(MUON_RATE * rate)
        return loss.detach()

    def loss(self, rows: Rows, room: int, random: torch.Generator) -> Tensor:
        shape = self._shape
        seen = copies(rows, random, shape.block, room) if shape.block else canvas(rows, random)
        on_gpu = self._device.type == "cuda"
        mask = None
        if seen.mask is not None:  # once for all layers, in the form that attention adds to its scores
            dtype = torch.bfloat16 if on_gpu else torch.float32
            mask = torch.zeros(seen.mask.shape, dtype=dtype, device=self._device).masked_fill_(~seen.mask, -math.inf)
        with torch.autocast("cuda", torch.bfloat16) if on_gpu else nullcontext():
            logits = self.network(seen.ids, seen.positions, mask)
        return self._loss_of(logits, seen.targets, seen.weights, shape.shift)


def loss_of(logits: Tensor, targets: Tensor, weights: Tensor, shift: int) -> Tensor:
    """Weighted cross entropy of the last positions of logits [B, T, V]; with `shift` from the position before."""
    count = targets.shape[1]
    if shift:
        targets, weights, count = targets[:, 1:], weights[:, 1:], count - 1
        logits = logits[:, :-1]
    said = logits[:, logits.shape[1] - count :].float()
    each = F.cross_entropy(said.flatten(0, 1), targets.flatten(), reduction="none")
    return (each * weights.flatten()).sum()


def main(argv: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(argv)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.set_float32_matmul_precision("high")
    started, step = time.monotonic(), 0
    shape, plan = SHAPES[options.model], Plan(options.steps, options.decay, options.tokens)
    tokenizer = find_model(TOKENIZER)
    examples = corpus(tokenizer / "tokenizer.json", options.seed, options.examples)
    _say(f"{len(examples)} examples of {sum(len(ids) for ids, _ in examples) / len(examples):.0f} tokens on average,"
         f" {time.monotonic() - started:.0f} s")  # fmt: skip
    torch.manual_seed(options.seed)
    trainer = Trainer(shape, device)
    if options.resume:
        restore(trainer.network, options.resume)
        step = json.loads((options.resume / STATE).read_text(encoding="utf-8"))["step"]
    held_out = shelves(examples[-HELD_OUT:], shape.block, device)
    kept = shelves(examples[:-HELD_OUT], shape.block, device)
    draws = torch.Generator(device).manual_seed(options.seed * 1_000_003 + step)
    cropped = 0.0 if shape.block else CROPPED  # block-causal positions see nothing of where the canvas ends
    source = batches(kept, plan.tokens, cropped, random.Random(f"{options.seed} {step}"), draws)
    step = run(trainer, source, plan, step, draws, started + options.seconds)
    test = torch.Generator(device).manual_seed(0)
    checks = batches(held_out, plan.tokens, 0.0, random.Random(0), test)
    # With gradients, which nobody takes: without, everything would be compiled once more.
    losses = [trainer.loss(*next(checks), test).item() for _ in range(4 * len(held_out))]
    _say(f"held-out loss {sum(losses) / len(losses):.4f} after {step} steps, {step * plan.tokens / 1e9:.3f} B tokens")
    export(trainer.network, options.out, tokenizer)
    if options.problems:
        plain = Network(shape).to(device)  # one that was not compiled for the shapes of training
        restore(plain, options.out)
        shares = accuracy(plain, Tokenizer.from_file(str(tokenizer / "tokenizer.json")), options.problems, PROBE_SEED)
        _say(f"one token a call, {options.problems} problems: "
             + ", ".join(f"{task} {share:.3f}" for task, share in shares.items()))  # fmt: skip
    (options.out / STATE).write_text(json.dumps({"step": step, "seed": options.seed}) + "\n", encoding="utf-8")
    return 0


def run(
    trainer: Trainer,
    source: Iterator[tuple[Rows, int]],
    plan: Plan,
    step: int,
    draws: torch.Generator,
    deadline: float,
) -> int:
    """Trains until the plan's steps are done or the time is over; the steps done in all."""
    begun, told, first = time.monotonic(), 0.0, step
    while step < plan.steps and time.monotonic() < deadline:
        loss = trainer.step(*next(source), draws, plan.rate(step, step - first))
        step += 1
        now = time.monotonic()
        if now - told > REPORT_S:
            told = now
            rate = (step - first) * plan.tokens / max(1e-9, now - begun) / 1e6
            _say(f"step {step} of {plan.steps}, {now - begun:.0f} s, {rate:.2f} M tokens/s, loss {loss.item():.4f}")
    return step


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", choices=sorted(SHAPES))
    parser.add_argument("out", type=Path, help="directory of the checkpoint")
    parser.add_argument("--seconds", type=float, default=540.0, help="end of this call")
    parser.add_argument("--steps", type=int, default=40_000, help="of the whole training")
    parser.add_argument("--decay", type=float, default=0.35, help="share of the steps in which the rate falls")
    parser.add_argument("--tokens", type=int, default=65_536, help="of a batch")
    parser.add_argument("--examples", type=int, default=960_000)
    parser.add_argument("--problems", type=int, default=256, help="answered at the end; 0: none")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--resume", type=Path, help="directory of a checkpoint to go on from")
    return parser


if __name__ == "__main__":
    sys.exit(main())
