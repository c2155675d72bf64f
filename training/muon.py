"""Muon: momentum whose directions are made equally strong, matrices of one shape at a time.

Source: Keller Jordan, Muon (2024). With AdamW alone, copying was still unlearned after 0.75 B tokens.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

NEWTON_SCHULZ = (3.4445, -4.775, 2.0315)  # of the quintic that pulls singular values towards 1
ROUNDS = 5


class Muon:
    def __init__(self, matrices: Iterable[nn.Parameter], decay: float, momentum: float = 0.95) -> None:
        groups: dict[tuple[int, ...], list[nn.Parameter]] = {}
        for matrix in matrices:
            groups.setdefault(tuple(sorted(matrix.shape)), []).append(matrix)
        self._groups = groups
        self._momentum, self._decay = momentum, decay
        self._average = {
            shape: torch.zeros(len(group), *shape, device=group[0].device) for shape, group in groups.items()
        }

    @torch.no_grad()
    def step(self, rate: Tensor) -> None:
        """One update with the gradients of all matrices; rate [] float32 on their device."""
        for shape, group in self._groups.items():
            upright = [matrix.shape == shape for matrix in group]
            # Every matrix has a gradient: all take part in every batch.
            grads = [m.grad if up else m.grad.T for m, up in zip(group, upright, strict=True)]  # type: ignore[union-attr]
            gradient = torch.stack(grads).nan_to_num(0.0, 0.0, 0.0)  # type: ignore[arg-type]
            average = self._average[shape].lerp_(gradient, 1 - self._momentum)
            update = orthogonal(gradient.lerp(average, self._momentum)) * max(1.0, shape[1] / shape[0]) ** 0.5
            moves = [u if up else u.T for u, up in zip(update * -rate, upright, strict=True)]
            weights: list[Tensor] = [*group]
            torch._foreach_mul_(weights, 1 - rate * self._decay)
            torch._foreach_add_(weights, moves)


def orthogonal(x: Tensor) -> Tensor:
    """x [N, rows, columns], rows <= columns, with singular values near 1."""
    a, b, c = NEWTON_SCHULZ
    y: Tensor = x.bfloat16()
    y = y / (y.norm(dim=(1, 2), keepdim=True) + 1e-7)
    for _ in range(ROUNDS):
        square = y @ y.mT
        y = a * y + (b * square + c * square @ square) @ y
    return y.float()
