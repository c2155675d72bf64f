"""The corpus of each model, the sizes of its batches, and its probe."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tokenizers import Tokenizer

from ..bench.quality.prose import RESERVED
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

PROSE_SIZES: Sizes = ((224, 176), (320, 240), (464, 272))
CHAT_SIZES: Sizes = ((96, 72), (152, 104), (224, 160), (368, 272), (640, 448))
Probe = Callable[[Network, Tokenizer, int, int], dict[str, float]]


@dataclass(frozen=True, slots=True)
class Diet:
    """`roomier` is the share of examples on a longer canvas than they need (`batches.shelves`); `lean` below 1 gives
    more batches to short ones (`batches.batches`); `template` is a chat template of its own; `probe` measures a network
    after its training. `tokenizer` is a directory, whose `files` a checkpoint has besides the tokenizer's."""

    source: Source = first_source
    tokenizer: Path = EMBEDDED / "tiny-llada"
    files: tuple[str, ...] = ()
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
}


def prose(corpus: Path) -> Diet:
    """A diet from the directory that `prose.collect` has written."""
    return Diet(
        partial(passages.source, directory=corpus),
        tokenizer=corpus,
        files=(RESERVED,),
        sizes=PROSE_SIZES,
        roomier=0.5,
        probe=partial(tokens_a_forward, directory=corpus),
    )


COLLECTED: Mapping[str, Callable[[Path], Diet]] = {"tiny-prose": prose}


def diet(model: str, corpus: Path | None = None) -> Diet:
    """Raises `ValueError` where a `corpus` is missing or has no use."""
    if model not in COLLECTED:
        if corpus:
            raise ValueError(f"{model} takes no --corpus")
        return DIETS.get(model, Diet())
    if corpus is None or not (corpus / passages.CORPUS).is_file():
        raise ValueError(f"{model} needs --corpus, a directory that has {passages.CORPUS}")
    return COLLECTED[model](corpus)
