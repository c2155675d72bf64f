"""The corpus of each model, the sizes of its batches, and its probe."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from tokenizers import Tokenizer

from .batches import SIZES, Sizes
from .chat.corpus import encoded
from .chat.write import TEMPLATE
from .corpus import Source, first_source
from .network import Network
from .probe import accuracy
from .probe_chat import conversation_shares

Probe = Callable[[Network, Tokenizer, int, int], dict[str, float]]


@dataclass(frozen=True, slots=True)
class Diet:
    """`roomier` is the share of examples on a longer canvas than they need (`batches.shelves`); `template` is a chat
    template of its own; `probe` measures a network after its training."""

    source: Source = first_source
    sizes: Sizes = SIZES
    roomier: float = 0.0
    template: Path | None = None
    probe: Probe = accuracy


def both(network: Network, tokenizer: Tokenizer, count: int, seed: int) -> dict[str, float]:
    """Shares of right problems and of right answers in conversations."""
    return accuracy(network, tokenizer, count, seed) | conversation_shares(network, tokenizer)


DIETS: Mapping[str, Diet] = {
    "tiny-chat": Diet(encoded, ((112, 80), (192, 128), (320, 224), (640, 448)), 0.18, TEMPLATE, both),
}


def diet(model: str) -> Diet:
    return DIETS.get(model, Diet())
