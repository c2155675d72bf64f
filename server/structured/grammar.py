"""Compiles JSON schemas, regular expressions and choices into constraints for the scheduler, with llguidance.

llguidance has no time limit but counts its work, so a grammar that is too complex is an error; a schema keyword that it
does not enforce is one too.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from ..engine import messages
from ..errors import InvalidValue
from ..text.tokenizer import Tokenizer
from .grammar_errors import NO_TEXT, GrammarError, plain
from .json_schema import check_schema, json_grammar

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

Ints = npt.NDArray[np.int32]

MAX_CHARS = 1 << 16  # of a schema or an expression
MAX_COMPILE_S = 2.0  # of a processor
MAX_STEP_S = 0.2  # of a processor, on the event loop
KEPT = 128  # compiled grammars
# Tokens that lead to an end, in order of preference: ends of strings, objects and arrays, what follows a value, short
# values. A comma stands before digits, so that a number ends where another value must follow.
CLOSERS = ('"', "}", "]", ",", ":", "0", "1", "e")
SPARE = 32  # positions, besides twice the shortest way to an end, below which the room for an end is watched
LONGEST_END = 256  # tokens: longer ways to an end are not searched


@dataclass(frozen=True, slots=True)
class Wanted:
    """The required format of an answer's text: an instance of a JSON schema, a full match of a regular expression, or
    one of some texts. `param` is the request's parameter."""

    param: str
    schema: str | None = None
    regex: str | None = None
    choice: tuple[str, ...] = ()

    @property
    def chars(self) -> int:
        return len(self.schema or self.regex or "") + sum(map(len, self.choice))

    @property
    def key(self) -> tuple[object, ...]:
        """The same for the same grammar, whatever the parameter."""
        return self.schema, self.regex, self.choice


class Grammars:
    """Compiles grammars in a thread of its own, and keeps the last ones."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="grammar")
        self._known: OrderedDict[tuple[object, ...], Future[Compiled]] = OrderedDict()
        self._by_text: OrderedDict[str, Compiled] = OrderedDict()

    async def compile(self, wanted: Wanted) -> messages.Grammar:
        """Compile a grammar in the thread, for a front end. Raises `InvalidValue`."""
        try:
            # Shielded: other requests may wait for the same grammar.
            compiled = await asyncio.shield(asyncio.wrap_future(self._compiled(wanted)))
        except GrammarError as error:
            raise InvalidValue(wanted.param, f"{wanted.param}: {error}") from None
        self._keep(compiled)
        return messages.Grammar(wanted.param.partition(".")[0], compiled.text)

    def constraint(self, grammar: messages.Grammar) -> GrammarConstraint:
        """Return the constraint of one answer, for an engine. A grammar that was compiled here is not compiled again.
        Raises `InvalidValue`."""
        compiled = self._by_text.get(grammar.text)
        if compiled is None:
            try:
                compiled = self._probed(grammar.text)
            except GrammarError as error:
                raise InvalidValue(grammar.param, f"{grammar.param}: {error}") from None
        self._keep(compiled)
        return GrammarConstraint(grammar.param, compiled)

    def _keep(self, compiled: Compiled) -> None:
        self._by_text[compiled.text] = compiled
        self._by_text.move_to_end(compiled.text)
        if len(self._by_text) > KEPT:
            self._by_text.popitem(last=False)

    def _compiled(self, wanted: Wanted) -> Future[Compiled]:
        future = self._known.pop(wanted.key, None) or self._worker.submit(self._compile, wanted)
        self._known[wanted.key] = future  # the most recent one
        if len(self._known) > KEPT:
            self._known.popitem(last=False)
        return future

    def _compile(self, wanted: Wanted) -> Compiled:
        from llguidance import LLMatcher

        if wanted.chars > MAX_CHARS:
            raise GrammarError(f"{wanted.chars} characters are more than {MAX_CHARS}")
        tokenizer, _ = self._ll_tokenizer, self._closers  # made once, before the clock starts
        started = time.thread_time()
        try:
            if wanted.schema is None:
                regex = "|".join(map(_escaped, wanted.choice)) if wanted.choice else wanted.regex or ""
                text = LLMatcher.grammar_from_lark(f"start: /{_lark(regex)}/")
            else:
                check_schema(wanted.schema, tokenizer)
                text = json_grammar(wanted.schema)
        except GrammarError:
            raise
        except ValueError as error:
            raise GrammarError(plain(str(error))) from None
        compiled = self._probed(text)
        taken = time.thread_time() - started
        if taken > MAX_COMPILE_S:
            raise GrammarError(f"it took {taken:.1f} s to compile, the limit is {MAX_COMPILE_S} s")
        return compiled

    def _probed(self, text: str) -> Compiled:
        """Take a grammar's first steps, so that one that is too large fails here. Raises `GrammarError`."""
        from llguidance import LLMatcher, LLParserLimits

        limits = LLParserLimits(verbose_errors=False)
        matcher = LLMatcher(self._ll_tokenizer, text, log_level=0, limits=limits)
        trial, started = matcher.deep_copy(), time.thread_time()
        words_of(trial)
        trial.compute_ff_tokens()
        taken = time.thread_time() - started
        _check(matcher, trial)
        if taken > MAX_STEP_S:
            raise GrammarError(f"a step took {taken:.2f} s, the limit is {MAX_STEP_S} s")
        way = shortest_end(trial, self._closers, LONGEST_END)
        _check(trial)
        return Compiled(text, matcher, self._closers, LONGEST_END if way is None else len(way))

    @cached_property
    def _ll_tokenizer(self) -> LLTokenizer:
        from llguidance import LLTokenizer

        return LLTokenizer(
            self._tokenizer.backend.to_str(),
            n_vocab=len(self._tokenizer.pieces),
            eos_token=sorted(self._tokenizer.end_ids),
            slices=LLTokenizer.json_slices(),
        )

    @cached_property
    def _closers(self) -> tuple[int, ...]:
        pieces = self._tokenizer.pieces
        return tuple(pieces.index(closer) for closer in CLOSERS if closer in pieces)


