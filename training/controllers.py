"""Trains the rules that are learnt, Learn2PD's filter and TSPD's controller, from traces of the embedded models.

Usage: python -m asynclane.training.controllers TRACES.npz ... --out scheduler/decoding/commit/shared [--seed 0]
The traces are of the policy `parallel`; an observation is right if its token is the final one. Both see probabilities
alone, so one of each serves all models. A tenth of the problems is for validation; the report is on them.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from ..scheduler.decoding.commit.host.learn2pd import WINDOW
from ..scheduler.decoding.commit.host.tspd import WIDTH, features
from ..scheduler.decoding.commit.shared.weights import certainty

VALIDATION = 10  # one problem in so many
FILTER_EPOCHS, CONTROLLER_EPOCHS = 80, 120
LEVELS = (0.5, 0.8, 0.9, 0.96, 0.99)  # thresholds of the report

Numbers = npt.NDArray[np.float64]
Longs = npt.NDArray[np.int64]


class Observations(NamedTuple):
    """Observations of n open positions at some forward: the `problem`, unique among all files, the forward's number
    `call`, the `distance` from the first open position, and whether the proposal was `right`."""

    problem: Longs
    call: Longs
    position: Longs
    distance: Longs
    confidence: Numbers
    entropy: Numbers
    right: npt.NDArray[np.bool_]

    def where(self, chosen: npt.NDArray[np.bool_ | np.int64]) -> Observations:
        """The chosen ones: a mask, or indices in the order wanted."""
        return Observations._make(column[chosen] for column in self)


def read(paths: Sequence[Path]) -> Observations:
    """The observations of all files, in the order of problems and forwards."""
    parts = []
    problems = 0
    for path in paths:
        with np.load(path) as found:
            columns = {name: found[name] for name in found.files}
        problem = columns["problem"].astype(np.int64) + problems
        problems = int(problem.max()) + 1
        order = np.lexsort((columns["position"], columns["call"], problem))
        call, position = columns["call"].astype(np.int64), columns["position"].astype(np.int64)
        kept = (problem, call, position, position, columns["confidence"], columns["entropy"])
        parts.append([column[order] for column in (*kept, columns["token"] == columns["final"])])
    problem, call, position, _, confidence, entropy, right = (np.concatenate(part) for part in zip(*parts, strict=True))
    new = np.append(True, (np.diff(problem) != 0) | (np.diff(call) != 0))
    distance = position - position[new][np.cumsum(new) - 1]
    return Observations(
        problem, call, position, distance, confidence.astype(np.float64), entropy.astype(np.float64), right
    )


class Windows(NamedTuple):
    """The filter's input, which of it is right, and which of it counts: all [any, WINDOW]."""

    seen: Tensor
    right: Tensor
    counts: Tensor


def windows(observed: Observations) -> Windows:
    new = np.append(True, (np.diff(observed.problem) != 0) | (np.diff(observed.call) != 0))
    row, inside = np.cumsum(new) - 1, observed.distance < WINDOW
    place = (row[inside], observed.distance[inside])
    shape = (int(row[-1]) + 1, WINDOW)
    seen, right, counts = np.ones(shape, np.float32), np.zeros(shape, np.float32), np.zeros(shape, np.float32)
    seen[place], right[place], counts[place] = certainty(observed.confidence[inside]), observed.right[inside], 1.0
    return Windows(torch.from_numpy(seen), torch.from_numpy(right), torch.from_numpy(counts))


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
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(WINDOW, WINDOW), nn.Linear(WINDOW, WINDOW)

    def forward(self, seen: Tensor) -> Tensor:
        logits: Tensor = self.outer(functional.relu(self.inner(seen)))
        return logits

    def arrays(self) -> dict[str, Tensor]:
        return {
            "inner": self.inner.weight.T,
            "inner_bias": self.inner.bias,
            "outer": self.outer.weight.T,
            "outer_bias": self.outer.bias,
        }


def train_filter(observed: Observations, epochs: int, seed: int) -> Filter:
    """The authors' rate of 0.003, falling to nothing."""
    data, net = moved(windows(observed)), Filter()
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.003)
    rate = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs)
    for _ in range(epochs):
        for rows in torch.split(torch.randperm(len(data.seen), generator=generator), 512):
            seen, right, counts = (column[rows] for column in data)
            loss = functional.binary_cross_entropy_with_logits(net(seen), right, weight=counts)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        rate.step()
    return net


class Histories(NamedTuple):
    """The controller's input of each position in each forward, `seen` [positions, forwards, 4]; `right` and `counts`
    [positions, forwards]; `sizes` [positions], falling."""

    seen: Tensor
    right: Tensor
    counts: Tensor
    sizes: Tensor


