"""The corpus of each model, the sizes of its batches, and its probe."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
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
PROBE_SEED = 1  # of problems
Probe = Callable[[Network, Tokenizer, int], dict[str, float]]  # of so many problems or passages


def right_answers(network: Network, tokenizer: Tokenizer, count: int) -> dict[str, float]:
    """Shares of right answers to problems."""
    return accuracy(network, tokenizer, count, PROBE_SEED)


def both(network: Network, tokenizer: Tokenizer, count: int) -> dict[str, float]:
    """Shares of right answers to problems and in conversations."""
    return right_answers(network, tokenizer, count) | conversation_shares(network, tokenizer)


@dataclass(frozen=True, slots=True)
class Diet:
    """`roomier` is the share of examples on a longer canvas than they need (`batches.shelves`); `lean` below 1 gives
    more batches to short ones (`batches.batches`); `template` is a chat template of its own; `probe` measures a network
    after its training. `tokenizer` is a directory. `files` of it are copied into the checkpoint, besides those of the
    tokenizer. `of_corpus` takes the directory of a corpus that was collected."""

    source: Source = first_source
    tokenizer: Path = EMBEDDED / "tiny-llada"
    files: tuple[str, ...] = ()
    sizes: Sizes = SIZES
    roomier: float = 0.0
    lean: float = 1.0
    template: Path | None = None
    probe: Probe = right_answers
    of_corpus: Callable[[Diet, Path], Diet] | None = None


def prose(diet: Diet, corpus: Path) -> Diet:
    """The diet with the directory that `prose.collect` has written."""
    source = partial(passages.source, directory=corpus)
    return replace(diet, source=source, tokenizer=corpus, probe=partial(tokens_a_forward, directory=corpus))


DIETS: Mapping[str, Diet] = {
    "tiny-chat": Diet(encoded, sizes=CHAT_SIZES, roomier=0.15, lean=0.65, template=TEMPLATE, probe=both),
    "tiny-prose": Diet(files=(RESERVED,), sizes=PROSE_SIZES, roomier=0.5, of_corpus=prose),
}


def diet(model: str, corpus: Path | None = None) -> Diet:
    """Raises `ValueError` where a `corpus` is missing or has no use."""
    found = DIETS.get(model, Diet())
    if found.of_corpus is None:
        if corpus:
            raise ValueError(f"{model} takes no --corpus")
        return found
    if corpus is None or not (corpus / passages.CORPUS).is_file():
        raise ValueError(f"{model} needs --corpus, a directory that has {passages.CORPUS}")
    return found.of_corpus(found, corpus)
