"""The requests of a load: random prompts, and a quota that fixes how many tokens each forward commits."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Self

WORDS = (100, 1000)  # ids of ordinary words of every model that is measured


@dataclass(frozen=True, slots=True)
class Quota:
    """A decoder that fills each block in a fixed number of forwards, whatever the network says. `by_block`: the
    parameter with the forwards of each block; without one, `steps` are those of the whole answer. With a `cache`, which
    may refuse `steps`, a threshold of 1 stands for them: no probability of random weights reaches it, so a forward
    commits one token."""

    decoder: str
    block: int
    forwards: int
    by_block: str = ""
    cache: str = ""

    def params(self, max_tokens: int) -> dict[str, int | float | str]:
        """Return the parameters of an answer that set its forwards. Raises `ValueError` for a cache unless a block has
        as many forwards as tokens."""
        if self.cache:
            if self.forwards != self.block:
                raise ValueError(f"--cache goes with --forwards {self.block}, as many as a block has tokens")
            return {"cache": self.cache, "threshold": 1.0}
        if self.by_block:
            return {self.by_block: self.forwards}
        return {"steps": self.forwards * -(-max_tokens // self.block)}


# By shape: the quotas of equal answers, then of mixed ones. Any other model has the first.
LANES = Quota("asynclane", 32, 9)
CANVASES = Quota("renoise", 256, 16, "max_denoising_steps")
QUOTAS: Mapping[str, tuple[Quota, Quota]] = {
    "llada-8b": (LANES, LANES),
    "sdar-8b": (Quota("fast-dllm", 4, 2), Quota("fast-dllm", 4, 1)),
    "llada2-mini": (Quota("fast-dllm", 32, 16), Quota("fast-dllm", 32, 16)),
    "llada2-flash": (Quota("fast-dllm", 32, 16), Quota("fast-dllm", 32, 16)),
    "fast-dllm-v2-7b": (Quota("fast-dllm", 32, 16), Quota("fast-dllm", 32, 16)),
    "wedlm-8b": (Quota("fast-dllm", 16, 8), Quota("fast-dllm", 16, 8)),
    "diffusion-gemma-26b": (CANVASES, CANVASES),
    "sdar-30b-a3b": (Quota("fast-dllm", 4, 2), Quota("fast-dllm", 4, 1)),
}


@dataclass(frozen=True, slots=True)
class Load:
    """Streamed completions without an end token, each followed by the next. Lengths are drawn from a range in tokens,
    both ends included. No two prompts begin alike, so that none is in the prefix cache; or each stream `repeats` its
    own."""

    name: str
    streams: int
    prompt_tokens: tuple[int, int]
    max_tokens: tuple[int, int]
    quota: Quota
    model: str
    repeats: bool = False

    def body(self, stream: int, number: int) -> dict[str, Any]:
        """Return a stream's request of this number."""
        rng = random.Random(f"{self.name} {self.streams} {stream} {0 if self.repeats else number}")
        max_tokens = rng.randint(*self.max_tokens)
        prompt = [rng.randint(*WORDS) for _ in range(rng.randint(*self.prompt_tokens))]
        return {
            "model": self.model,
            "prompt": prompt,
            "max_tokens": max_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "decoder": self.quota.decoder,
            **self.quota.params(max_tokens),
            "stream": True,
            "stream_options": {"include_usage": True},
        }

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Self:
        ranges = {name: tuple(fields[name]) for name in ("prompt_tokens", "max_tokens")}
        return cls(**{**fields, **ranges, "quota": Quota(**fields["quota"])})
