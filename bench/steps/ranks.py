"""Times whole steps of published shapes, with random weights, on several GPUs that share the network.

Usage: python -m asynclane.bench.steps.ranks [--sizes 1,2] [--shapes llada-8b,llada2-mini] [--tokens 32,2048]
First the sums that a step of such a network has, 64 in a CUDA graph, by NCCL and by reads of each other's memory. Then
the graphs that the server replays. Each rank is a process that runs this program.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ...kernels.elementwise import add_rms_norm
from ...models.checkpoint.registry import DTYPES
from ...models.checkpoint.split import WHOLE, Rank
from ...models.exec.group import Group, Meeting
from ...models.exec.runner import Runner
from ...models.kv_cache import KvPages
from ...models.numerics import Numerics
from ..kernels.timing import captured, gpu_facts, replay_ms, require_gpu
from ..load.flags import COUNTS
from ..load.output import check_outputs, finish, positive, table
from .offline import CONTEXT, ROW, Load, place, plan_of, random_network
from .shapes import SHAPES

SUMS = 64  # in a step of LLaDA-8B
DIM = 4096
SUMMED = (16, 32, 64, 128, 512, 2048)  # rows
ROWS = 4096  # of a mailbox: the largest step of a server
WAYS = ("best", "nccl")


@dataclass(frozen=True, slots=True)
class Job:
    """The arguments of every rank's process."""

    sizes: tuple[int, ...]
    shapes: tuple[str, ...]
    tokens: tuple[int, ...]
    keys: int
    page_size: int
    dtype: str
    layers: int | None
    folder: str


def group_of(rank: Rank, dim: int, way: str, device: torch.device, dtype: torch.dtype = torch.bfloat16) -> Group:
    """Return a group of the ranks, which are connected already, that adds up in this way."""
    group = Group(rank, device, ordered=False)
    if way != "nccl":
        group.use_mailbox(ROWS, dim, dtype)
    if way == "mailbox":
        group.most_rows = ROWS  # also where it is slower
    return group


def sums(rank: Rank, device: torch.device) -> list[dict[str, object]]:
    """Time sums with the norm that follows, and the norm alone."""
    found = []
    weight = torch.ones(DIM, dtype=torch.bfloat16, device=device)
    groups = {way: group_of(rank, DIM, way, device) for way in ("mailbox", "nccl")}
    chosen = group_of(rank, DIM, "best", device).most_rows
    for rows in SUMMED:
        x = torch.full((rows, DIM), rank.number + 1, dtype=torch.bfloat16, device=device)
        residual = torch.zeros_like(x)
        want = sum(range(1, rank.size + 1))

        def several(compute: Callable[[int], object]) -> Callable[[], None]:
            def all_of_them() -> None:
                for number in range(SUMS):
                    compute(number % 2)

            return all_of_them

        times: dict[str, object] = {"rows": rows, "chosen": "mailbox" if rows <= chosen else "nccl"}
        for way, group in groups.items():
            _, total = group.add_rms_norm(x.clone(), residual, weight, 1e-5, 0)
            group.add_rms_norm(x.clone(), residual, weight, 1e-5, 1)
            if not bool((total == want).all()):
                raise ValueError(f"{way}: sums of {total.min()} to {total.max()}, not {want}")
            work = x.clone().zero_()  # NCCL's sums are in place

            def of_group(turn: int, group: Group = group, work: Tensor = work, residual: Tensor = residual) -> object:
                return group.add_rms_norm(work, residual, weight, 1e-5, turn)

            times[way] = round(replay_ms(captured(several(of_group))), 3)
            dist.barrier()

        def alone(turn: int, x: Tensor = x, residual: Tensor = residual) -> object:
            return add_rms_norm(x, residual, weight, 1e-5)

        times["norm alone"] = round(replay_ms(captured(several(alone))), 3)
        dist.barrier()
        found.append(times)
    return found


