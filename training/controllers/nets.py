"""The two networks in torch, their examples, and how they learn."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple, Self

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from ...scheduler.contract import Floats
from ...scheduler.decoding.commit.host.learn2pd import WINDOW
from ...scheduler.decoding.commit.host.tspd import WIDTH

LEVELS = (0.5, 0.8, 0.9, 0.96, 0.99)  # thresholds of the report
BATCH = 512  # windows
HISTORIES = 2048  # of a batch

Longs = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
Tick = Callable[[], object]  # called after each epoch


class Windows(NamedTuple):
    """The filter's input, which of it is right, and which of it counts: all [any, WINDOW]."""

    seen: Tensor
    right: Tensor
    counts: Tensor

    @classmethod
    def of(cls, seen: Floats, place: Longs, right: Bools) -> Self:
        """From windows `seen` [any, WINDOW], where the observations [n] are among all their positions, and which of
        these are `right` [n]."""
        truth, counts = np.zeros(seen.size, np.float32), np.zeros(seen.size, np.float32)
        truth[place], counts[place] = right, 1.0
        return cls(*(torch.from_numpy(array.reshape(seen.shape)) for array in (seen, truth, counts)))


def moved(data: Windows) -> Windows:
    """Each window once more from each of its open positions on, as if a lane began there: otherwise the unit of each
    position learns too slowly what is the same for all."""
    parts: list[list[Tensor]] = []
    for start in range(WINDOW):
        begins = data.counts[:, start] > 0
        filled = torch.ones(int(begins.sum()), start)
        seen, right, counts = (column[begins, start:] for column in data)
        spare = (filled, torch.zeros_like(filled), torch.zeros_like(filled))
        parts.append([torch.cat(pair, 1) for pair in zip((seen, right, counts), spare, strict=True)])
    return Windows(*map(torch.cat, zip(*parts, strict=True)))


class Filter(nn.Module):
    """Learn2PD's, as the rule computes it."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(WINDOW, WINDOW), nn.Linear(WINDOW, WINDOW)

    def forward(self, data: Windows) -> Tensor:
        logits: Tensor = self.outer(functional.relu(self.inner(data.seen)))
        return logits

    def arrays(self) -> Mapping[str, Floats]:
        return _numpy(
            {
                "inner": self.inner.weight.T,
                "inner_bias": self.inner.bias,
                "outer": self.outer.weight.T,
                "outer_bias": self.outer.bias,
            }
        )


def train_filter(data: Windows, epochs: int, seed: int, tick: Tick = lambda: None) -> Filter:
    """The authors' rate of 0.003, falling to nothing."""
    data, net = moved(data), Filter()
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.003)
    rate = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs)
    for _ in range(epochs):
        for rows in torch.split(torch.randperm(len(data.seen), generator=generator), BATCH):
            batch = Windows(*(column[rows] for column in data))
            loss = functional.binary_cross_entropy_with_logits(net(batch), batch.right, weight=batch.counts)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        rate.step()
        tick()
    return net


class Histories(NamedTuple):
    """The controller's input of each position in each forward, `seen` [positions, forwards, 4]; `right` and `counts`
    [positions, forwards]; `sizes` [positions], falling."""

    seen: Tensor
    right: Tensor
    counts: Tensor
    sizes: Tensor

    @classmethod
    def of(cls, seen: Floats, begins: Bools, right: Bools) -> Self:
        """From observations `seen` [n, 4], those of each position one after another, where one `begins` [n], and which
        are `right` [n]."""
        row = np.cumsum(begins) - 1
        sizes = np.bincount(row)
        step = np.arange(len(row)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        longest = np.argsort(-sizes, kind="stable")
        rank = np.empty_like(longest)
        rank[longest] = np.arange(len(longest))
        place, shape = (rank[row], step), (len(sizes), int(sizes.max()))
        padded, truth, counts = (np.zeros(size, np.float32) for size in ((*shape, seen.shape[1]), shape, shape))
        padded[place], truth[place], counts[place] = seen, right, 1.0
        return cls(*map(torch.from_numpy, (padded, truth, counts, sizes[longest])))


class Controller(nn.Module):
    """TSPD's, as the rule computes it."""

    def __init__(self) -> None:
        super().__init__()
        self.unit, self.head = nn.GRU(4, WIDTH, batch_first=True), nn.Linear(WIDTH, 1)

    def forward(self, data: Histories) -> Tensor:
        packed = pack_padded_sequence(data.seen, data.sizes, batch_first=True)
        states, _ = pad_packed_sequence(self.unit(packed)[0], batch_first=True)
        logits: Tensor = self.head(states).squeeze(-1)
        return logits

    def arrays(self) -> Mapping[str, Floats]:
        unit = dict(self.unit.named_parameters())
        return _numpy(
            {
                "input": unit["weight_ih_l0"].T,
                "input_bias": unit["bias_ih_l0"],
                "recurrent": unit["weight_hh_l0"].T,
                "recurrent_bias": unit["bias_hh_l0"],
                "head": self.head.weight[0],
                "head_bias": self.head.bias,
            }
        )


def batches(data: Histories, size: int, generator: torch.Generator) -> Iterator[Histories]:
    """All positions once, in a random order of batches, each as long as its longest history."""
    chosen = torch.randperm(len(data.sizes), generator=generator)
    for part in torch.split(chosen, size):
        rows = part.sort().values  # longest first
        calls = int(data.sizes[rows[0]])
        yield Histories(data.seen[rows, :calls], data.right[rows, :calls], data.counts[rows, :calls], data.sizes[rows])


def train_controller(data: Histories, epochs: int, seed: int, tick: Tick = lambda: None) -> Controller:
    """Right and wrong proposals weigh the same, as in the paper; AdamW with its decay, the rate falling to nothing."""
    net = Controller()
    share = float((data.right.sum() / data.counts.sum()).clamp(0.01, 0.99))
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.003, weight_decay=0.01)
    rate = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs)
    for _ in range(epochs):
        for batch in batches(data, HISTORIES, generator):
            weight = batch.counts * torch.where(batch.right > 0, 0.5 / share, 0.5 / (1.0 - share))
            loss = functional.binary_cross_entropy_with_logits(net(batch), batch.right, weight=weight, reduction="sum")
            optimizer.zero_grad()
            (loss / batch.counts.sum()).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        rate.step()
        tick()
    return net


@torch.no_grad()
def report(name: str, net: nn.Module, data: Windows | Histories) -> str:
    """For each threshold: the share of the right proposals that it takes, and the share of right ones among those."""
    there = data.counts > 0
    scores, truth = net(data).sigmoid()[there], data.right[there] > 0
    lines = [f"{name}: {len(truth)} observations of validation, {truth.float().mean():.3f} of them right"]
    for level in LEVELS:
        taken = scores >= level
        found = (taken & truth).sum() / truth.sum()
        precision = f"{truth[taken].float().mean():.4f}" if taken.any() else "-"
        lines.append(f"  {level}: takes {found:.3f} of the right, {precision} of all that it takes are right")
    return "\n".join(lines) + "\n"


def _numpy(tensors: Mapping[str, Tensor]) -> Mapping[str, Floats]:
    return {name: tensor.detach().numpy() for name, tensor in tensors.items()}
