"""Several ranks of small checkpoints on a CPU, each in a process that this one starts, and what they compute."""

from __future__ import annotations

import multiprocessing
import sys
from collections.abc import Sequence
from pathlib import Path
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch import Tensor

from asynclane.models.checkpoint.config import read_config
from asynclane.models.checkpoint.registry import Hardware, load_runner
from asynclane.models.checkpoint.split import Rank
from asynclane.models.exec.group import Meeting
from asynclane.models.exec.memory import Memory
from asynclane.models.exec.runner import Runner
from asynclane.scheduler.contract import StepPlan

from .families import IDS, placed, row

ROOT = str(Path(__file__).parents[2])
Found = list[list[Tensor]]  # of one rank
ROWS = [IDS, IDS[::-1][:20], IDS[5:30], IDS[:1]]


def runner_of(directory: Path, hardware: Hardware, meeting: Meeting | None = None) -> Runner:
    memory = Memory(slots=4, page_size=16, step_tokens=128, cache_tokens=512)
    return load_runner(directory, read_config(directory), memory, hardware, [1], meeting=meeting).runner


def logits_of(runner: Runner) -> list[Tensor]:
    """Logits of each of `ROWS` by itself, and of all together."""
    plans = [StepPlan((placed(slot, ids),), (row(runner, slot, 0, len(ids)),)) for slot, ids in enumerate(ROWS)]
    together = StepPlan(tuple(plan.placements[0] for plan in plans), tuple(row for plan in plans for row in plan.rows))
    return [runner.logits(plan) for plan in (*plans, together)]


def logits_by_rank(networks: Sequence[tuple[Path, Hardware]], size: int, folder: Path) -> list[Found]:
    """`logits_of` each checkpoint, by rank. Files for that are written to a folder."""
    forks = multiprocessing.get_context("forkserver")
    forks.set_forkserver_preload(["asynclane.models.checkpoint.registry"])  # once, instead of in each process
    processes = [forks.Process(target=_compute, args=(Rank(n, size), networks, folder)) for n in range(size)]
    with patch.object(sys, "path", [ROOT, *sys.path]):  # where a new process finds this module
        for process in processes:
            process.start()
    for process in processes:
        process.join(120)
        process.kill()
        assert process.exitcode == 0
    return [torch.load(folder / f"rank-{number}.pt") for number in range(size)]


def _compute(rank: Rank, networks: Sequence[tuple[Path, Hardware]], folder: Path) -> None:
    found = []
    for number, (directory, hardware) in enumerate(networks):
        found.append(logits_of(runner_of(directory, hardware, Meeting(rank, str(folder / f"meeting-{number}")))))
        dist.destroy_process_group()
    torch.save(found, folder / f"rank-{rank.number}.pt")
