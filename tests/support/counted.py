"""Counts the memory of a GPU's steps without one: its operations run on tensors that have no numbers, and no kernel."""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from asynclane.models import gemma, kv_cache, network
from asynclane.models.exec import runner
from asynclane.models.exec.pack import Shape, unpack

META = torch.device("meta")
OPERATIONS = (
    "attention", "commit", "elementwise", "experts", "fused", "importance", "linear", "logits", "measure", "predict",
)  # fmt: skip
FILES = {
    "elementwise": ("triton", "triton_norms"),
    "linear": ("triton", "triton_grouped", "triton_quantize", "triton_streamed"),
    "predict": ("triton", "triton_sampling"),
}


class Launches:
    """Stands in for a kernel: its launches do nothing."""

    def __getitem__(self, grid: object) -> Any:
        return lambda *arguments, **options: None


def as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let networks and runners take the functions that launch kernels, and leave out the launches."""
    pytest.importorskip("triton")
    for operation in OPERATIONS:
        for file in FILES.get(operation, ("triton",)):
            module = import_module(f"asynclane.kernels.{operation}.{file}")
            for name, value in list(vars(module).items()):
                if type(value).__name__ in ("JITFunction", "InterpretedFunction"):
                    monkeypatch.setattr(module, name, Launches())
    for module in (gemma, kv_cache, network, runner):
        for name, value in list(vars(module).items()):
            reference = getattr(value, "__wrapped__", None)
            if reference is not None and reference.__module__.endswith(".reference"):
                kernels = import_module(reference.__module__.replace(".reference", ".triton"))
                monkeypatch.setattr(module, name, getattr(kernels, reference.__name__))


class Counted(TorchDispatchMode):
    """The bytes of the tensors that operations make: those that live, and the most that lived at once."""

    def __init__(self) -> None:
        super().__init__()
        self.live = self.peak = 0
        self._storages: dict[int, weakref.ref[Any]] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        given = {id(leaf.untyped_storage()) for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)}
        out = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(out):
            if isinstance(leaf, torch.Tensor) and id(leaf.untyped_storage()) not in given:
                self._count(leaf.untyped_storage())
        return out

    def _count(self, storage: Any) -> None:
        key, size = id(storage), storage.nbytes()
        if key in self._storages:
            return

        def freed(_: object) -> None:
            self.live -= size
            del self._storages[key]

        self._storages[key] = weakref.ref(storage, freed)
        self.live += size
        self.peak = max(self.peak, self.live)


def counted_bytes(model: runner.Runner, body: Shape, tails: Sequence[Shape]) -> list[int]:
    """The most bytes at once of the body of a step, and of each of these tails of it, besides what lives before."""
    found = []
    with torch.inference_mode():
        with Counted() as counted:
            unfinished = model.begin(unpack(_words(body), body))
        found.append(counted.peak)
        for tail in tails:
            with Counted() as counted:
                model.finish(unfinished, unpack(_words(tail), tail))
            found.append(counted.peak)
    return found


def _words(shape: Shape) -> Tensor:
    return torch.empty(shape.words, dtype=torch.int32, device=META)
