"""What the scheduler knows of a vocabulary: which ids are masks, ends of answers, delimiters, digits."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

END, DELIMITER, DIGIT, PERIOD = 1, 2, 4, 8

# A sentence end with closing quotes or brackets behind it, or a line break.
_SENTENCE_END = re.compile(
    r"""\s*[.?!\u3002\uff01\uff1f\u2026\u061f\u0964]["'\u201d\u2019)\]\u300d\u300f]*\s*|\s*\n\s*"""
)


class Vocabulary:
    """Token classes as one table, so that a step is classified by one look-up for all its lanes."""

    def __init__(self, pieces: Sequence[str], mask_id: int, end_ids: Iterable[int]) -> None:
        """`pieces[id]` is the text of a token; special tokens have none."""
        self.mask_id = mask_id
        self.classes: npt.NDArray[np.uint8] = np.zeros(len(pieces), np.uint8)
        for token, piece in enumerate(pieces):
            if _SENTENCE_END.fullmatch(piece):
                self.classes[token] |= DELIMITER
            if piece.strip(" ") == ".":  # with a line break behind it, it is no decimal point
                self.classes[token] |= PERIOD
            if piece.strip().isdigit():
                self.classes[token] |= DIGIT
        for token in end_ids:
            self.classes[token] = END
