"""Compiles JSON schemas, regular expressions and choices into constraints for the scheduler, with llguidance.

A grammar is compiled twice: first in a process that can be killed (`trial`), then here, off the event loop, once it is
known to stay within the limits.
"""

from __future__ import annotations

import asyncio
import math
import threading
import weakref
from collections import Counter, OrderedDict
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import numpy as np
import numpy.typing as npt

from ..engine import messages
from ..errors import Draining, EngineFailure, InvalidValue, Overloaded
from ..schema import limits
from ..text.tokenizer import Tokenizer
from .compiler import LONGEST_END, Compiled, Vocabulary, compiled, describe, grammar_text, single_tokens
from .fair_worker import FairWorker
from .grammar_errors import GrammarError
from .trial import MEMORY, TIME, Trial, TrialEnded

Ints = npt.NDArray[np.int32]
Key = tuple[object, ...]

MAX_WAITING = 32  # grammars that wait to be compiled, with equal shares for clients
KEPT = 128  # results
# Seconds of a processor on one compiled grammar, after which new answers get another: its lexer grows all the time.
WORN_S = 0.3
GROWTH_BYTES = 32 << 20  # a lexer's, in this time, at most
PLAIN_CHARS = 2048  # of choices that are compiled without a trial: they take milliseconds
ANY_OBJECT = '{"type": "object"}'
# Tokens that lead to an end, in order of preference: ends of strings, objects and arrays, what follows a value, short
# values. A comma stands before digits, so that a number ends where another value must follow.
CLOSERS = ('"', "}", "]", ",", ":", "0", "1", "e")
SPARE = 32  # positions, besides twice the shortest way to an end, below which the room for an end is watched


@dataclass(frozen=True, slots=True)
class Wanted:
    """The required format of an answer's text: an instance of a JSON schema, a full match of a regular expression, one
    of some texts, calls of tools, any text `without` some others in it, or some `tokens` alone. `param` is the
    request's parameter."""

    param: str
    schema: str | None = None
    regex: str | None = None
    choice: tuple[str, ...] = ()
    calls: str | None = None  # a job of `CallGrammar`
    without: tuple[str, ...] = ()
    tokens: tuple[int, ...] = ()

    @property
    def chars(self) -> int:
        return len(self.schema or self.regex or self.calls or "") + sum(map(len, (*self.choice, *self.without)))

    @property
    def free(self) -> bool:
        """True if the text may end anywhere."""
        return bool(self.without or self.tokens)

    @property
    def kind(self) -> str:
        if self.calls is not None:
            return "this set of tools"
        if self.free:
            return "this list"
        return "this schema" if self.schema is not None else "this choice" if self.choice else "this expression"

    @property
    def job(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("schema", "regex", "choice", "calls", "without", "tokens")}

    @property
    def plain(self) -> bool:
        """True if it is known to compile within the limits."""
        return self.schema == ANY_OBJECT or bool(self.tokens) or (bool(self.choice) and self.chars <= PLAIN_CHARS)


