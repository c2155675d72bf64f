"""Compiles one grammar with llguidance, and walks along it.

It runs in the server, and in the process that tries each grammar before the server does. So it imports neither numpy
nor anything of HTTP.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .call_grammar import ANY_TEXT, CALLS_ALONE, calls_text
from .grammar_errors import NO_TEXT, GrammarError, plain
from .json_schema import schema_grammar
from .names import Place, Spelt, after, repeating

if TYPE_CHECKING:
    from llguidance import LLMatcher

MAX_STEP_S = 0.2  # of a processor, on the event loop; llguidance's own limits end most steps after some 20 ms
MAX_LEXER_STATES = 250_000  # of all answers of one compiled grammar: some 150 MB
ENDLESS = "// endless\n"  # begins a grammar whose texts have no end
LONGEST_END = 256  # tokens: longer ways to an end are not searched


class Vocabulary:
    """The tokens that grammars are made of: all but the added ones, which have no text here."""

    def __init__(self, description: Mapping[str, Any]) -> None:
        """`description` is `describe`'s."""
        from llguidance import LLTokenizer

        self.tokenizer = LLTokenizer(
            description["tokenizer"],
            n_vocab=description["size"],
            eos_token=description["ends"],
            slices=LLTokenizer.json_slices(),
        )
        self.closers: tuple[int, ...] = tuple(description["closers"])
        self.ends = frozenset(description["ends"])
        self.spelt_closers = {self.text(token): token for token in self.closers}
        self.quoted: list[Spelt] = sorted((self.text(token), token) for token in description["quoted"])
        self.twice = [spelt for spelt in self.quoted if spelt[0].count(b'"') > 1]

    def text(self, token: int) -> bytes:
        return self.tokenizer.decode_bytes([token])


def describe(tokenizer: str, pieces: Sequence[str], ends: Sequence[int], closers: Sequence[str]) -> dict[str, Any]:
    """Describe a vocabulary as plain data. `tokenizer` is its JSON, and `pieces` has the text of each id."""
    return {
        "tokenizer": without_added(tokenizer),
        "size": len(pieces),
        "ends": sorted(ends),
        "closers": [pieces.index(closer) for closer in closers if closer in pieces],
        "quoted": [token for token, piece in enumerate(pieces) if '"' in piece],
    }


def without_added(tokenizer: str) -> str:
    """Return a tokenizer's JSON with added tokens that no text spells. An added token stands for itself and not for its
    letters: a text that has these letters is spelt with the others."""
    content = json.loads(tokenizer)
    unspeakable = secrets.token_hex(16)
    names = {}
    for entry in content.get("added_tokens", ()):
        names[entry["content"]] = f"<{unspeakable} {entry['id']}>"
        entry.update(content=names[entry["content"]], special=True, normalized=False)
    model = content["model"]
    vocabulary = model.get("vocab")
    if isinstance(vocabulary, dict):
        model["vocab"] = {names.get(text, text): token for text, token in vocabulary.items()}
    elif vocabulary:
        model["vocab"] = [[names.get(text, text), score] for text, score in vocabulary]
    if model.get("unk_token") in names:
        model["unk_token"] = names[model["unk_token"]]
    if names and "merges" in model:
        model["merges"] = [merge for merge in model["merges"] if not names.keys() & _joined(merge)]
    return json.dumps(content)


def _joined(merge: str | list[str]) -> set[str]:
    left, right = merge.split(" ", 1) if isinstance(merge, str) else merge
    return {left, right, left + right}


@dataclass(slots=True)
class Meter:
    """The processor time that the walks of one compiled grammar have taken together. They share its lexer, which grows
    with what they meet."""

    spent_s: float = 0.0


