"""Code, errors and docs use the words of docs/glossary.md: one word for one thing, and the field's word."""

from __future__ import annotations

import ast
import io
import re
import subprocess
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

# Words of prose that have a plainer one, as they stand in comments, docstrings, messages and pages.
PROSE = {
    r"behind": "after, to the right of, later",
    r"told|tells?": "reported, reports",
    r"ask(s|ed|ing)?": "requested, needs",
    r"wish(es|ed)?": "row inputs, options",
    r"held": "host tokens, contains, used",
    r"judg(e|es|ed|ing)": "host commit rule",
    r"evidence": "step view",
    r"verdicts?": "commit decision",
    r"knobs?": "decoding parameter",
    r"lending": "prefix cache",
    r"fores(ee|een|ees)": "predict",
    r"geometry": "attention pattern",
    r"crowds?": "batched with others",
    r"w(as|ere) to be had": "was available",
    r"computed anew": "recomputed",
    r"a 4\d\d": "HTTP 400",
}
# Names that code had for the same things.
NAMES = frozenset(
    "Judge Judging Judged JUDGES Transfer Evidence Verdict Part METHODS Knobs KnobError KNOBS ALL_KNOBS Names names_of"
    " LaneFacts LaneFrame View Frame Recorder Reach Window Shown Together Isolated Speculating Independent Geometry"
    " geometry Work foresee hides turned flights salt judge judged judges judging knob knobs told wishes evidence"
    " verdict survey lending NAMELESS".split()
)
HEADLESS = ("What", "Whether", "Of")  # with which no docstring begins
WIRE = re.compile(r"`[^`\n]*`|\"[^\"\n]*\"|'[^'\n]*'|--[a-z-]+")  # quoted: fields, flags, values
ONE_WORD = re.compile(r"[\w.-]*")  # a field or a value
SCRIPT = re.compile(r'//.*|"(?:[^"\\]|\\.)*"|`[^`]*`')  # comments and strings
PROMPT = re.compile(r"Tell me a short story|[Tt]ells whether the text")  # what the embedded models have been trained on


def tracked(*patterns: str) -> list[Path]:
    found = subprocess.run(["git", "ls-files", *patterns], cwd=ROOT, capture_output=True, text=True, check=True)
    return [ROOT / name for name in found.stdout.split() if (ROOT / name).is_file()]


def texts(path: Path) -> Iterator[tuple[int, str]]:
    """The prose of a file: (line, text) of each comment, docstring and message, or of each line of a page."""
    if path.suffix == ".js":
        for line, code in enumerate(path.read_text().splitlines(), 1):
            found = (each[0].strip('"`') for each in SCRIPT.finditer(code))
            yield from ((line, PROMPT.sub("", text)) for text in found if not ONE_WORD.fullmatch(text))
        return
    if path.suffix != ".py":
        yield from enumerate(path.read_text().splitlines(), 1)
        return
    for token in tokenize.generate_tokens(io.StringIO(path.read_text()).readline):
        if token.type in (tokenize.COMMENT, tokenize.STRING):
            text = token.string if token.type == tokenize.COMMENT else token.string.strip("\"'rbfRBF")
            if not ONE_WORD.fullmatch(text):
                yield token.start[0], PROMPT.sub("", text)


def old_words(path: Path) -> Iterator[str]:
    pattern = re.compile(rf"\b({'|'.join(PROSE)})\b", re.IGNORECASE)
    if not pattern.search(path.read_text()):  # which takes less time than to find the comments
        return
    for line, text in texts(path):
        for found in pattern.finditer(WIRE.sub("", text)):
            instead = next(better for word, better in PROSE.items() if re.fullmatch(word, found[0], re.IGNORECASE))
            yield f"{path.relative_to(ROOT)}:{line}: {found[0]!r}, say: {instead}"


def old_names(path: Path) -> Iterator[str]:
    if not re.search(rf"\b({'|'.join(NAMES)})\b", path.read_text()):
        return
    for token in tokenize.generate_tokens(io.StringIO(path.read_text()).readline):
        if token.type == tokenize.NAME and token.string in NAMES:
            yield f"{path.relative_to(ROOT)}:{token.start[0]}: {token.string}"


def headless(path: Path) -> Iterator[str]:
    if not re.search(rf"[\"']\s*({'|'.join(HEADLESS)})\s", path.read_text()):
        return
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Module):
            first = (ast.get_docstring(node) or "").split(" ")[0]
            if first in HEADLESS:
                yield f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 1)}: {first}"


PACKAGES = ("bench", "clients", "kernels", "models", "scheduler", "server", "tests", "training")
# The log is history, and the corpus is what the embedded models have been trained on.
EXEMPT = {
    *("bench/LOG.md", "tests/test_words.py", "training/corpus.py", "training/talk.py"),
    *(path.relative_to(ROOT).as_posix() for path in ROOT.glob("training/chat/*.py")),
}


@pytest.mark.parametrize("package", PACKAGES)
def test_code_uses_the_words_of_the_glossary(package: str) -> None:
    files = [path for path in tracked(f"{package}/*.py") if path.relative_to(ROOT).as_posix() not in EXEMPT]
    assert [
        *(word for path in files for word in old_words(path)),
        *(n for path in files for n in old_names(path)),
    ] == []


def test_pages_use_the_words_of_the_glossary() -> None:
    read = (*tracked("*.md"), *tracked("server/web/*.js", "server/web/*.html", ":!server/web/vendor/"))
    pages = [path for path in read if path.relative_to(ROOT).as_posix() not in EXEMPT]
    assert [word for path in pages for word in old_words(path)] == []


def test_a_docstring_starts_with_what_the_thing_is_or_does() -> None:
    assert [found for path in tracked("*.py") for found in headless(path)] == []