def histories(observed: Observations) -> Histories:
    observed = observed.where(np.lexsort((observed.call, observed.position, observed.problem)))
    problem, call, position, distance, confidence, entropy, _ = observed
    # A position whose block was not computed in between starts again.
    new = np.append(True, (np.diff(problem) != 0) | (np.diff(position) != 0) | (np.diff(call) != 1))
    row = np.cumsum(new) - 1
    sizes = np.bincount(row)
    step = np.arange(len(row)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    momentum = np.where(new, 0.0, np.diff(confidence, prepend=0.0))
    longest = np.argsort(-sizes, kind="stable")
    rank = np.empty_like(longest)
    rank[longest] = np.arange(len(longest))
    place, shape = (rank[row], step), (len(sizes), int(sizes.max()))
    seen, right = np.zeros((*shape, 4), np.float32), np.zeros(shape, np.float32)
    seen[place] = features(confidence, entropy, momentum, distance.astype(np.float64))
    right[place] = observed.right
    counts = np.zeros(shape, np.float32)
    counts[place] = 1.0
    return Histories(*map(torch.from_numpy, (seen, right, counts, sizes[longest])))


class Controller(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.unit, self.head = nn.GRU(4, WIDTH, batch_first=True), nn.Linear(WIDTH, 1)

    def forward(self, data: Histories) -> Tensor:
        packed = pack_padded_sequence(data.seen, data.sizes, batch_first=True)
        states, _ = pad_packed_sequence(self.unit(packed)[0], batch_first=True)
        logits: Tensor = self.head(states).squeeze(-1)
        return logits

    def arrays(self) -> dict[str, Tensor]:
        unit = dict(self.unit.named_parameters())
        return {
            "input": unit["weight_ih_l0"].T,
            "input_bias": unit["bias_ih_l0"],
            "recurrent": unit["weight_hh_l0"].T,
            "recurrent_bias": unit["bias_hh_l0"],
            "head": self.head.weight[0],
            "head_bias": self.head.bias,
        }


def batches(data: Histories, size: int, generator: torch.Generator) -> Iterator[Histories]:
    """All positions once, in a random order of batches, each as long as its longest history."""
    chosen = torch.randperm(len(data.sizes), generator=generator)
    for part in torch.split(chosen, size):
        rows = part.sort().values  # longest first
        calls = int(data.sizes[rows[0]])
        yield Histories(data.seen[rows, :calls], data.right[rows, :calls], data.counts[rows, :calls], data.sizes[rows])


def train_controller(observed: Observations, epochs: int, seed: int) -> Controller:
    """Right and wrong proposals weigh the same, as in the paper; AdamW with its decay, the rate falling to nothing."""
    data, net = histories(observed), Controller()
    share = float((data.right.sum() / data.counts.sum()).clamp(0.01, 0.99))
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.003, weight_decay=0.01)
    rate = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs)
    for _ in range(epochs):
        for batch in batches(data, 2048, generator):
            weight = batch.counts * torch.where(batch.right > 0, 0.5 / share, 0.5 / (1.0 - share))
            loss = functional.binary_cross_entropy_with_logits(net(batch), batch.right, weight=weight, reduction="sum")
            optimizer.zero_grad()
            (loss / batch.counts.sum()).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        rate.step()
    return net


@torch.no_grad()
def report(name: str, logits: Tensor, right: Tensor, counts: Tensor) -> str:
    """For each threshold: the share of the right proposals that it takes, and the share of right ones among those."""
    scores, truth = logits.sigmoid()[counts > 0], right[counts > 0] > 0
    lines = [f"{name}: {len(truth)} observations of validation, {truth.float().mean():.3f} of them right"]
    for level in LEVELS:
        taken = scores >= level
        found = (taken & truth).sum() / truth.sum()
        lines.append(f"  {level}: takes {found:.3f} of the right, {truth[taken].float().mean():.4f} of these are right")
    return "\n".join(lines) + "\n"


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("traces", nargs="+", type=Path)
    parser.add_argument("--out", type=Path, required=True, help="folder of learn2pd.npz and tspd.npz")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--shorten", type=int, default=1, help="so many times fewer epochs")
    options = parser.parse_args(argv)
    torch.manual_seed(options.seed)
    torch.use_deterministic_algorithms(True)
    torch.set_num_threads(1)
    observed = read(options.traces)
    out = observed.problem % VALIDATION == 0
    learnt, validation = observed.where(~out), observed.where(out)
    kinds = len(np.unique(learnt.problem << 20 | learnt.position))
    sys.stdout.write(f"{kinds} positions, {len(learnt.right)} observations, {learnt.right.mean():.3f} right\n")
    filter_ = train_filter(learnt, FILTER_EPOCHS // options.shorten, options.seed)
    seen = windows(validation)
    sys.stdout.write(report("learn2pd", filter_(seen.seen), seen.right, seen.counts))
    controller = train_controller(learnt, CONTROLLER_EPOCHS // options.shorten, options.seed)
    grown = histories(validation)
    sys.stdout.write(report("tspd", controller(grown), grown.right, grown.counts))
    for name, net in (("learn2pd", filter_), ("tspd", controller)):
        arrays = {key: array.detach().numpy() for key, array in net.arrays().items()}
        np.savez(options.out / f"{name}.npz", **arrays)  # type: ignore[arg-type]
    return 0


if __name__ == "__main__":
    sys.exit(main())
