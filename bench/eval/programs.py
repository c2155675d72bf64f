"""Programs that test the code in an answer, for HumanEval and MBPP."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from .data import Fields

FENCED = re.compile(r"```(?:[Pp]ython|py)?[ \t]*\r?\n(.*?)(?:```|\Z)", re.DOTALL)
FENCE = "```"


def cut(text: str, stops: Iterable[str]) -> str:
    """The text before the first of the stop strings."""
    return text[: min((at for at in map(text.find, stops) if at >= 0), default=len(text))]


def until_fence(text: str) -> str:
    """The code of an answer that began inside a fence."""
    return text.partition(FENCE)[0]


def fenced(text: str, needed: str = "") -> str | None:
    """The first fenced block that has the text `needed`, or else the first; a fence may be open to the end."""
    blocks = FENCED.findall(text)
    return next((block for block in blocks if needed in block), blocks[0] if blocks else None)


def completed(fields: Fields, completion: str) -> str:
    """HumanEval's program of a completion of the prompt."""
    return _humaneval(fields, fields["prompt"] + completion)


def extracted(fields: Fields, text: str, stops: Sequence[str]) -> str:
    """HumanEval's program of an answer that may define the whole function, in a fence or not, or only complete the
    prompt. A whole function comes after the prompt, whose imports and helpers it may need."""
    function = f"def {fields['entry_point']}("
    block = fenced(text, function)
    code = text if block is None else block
    if function in code:
        return _humaneval(fields, f"{fields['prompt']}\n    pass\n\n{code if block else cut(code, (FENCE,))}")
    return completed(fields, cut(code, stops) if block is None else code)


def _humaneval(fields: Fields, code: str) -> str:
    return f"{code}\n{fields['test']}\ncheck({fields['entry_point']})"


def asserted(fields: Fields, code: str) -> str:
    """MBPP's program: the code, what the tests prepare with it, and the assertions."""
    return "\n".join([code, fields.get("test_setup_code") or "", *fields["test_list"]])
