"""Reads the paragraphs of a manual's page: plain sentences, without code, tables, headings and navigation."""

from __future__ import annotations

import re
from html.parser import HTMLParser

BLOCKS = frozenset(
    "p li dd dt div ul ol dl body section article blockquote h1 h2 h3 h4 h5 h6 br hr main table tr td".split()
)
HIDDEN = frozenset("pre script style nav table h1 h2 h3 h4 h5 h6 head footer header form button svg dt title".split())
HIDDEN_CLASS = re.compile(
    r"\b(sphinxsidebar|related|footer|navigation|navheader|navfooter|toc|up|bottomlang|toplang)\b"
)
VOID = frozenset("area base br col embed hr img input link meta source track wbr".split())
ENDS = re.compile(r"""[.!?:]["')]*$""")
PLAIN = {"\u2018": "'", "\u2019": "'", "\u201c": '"', "\u201d": '"', "\u2013": "-", "\u2014": " - ", "\u00a0": " ",
         "\u2026": "...", "\u2192": "->", "\u00b6": ""}  # fmt: skip
WORD = re.compile(r"[A-Za-z][a-z]+")
LEAST, MOST = 50, 1200  # characters of a paragraph
LEAST_WORDS = 0.72  # share of characters in words and spaces


def paragraphs(page: str) -> list[str]:
    reader = _Reader()
    reader.feed(page)
    reader.close()
    reader.flush()
    return [text for text in map(_plain, reader.found) if _is_prose(text)]


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self._open: list[tuple[str, bool]] = []  # tags, and whether they are hidden
        self._text: list[str] = []

    def flush(self) -> None:
        if self._text:
            self.found.append("".join(self._text))
            self._text = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in BLOCKS:
            self.flush()
        if tag in VOID:
            return
        said = dict(attrs)
        named = f"{said.get('class') or ''} {said.get('id') or ''}"
        inside = bool(self._open) and self._open[-1][1]
        anchor = tag == "a" and "headerlink" in named
        self._open.append((tag, inside or anchor or tag in HIDDEN or bool(HIDDEN_CLASS.search(named))))

    def handle_endtag(self, tag: str) -> None:
        if tag in BLOCKS:
            self.flush()
        for place in reversed(range(len(self._open))):
            if self._open[place][0] == tag:
                del self._open[place:]
                break

    def handle_data(self, data: str) -> None:
        if not (self._open and self._open[-1][1]):
            self._text.append(data)


def _plain(text: str) -> str:
    for sign, as_ in PLAIN.items():
        text = text.replace(sign, as_)
    return " ".join(text.split())


def _is_prose(text: str) -> bool:
    """True for text that is made of sentences: it begins and ends as they do, is ASCII, and mostly words."""
    if not (LEAST <= len(text) <= MOST and text.isascii() and text[0].isupper() and ENDS.search(text)):
        return False
    words = WORD.findall(text)
    return sum(map(len, words)) + text.count(" ") >= LEAST_WORDS * len(text) and len(words) >= 8
