"""Slots of canvases and pages of keys and values: who holds which."""

from __future__ import annotations

from dataclasses import dataclass

from ..decoding.attention_pattern import AttentionPattern


class Pool:
    """Numbers `0 .. size - 1`, each either free or used. Those that were given back last are taken first: their memory
    is warm."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._free = list(range(size - 1, -1, -1))

    @property
    def free(self) -> int:
        return len(self._free)

    @property
    def used(self) -> int:
        return self.size - len(self._free)

    def take(self, count: int) -> tuple[int, ...]:
        """`count` free numbers. Raises `ValueError` if there are fewer: callers check `free` first."""
        if count > len(self._free):
            raise ValueError(f"{count} numbers requested, {len(self._free)} of {self.size} are free")
        taken = tuple(self._free[len(self._free) - count :])
        del self._free[len(self._free) - count :]
        return taken

    def give(self, numbers: tuple[int, ...]) -> None:
        self._free.extend(numbers)

    def check(self, used: list[int]) -> None:
        """Raises `RuntimeError` unless the free numbers and `used` together are every number once."""
        if sorted(self._free + used) != list(range(self.size)):
            raise RuntimeError(f"pool of {self.size}: {len(self._free)} free and {len(used)} used do not add up")


@dataclass(frozen=True, slots=True)
class Limits:
    """The resources of a device. `step_tokens` bounds the positions of a step. A row of a bidirectional network cannot
    be cut: the longest one must fit. With `prefix_sharing` pages stay known after their request has ended.

    `prefill_tokens` bounds the prompt positions of a step over all requests, for a block-causal network alone; 0 is no
    bound, and a prompt is computed at once. With a bound, a request may be longer than a step."""

    slots: int
    pages: int
    page_size: int
    step_tokens: int
    max_model_len: int
    max_queue: int
    prefix_sharing: bool = False
    prefill_tokens: int = 0

    def __post_init__(self) -> None:
        if self.pages < self.pages_for(self.max_model_len):
            raise ValueError(
                f"{self.pages} pages of {self.page_size} cannot hold one request of {self.max_model_len} tokens:"
                " raise --kv-cache-tokens or lower --max-model-len"
            )

    def checked(self, pattern: AttentionPattern) -> Limits:
        """These limits. Raises `ValueError` if they do not suit a network with this attention pattern."""
        self._check_step(pattern)
        if self.prefix_sharing:
            pattern.require_sharing("--prefix-sharing")
        if self.prefill_tokens:
            pattern.require_sharing("--chunked-prefill-size")
            if self.prefill_tokens < pattern.block_size:
                raise ValueError(
                    f"--chunked-prefill-size {self.prefill_tokens} is less than the model's block of"
                    f" {pattern.block_size}: raise it, or give 0 for whole prompts"
                )
        pattern.require_whole("--page-size", self.page_size)
        pattern.require_whole("--max-model-len", self.max_model_len)
        if pattern.drafter is not None and pattern.drafter.ceil(self.page_size) != self.page_size:
            block = pattern.drafter.block_size
            raise ValueError(f"--page-size {self.page_size} must be a multiple of the drafter's block of {block}")
        return self

    def cuts_rows(self, pattern: AttentionPattern) -> bool:
        """Return whether requests may be longer than a step."""
        return pattern.cuts_rows(self.step_tokens, self.prefill_tokens)

    def _check_step(self, pattern: AttentionPattern) -> None:
        if self.step_tokens >= self.max_model_len or self.cuts_rows(pattern):
            return
        advice = "raise --max-step-tokens or lower --max-model-len"
        if not pattern.block_size:
            advice += ", for a bidirectional model computes a whole request at once"
        elif self.prefill_tokens:
            advice += " or --chunked-prefill-size"
        else:
            advice += ", or leave out --chunked-prefill-size 0"
        raise ValueError(f"a step of {self.step_tokens} tokens cannot hold a row of {self.max_model_len}: {advice}")

    def pages_for(self, tokens: int) -> int:
        return -(-tokens // self.page_size)
