"""Records how answers come about, for commit rules that are learnt: of every call, what each open position proposed.

Usage: python -m asynclane.training.traces MODEL OUT.npz [--problems 256] [--seed 2] [--policy single]
One token commits in each call. With the policy `parallel` an answer is known first, decoded at a threshold of 0.99, and
all that is proposed as it says commits at once: the extremely greedy policy of arXiv 2509.25188. Where nothing is, the
known token stands in at the surest position, while the authors fill the whole block then; and they know the answer from
one token a call, which takes six times as long.

The file holds arrays with one entry for each open position of the block in turn and each call: `problem`, `call`,
`position` (after the prompt), `token` (the best one), `confidence` and `entropy` (nats) of its distribution, and
`final`, the token that came to stand there.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from tokenizers import Tokenizer

from ..bench.load.problems import problems
from ..models.checkpoint.registry import find_model
from .corpus import MARKS, Writer
from .export import restore
from .network import Network
from .probe import Look, decode, surest
from .shapes import SHAPES

POLICIES = ("single", "parallel")
CERTAIN = 0.99

Columns = dict[str, npt.NDArray[np.generic]]


def certain(look: Look) -> torch.Tensor:
    """Positions that are nearly sure commit, or else the surest."""
    sure = look.eligible & (look.confidence >= CERTAIN)
    return torch.where(sure, look.tokens, surest(look))


class Known:
    """All commits that is proposed as the answers `ids` [N, T] have it, or else one token of theirs."""

    def __init__(self, ids: torch.Tensor) -> None:
        self._ids = ids

    def __call__(self, look: Look) -> torch.Tensor:
        known = self._ids[look.rows]
        open_ = look.eligible & (known != MARKS.mask)
        right = open_ & (look.tokens == known)
        one = surest(look._replace(tokens=known, eligible=open_))
        return torch.where(right, known, torch.where(right.any(1, keepdim=True), MARKS.mask, one))


def record(network: Network, prompts: list[list[int]], device: torch.device, policy: str = "single") -> Columns:
    """The arrays of the file, for these prompts."""
    kept: list[dict[str, torch.Tensor]] = []

    def watch(look: Look) -> None:
        row, place = look.eligible.nonzero(as_tuple=True)
        kept.append(
            {
                "problem": look.rows[row],
                "call": torch.full_like(row, len(kept)),
                "place": place,
                "token": look.tokens[row, place],
                "confidence": look.confidence[row, place],
                "entropy": look.entropy[row, place],
            }
        )

    with torch.inference_mode():
        if policy == "parallel":
            known = decode(network, prompts, device, commits=certain)
            ids = decode(network, prompts, device, watch, Known(known))
        else:
            ids = decode(network, prompts, device, watch)
    columns = {name: torch.cat([part[name] for part in kept]) for name in kept[0]} if kept else {}
    reached = ids[columns["problem"], columns["place"]] != MARKS.mask  # the answer ended before the others
    columns = {name: column[reached] for name, column in columns.items()}
    place, problem = columns.pop("place"), columns["problem"]
    sizes = torch.tensor([len(prompt) for prompt in prompts], device=device)
    columns |= {"position": place - sizes[problem], "final": ids[problem, place]}
    kinds = {"token": np.int16, "final": np.int16, "confidence": np.float32, "entropy": np.float32}
    return {name: column.cpu().numpy().astype(kinds.get(name, np.int32)) for name, column in columns.items()}


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", choices=sorted(SHAPES))
    parser.add_argument("out", type=Path)
    parser.add_argument("--problems", type=int, default=256)
    parser.add_argument("--seed", type=int, default=2, help="of the problems")
    parser.add_argument("--policy", choices=POLICIES, default=POLICIES[0], help="which positions commit")
    options = parser.parse_args(argv)
    options.out.touch()  # now, not when all is recorded
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    directory = find_model(options.model)
    network = Network(SHAPES[options.model]).to(device)
    restore(network, directory)
    writer = Writer(Tokenizer.from_file(str(directory / "tokenizer.json")))
    prompts = [writer.prompt(problem.prompt) for problem in problems(options.seed, options.problems)]
    columns = record(network, prompts, device, options.policy)
    np.savez_compressed(options.out, **columns)  # type: ignore[arg-type]
    sys.stdout.write(f"{len(columns['token'])} observations of {len(prompts)} answers: {options.out}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
