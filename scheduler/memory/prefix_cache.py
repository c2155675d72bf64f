"""The prefix cache: pages of keys and values, found by the tokens up to their end, which several requests may read.

A page's key is a hash of its tokens and of the key of the page before it, from a root on. In block-causal networks keys
and values are exact. There the root is the request's cache salt: pages of prompts and of answers stay known when a
request ends, until their room is needed, least recently used first. A bidirectional network computes a prompt together
with the canvas, which is the same masks for all choices of one prompt. There the root is the share group of these
choices, and a page goes with its last reader.

Several requests may need a page that nobody has computed. The first of them to run is its leader; the others start in
the same step, or once the leader's step is done. A leader that computes its prompt in chunks makes pages known chunk by
chunk. Whoever reads a page also reads those before it. So a page without readers has no page with readers after it, and
the last pages are dropped first.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from ..contract import Ints
from .pages import Pool

Key = bytes


@dataclass(slots=True, eq=False)
class Page:
    """A page with `ref_count` readers. Its `leader`, a request's id, computes it; it is `known` afterwards."""

    number: int
    key: Key
    ref_count: int = 1
    leader: int | None = None
    known: bool = False


@dataclass(frozen=True, slots=True)
class BlockHashes:
    """Keys of the whole pages of a prompt, and the key that its next page builds on. With `grows`, pages of the answer
    get keys too."""

    keys: tuple[Key, ...] = ()
    last: Key = b""
    grows: bool = False


NO_HASHES = BlockHashes()


class PrefixCache:
    """The pages of a pool that have a key. With `keeps` they stay when nobody reads them."""

    def __init__(self, pool: Pool, page_size: int, keeps: bool) -> None:
        self.page_size = page_size
        self.keeps = keeps
        self._pool = pool
        self._pages: dict[Key, Page] = {}
        self._idle: OrderedDict[Key, Page] = OrderedDict()  # without readers, least recently used first

    @property
    def idle(self) -> int:
        """Pages without readers, whose room is available."""
        return len(self._idle)

    def block_hashes(self, prompt: Ints, cache_salt: str, share_group: str | None, causal: bool = False) -> BlockHashes:
        """The keys of the pages of `prompt` [n] that other requests may read; if they are `causal`, those that are."""
        if self.keeps:
            root = ("causal " if causal else "salt ") + cache_salt
        elif share_group is not None:
            root = "family " + share_group
        else:
            return NO_HASHES
        keys, last = list[Key](), _key(b"", root.encode())
        text = prompt.tobytes()
        size = self.page_size * prompt.itemsize
        for start in range(0, len(text) - size + 1, size):
            last = _key(last, text[start : start + size])
            keys.append(last)
        return BlockHashes(tuple(keys), last, grows=self.keeps)

    def numbers(self, hashes: BlockHashes) -> set[int]:
        """The pages that a request with these hashes would share."""
        return {page.number for page in self._found(hashes)}

    def fits(self, hashes: BlockHashes, pages: int) -> bool:
        """Return whether `pages` are available, of which the first have these hashes."""
        found = self._found(hashes)
        idle = self.idle - sum(not page.ref_count for page in found)
        return pages - len(found) <= self._pool.free + idle

    def take(self, hashes: BlockHashes, pages: int, reader: int) -> tuple[Lease, tuple[int, ...]]:
        """`pages` pages for request `reader`: a lease of those with keys, and the numbers of the others, its own.
        Raises `ValueError` if there are fewer: callers check `fits` first."""
        found = self._found(hashes)
        for page in found:
            page.ref_count += 1
            self._idle.pop(page.key, None)
        missing = pages - len(found)
        while self._pool.free < missing and self._idle:
            self._drop(self._idle.popitem(last=False)[1])
        numbers = self._pool.take(missing)
        fresh = [Page(number, key) for number, key in zip(numbers, hashes.keys[len(found) :], strict=False)]
        self._pages.update((page.key, page) for page in fresh)
        return Lease(self, reader, [*found, *fresh], hashes), numbers[len(fresh) :]

    def enter(self, number: int, key: Key) -> Page | None:
        """A further page, computed and read by one request. None if another page has the same tokens."""
        if key in self._pages:
            return None
        page = self._pages[key] = Page(number, key, known=True)
        return page

    def leave(self, page: Page) -> None:
        """The page has one reader less."""
        page.ref_count -= 1
        if page.ref_count:
            return
        if page.known and self.keeps:
            self._idle[page.key] = page
        else:
            self._drop(page)

    def check(self, leases: Iterable[Lease]) -> list[int]:
        """The numbers of all pages with a key. Raises `RuntimeError` if `leases` do not explain their readers."""
        counts = dict.fromkeys(self._pages, 0)
        for page in (page for lease in leases for page in lease.pages):
            if self._pages.get(page.key) is not page:
                raise RuntimeError(f"page {page.number} is read, but not known by its key")
            counts[page.key] += 1
        for key, page in self._pages.items():
            if page.ref_count != counts[key] or (not page.ref_count) != (key in self._idle):
                raise RuntimeError(f"page {page.number} counts {page.ref_count} readers and has {counts[key]}")
        return [page.number for page in self._pages.values()]

    def _found(self, hashes: BlockHashes) -> list[Page]:
        found = []
        for key in hashes.keys:
            if (page := self._pages.get(key)) is None:
                break
            found.append(page)
        return found

    def _drop(self, page: Page) -> None:
        del self._pages[page.key]
        self._pool.give((page.number,))


