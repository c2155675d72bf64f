"""A vocabulary as the scheduler knows it: the ids of masks, ends of answers, and boundaries in prose and code."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

# Token classes, bits of one table.
END = 1
SENTENCE = 2  # ends a sentence
LINE = 4  # ends with a line break, or one and spaces
COMMA = 8
DIGIT = 16
PERIOD = 32  # a full stop with only spaces around it: in a number it ends no sentence
FENCE = 64  # opens or closes a block of code
UNFINISHED = 128  # its text before the line break does not complete a statement
BARE = 256  # a line break with nothing before it: the token before decides
DOUBLE = 512  # an odd number of double quotes
SINGLE = 1024  # an odd number of single quotes
PAUSE = 2048  # a comma with nothing but spaces around it
NEWLINE = 4096  # one line break and nothing else
EMPTY = 8192  # contains an empty line: two line breaks with only spaces between them
THOUGHT = 16384  # ends a model's thinking before its answer
STOP = 32768  # a full stop, Latin or Chinese, with only spaces around it

FEW = 64  # tokens

# Unicode's Sentence_Terminal characters that end sentences in living scripts.
_TERMINALS = (
    ".?!\u0589\u061d-\u061f\u06d4\u0700-\u0702\u0964\u0965\u104a\u104b\u1362\u1367\u1368\u166e\u17d4\u17d5\u1803\u1809"
    "\u1944\u1945\u203c\u203d\u2047-\u2049\u2026\u3002\ua4ff\ua60e\ua6f3\ua92f\uabeb\ufe12\ufe52\ufe56\ufe57"
    "\uff01\uff0e\uff1f\uff61"
)
_CLOSERS = "\"'\u201d\u2019\u00bb\u203a)\\]\u300d\u300f\uff09"
_SENTENCE = re.compile(rf"\s*[{_TERMINALS}][{_CLOSERS}]*\s*")
_EMPTY = re.compile(r"\n[^\S\n]*\n")
_COMMAS = re.compile(r"\s*[,;:\u060c\u061b\u3001\uff0c\uff1b]\s*")
_UNFINISHED = re.compile(r".*[-,\\+*/=%&|^<>:@(\[{]|(.*[^\w])?(and|or|not|in|is|if|else|for|while|lambda)")


class Vocabulary:
    """Token classes as one table, so that one look-up classifies all lanes of a step."""

    def __init__(
        self,
        pieces: Sequence[str],
        mask_id: int,
        end_ids: Iterable[int],
        controls: tuple[int, int] | None = None,
        counts: Sequence[int] = (),
    ) -> None:
        """`pieces[id]` is the text of a token, empty for special tokens. The lowest of `end_ids` is the end of a text,
        the others are ends of turns. `controls` are LLaDA2.2's tokens that delete and insert, `counts[id]` how often a
        token comes in some text, if that is known."""
        self.mask_id, self.controls = mask_id, controls
        ends = tuple(end_ids)
        self.filler = min(ends, default=mask_id)  # follows the end of an answer, in training
        self.classes: npt.NDArray[np.uint16] = np.array([_classes(piece) for piece in pieces], np.uint16)
        self.brackets: npt.NDArray[np.int8] = np.array([_brackets(piece) for piece in pieces], np.int8)
        for token in ends:
            self.classes[token] = END
        self.ends = sorted({*ends})
        self.is_end: npt.NDArray[np.bool_] = self.classes == END
        tallied = np.array(counts, np.float64)  # a token that was not seen counts as if it had come once
        self.frequencies: npt.NDArray[np.float64] = tallied.clip(min=1) / tallied.sum() if len(tallied) else tallied
        self.kinds = int(np.bitwise_or.reduce(self.classes, initial=0))  # all classes that some token has

    def has(self, kinds: int) -> bool:
        """True if any token belongs to one of `kinds`."""
        return bool(self.kinds & kinds)

    def kinds_of(self, tokens: npt.NDArray[np.int32]) -> int:
        """All classes that some of `tokens` [n] have. A few are looked up one by one: after a rest the first call of
        each function of numpy takes 5 to 25 microseconds, while a device waits."""
        if len(tokens) > FEW:
            return int(np.bitwise_or.reduce(self.classes[tokens]))
        classes, kinds = self.classes.data, 0
        for token in tokens.tolist():
            kinds |= classes[token]
        return kinds


def _classes(piece: str) -> int:
    line, breaks, rest = piece.partition("\n")
    words, ends_line = line.strip(), bool(breaks) and not rest.strip()
    return (
        SENTENCE * bool(_SENTENCE.fullmatch(piece))
        | LINE * ends_line
        | COMMA * bool(_COMMAS.fullmatch(piece))
        | DIGIT * piece.strip().isdigit()
        | PERIOD * (piece.strip(" ") == ".")
        | FENCE * ("```" in piece)
        | UNFINISHED * bool(_UNFINISHED.fullmatch(words))
        | BARE * (ends_line and not words)
        | DOUBLE * (piece.count('"') % 2)
        | SINGLE * (piece.count("'") % 2)
        | PAUSE * (piece.strip(" ") == ",")
        | NEWLINE * (piece == "\n")
        | EMPTY * bool(_EMPTY.search(piece))
        | THOUGHT * (piece.strip() == "</think>")
        | STOP * (piece.strip(" ") in (".", "\u3002"))
    )


def _brackets(piece: str) -> int:
    """Brackets opened less brackets closed."""
    net = sum(map(piece.count, "([{")) - sum(map(piece.count, ")]}"))
    return max(-127, min(127, net))
