"""Trains the rules that are learnt, Learn2PD's filter and TSPD's controller, from traces of the embedded models.

Usage: python -m asynclane.training.controllers TRACES.npz ... --out scheduler/decoding/commit/shared [--seed 0]
The traces are of the policy `parallel`; an observation is right if its token is the final one. Both see probabilities
alone, so one of each serves all models. A tenth of the problems is for validation; the report is on them.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from ...scheduler.decoding.commit.host.learn2pd import WINDOW
from ...scheduler.decoding.commit.host.tspd import features
from ...scheduler.decoding.commit.shared.weights import certainty
from .nets import Histories, Longs, Windows, report, train_controller, train_filter

VALIDATION = 10  # one problem in so many
FILTER_EPOCHS, CONTROLLER_EPOCHS = 80, 120

Numbers = npt.NDArray[np.float64]


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


def windows(observed: Observations) -> Windows:
    new = np.append(True, (np.diff(observed.problem) != 0) | (np.diff(observed.call) != 0))
    row, inside = np.cumsum(new) - 1, observed.distance < WINDOW
    place = (row * WINDOW + observed.distance)[inside]
    seen = np.ones((int(row[-1]) + 1, WINDOW), np.float32)
    seen.reshape(-1)[place] = certainty(observed.confidence[inside])
    return Windows.of(seen, place, observed.right[inside])


def histories(observed: Observations) -> Histories:
    observed = observed.where(np.lexsort((observed.call, observed.position, observed.problem)))
    problem, call, position, distance, confidence, entropy, right = observed
    # A position whose block was not computed in between starts again.
    new = np.append(True, (np.diff(problem) != 0) | (np.diff(position) != 0) | (np.diff(call) != 1))
    momentum = np.where(new, 0.0, np.diff(confidence, prepend=0.0))
    return Histories.of(features(confidence, entropy, momentum, distance.astype(np.float64)), new, right)


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
    filter_ = train_filter(windows(learnt), FILTER_EPOCHS // options.shorten, options.seed)
    sys.stdout.write(report("learn2pd", filter_, windows(validation)))
    controller = train_controller(histories(learnt), CONTROLLER_EPOCHS // options.shorten, options.seed)
    sys.stdout.write(report("tspd", controller, histories(validation)))
    for name, net in (("learn2pd", filter_), ("tspd", controller)):
        np.savez(options.out / f"{name}.npz", **net.arrays())  # type: ignore[arg-type, attr-defined]
    return 0


if __name__ == "__main__":
    sys.exit(main())
