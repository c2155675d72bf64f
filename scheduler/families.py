"""Choices of one prompt share its keys and values, where that changes no answer.

A bidirectional network computes a prompt's keys and values together with the canvas behind it. As long as that canvas
is all masks they are the same for every choice; a cache that never computes the prompt anew keeps them so to the end.
So the first choice of a family to run computes them, into pages that are in the page tables of all; others start behind
those pages, in the same step or once a step has done it. Only whole pages are shared: where the prompt ends within one,
each choice computes the rest of that page itself.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .pages import Pool

if TYPE_CHECKING:
    from .request import Work


@dataclass(slots=True)
class Shared:
    """Pages of a prompt, in the hands of so many `users`; its `leader`, a request's id, computes them; they
    are `known` once a step that carried one of the family is over."""

    family: str
    pages: tuple[int, ...]
    users: int = 0
    leader: int | None = None
    known: bool = False

    def leads(self, number: int) -> bool:
        """Whether request `number` computes the prompt in its first step: somebody must, and it is the first to ask."""
        if self.leader is None and not self.known:
            self.leader = number
        return self.leader == number and not self.known

    def there(self, number: int, works: Iterable[Work]) -> bool:
        """Whether a step of these `works` may carry request `number`, too: the prompt is known, or computed by it."""
        return self.known or self.leader in (number, *(work.sequence.id for work in works))


class Families:
    """What running choices share, by family; pages go back to the pool with the last choice that has them."""

    def __init__(self, pages: Pool) -> None:
        self._pool = pages
        self._shared: dict[str, Shared] = {}

    @property
    def pages(self) -> list[int]:
        return [page for shared in self._shared.values() for page in shared.pages]

    def found(self, family: str | None, pages: int) -> int:
        """How many of its `pages` a choice of `family` need not take from the pool."""
        return pages if family in self._shared else 0

    def join(self, family: str | None, pages: int) -> Shared:
        """One more choice; the first takes so many pages from the pool."""
        if family is None:
            raise ValueError("a request without a family shares nothing")
        if family not in self._shared:
            self._shared[family] = Shared(family, self._pool.take(pages))
        shared = self._shared[family]
        shared.users += 1
        return shared

    def leave(self, shared: Shared | None, number: int) -> None:
        """Request `number` has ended; if it has not computed the prompt, another one will."""
        if shared is None:
            return
        if shared.leader == number:
            shared.leader = None
        shared.users -= 1
        if not shared.users:
            self._pool.give(self._shared.pop(shared.family).pages)