def steps(job: Job, shape: str, rank: Rank, way: str, device: torch.device) -> list[dict[str, object]]:
    """Time the graphs of steps on the ranks of a size."""
    whole = SHAPES[shape]
    layers = min(whole.layers, job.layers or whole.layers)
    config = replace(whole, layers=layers, max_model_len=min(whole.max_model_len, CONTEXT))
    numerics = Numerics(DTYPES[job.dtype])
    group = None if rank.size == 1 else group_of(rank, config.dim, way, device, numerics.dtype)
    network = random_network(config, numerics, device, rank, group)
    found: list[dict[str, object]] = []
    for tokens in job.tokens:
        load = Load(str(tokens), ((min(tokens, ROW), job.keys),) * max(1, tokens // ROW))
        slots = max(64, len(load.rows))
        count = sum(-(-keys // job.page_size) for _, keys in load.rows)
        pages = KvPages(network.config, count, job.page_size, slots, numerics, device)
        runner = Runner(network, pages, slots, [config.mask_id], [1])
        place(runner, load, network.config, job.page_size)
        result = runner.execute(plan_of(load, 1, config.logit_shift))
        graph = runner.graph_for(plan_of(load, 1, config.logit_shift))
        step_ms = round(replay_ms(graph), 3)
        step = {"shape": shape, "ranks": rank.size, "way": way, "tokens": tokens, "step_ms": step_ms}
        found.append(step | {"proposals": result.proposals.tolist()})
        del graph, runner, pages
        torch.cuda.empty_cache()
    return found


def run_rank(job: Job, number: int) -> None:
    """Measure as one rank of the largest group. The first writes what it found."""
    size = max(job.sizes)
    device = torch.device("cuda", number)
    torch.cuda.set_device(device)
    whole = Rank(number, size)
    found: dict[str, Any] = {"sums": [], "steps": []}
    with torch.inference_mode():
        if size > 1:
            Meeting(whole, str(Path(job.folder) / "meeting")).join(device, ordered=False)
            if job.dtype == "bfloat16":
                found["sums"] = sums(whole, device)
        for shape in job.shapes:
            for ranks in job.sizes:
                for way in WAYS if ranks > 1 else ("alone",):
                    if ranks == size or not number:
                        found["steps"] += steps(job, shape, whole if ranks > 1 else WHOLE, way, device)
                        if not number:
                            last = {key: value for key, value in found["steps"][-1].items() if key != "proposals"}
                            print(last, file=sys.stderr, flush=True)
                    torch.cuda.empty_cache()
                    if size > 1:
                        dist.barrier()
    torch.save(found, Path(job.folder) / f"rank-{number}.pt")


def compared(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return steps with their share of one device's time and of its proposals. Weights are the same on any number."""
    alone = {(step["shape"], step["tokens"]): step for step in found if step["ranks"] == 1}
    for step in found:
        one = alone.get((step["shape"], step["tokens"]))
        proposals = step["proposals"]
        step["of_one"] = one and round(step["step_ms"] / one["step_ms"], 3)
        same = [a == b for a, b in zip(proposals, one["proposals"], strict=True)] if one else []
        step["same"] = round(sum(same) / len(same), 3) if same else None
    return [{key: value for key, value in step.items() if key != "proposals"} for step in found]


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m asynclane.bench.steps.ranks",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--sizes", type=COUNTS, default="1,2", help="1 and the number of GPUs (default: %(default)s)")
    parser.add_argument("--shapes", default="llada-8b,llada2-mini", help="with commas (default: %(default)s)")
    parser.add_argument("--tokens", type=COUNTS, default="32,2048", help="positions of steps (default: %(default)s)")
    parser.add_argument("--keys", type=int, default=512, help="of a denoising row (default: %(default)s)")
    parser.add_argument("--page-size", type=int, default=64, help="positions of a page (default: %(default)s)")
    parser.add_argument("--layers", type=positive, help="compute no more of a shape")
    parser.add_argument("--dtype", choices=DTYPES, default="bfloat16", help="default: %(default)s")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the last line to a file, too")
    options = parser.parse_args(argv)
    check_outputs(parser, None, options.json)
    require_gpu(parser)
    sizes, shapes = tuple(options.sizes), tuple(filter(None, options.shapes.split(",")))
    if unknown := set(shapes) - set(SHAPES):
        parser.error(f"unknown shapes: {', '.join(unknown)}")
    if torch.cuda.device_count() < max(sizes):
        parser.error(f"{max(sizes)} ranks need as many GPUs, torch sees {torch.cuda.device_count()}")
    with tempfile.TemporaryDirectory() as folder:
        numbers = options.keys, options.page_size, options.dtype, options.layers
        job = Job(sizes, shapes, tuple(options.tokens), *numbers, folder)
        spawn = multiprocessing.get_context("spawn")
        processes = [spawn.Process(target=run_rank, args=(job, n), daemon=True) for n in range(max(sizes))]
        for process in processes:
            process.start()
        while processes[0].is_alive() and all(process.exitcode in (None, 0) for process in processes):
            processes[0].join(0.1)
        if processes[0].exitcode != 0:
            for process in processes:
                process.kill()
            parser.exit(1, f"{parser.prog}: a rank has failed\n")
        found = torch.load(Path(folder) / "rank-0.pt")
        for process in processes:
            process.join(30)
            process.kill()
    done = compared(found["steps"])
    if found["sums"]:
        print(f"Milliseconds of {SUMS} sums of [rows, {DIM}] in bfloat16 on {max(sizes)} GPUs, each with its norm:")
        print(table(list(found["sums"][0]), [[str(value) for value in each.values()] for each in found["sums"]]))
    head = ["shape", "tokens", "ranks", "way", "step_ms", "of_one", "same"]
    print(table(head, [["-" if step[name] is None else str(step[name]) for name in head] for step in done]))
    arguments = {name: getattr(options, name) for name in ("sizes", "shapes", "keys", "page_size", "dtype", "layers")}
    finish({"benchmark": "ranks", **arguments, "sums": found["sums"], "steps": done, **gpu_facts()}, options.json)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
