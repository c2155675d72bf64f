"""What the scheduler must know of a network's positions: which they see, and where their logits stand."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class AttentionPattern:
    """`shift` 1: the hidden state at a position predicts the token behind it, so a row takes the position before its
    first span along. `block` 0: every position sees every other; n: position p sees those below `(p // n + 1) * n`, so
    keys and values of whole blocks that are final stay exact."""

    logit_shift: int = 0
    block_size: int = 0

    def floor(self, position: int) -> int:
        """The last border of blocks up to an absolute position: where what stays exact ends."""
        return position - position % self.block_size if self.block_size else position

    def ceil(self, position: int) -> int:
        """The first border of blocks from an absolute position on: as far as a position before it sees."""
        return position + -position % self.block_size if self.block_size else position

    def require_whole(self, name: str, size: int) -> None:
        """Raises `ValueError` for a size that is not of whole blocks."""
        if self.ceil(size) != size:
            raise ValueError(f"{name} {size} must be a multiple of the model's block of {self.block_size}")

    def require_sharing(self, name: str) -> None:
        """Raises `ValueError` for a network whose keys and values no two requests can have in common."""
        if not self.block_size:
            raise ValueError(f"{name} is for block-causal models: in this one, keys depend on what comes behind")


PLAIN = AttentionPattern()
