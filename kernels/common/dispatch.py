"""Chooses the implementation of an operation by the device of its first argument."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from importlib import import_module
from typing import Concatenate, ParamSpec, TypeVar

from torch import Tensor

P = ParamSpec("P")
R = TypeVar("R")


def by_device(reference: Callable[Concatenate[Tensor, P], R]) -> Callable[Concatenate[Tensor, P], R]:
    """The operation that `reference`, a function of a module `<operation>.reference`, defines in torch.

    CPU tensors go to `reference`, CUDA tensors to the function of the same name in `<operation>.triton`. That module,
    and Triton with it, is imported at the first CUDA tensor, so a machine without Triton can import every operation.
    """
    module = reference.__module__.rpartition(".")[0] + ".triton"
    kernel: Callable[Concatenate[Tensor, P], R] | None = None

    @wraps(reference)
    def operation(tensor: Tensor, /, *args: P.args, **kwargs: P.kwargs) -> R:
        nonlocal kernel
        if not tensor.is_cuda:
            return reference(tensor, *args, **kwargs)
        if kernel is None:
            kernel = getattr(import_module(module), reference.__name__)
        return kernel(tensor, *args, **kwargs)

    return operation
