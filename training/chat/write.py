"""Conversations as token ids, in the form of tiny-chat's chat template."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from ..corpus import MARKS, Example
from .conversation import Conversation

TEMPLATE = Path(__file__).with_name("template.jinja")


def tool_line(tool: Mapping[str, Any]) -> str:
    function = tool["function"]
    schema = function.get("parameters", {})
    required = schema.get("required", ())
    parts = [
        f"{name}{'' if name in required else '?'}: {'|'.join(spec['enum']) if 'enum' in spec else spec['type']}"
        for name, spec in schema.get("properties", {}).items()
    ]
    return f"{function['name']}({', '.join(parts)}): {function['description']}"


def rendered(conversation: Conversation) -> list[tuple[str, str]]:
    """Roles and texts as the template shows them: the tools stand in the system message."""
    messages = list(conversation.messages)
    if not conversation.tools:
        return messages
    system = "Tools:" + "".join(f"\n{tool_line(tool)}" for tool in conversation.tools)
    if messages[0][0] == "system":
        system = f"{messages.pop(0)[1].strip()}\n\n{system}"
    return [("system", system), *messages]


class ChatWriter:
    """Writes conversations with the end of the answer."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._roles: dict[str, list[int]] = {}

    def prompt(self, conversation: Conversation, learnt: bool = False) -> list[int]:
        """The ids before the answer; with `learnt`, those of earlier answers are `-1 - id`."""
        ids = [MARKS.begin]
        for role, text in rendered(conversation):
            ids += self._header(role)
            said = [*self._tokenizer.encode(text.strip()).ids, MARKS.turn_end]
            ids += [-1 - token for token in said] if learnt and role == "assistant" else said
        return ids + self._header("assistant")

    def example(self, conversation: Conversation) -> Example:
        """Token ids, and how many are given: the prompt, and what of the answer a grammar has written."""
        asked = self.prompt(conversation, learnt=True)
        answer = self._tokenizer.encode(conversation.answer)
        given = sum(end <= conversation.opened for _, end in answer.offsets) if conversation.opened else 0
        return np.array([*asked, *answer.ids, MARKS.turn_end], np.int16), len(asked) + given

    def _header(self, role: str) -> list[int]:
        if role not in self._roles:
            name, gap = self._tokenizer.encode(role).ids, self._tokenizer.encode("\n\n").ids
            self._roles[role] = [MARKS.header, *name, MARKS.header_end, *gap]
        return self._roles[role]
