"""Links of the pages: each relative one leads to a file that git tracks, and each anchor to a heading of its page."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from functools import cache

from .support.checkout import ROOT, tracked

FENCED = re.compile(r"^ *(`{3,})[^`\n]*\n.*?^ *\1`* *$", re.M | re.S)
CODE = re.compile(r"(`+)(?!`).+?(?<!`)\1(?!`)", re.S)
LINK = re.compile(r"\[(?:[^\[\]]|\[[^\]]*\])*\]\(([^)\s]+)(?: \"[^\"]*\")?\)")
HEADING = re.compile(r"^#{1,6} +(.+?) *#*$", re.M)
ELSEWHERE = re.compile(r"[a-z]+:")


@cache
def text(page: str) -> str:
    """The page without its blocks of code."""
    return FENCED.sub("", (ROOT / page).read_text(encoding="utf-8"))


@cache
def anchors(page: str) -> frozenset[str]:
    """The anchors of the page's headings, as GitHub names them: a name that comes again gets a number."""
    found: set[str] = set()
    for heading in HEADING.findall(text(page)):
        words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        name = re.sub(r"[^\w\- ]", "", words.lower()).replace(" ", "-")
        number = 0
        while (anchor := f"{name}-{number}" if number else name) in found:
            number += 1
        found.add(anchor)
    return frozenset(found)


def broken(page: str, known: frozenset[str]) -> Iterator[str]:
    for link in LINK.findall(CODE.sub(lambda code: "x" * len(code[0]), text(page))):
        if ELSEWHERE.match(link):
            continue
        path, _, anchor = link.partition("#")
        target = posixpath.normpath(posixpath.join(posixpath.dirname(page), path)) if path else page
        if target not in known:
            yield f"{page}: {link}: no such file"
        elif anchor and target.endswith(".md") and anchor not in anchors(target):
            yield f"{page}: {link}: no such heading"


def test_relative_links_lead_to_files_and_headings() -> None:
    files = frozenset(tracked())
    pages = [name for name in files if name.endswith(".md")]
    assert len(pages) > 20
    assert [fault for page in sorted(pages) for fault in broken(page, files)] == []


def test_broken_links_are_found() -> None:
    files = frozenset(tracked())
    assert "docs/lanes.md" in files
    assert "lanes-1" not in anchors("docs/lanes.md")
    assert "in-a-stream" in anchors("docs/lanes.md")
