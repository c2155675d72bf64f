"""The positions that a position of a network sees, and the position that its logits predict."""

from __future__ import annotations

from dataclasses import dataclass

MOST_DRAFTED = 32  # positions of another network's draft


@dataclass(frozen=True, slots=True)
class Drafter:
    """A network that fills masks, whose drafts an autoregressive one checks. Shift and blocks are as in
    `AttentionPattern`."""

    logit_shift: int = 0
    block_size: int = 0

    def floor(self, position: int) -> int:
        """The last border of blocks up to an absolute position."""
        return position - position % self.block_size if self.block_size else position

    def ceil(self, position: int) -> int:
        """The first border of blocks from an absolute position on."""
        return position + -position % self.block_size if self.block_size else position


@dataclass(frozen=True, slots=True)
class AttentionPattern:
    """With `logit_shift` 1 the hidden state at a position predicts the next token, so a row has the position before
    its first span. With `block_size` 0 every position sees every other; with n position p sees those below
    `(p // n + 1) * n`, so keys and values of whole final blocks stay exact.

    A causal network (n = 1) that is `known_first` reads the known tokens of a row before its masks, each at its own
    position: a mask sees all known tokens and the masks before it, a known token those before it alone.

    With `canvas_length` n a canvas begins with random tokens instead of masks: whole canvases of n positions, which see
    each other and all before, are computed until they are done, and then once more as text, by a causal network.
    `sampler` are decoding parameters that the checkpoint names. Layers after the second can leave out positions of a
    network that `selects` (`contract.Selection`). An autoregressive network may have a `drafter`."""

    logit_shift: int = 0
    block_size: int = 0
    known_first: bool = False
    canvas_length: int = 0
    sampler: tuple[tuple[str, object], ...] = ()
    selects: bool = False
    drafter: Drafter | None = None

    @property
    def autoregressive(self) -> bool:
        """True if a position sees those before it alone, and predicts the next token."""
        return self.block_size == self.logit_shift == 1 and not self.known_first and not self.canvas_length

    @property
    def bounded(self) -> bool:
        """True if no position sees past its block."""
        return self.block_size > 0 and not self.known_first

    def floor(self, position: int) -> int:
        """The last border of blocks up to an absolute position."""
        return position - position % self.block_size if self.block_size else position

    def ceil(self, position: int) -> int:
        """The first border of blocks from an absolute position on."""
        return position + -position % self.block_size if self.block_size else position

    def cuts_rows(self, step_tokens: int, prefill_tokens: int) -> bool:
        """Return whether requests may be longer than a step: keys of whole blocks are exact, and a step has room for a
        chunk of a prompt, the block that is computed once more, and the next one."""
        rest = 2 * max(self.block_size, self.canvas_length)
        if self.drafter is not None:  # both networks compute the chunk, and then one of them a draft
            prefill_tokens, rest = 2 * prefill_tokens, MOST_DRAFTED + 2 * max(1, self.drafter.block_size)
        return 0 < prefill_tokens <= step_tokens - rest and self.block_size > 0

    def require_whole(self, name: str, size: int) -> None:
        """Raises `ValueError` for a size that is not a multiple of the block size."""
        if self.ceil(size) != size:
            raise ValueError(f"{name} {size} must be a multiple of the model's block of {self.block_size}")

    def require_sharing(self, name: str) -> None:
        """Raises `ValueError` for a network whose keys and values two requests cannot share."""
        if not self.block_size:
            raise ValueError(f"{name} is for block-causal models: here keys depend on all later positions")


PLAIN = AttentionPattern()
