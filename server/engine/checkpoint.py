"""Opens a checkpoint for `serve` and `inspect` alike, so that both refuse a broken one with the same line."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ...models.checkpoint.config import ModelConfig, ModelError, read_config
from ...models.checkpoint.registry import find_model
from ..text.tokenizer import BadTokenizer, Tokenizer


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What the files say, but for the weights."""

    directory: Path
    config: ModelConfig
    text: Tokenizer


def open_checkpoint(model: str) -> Checkpoint:
    """Finds `model` and reads all but its weights. Raises `ValueError` and `OSError` with one line that says what is
    wrong with which file."""
    directory = find_model(model)
    config = read_config(directory)
    text = _read_text(directory)
    if text.vocab_size > config.vocab_size or len(text.pieces) != config.vocab_size:
        raise ModelError(
            f"{directory}: the tokenizer's {text.vocab_size} tokens and the network's {config.vocab_size} do not belong"
            " together"
        )
    if text.mask_id != config.mask_id:
        raise ModelError(f"{directory}: mask tokens {text.mask_id} and {config.mask_id} do not belong together")
    if spelt := text.decode([config.mask_id]):
        raise ModelError(
            f"{directory}: the tokenizer has no mask token, for {config.mask_id}, which config.json names, is {spelt!r}"
        )
    for token in text.end_ids:
        if not 0 <= token < config.vocab_size or token == config.mask_id:
            raise ModelError(f"{directory}: {token} cannot end an answer: it is the mask, or none of its tokens")
    return Checkpoint(directory, config, text)


def _read_text(directory: Path) -> Tokenizer:
    try:
        text = Tokenizer(directory)
        _ = text.mask_id, text.end_ids  # which read more files, and the chat template
    except (BadTokenizer, OSError):
        raise
    except Exception as error:  # noqa: BLE001 - the libraries raise whatever they like at a broken file or template
        raise ModelError(f"the tokenizer in {directory} cannot be read: {str(error) or repr(error)}") from None
    return text
