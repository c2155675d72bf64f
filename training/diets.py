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

CHAT_SIZES: Sizes = ((96, 72), (152, 104), (224, 160), (368, 272), (640, 448))
Probe = Callable[[Network, Tokenizer, int, int], dict[str, float]]


@dataclass(frozen=True, slots=True)
class Diet:
    """`roomier` is the share of examples on a longer canvas than they need (`batches.shelves`); `lean` below 1 gives
    more batches to short ones (`batches.batches`); `template` is a chat template of its own; `probe` measures a network
    after its training."""

    source: Source = first_source
    sizes: Sizes = SIZES
    roomier: float = 0.0
    lean: float = 1.0
    template: Path | None = None
    probe: Probe = accuracy


def both(network: Network, tokenizer: Tokenizer, count: int, seed: int) -> dict[str, float]:
    """Shares of right problems and of right answers in conversations."""
    return accuracy(network, tokenizer, count, seed) | conversation_shares(network, tokenizer)


DIETS: Mapping[str, Diet] = {
    "tiny-chat": Diet(encoded, CHAT_SIZES, 0.15, 0.65, TEMPLATE, both),
}


def diet(model: str) -> Diet:
    return DIETS.get(model, Diet())
