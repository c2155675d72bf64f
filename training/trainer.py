"""One step of training: noise, network, loss, gradients, update; on a GPU one captured graph for each size of a batch.

Launched one by one, the kernels of a network this small keep the host busy twice as long as the GPU.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .muon import Muon
from .network import Network
from .noise import Rows, canvas, copies
from .shapes import Shape

MUON_RATE, ADAM_RATE = 0.02, 3e-3
WARM_UPS = 2  # steps before a capture: what is compiled or allocated once is so then


@dataclass(frozen=True, slots=True)
class Captured:
    graph: torch.cuda.CUDAGraph
    rows: Rows  # where a batch is copied to
    loss: Tensor


class Trainer:
    def __init__(self, shape: Shape, device: torch.device) -> None:
        self.network = Network(shape).to(device)
        self.device, self.shape = device, shape
        self._on_gpu = device.type == "cuda"
        matrices = [p for n, p in self.network.named_parameters() if p.dim() == 2 and n.startswith("blocks.")]
        chosen = {id(matrix) for matrix in matrices}
        self._others = [p for p in self.network.parameters() if id(p) not in chosen]
        self._muon = Muon(matrices, shape.decay)
        self._rate = torch.zeros((), device=device)  # of the full rates
        self._adam_rate = torch.zeros((), device=device)
        self._adam = torch.optim.AdamW(
            self._others, lr=self._adam_rate, betas=(0.9, 0.95), weight_decay=0.0, capturable=self._on_gpu
        )
        self._loss_of = loss_of
        self._captured: dict[tuple[int, ...], Captured] = {}
        self._pool: Any = None  # torch names the type of a pool only privately
        if self._on_gpu:
            for block in self.network.blocks:  # one compilation serves all blocks
                block.compile(dynamic=False)
            self._loss_of = torch.compile(loss_of, dynamic=False)

    def step(self, rows: Rows, room: int, block: int, rate: float) -> Tensor:
        """One update; the loss, still on the device. `room`, `block` as `loss` has them."""
        self._rate.fill_(rate)
        self._adam_rate.fill_(ADAM_RATE * rate)
        if not self._on_gpu:
            return self._update(rows, room, block)
        key = (*rows.ids.shape, room, block)
        captured = self._captured.get(key) or self._capture(key, rows, room, block)
        for to, source in zip(captured.rows, rows, strict=True):
            if to is not None:
                to.copy_(source)
        captured.graph.replay()
        return captured.loss

    def loss(self, rows: Rows, room: int, block: int) -> Tensor:
        """The loss of a new draw of noise: block-causal with `room` for a second copy; bidirectional for `block` 0."""
        seen = copies(rows, block, room) if block else canvas(rows, self.shape.short_first)
        mask = None
        if seen.mask is not None:  # once for all layers, in the form that attention adds to its scores
            dtype = torch.bfloat16 if self._on_gpu else torch.float32
            mask = torch.zeros(seen.mask.shape, dtype=dtype, device=self.device).masked_fill_(~seen.mask, -math.inf)
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self._on_gpu):
            logits = self.network(seen.ids, seen.positions, mask)
        return self._loss_of(logits, seen.targets, seen.weights, self.shape.shift)

    def _update(self, rows: Rows, room: int, block: int) -> Tensor:
        loss = self.loss(rows, room, block)
        self.network.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        norm = nn.utils.clip_grad_norm_(self.network.parameters(), 1.0)
        for weight in self._others:  # a gradient that is no number moves nothing
            assert weight.grad is not None
            weight.grad.nan_to_num_(0.0, 0.0, 0.0)
        self._rate.mul_(norm.isfinite())
        self._adam_rate.mul_(norm.isfinite())
        self._adam.step()
        self._muon.step(MUON_RATE * self._rate)
        return loss.detach()

    def _capture(self, key: tuple[int, ...], rows: Rows, room: int, block: int) -> Captured:
        static = Rows(*(None if part is None else part.clone() for part in rows))  # type: ignore[arg-type]
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(WARM_UPS):
                self._update(static, room, block)
        torch.cuda.current_stream().wait_stream(stream)
        self.network.zero_grad(set_to_none=True)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            loss = self._update(static, room, block)
        self._pool = graph.pool()
        self._captured[key] = Captured(graph, static, loss)
        return self._captured[key]


def loss_of(logits: Tensor, targets: Tensor, weights: Tensor, shift: int) -> Tensor:
    """Weighted cross entropy of the last positions of logits [B, T, V]; with `shift` from the position before."""
    count = targets.shape[1]
    if shift:
        targets, weights, count = targets[:, 1:], weights[:, 1:], count - 1
        logits = logits[:, :-1]
    said = logits[:, logits.shape[1] - count :].float()
    each = F.cross_entropy(said.flatten(0, 1), targets.flatten(), reduction="none")
    return (each * weights.flatten()).sum()