class Grammars:
    """Compiles grammars off the event loop, and keeps the last results, with what was refused."""

    def __init__(self, tokenizer: Tokenizer, timeout_s: float = 2.0, memory_mb: int = 512) -> None:
        """The limits are those of one compilation, of all that the trial needs for it: seconds of a processor, and
        memory. The results that are kept take as much memory again."""
        self._timeout_s, self._memory_mb = timeout_s, memory_mb
        self._described = cache(partial(_described, tokenizer))
        self._trial = Trial(self._described, timeout_s, memory_mb)
        self._tested = FairWorker[Compiled]("grammar", MAX_WAITING)
        self._plain = ThreadPoolExecutor(max_workers=1, thread_name_prefix="plain-grammar")
        self._results: OrderedDict[Key, Future[Compiled]] = OrderedDict()
        self._readers: Counter[Future[Compiled]] = Counter()
        self._by_text: weakref.WeakValueDictionary[str, Compiled] = weakref.WeakValueDictionary()
        self._vocabulary: Vocabulary | None = None
        self._lock = threading.Lock()
        self.close = weakref.finalize(self, self._trial.close)

    async def compile(self, wanted: Wanted, client: str = "") -> messages.Grammar:
        """Compile a grammar, for a front end. It is not compiled if the caller is cancelled while it waits. Raises
        `InvalidValue`, `Overloaded` if too many of the client wait, and `Draining` once this is closed."""
        if wanted.chars > limits.GRAMMAR_CHARS:
            reason = f"{wanted.chars} characters are more than {limits.GRAMMAR_CHARS}"
            raise InvalidValue(wanted.param, f"{wanted.param}: {reason}")
        submit = partial(self._submit, client, wanted.kind, wanted.job, wanted.plain)
        found = await self._result(wanted.param, wanted.job, submit)
        return messages.Grammar(_parameter(wanted.param), found.text, found.bytes, found.candidates)

    def has(self, grammar: messages.Grammar) -> bool:
        """Return whether `constraint` has a grammar now that is not worn."""
        found = self._by_text.get(grammar.text)
        return found is not None and found.start.meter.spent_s <= WORN_S

    async def ready(self, grammar: messages.Grammar, client: str = "") -> None:
        """Compile a grammar unless it is compiled already, for an engine. `constraint` then has it until the caller
        waits for something else. One that a front end has tried is not tried again. Raises what `compile` does."""
        if not self.has(grammar):
            job = {"text": grammar.text}
            submit = partial(self._submit, client, "this grammar", job, plain=False, tried_bytes=grammar.tried_bytes)
            await self._result(grammar.param, job, submit)

    def constraint(self, grammar: messages.Grammar) -> GrammarConstraint:
        """Return the constraint of one answer, for an engine. Raises `InvalidValue` for a grammar that is not ready."""
        found = self._by_text.get(grammar.text)
        if found is None:
            raise InvalidValue(grammar.param, f"{grammar.param}: this grammar has not been compiled")
        return GrammarConstraint(grammar.param, found)

    async def _result(self, param: str, job: dict[str, Any], submit: Callable[[], Future[Compiled]]) -> Compiled:
        """The result for a job, old or new. Raises what `compile` does."""
        key = tuple(job.values())
        future = self._results.get(key)
        if future is None or _has_failed(future) or _is_worn(future):
            future = self._results[key] = submit()
        self._results.move_to_end(key)
        self._readers[future] += 1
        try:
            # Shielded: other requests may wait for the same grammar.
            found = await asyncio.shield(asyncio.wrap_future(future))
            self._by_text[found.text] = found
            return found
        except GrammarError as error:
            error.__traceback__ = None  # the error is kept, and would keep what each request had in its frames
            param = f"{param}.{error.place}" if error.place else param
            raise InvalidValue(param, f"{param}: {error}") from None
        finally:
            self._readers[future] -= 1
            if not self._readers[future]:
                del self._readers[future]
                # All who waited have left before it has begun, or it has failed. The key may have a newer one by now.
                if (future.cancel() or _has_failed(future)) and self._results.get(key) is future:
                    del self._results[key]
            self._evict()

    def _submit(
        self, client: str, kind: str, job: dict[str, Any], plain: bool, tried_bytes: int | None = None
    ) -> Future[Compiled]:
        if plain:
            return self._plain.submit(self._compile, job)
        if tried_bytes == 0:  # it was plain for its front end
            return self._plain.submit(self._build, job["text"], 0)
        work = partial(self._try, kind, job) if tried_bytes is None else partial(self._build, job["text"], tried_bytes)
        future = self._tested.submit(client, work)
        if future is None:
            reason = f"clients share {MAX_WAITING} places for formats that wait to be compiled"
            raise Overloaded(f"too many formats of this client wait: {reason}", retry_after_s=2)
        return future

    def _evict(self) -> None:
        """Drop the oldest results, so that the rest are few and small."""
        done = [key for key, future in reversed(self._results.items()) if future.done()]
        taken = 0
        for number, key in enumerate(done):
            taken += _bytes_of(self._results[key])
            if number and (number >= KEPT or taken > self._memory_mb << 20):
                del self._results[key]

    def _try(self, kind: str, job: dict[str, Any]) -> Compiled:
        """Compile a grammar in the other process, then here. Raises `GrammarError` and `ApiError`."""
        try:
            reply = self._trial.run(job)
        except TrialEnded:
            raise Draining() if self._trial.closed else EngineFailure("formats cannot be compiled") from None
        if "refused" in reply:
            raise GrammarError(reply["refused"], reply.get("place", ""))
        limit = reply.get("limit")
        if limit == TIME:
            raise GrammarError(f"{kind} takes longer than {self._timeout_s:g} s to compile")
        if limit == MEMORY:
            raise GrammarError(f"{kind} takes more than {self._memory_mb} MB to compile")
        if limit is not None:
            raise Overloaded(f"the machine is too busy to compile {kind}", retry_after_s=2)
        found = self._build(reply["text"], reply["bytes"])
        found.candidates = single_tokens(self._loaded(), job.get("choice", ()))
        return found

    def _build(self, text: str, size_bytes: int) -> Compiled:
        found = compiled(self._loaded(), text)
        found.bytes = size_bytes
        return found

    def _compile(self, job: dict[str, Any]) -> Compiled:
        found = compiled(self._loaded(), grammar_text(self._loaded(), **job))
        found.candidates = single_tokens(self._loaded(), job["choice"])
        return found

    def _loaded(self) -> Vocabulary:
        with self._lock:
            if self._vocabulary is None:
                self._vocabulary = Vocabulary(self._described())
            return self._vocabulary


