"""Every operation runs where its tensors are, and needs Triton at the first CUDA tensor only."""

from __future__ import annotations

import inspect
import subprocess
import sys
from importlib import import_module
from typing import Any

import pytest
import torch

from asynclane.kernels.common.dispatch import by_device

from ..support.kernel_cases import kernels_of

OPERATIONS = {
    "attention": ["paged_attention"],
    "commit": ["commit", "transfer", "write_tokens"],
    "elementwise": [
        *("add_attention", "add_feed_forward", "add_rms_norm", "embed", "geglu", "kv_places", "rms_norm"),
        *("rope_write_kv", "swiglu"),
    ],
    "experts": ["experts_mlp", "experts_parts", "route"],
    "fused": ["linear_add_rms_norm", "linear_rope_write_kv", "linear_swiglu"],
    "linear": ["linear", "quantize_rows"],
    "logits": ["adjust", "restrict", "soft_cap", "temper"],
    "measure": ["measure"],
    "predict": ["predict"],
    "ranks": ["linear_sum_add_rms_norm", "sum_add_rms_norm"],
}
FUNCTIONS = [(operation, name) for operation, names in OPERATIONS.items() for name in names]


def parameters(function: Any) -> dict[str, Any]:
    return {name: parameter.default for name, parameter in inspect.signature(function).parameters.items()}


@pytest.mark.parametrize(("operation", "name"), FUNCTIONS)
def test_an_operation_has_the_signature_and_the_docstring_of_its_reference(operation: str, name: str) -> None:
    package = import_module(f"asynclane.kernels.{operation}")
    reference = getattr(package.reference, name)
    assert inspect.signature(getattr(package, name)) == inspect.signature(reference)
    assert getattr(package, name).__doc__ == reference.__doc__


@pytest.mark.parametrize(("operation", "name"), FUNCTIONS)
def test_a_kernel_takes_what_its_reference_takes(operation: str, name: str) -> None:
    reference = parameters(getattr(import_module(f"asynclane.kernels.{operation}"), name))
    kernel = parameters(getattr(kernels_of(operation), name))
    assert list(kernel)[: len(reference)] == list(reference), "in the same order"
    assert {name: kernel[name] for name in reference} == reference
    assert all(kernel[name] is None for name in list(kernel)[len(reference) :]), "what tunes a launch is optional"


def test_a_cuda_tensor_goes_to_the_kernel_of_the_same_name(monkeypatch: pytest.MonkeyPatch) -> None:
    class OnGpu:
        is_cuda = True

    class Kernels:
        @staticmethod
        def double(x: Any, by: int = 2) -> str:
            return f"kernel by {by}"

    def double(x: torch.Tensor, by: int = 2) -> torch.Tensor:
        return x * by

    double.__module__ = "some.package.reference"
    monkeypatch.setitem(sys.modules, "some.package.triton", Kernels)
    monkeypatch.setattr("asynclane.kernels.common.dispatch.import_module", sys.modules.__getitem__)
    operation: Any = by_device(double)
    assert operation(torch.tensor(4), by=3) == 12
    assert operation(OnGpu(), by=3) == "kernel by 3"


def test_all_operations_can_be_imported_without_triton() -> None:
    imports = "; ".join(f"import asynclane.kernels.{operation}" for operation in OPERATIONS)
    code = f"import sys; sys.modules['triton'] = None; {imports}"
    subprocess.run([sys.executable, "-c", code], check=True)
