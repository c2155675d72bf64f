"""The marks between which models reason before they answer, one row of a table for each family."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ReasoningFormat:
    """Reasoning stands between `open` and `close`. A chat template with the `sign` shows this form; `markers` may be
    tokens of their own."""

    name: str
    open: str
    close: str
    sign: str
    markers: tuple[str, ...]


# Sources: the chat templates of Qwen3 and DeepSeek-R1, and of Gemma 4.
REASONING_FORMATS: Mapping[str, ReasoningFormat] = {
    row.name: row
    for row in (
        ReasoningFormat("think", "<think>", "</think>", "<think>", ("<think>", "</think>")),
        ReasoningFormat(
            "gemma", "<|channel>thought\n", "<channel|>", "<|channel>thought", ("<|channel>", "<channel|>")
        ),
    )
}


def reasoning_in(template: str) -> ReasoningFormat | None:
    """The form of reasoning that a chat template shows."""
    return next((row for row in REASONING_FORMATS.values() if row.sign in template), None)
