"""Reasons why a grammar is refused, in plain words: llguidance's own messages quote and draw the grammar."""

from __future__ import annotations

import re

NO_TEXT = "no text can be so"
NAME_COUNTS = "minProperties and maxProperties are"
TOO_COMPLEX = "it is too complex"
SHOWN_CHARS = 300  # of a reason: it may quote the grammar

# The first pattern that is found decides; a message without one is kept.
REASONS: tuple[tuple[str, str], ...] = (
    (r"NoExtensionBias", NO_TEXT),
    (r"lookarounds not supported yet", "anchors and word boundaries within an expression are not supported"),
    (r"regex parse error: .* error: look-around", "look-around is not supported in expressions"),
    (r"regex parse error: .* error: (.*?)(?: 1 \| start: .*)?$", r"not an expression that can be read: \1"),
    (r"invalid regex", "not an expression that can be read"),
    (r"Unable to determine|fuel exhausted|too many (expressions|states)|Current row has", TOO_COMPLEX),
    (r'Unimplemented keys: \["(\w+)"', r"\1 is not supported"),
    (r"min/maxProperties only supported", f"{NAME_COUNTS} not supported where a declared name may be left out"),
    (r"oneOf constraints are not supported", "oneOf whose options overlap cannot be enforced: anyOf can"),
    (r"Unknown format: (.*)", r"the format '\1' cannot be enforced"),
    (r"Invalid type: (.*)", r"there is no type '\1' in JSON Schema"),
    (r"Resource '(.*)' is not present", r"references lead within the schema only, not to '\1'"),
    (r"Pointer '(.*)' does not exist", r"a reference leads to '\1', which does not exist"),
    (r"Expected positive integer for '(.*)', got (.*)", r"\1 must be a whole number from 0, not \2"),
    (r"Expected array for '(.*)', got (.*)", r"\1 must be a list, not \2"),
    (r"(\w+) must be an array", r"\1 must be a list"),
    (r"invalid multiple of", "multipleOf must be above 0"),
    (r"Unsatisfiable schema: (.*)", rf"{NO_TEXT}: \1"),
)


class GrammarError(ValueError):
    """A schema or an expression that cannot be enforced; the message is for the client. `place` is that of the schema,
    if there are several."""

    def __init__(self, reason: str, place: str = "") -> None:
        super().__init__(reason)
        self.place = place


def plain(reason: str) -> str:
    """Translate one of llguidance's messages into one short line."""
    line = " ".join(reason.split("<state>")[0].replace("<non-verbose/>", "").split()) or TOO_COMPLEX
    for theirs, ours in REASONS:
        found = re.search(theirs, line)
        if found:
            line = found.expand(ours)
            break
    return line if len(line) <= SHOWN_CHARS else line[:SHOWN_CHARS] + "..."