class Lease:
    """The pages at the front of one request that have keys."""

    def __init__(self, prefixes: PrefixCache, reader: int, pages: list[Page], hashes: BlockHashes) -> None:
        self.pages = pages
        self._prefixes = prefixes
        self._reader = reader
        self._nobody = (None, reader)  # leaders of pages that no other request computes
        self._known = self._begin = 0  # pages: the first ones that are known, those before the reader's own
        self._waits_for: int | None = None  # the leader of the first page that is not known
        self._last = hashes.last
        self._grows = hashes.grows

    @property
    def numbers(self) -> tuple[int, ...]:
        return tuple(page.number for page in self.pages)

    def begin(self) -> int:
        """The number of positions that the reader's first step need not compute. From the first page on that nobody
        computes, the reader is the leader."""
        pages, first = self.pages, self._first_unknown()
        leader = pages[first].leader if first < len(pages) else self._reader
        if leader == self._reader:
            return first * self._prefixes.page_size
        if leader is None or leader != self._waits_for:  # else nothing has changed: a leader leads to its last page
            self._waits_for = leader
            own = (at for at in range(first, len(pages)) if not pages[at].known and pages[at].leader in self._nobody)
            self._begin = next(own, len(pages))
            for led in pages[self._begin :]:
                led.leader = self._reader
        return self._begin * self._prefixes.page_size

    def ready(self, stepping: Mapping[int, int]) -> bool:
        """True if the reader's first step may go along with the requests `stepping`, each of which computes up to a
        position: every page is known, computed in the same step, or the reader's to compute."""
        size = self._prefixes.page_size
        for at in range(self._first_unknown(), len(self.pages)):
            page = self.pages[at]
            if page.leader == self._reader:  # it computes all from here on
                return True
            if not page.known and (page.leader is None or stepping.get(page.leader, 0) < (at + 1) * size):
                return False
        return True

    def computed(self, end: int) -> None:
        """The reader has computed its part of the positions before `end`, and seen the others."""
        for page in self.pages[self._first_unknown() : end // self._prefixes.page_size]:
            page.known = True

    def _first_unknown(self) -> int:
        """The number of pages before the first that is not known. A page that is known stays so."""
        pages, at = self.pages, self._known
        while at < len(pages) and pages[at].known:
            at += 1
        self._known = at
        return at

    def may_grow(self, final: int) -> bool:
        """Return whether a page before the position `final` may get a key."""
        return self._grows and (len(self.pages) + 1) * self._prefixes.page_size <= final

    def grow(self, final: int, text: Callable[[int, int], Ints], own: Sequence[int]) -> int:
        """Give keys to whole pages before the position `final`, whose keys and values do not change any more.

        `text` returns the tokens at `[start, end)`, and `own` are the numbers of the reader's pages after this lease.
        Returns how many of them got a key: none any more once another request's page has the same tokens.
        """
        size, grown = self._prefixes.page_size, 0
        while self._grows and (start := len(self.pages) * size) + size <= final:
            self._last = _key(self._last, text(start, start + size).tobytes())
            page = self._prefixes.enter(own[grown], self._last)
            if page is None:
                self._grows = False
                break
            self.pages.append(page)
            grown += 1
        return grown

    def end(self) -> None:
        """The reader has ended. Another request will compute what it has not. The last pages leave first."""
        for page in reversed(self.pages):
            if page.leader == self._reader:
                page.leader = None
            self._prefixes.leave(page)


def _key(before: Key, content: bytes) -> Key:
    return hashlib.blake2b(content, key=before, digest_size=16).digest()
