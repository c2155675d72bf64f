"""A dry run collects kernels and leaves them out: what they would have written is no index of an operation of torch."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from asynclane.models.checkpoint.config import read_config
from asynclane.models.exec import graphs, runner
from asynclane.models.exec.runner import Runner
from asynclane.models.gemma import network_of
from asynclane.models.kv_cache import KvPages
from asynclane.models.network import allocate
from asynclane.models.numerics import Numerics

from ..support.checkpoints import CONFIGS, write_checkpoint
from ..support.counted import as_on_a_gpu

CPU = torch.device("cpu")
SIZES = 16, 32


class Nothing:
    """Stands in for the kernels that a dry run has collected."""

    def compile(self, report: graphs.Report) -> None:
        report(1, 1)


@contextmanager
def absurd() -> Iterator[Nothing]:
    """Memory that is not written holds the largest whole numbers and NaN, which no table has as an index."""
    torch.use_deterministic_algorithms(True)
    try:
        assert torch.empty(1, dtype=torch.int32).item() == 2**31 - 1
        yield Nothing()
    finally:
        torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("family", CONFIGS)
def test_a_dry_run_indexes_by_nothing_that_a_kernel_writes(
    family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    as_on_a_gpu(monkeypatch)
    monkeypatch.setattr(graphs, "DEVICE", CPU)
    monkeypatch.setattr(runner, "collected", absurd)
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: tensor)
    monkeypatch.setattr(torch.cuda, "Event", lambda **_: None)
    for name in ("graph_pool_handle", "synchronize"):
        monkeypatch.setattr(torch.cuda, name, lambda: None)
    config, numerics = read_config(write_checkpoint(tmp_path, family)), Numerics(torch.float32)
    weights, _ = allocate(config, numerics, CPU)
    network = network_of(config, numerics, weights)
    pages = KvPages(config, pages=1, page_size=16, slots=4, numerics=numerics, device=CPU)
    reports = list[tuple[int, int]]()
    made = Runner(network, pages, 4, [config.mask_id], [1])
    made.compile_kernels(SIZES, lambda *report: reports.append(report))
    assert reports == [(1, 1)]
