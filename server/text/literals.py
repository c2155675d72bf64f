"""Text of clients in which special tokens are spelt: they are text, never tokens."""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Collection, Iterator
from itertools import groupby
from os.path import commonprefix
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import tokenizers

MARK_BYTES = 16
MARK_CHARS = 2 * MARK_BYTES + 12  # at most, with the id after it
SLICE_CHARS = 1 << 16  # searched in one call, in which no other thread runs


class Literals:
    """Encodes text that is partly a client's.

    `hide` puts a mark in place of each special token that a client's text spells, so that only those of the chat
    template are left. `encode` reads the whole, and spells the hidden ones with ordinary tokens. Text without marks
    gets the ids that the tokenizer gives it.
    """

    def __init__(self, backend: tokenizers.Tokenizer, special_ids: Collection[int], mask_id: int) -> None:
        """Takes as long as loading the tokenizer, of which it keeps a copy that reads special tokens as text."""
        import tokenizers

        self._backend = backend
        self._special_ids = frozenset({*special_ids, mask_id})
        self._names = {token: backend.id_to_token(token) or "" for token in self._special_ids}
        self._ids = {name: token for token, name in self._names.items() if name}
        content = json.loads(backend.to_str())
        for entry in content["added_tokens"]:
            entry["special"] |= entry["id"] in self._special_ids
        self._normalizer = backend.normalizer if any(entry["normalized"] for entry in content["added_tokens"]) else None
        self._plain = tokenizers.Tokenizer.from_str(json.dumps(content))
        self._plain.encode_special_tokens = True  # as text
        self._fence = new_mark()  # stands for a special token before a part: some tokenizers change a text's start
        self._plain.add_tokens([tokenizers.AddedToken(self._fence, normalized=False)])
        self._all = Spellings(list(self._ids))
        self._mask = Spellings([name for name, token in self._ids.items() if token == mask_id])

    def hide(self, text: str, mark: str, *, only_mask: bool = False) -> str:
        """The `text` of a client with a mark in place of each special token, or of each mask token alone."""
        names = self._mask if only_mask else self._all
        if self._normalizer is not None:  # special tokens may be found in the normalized text alone
            normalized = self._normalizer.normalize_str(text)
            text = normalized if len([*names.places(normalized)]) > len([*names.places(text)]) else text
        parts, start = list[str](), 0
        for begin, end in names.places(text):
            parts += (text[start:begin], f"{mark}{self._ids[text[begin:end]]}.")
            start = end
        return "".join((*parts, text[start:]))

    def encode(self, text: str, mark: str, *, specials: bool = False) -> list[int]:
        """The ids of a text with marks. With `specials`, the tokenizer adds its own around it."""
        # Batches, unlike `encode`, let other threads run; the fast ones have no offsets.
        if mark not in text:
            return list(self._backend.encode_batch_fast([text], add_special_tokens=specials)[0].ids)
        found = self._backend.encode_batch([text], add_special_tokens=specials)[0]
        own = found.special_tokens_mask  # of those that were added, at both ends
        first, last = own.index(0), len(own) - own[::-1].index(0)
        ids, run, start = found.ids[:first], list[int](), 0
        # Special tokens divide a text: what lies between two of them is encoded by itself.
        places = zip(found.ids[first:last], found.offsets[first:last], strict=True)
        for token, (begin, end) in places:
            if token in self._special_ids:
                ids += [*self._spelt(text[start:begin], mark, run, first=start == 0), token]
                run, start = [], end
            else:
                run.append(token)
        return [*ids, *self._spelt(text[start:], mark, run, first=start == 0), *found.ids[last:]]

    def _spelt(self, text: str, mark: str, ids: list[int], first: bool) -> list[int]:
        """The ids of a part without special tokens: those given, unless some are hidden in it."""
        if mark not in text:
            return ids
        part = re.sub(rf"{mark}(\d+)\.", lambda found: self._names[int(found[1])], text)
        if first:
            return list(self._plain.encode_batch_fast([part], add_special_tokens=False)[0].ids)
        return list(self._plain.encode_batch_fast([self._fence + part], add_special_tokens=False)[0].ids[1:])


def new_mark() -> str:
    """A text that no client can know, for one call of `Literals.encode`."""
    return secrets.token_hex(MARK_BYTES)


class Spellings:
    """Finds names in a text."""

    def __init__(self, names: Collection[str]) -> None:
        self._pattern = re.compile(_longest_of(names) if names else "(?!)")
        self._longest = max(map(len, names), default=1)

    def places(self, text: str) -> Iterator[tuple[int, int]]:
        """Yield where a name begins and ends, from left to right. Where several begin, it is the longest."""
        start = 0
        while start < len(text):
            end = start + SLICE_CHARS
            for found in self._pattern.finditer(text, start, end + self._longest - 1):
                if found.start() >= end:
                    break
                yield found.span()
                start = found.end()
            start = max(start, end)


def _longest_of(texts: Collection[str]) -> str:
    """A pattern for the longest of some texts. What they begin with is compared once, however many they are."""
    begin = commonprefix(list(texts))  # noqa: RUF071 - of characters, not of paths
    rests = sorted({text[len(begin) :] for text in texts})
    branches = [_longest_of(list(group)) for _, group in groupby(filter(None, rests), key=lambda rest: rest[0])]
    if branches and not rests[0]:  # a text that others begin with comes last
        branches.append("")
    return re.escape(begin) + (f"(?:{'|'.join(branches)})" if branches else "")
