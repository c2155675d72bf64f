"""Templates of completions: texts with gaps, which are all filled in one canvas.

A template's first text is the prompt, and its last one, after all gaps, the suffix. What lies between is the canvas.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ..engine.messages import AnswerOptions, Delta, Finish
from ..errors import InvalidValue
from ..schema.completion_request import CompletionRequest, Gap
from ..structured.grammar import Wanted
from ..text.detokenizer import AnswerText
from ..text.splitter import Piece, Text
from ..text.tokenizer import Tokenizer
from .answer_parts import Reader
from .generation import Prompt


@dataclass(frozen=True, slots=True)
class TemplateReading:
    """How the answers to a template are read: its `first` text, and the open positions of each gap, with the number of
    tokens of the text after it and this text."""

    first: str
    gaps: tuple[tuple[int, int, str], ...]
    shown: tuple[int, ...] = ()
    wanted: Wanted | None = None

    def reader(self, tokenizer: Tokenizer, options: AnswerOptions) -> Reader:
        return TemplateReader(self, tokenizer)


def read_template(tokenizer: Tokenizer, body: CompletionRequest, context: int) -> tuple[Prompt, TemplateReading]:
    """A template's prompt, and the reading of its answers. Raises `InvalidValue` and `TextTooLong`."""
    texts, sizes = [""], list[int]()
    for part in body.template or ():
        if isinstance(part, Gap):
            sizes.append(part.tokens)
            texts.append("")
        else:
            texts[-1] += part
    specials = body.add_special_tokens is not False
    ids = [
        tokenizer.encode(text, specials=specials and not at, most_tokens=context, plain=True)
        for at, text in enumerate(texts)
    ]
    if not all(ids[1:-1]):
        raise InvalidValue("template", "template: a text between two gaps has no tokens")
    *inner, suffix = map(tuple, ids[1:])
    between = [*inner, ()]
    prompt = Prompt("template", ids[0], suffix=suffix, template=tuple(zip(sizes, between, strict=True)))
    gaps = zip(sizes, map(len, between), texts[1:], strict=True)
    return prompt, TemplateReading(texts[0], tuple(gaps))


class TemplateReader:
    """Reads one answer to a template, which contains the texts given, as they were given."""

    def __init__(self, template: TemplateReading, tokenizer: Tokenizer) -> None:
        self._template = template
        self._tokenizer = tokenizer
        self._begun = False
        self._place = 0  # tokens of the gap that is being read; below 0: given ones come before it
        self._gap = AnswerText(tokenizer)
        self._texts: list[str] = []  # of that gap
        self._filled: list[tuple[str, int]] = []

    def read(self, delta: Delta) -> tuple[Sequence[Piece], Delta]:
        pieces = [] if self._begun else [self._template.first]
        self._begun = True
        for token in delta.token_ids:
            pieces += self._take(token)
        if delta.finish is None:
            return _texts(pieces), delta
        while len(self._filled) < len(self._template.gaps):  # an end token has ended the last one
            pieces += self._fill()
            self._place = 0
        finish = Finish.STOP if self._template.gaps[-1][2] else delta.finish
        return _texts(pieces), replace(delta, finish=finish, extras=delta.extras._replace(gaps=tuple(self._filled)))

    def provisional(self, canvas: Sequence[int]) -> Sequence[Piece]:
        hidden, ends = self._tokenizer.mask_id, self._tokenizer.end_ids
        pieces, start = [self._template.first], 0
        for size, given, after in self._template.gaps:
            gap = AnswerText(self._tokenizer, stop_ids=ends)
            pieces += [gap.feed([token for token in canvas[start : start + size] if token != hidden])[0], gap.flush()]
            pieces.append(after)
            start += size + given
        return _texts(pieces)

    def _take(self, token: int) -> list[str]:
        """The text that is certain with one more token of the canvas."""
        size, given, _ = self._template.gaps[min(len(self._filled), len(self._template.gaps) - 1)]
        self._place += 1
        if self._place <= 0:  # it was given
            return []
        text, _, _ = self._gap.feed([token])
        self._texts.append(text)
        if self._place < size:
            return [text]
        filled = self._fill()
        self._place = -given
        return [text, *filled]

    def _fill(self) -> list[str]:
        """End a gap: the rest of its text, and the text after it."""
        rest = self._gap.flush()
        self._filled.append(("".join(self._texts) + rest, max(0, self._place)))
        after = self._template.gaps[len(self._filled) - 1][2]
        self._gap, self._texts = AnswerText(self._tokenizer), []
        return [rest, after]


def _texts(pieces: Sequence[str]) -> list[Piece]:
    text = "".join(pieces)
    return [Text(text)] if text else []
