"""Measures many decoders in a few processes, each of which keeps a model loaded.

Opening a model takes longer than measuring many decoders, above all on a GPU, where each process captures every shape
of a step.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from typing import Any, NamedTuple

from ...server.engine.wiring import open_checkpoint
from ...server.settings import Settings
from ..eval.decoders import parse_decoder
from ..load.problems import problems
from .run import DTYPE, figures, measure, open_offline

MAX_TOKENS = 256
KEPT = 4096  # positions of keys and values for each request at once: some decoders keep many rows of a request


class Job(NamedTuple):
    model: str
    decoder: str


class Terms(NamedTuple):
    """The conditions of all measurements. `batch`: requests at once; `device`: cpu or cuda; `watch`: count lanes."""

    problems: int
    seed: int
    batch: int
    device: str
    watch: bool = False


def measure_each(jobs: Sequence[Job], terms: Terms, processes: int) -> Iterator[tuple[Job, dict[str, Any]]]:
    """Yield each job with its figures and terms, as they come. Consecutive jobs of a model share the loaded model.
    Every process has one thread: answers depend on neither. Progress goes to stderr. Raises `SystemExit` with a line if
    a process ends: its own message is on stderr, and earlier figures have been yielded."""
    context, waiting, done = get_context("spawn"), deque(jobs), 0
    busy: dict[Connection, Job] = {}
    for _ in range(min(processes, len(jobs))):
        here, there = context.Pipe()
        context.Process(target=_work, args=(there, terms), daemon=True).start()
        there.close()
        _give(here, waiting, busy)
    while busy:
        for pipe in wait([*busy]):
            assert isinstance(pipe, Connection)
            job = busy.pop(pipe)
            try:
                found = pipe.recv()
            except (EOFError, ConnectionError):
                raise SystemExit(f"the process that measured {job.decoder} on {job.model} has ended") from None
            _give(pipe, waiting, busy)
            done += 1
            line = f"{found['accuracy']:.3f}, {found['calls_per_problem']:.2f} calls, {found['wall_s']:.1f} s"
            print(f"[{done}/{len(jobs)}] {job.model} {job.decoder}: {line}", file=sys.stderr, flush=True)
            yield job, found


def _give(pipe: Connection, waiting: deque[Job], busy: dict[Connection, Job]) -> None:
    if not waiting:
        pipe.close()
        return
    busy[pipe] = waiting.popleft()
    pipe.send(busy[pipe])


def _work(pipe: Connection, terms: Terms) -> None:
    """Receive jobs and send figures through `pipe`, until the other end is closed."""
    questions = problems(terms.seed, terms.problems)
    model, checkpoint, engine = "", None, None
    with ExitStack() as stack:
        while True:
            try:
                job: Job = pipe.recv()
            except EOFError:
                return
            if engine is None or job.model != model:
                stack.close()
                model, engine = job.model, stack.enter_context(open_offline(_settings(job.model, terms)))
                checkpoint = open_checkpoint(model)
            choice = parse_decoder(job.decoder, MAX_TOKENS, checkpoint)
            tally = measure(engine, choice, questions, MAX_TOKENS, terms.watch)
            counted = {"lanes": tally.lanes.json()} if terms.watch else {}
            pipe.send({**figures(choice, tally), **terms._asdict(), **counted})


def _settings(model: str, terms: Terms) -> Settings:
    """Use one thread and a part of the GPU's memory: the other processes need the rest."""
    return Settings(
        model=model,
        dtype=DTYPE,
        device=terms.device,
        threads=1,
        max_num_seqs=terms.batch,
        kv_cache_tokens=terms.batch * KEPT if terms.device == "cuda" else None,
    )