def _parameter(path: str) -> str:
    """The parameter into which a path leads. Of `text` in `/v1/responses` it is the format."""
    first, *rest = path.split(".")
    return "text.format" if [first, *rest[:1]] == ["text", "format"] else first


def _described(text: Tokenizer) -> dict[str, Any]:
    return describe(text.backend.to_str(), text.pieces, sorted(text.end_ids), CLOSERS)


def _has_failed(future: Future[Compiled]) -> bool:
    """Return whether the result is an error of its moment, not of the grammar."""
    return future.done() and not isinstance(future.exception(), GrammarError | None)


def _is_worn(future: Future[Compiled]) -> bool:
    return future.done() and future.exception() is None and future.result().start.meter.spent_s > WORN_S


def _bytes_of(future: Future[Compiled]) -> int:
    if future.exception() is not None:
        return 0
    found = future.result()
    return found.bytes + int(GROWTH_BYTES * min(1.0, found.start.meter.spent_s / WORN_S))


class GrammarConstraint:
    """The constraint of one answer: `scheduler.Constraint`."""

    def __init__(self, name: str, compiled: Compiled) -> None:
        self.name = name
        self.failed = ""
        self.closing = False
        self._compiled = compiled
        self._walk = compiled.start.copy()
        # With so much room left or less, a token is accepted only if there is room for an end after it.
        self._look_at = -1 if compiled.shortest is None else 2 * compiled.shortest + SPARE
        self._way: list[int] | None = None  # a known way to an end from here

    @property
    def complete(self) -> bool:
        return self._walk.accepting

    @property
    def finished(self) -> bool:
        return self.complete and (self.closing or self._walk.stopped)

    def allowed(self) -> Ints:
        words = np.frombuffer(self._walk.words(), np.int32)
        self._check()
        return np.full_like(words, -1) if self.failed else words

    def closer(self, words: Ints) -> int | None:
        return None if self.failed else self._walk.closer(words.tobytes())

    def accept(self, token: int, room: int) -> bool:
        if self.closing:
            return self._take(token)
        if room > self._look_at:
            self._way = None
            return self._take(token)
        before = self._way_to_end(room) if self._way is None else self._way
        if before is None:  # no end was found within reach: look again later
            self._look_at = room - 1 - room // 8
            return self._take(token)
        if not self._take(token):
            return False
        after = before[1:] if before[:1] == [token] else self._way_to_end(room - 1)
        if after is None:  # no room for an end would be left after this token
            self._walk.undo()
            self._way, self.closing = before, True
            return False
        self._way = after
        # Ten tokens of a way take a millisecond of the event loop: while there is room, do not look at each token.
        self._look_at = room - 1 - max(0, room - len(after) - SPARE) // 2
        return True

    def _take(self, token: int) -> bool:
        taken = self._walk.take(token)
        self._check()
        return taken

    def forced(self, room: int) -> list[int]:
        if self.failed or self.finished:
            return []
        if self.closing:
            return self._way or []
        return self._walk.forced()

    def _way_to_end(self, room: int) -> list[int] | None:
        return self._walk.copy().to_end(min(room, LONGEST_END))

    def _check(self) -> None:
        if not self.failed and (problem := self._walk.problem):
            self.failed = problem
            self._compiled.start.meter.spent_s = math.inf  # its lexer, which other answers share, may have failed
