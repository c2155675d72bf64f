"""Decoders as they are typed: `asynclane`, `fast-dllm:cache=dual`, `asynclane:threshold=0.9,max_lanes=2`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...scheduler.decoding.attention_pattern import PLAIN
from ...scheduler.decoding.compatibility import VocabularyFacts, refuse
from ...scheduler.decoding.resolve import resolve
from ...server.cli.params import parse_params
from ...server.presets import DecoderLine

if TYPE_CHECKING:
    from ...server.engine.wiring import Checkpoint


@dataclass(frozen=True, slots=True)
class Choice:
    """A decoder on the command line: `label` is the argument itself."""

    label: str
    name: str
    params: Mapping[str, str | float | bool]


def split_decoder(text: str) -> Choice:
    """Parse `name` or `name:param=value,param=value`. Raises `ValueError`."""
    name, _, rest = text.partition(":")
    try:
        return Choice(text, name, parse_params(rest.split(",") if rest else []))
    except ValueError as error:
        raise ValueError(f"decoder {text!r}: {error}") from None


def joined(line: DecoderLine) -> str:
    """The argument that `split_decoder` reads as this decoder."""
    given = ",".join(f"{param}={str(value).lower()}" for param, value in line.params.items())
    return f"{line.name}:{given}" if given else line.name


def parse_decoder(text: str, max_tokens: int, checkpoint: Checkpoint | None = None) -> Choice:
    """A decoder for this model, or for one without blocks. Raises `ValueError` for one that the model does not
    accept."""
    choice = split_decoder(text)
    try:
        decoder = resolve(choice.name, choice.params, max_tokens, checkpoint.pattern if checkpoint else PLAIN)
        if checkpoint:
            refuse(VocabularyFacts(decoder, checkpoint.text.vocabulary))
    except ValueError as error:
        raise ValueError(f"decoder {text!r}: {error}") from error
    return choice