class Walk:
    """A place in a grammar, and the way on. JSON in it repeats no name within an object."""

    def __init__(self, vocabulary: Vocabulary, matcher: LLMatcher, place: Place | None, meter: Meter) -> None:
        """`place` is the one in JSON, or None if the text is something else."""
        self._vocabulary = vocabulary
        self._matcher = matcher
        self._place = self._last_place = place
        self.meter = meter
        self._slowest_s = 0.0

    def copy(self) -> Walk:
        return Walk(self._vocabulary, self._matcher.deep_copy(), self._place, self.meter)

    @property
    def accepting(self) -> bool:
        return self._matcher.is_accepting()

    @property
    def stopped(self) -> bool:
        return self._matcher.is_stopped()

    @property
    def problem(self) -> str:
        """The reason why it cannot go on; empty if it can."""
        if self._matcher.is_error():
            return plain(self._matcher.get_error())
        if self.stopped and not self.accepting:
            return NO_TEXT
        if self._slowest_s > MAX_STEP_S:
            return f"a step took {self._slowest_s:.2f} s, the limit is {MAX_STEP_S} s"
        return ""

    def words(self) -> bytes:
        """Return the tokens that may come next, packed as bits. A name is repeated only if the grammar has no other."""
        started = time.thread_time()
        words = self._matcher.compute_bitmask()
        unique = self._without_repeats(words)
        self._count(started)
        return unique or words

    def closer(self, words: bytes) -> int | None:
        """Return the one of `words` that closes the string, object or array here, or leads to its next value; None if
        there is none, as where a value must begin."""
        place = self._place
        if place is None or place.escaped:
            return None
        closers = map(self._vocabulary.spelt_closers.get, (b'"',) if place.in_string else (b"}", b"]", b","))
        return next((token for token in closers if token is not None and _has(words, token)), None)

    def forced(self) -> list[int]:
        """Return the tokens that must come next."""
        started = time.thread_time()
        tokens = self._matcher.compute_ff_tokens()
        self._count(started)
        return tokens

    def take(self, token: int) -> bool:
        """Append a token; return False, and append nothing, if it may not come."""
        started = time.thread_time()
        place = self._place
        if place is not None:
            place, repeats = after(place, self._vocabulary.text(token))
            if repeats and self._without_repeats(self._matcher.compute_bitmask()):
                return False
        taken = self._matcher.try_consume_tokens([token]) == 1
        if taken:
            self._place, self._last_place = place, self._place
        self._count(started)
        return taken

    def undo(self) -> None:
        """Remove the token that was taken last."""
        self._matcher.rollback(1)
        self._place = self._last_place

    def to_end(self, limit: int) -> list[int] | None:
        """Go to an end, by a short way if not the shortest. Return its tokens, or None if no end is found within
        `limit` tokens. It does not search, so it fails for a string that needs some letter later."""
        way: list[int] = []
        while not self.accepting:
            tokens = self.forced()
            if not tokens:
                words = self.words()
                tokens = [token for token in self._vocabulary.closers if _has(words, token)][:1]
                tokens = tokens or _lowest(words)
            if not tokens or len(way) + len(tokens) > limit or not all(map(self.take, tokens)):
                return None
            way += tokens
        return way

    def _without_repeats(self, words: bytes) -> bytes | None:
        """Return `words` without the tokens that repeat a name; None if no token is left."""
        if self._place is None or not any(self._place.stack):
            return words
        twice = [spelt for spelt in self._vocabulary.twice if _has(words, spelt[1])]
        changed = bytearray(words)
        for token in repeating(self._place, self._vocabulary.quoted, twice):
            changed[token // 8] &= ~(1 << token % 8)
        return bytes(changed) if any(changed) else None

    def _count(self, started: float) -> None:
        taken_s = time.thread_time() - started
        self.meter.spent_s += taken_s
        self._slowest_s = max(self._slowest_s, taken_s)


@dataclass(slots=True, weakref_slot=True, eq=False)
class Compiled:
    """A compiled grammar before its first token. The end is `shortest` tokens away; None: there is none. `candidates`
    are the tokens of a choice whose texts are one token each."""

    text: str
    start: Walk
    shortest: int | None
    bytes: int = 0
    candidates: tuple[int, ...] = ()


def grammar_text(
    vocabulary: Vocabulary,
    schema: str | None,
    regex: str | None,
    choice: Sequence[str],
    calls: str | None = None,
    without: Sequence[str] = (),
    tokens: Sequence[int] = (),
) -> str:
    """Return a format, as `Wanted` has it, in llguidance's notation. Raises `GrammarError`."""
    from llguidance import LLMatcher

    if calls is not None:
        return calls_text(calls, vocabulary.tokenizer)
    if schema is not None:
        return schema_grammar(schema, vocabulary.tokenizer)
    if without:
        found = "|".join(map(_escaped, without))
        # A complement alone has what is no text, too: the bytes by which special tokens are spelt.
        return LLMatcher.grammar_from_lark(f"start: TEXT\nTEXT: /{ANY_TEXT}/ & ~/{ANY_TEXT}({found}){ANY_TEXT}/")
    if tokens:
        return LLMatcher.grammar_from_lark(_of_tokens(set(tokens), vocabulary.ends))
    single = ",".join(map(str, sorted(single_tokens(vocabulary, choice))))
    pattern = "|".join(map(_escaped, choice)) if choice else regex or ""
    try:
        return LLMatcher.grammar_from_lark(f"start: <[{single}]>" if single else f"start: /{_lark(pattern)}/")
    except ValueError as error:
        raise GrammarError(plain(str(error))) from None


def single_tokens(vocabulary: Vocabulary, choice: Sequence[str]) -> tuple[int, ...]:
    """Return the tokens of texts that are one token each: an answer then takes one forward, and is the likeliest of
    them. Empty if another text is among them."""
    found = dict[int, None]()
    for text in choice:
        tokens = vocabulary.tokenizer.tokenize_str(text)
        if len(tokens) != 1 or vocabulary.text(tokens[0]) != text.encode():
            return ()
        found[tokens[0]] = None
    return tuple(found)


def _of_tokens(tokens: set[int], ends: Set[int]) -> str:
    """Return the grammar of some tokens alone. Without an end token among them a text has no end."""
    words = sorted(tokens - ends)
    if not words:
        raise GrammarError("it needs a token that does not end the answer")
    if len(words) == 1 and not tokens & ends:
        raise GrammarError("one token alone would come for ever: allow another one, or an end token")
    listed = ",".join(map(str, words))
    return f"start: <[{listed}]>*" if tokens & ends else f"{ENDLESS}start: <[{listed}]> start"


def compiled(vocabulary: Vocabulary, text: str) -> Compiled:
    """Compile a grammar and take its first steps, so that one that is too large fails here. Raises `GrammarError`."""
    from llguidance import LLMatcher, LLParserLimits

    limits = LLParserLimits(verbose_errors=False, max_lexer_states=MAX_LEXER_STATES)
    matcher = LLMatcher(vocabulary.tokenizer, text, log_level=0, limits=limits)
    start = Walk(vocabulary, matcher, Place() if text.startswith(("{", CALLS_ALONE)) else None, Meter())
    trial = start.copy()
    trial.words()
    trial.forced()
    problem = start.problem or trial.problem
    endless = text.startswith(ENDLESS)
    way = None if problem or endless else trial.to_end(LONGEST_END)
    if problem := problem or trial.problem:
        raise GrammarError(problem)
    return Compiled(text, start, None if endless else LONGEST_END if way is None else len(way))


def _has(words: bytes, token: int) -> bool:
    return bool(words[token // 8] >> token % 8 & 1)


def _lowest(words: bytes) -> list[int]:
    """Return the lowest token of a mask, if there is one."""
    bits = int.from_bytes(words, "little")
    return [(bits & -bits).bit_length() - 1] if bits else []


def _escaped(text: str) -> str:
    """Return the expression that matches a text and nothing else."""
    return "".join(letter if letter.isascii() and letter.isalnum() else f"\\x{{{ord(letter):x}}}" for letter in text)


def _lark(regex: str) -> str:
    r"""Return an expression as llguidance has it between slashes. \d and \w are ASCII, as in JSON Schema."""
    from llguidance import regex_to_lark

    if (len(regex) - len(regex.rstrip("\\"))) % 2:
        raise GrammarError("it ends in the middle of an escape")
    return regex_to_lark(regex, "dw")
