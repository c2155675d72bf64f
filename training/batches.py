"""Sorts examples by length into few shapes, so that little is padded and the compiler sees few sizes."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from .corpus import MARKS, Example
from .noise import Rows

# Positions of a row, and of a block-causal row's second copy of its answer.
Sizes = tuple[tuple[int, int], ...]
SIZES: Sizes = ((160, 112), (256, 160), (384, 256), (640, 448))
SPARE = 4  # end tokens that fit after an answer, at least
LARGEST = 0.2  # share of roomier examples


@dataclass(frozen=True, slots=True)
class Shelf:
    """All examples of one size, on the device: ids [N, L] int16, of earlier answers `-1 - id`; prompt, answer [N]
    int16."""

    ids: torch.Tensor
    prompt: torch.Tensor
    answer: torch.Tensor
    room: int  # positions of a second copy; 0: none

    @property
    def length(self) -> int:
        return self.ids.shape[1]


def shelves(
    examples: Sequence[Example], block: int, device: torch.device, sizes: Sizes = SIZES, roomier: float = 0.0
) -> list[Shelf]:
    """Examples that are too long for the largest size are left out. In a bidirectional model's shelves, so large a
    share has more end tokens after its answer than it needs, as it has on a canvas that is longer than the answer: the
    next size, or for a fifth of them the largest."""
    sorted_: list[list[Example]] = [[] for _ in sizes]
    choice = random.Random(0)
    for ids, prompt in examples:
        base = prompt // block * block if block else 0
        fit = [
            number
            for number, (length, room) in enumerate(sizes)
            if len(ids) + SPARE <= length and (not block or len(ids) + SPARE - base <= room)
        ]
        if fit:
            place = fit[0]
            if not block and choice.random() < roomier:
                place = fit[-1] if choice.random() < LARGEST else fit[min(1, len(fit) - 1)]
            sorted_[place].append((ids, prompt))
    return [
        _shelf(group, length, room if block else 0, device)
        for group, (length, room) in zip(sorted_, sizes, strict=True)
        if group
    ]


def _shelf(group: Sequence[Example], length: int, room: int, device: torch.device) -> Shelf:
    ids = np.full((len(group), length), MARKS.end, np.int16)
    for row, (example, _) in zip(ids, group, strict=True):
        row[: len(example)] = example
    prompts = np.array([prompt for _, prompt in group], np.int16)
    answers = np.array([len(example) for example, _ in group], np.int16) - prompts
    tokens, prompt, answer = (torch.from_numpy(part).to(device) for part in (ids, prompts, answers))
    return Shelf(tokens, prompt, answer, room)


def batches(
    shelves: Sequence[Shelf],
    tokens: int,
    cropped: float,
    choice: random.Random,
    draws: torch.Generator,
    lean: float = 1.0,
) -> Iterator[tuple[Rows, int]]:
    """Rows of about so many tokens, and the room of their second copies, without end. First one of every size, so that
    all is compiled at once. So large a share of batches is `cropped`: they take the next longer examples, so that the
    canvas ends before some answers do, as it has with a short `max_tokens`. A size has so many batches as all its
    examples need, times their length to the power of `lean` - 1."""
    weights = [len(shelf.prompt) * shelf.length**lean for shelf in shelves]
    conversations = any(bool((shelf.ids < 0).any()) for shelf in shelves)
    first = list(range(len(shelves)))
    while True:
        size = first.pop() if first else choice.choices(range(len(shelves)), weights)[0]
        source = min(size + (choice.random() < cropped), len(shelves) - 1)
        shelf, length, room = shelves[source], shelves[size].length, shelves[size].room
        rows = torch.randint(len(shelf.prompt), (tokens // (length + room),), generator=draws, device=shelf.ids.device)
        prompt = shelf.prompt[rows].long()[:, None].clamp_max(length - 1)
        ids = shelf.ids[rows, :length].long()
        earlier = (ids < 0) if conversations else None
        yield Rows(torch.where(ids < 0, -1 - ids, ids), prompt, shelf.answer[rows].long()[:, None], earlier), room
