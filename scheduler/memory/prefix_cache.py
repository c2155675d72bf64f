"""Knows pages of keys and values by the tokens before their end, so that requests which begin alike share them.

A page's key is a hash of its tokens and of the key before it, from a root on. Where keys and values are exact, in
block-causal networks, the root is the request's salt: pages of prompts and of answers stay known when a request ends,
until their room is needed, least recently used first. A bidirectional network computes a prompt together with the
canvas behind it, which is the same masks for all choices of one prompt. So there the root is such a family, and its
pages go with the last who reads them.

Of requests that want a page which nobody has computed, the first to run is its leader; others start behind it, in the
same step or once a step has done it. Whoever reads a page also reads those before it, so a page without readers has
none behind it either, and those behind go first.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass

from ..contract import Ints
from .pages import Pool

Key = bytes


@dataclass(slots=True, eq=False)
class Page:
    """A page in the hands of so many `users`; its `leader`, a request's id, computes it; it is `known` once it has."""

    number: int
    key: Key
    users: int = 1
    leader: int | None = None
    known: bool = False


@dataclass(frozen=True, slots=True)
class BlockHashes:
    """Keys of a prompt's whole pages, and of the place behind them. `grows`: pages of the answer get keys as well."""

    keys: tuple[Key, ...] = ()
    last: Key = b""
    grows: bool = False


NO_HASHES = BlockHashes()


class PrefixCache:
    """The pages of a pool that have a key; with `keeps` they stay when nobody reads them."""

    def __init__(self, pool: Pool, page_size: int, keeps: bool) -> None:
        self.page_size = page_size
        self.keeps = keeps
        self._pool = pool
        self._pages: dict[Key, Page] = {}
        self._idle: OrderedDict[Key, Page] = OrderedDict()  # read by nobody, least recently used first

    @property
    def idle(self) -> int:
        """Pages that nobody reads, and whose room can be had."""
        return len(self._idle)

    def names(self, root: str, tokens: Ints, grows: bool) -> BlockHashes:
        """Of the whole pages of `tokens`."""
        keys, last = list[Key](), _key(b"", root.encode())
        for start in range(0, len(tokens) - self.page_size + 1, self.page_size):
            last = _key(last, tokens[start : start + self.page_size].tobytes())
            keys.append(last)
        return BlockHashes(tuple(keys), last, grows)

    def fits(self, names: BlockHashes, pages: int) -> bool:
        """Whether `pages` can be had, of which the first are named."""
        found = self._found(names)
        idle = self.idle - sum(not page.users for page in found)
        return pages - len(found) <= self._pool.free + idle

    def take(self, names: BlockHashes, pages: int, reader: int) -> tuple[Lease, tuple[int, ...]]:
        """So many pages for request `reader`: those that are known by name, and numbers of others, its own. Raises
        `ValueError` if there are fewer: callers ask `fits` first."""
        found = self._found(names)
        for page in found:
            page.users += 1
            self._idle.pop(page.key, None)
        wanted = pages - len(found)
        while self._pool.free < wanted and self._idle:
            self._drop(self._idle.popitem(last=False)[1])
        numbers = self._pool.take(wanted)
        fresh = [Page(number, key) for number, key in zip(numbers, names.keys[len(found) :], strict=False)]
        self._pages.update((page.key, page) for page in fresh)
        return Lease(self, reader, [*found, *fresh], names), numbers[len(fresh) :]

    def enter(self, number: int, key: Key) -> Page | None:
        """One more page, computed and read by one request; None if another page has its tokens."""
        if key in self._pages:
            return None
        page = self._pages[key] = Page(number, key, known=True)
        return page

    def leave(self, page: Page) -> None:
        """One reader less."""
        page.users -= 1
        if page.users:
            return
        if page.known and self.keeps:
            self._idle[page.key] = page
        else:
            self._drop(page)

    def check(self, leases: Iterable[Lease]) -> list[int]:
        """The numbers of all pages with a key. Raises `RuntimeError` if their users are not those of `leases`."""
        users = dict.fromkeys(self._pages, 0)
        for page in (page for lease in leases for page in lease.pages):
            if self._pages.get(page.key) is not page:
                raise RuntimeError(f"page {page.number} is read, but not known by its key")
            users[page.key] += 1
        for key, page in self._pages.items():
            if page.users != users[key] or (not page.users) != (key in self._idle):
                raise RuntimeError(f"page {page.number} counts {page.users} users and has {users[key]}")
        return [page.number for page in self._pages.values()]

    def _found(self, names: BlockHashes) -> list[Page]:
        found = []
        for key in names.keys:
            if (page := self._pages.get(key)) is None:
                break
            found.append(page)
        return found

    def _drop(self, page: Page) -> None:
        del self._pages[page.key]
        self._pool.give((page.number,))


class Lease:
    """The pages at the front of one request that have keys."""

    def __init__(self, prefixes: PrefixCache, reader: int, pages: list[Page], names: BlockHashes) -> None:
        self.pages = pages
        self._prefixes = prefixes
        self._reader = reader
        self._last = names.last
        self._grows = names.grows

    @property
    def numbers(self) -> tuple[int, ...]:
        return tuple(page.number for page in self.pages)

    def begin(self) -> int:
        """Positions that its reader need not compute in its first step: it leads from the first page on that nobody
        computes."""
        for index, page in enumerate(self.pages):
            if not page.known and page.leader in (None, self._reader):
                for led in self.pages[index:]:
                    led.leader = self._reader
                return index * self._prefixes.page_size
        return len(self.pages) * self._prefixes.page_size

    def there(self, stepping: Collection[int]) -> bool:
        """Whether the reader's first step may go along with requests `stepping`: all is known, or computed in it."""
        return all(page.known or page.leader == self._reader or page.leader in stepping for page in self.pages)

    def computed(self) -> None:
        """The reader's first step is over, which has seen all of them."""
        for page in self.pages:
            page.known = True

    def grow(self, final: int, text: Callable[[int, int], Ints], own: Sequence[int]) -> int:
        """Positions before `final` have their last keys and values: whole pages of them get keys. `text` says what
        stands in `[start, end)`, and `own` numbers the reader's pages behind these. Tells how many of them got one;
        none any more once another request's page has the same tokens."""
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
        """Its reader has ended; what it has not computed, another one will. Last pages first: they go first."""
        for page in reversed(self.pages):
            if page.leader == self._reader:
                page.leader = None
            self._prefixes.leave(page)


def _key(before: Key, content: bytes) -> Key:
    return hashlib.blake2b(content, key=before, digest_size=16).digest()
