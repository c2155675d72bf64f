"""Decoders as they are typed: `asynclane`, `fast-dllm:cache=dual`, `asynclane:threshold=0.9,max_lanes=2`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...scheduler.decoding.attention_pattern import PLAIN
from ...scheduler.decoding.compatibility import VocabularyFacts, refuse
from ...scheduler.decoding.resolve import resolve
from ...server.cli.params import parse_params

if TYPE_CHECKING:
    from ...server.engine.wiring import Checkpoint


@dataclass(frozen=True, slots=True)
class Choice:
    """A decoder on the command line: `label` is the argument itself."""

    label: str
    name: str
    params: Mapping[str, str | float | bool]


def parse_decoder(text: str, max_tokens: int, checkpoint: Checkpoint | None = None) -> Choice:
    """Parse `name` or `name:param=value,param=value`, for this model, or one without blocks. Raises `ValueError` for a
    decoder that the model does not accept."""
    name, _, rest = text.partition(":")
    try:
        params = parse_params(rest.split(",") if rest else [])
        decoder = resolve(name, params, max_tokens, checkpoint.config.pattern if checkpoint else PLAIN)
        if checkpoint:
            refuse(VocabularyFacts(decoder, checkpoint.text.vocabulary))
    except ValueError as error:
        raise ValueError(f"decoder {text!r}: {error}") from error
    return Choice(text, name, params)
