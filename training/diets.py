"""The corpus of each model, the sizes of its batches, and its probe."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from tokenizers import Tokenizer

from ..bench.quality.prose import MODEL as PROSE
from ..models.checkpoint.registry import EMBEDDED
from .batches import SIZES, Sizes
from .chat.corpus import encoded
from .chat.write import TEMPLATE
from .corpus import Source, first_source
from .network import Network
from .probe import accuracy
from .probe_chat import conversation_shares
from .probe_prose import tokens_a_forward
from .prose import passages

PROSE_SIZES: Sizes = ((192, 144), (256, 208), (320, 272), (464, 272))
CHAT_SIZES: Sizes = ((96, 72), (152, 104), (224, 160), (368, 272), (640, 448))
Probe = Callable[[Network, Tokenizer, int, int], dict[str, float]]


@dataclass(frozen=True, slots=True)
class Diet:
    """`roomier` is the share of examples on a longer canvas than they need (`batches.shelves`); `lean` below 1 gives
    more batches to short ones (`batches.batches`); `template` is a chat template of its own; `probe` measures a network
    after its training. With `filed` the `source` takes the `file` of its corpus. `tokenizer` is a directory."""

    source: Source = first_source
    filed: bool = False
    tokenizer: Path = EMBEDDED / "tiny-llada"
    sizes: Sizes = SIZES
    roomier: float = 0.0
    lean: float = 1.0
    template: Path | None = None
    probe: Probe = accuracy


def both(network: Network, tokenizer: Tokenizer, count: int, seed: int) -> dict[str, float]:
    """Shares of right problems and of right answers in conversations."""
    return accuracy(network, tokenizer, count, seed) | conversation_shares(network, tokenizer)


DIETS: Mapping[str, Diet] = {
    "tiny-chat": Diet(encoded, sizes=CHAT_SIZES, roomier=0.15, lean=0.65, template=TEMPLATE, probe=both),
    "tiny-prose": Diet(
        passages.source, filed=True, tokenizer=PROSE, sizes=PROSE_SIZES, roomier=0.5, probe=tokens_a_forward
    ),
}


def diet(model: str) -> Diet:
    return DIETS.get(model, Diet())