@dataclass(frozen=True, slots=True)
class Compiled:
    """A compiled grammar before its first token. `closers` are tried first on the way to an end, which is `shortest`
    tokens away."""

    text: str
    matcher: LLMatcher
    closers: tuple[int, ...]
    shortest: int


def _check(*matchers: LLMatcher) -> None:
    """Raises `GrammarError`."""
    for problem in filter(None, map(problem_of, matchers)):
        raise GrammarError(problem)


class GrammarConstraint:
    """The constraint of one answer: `scheduler.Constraint`."""

    def __init__(self, name: str, grammar: Compiled) -> None:
        self.name = name
        self.failed = ""
        self.closing = False
        self._matcher = grammar.matcher.deep_copy()
        self._closers = grammar.closers
        # With so much room left or less, a token is accepted only if there is room for an end after it.
        self._look_at = 2 * grammar.shortest + SPARE
        self._way: list[int] | None = None  # a known way to an end from here

    @property
    def complete(self) -> bool:
        return self._matcher.is_accepting()

    @property
    def finished(self) -> bool:
        return self.complete and (self.closing or self._matcher.is_stopped())

    def allowed(self) -> Ints:
        words = words_of(self._matcher)
        self.failed = self.failed or problem_of(self._matcher)
        return np.full_like(words, -1) if self.failed else words

    def accept(self, token: int, room: int) -> bool:
        if self.closing:
            return self._consume(token)
        if room > self._look_at:
            self._way = None
            return self._consume(token)
        before = self._way_to_end(room) if self._way is None else self._way
        if before is None:  # no end was found within reach: look again later
            self._look_at = room - 1 - room // 8
            return self._consume(token)
        if not self._consume(token):
            return False
        after = before[1:] if before[:1] == [token] else self._way_to_end(room - 1)
        if after is None:  # no room for an end would be left after this token
            self._matcher.rollback(1)
            self._way, self.closing = before, True
            return False
        self._way = after
        # Ten tokens of a way take a millisecond of the event loop: while there is room, do not look at each token.
        self._look_at = room - 1 - max(0, room - len(after) - SPARE) // 2
        return True

    def _consume(self, token: int) -> bool:
        consumed = self._matcher.try_consume_tokens([token]) == 1
        self.failed = self.failed or problem_of(self._matcher)
        return consumed

    def forced(self, room: int) -> list[int]:
        if self.failed or self.finished:
            return []
        if self.closing:
            return self._way or []
        return self._matcher.compute_ff_tokens()

    def _way_to_end(self, room: int) -> list[int] | None:
        return shortest_end(self._matcher.deep_copy(), self._closers, min(room, LONGEST_END))


def _escaped(text: str) -> str:
    """Return the expression that matches a text and nothing else."""
    return "".join(letter if letter.isascii() and letter.isalnum() else f"\\x{{{ord(letter):x}}}" for letter in text)


def _lark(regex: str) -> str:
    r"""Return an expression as llguidance has it between slashes. \d and \w are ASCII, as in JSON Schema."""
    from llguidance import regex_to_lark

    if (len(regex) - len(regex.rstrip("\\"))) % 2:
        raise GrammarError("it ends in the middle of an escape")
    return regex_to_lark(regex, "dw")


def words_of(matcher: LLMatcher) -> Ints:
    """Return the tokens that may come next, packed as bits."""
    return np.frombuffer(matcher.compute_bitmask(), np.int32)


def problem_of(matcher: LLMatcher) -> str:
    """Return why a matcher cannot continue; empty if it can."""
    if matcher.is_error():
        return plain(matcher.get_error())
    if matcher.is_stopped() and not matcher.is_accepting():
        return NO_TEXT
    return ""


def shortest_end(trial: LLMatcher, closers: Sequence[int], limit: int) -> list[int] | None:
    """Return tokens that lead `trial` to an end, by a short way if not the shortest; None if none is found within
    `limit` tokens. It does not search, so it fails for a string that needs some letter later."""
    way: list[int] = []
    while not trial.is_accepting():
        tokens = trial.compute_ff_tokens()
        if not tokens:
            words = words_of(trial)
            allowed = [token for token in closers if words[token // 32] >> (token % 32) & 1]
            tokens = allowed[:1] or _first(words)
        if not tokens or len(way) + len(tokens) > limit or trial.try_consume_tokens(tokens) < len(tokens):
            return None
        way += tokens
    return way


def _first(words: Ints) -> list[int]:
    """Return the lowest token of a mask, if there is one."""
    some = np.flatnonzero(words)
    if not len(some):
        return []
    word = int(words[some[0]]) & 0xFFFFFFFF
    return [int(some[0]) * 32 + (word & -word).bit_length() - 1]
