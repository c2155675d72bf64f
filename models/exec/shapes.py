"""The bounded set of shapes that steps are padded to: a ladder of sizes, and a few variants of optional inputs.

A step has a body, which depends on its positions, and a tail, which depends on its projected positions and on the
inputs that its requests need. Each has a shape of its own, so that the set grows with the sum of both, not with their
product. What is not in the set is padded alike and runs without a graph.

With a selection each part has two sizes. The number of all its positions, which few layers compute, is padded coarsely;
the number of those that go on finely. Of these shapes only the largest are in the set; others are captured when they
come again.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ...kernels.attention.tiles import AttentionConfig, attention_config, fitting, fixed_config, tile_queries
from ...scheduler.contract import MOST_RANKS, StepPlan
from ..checkpoint.config import ModelConfig
from ..numerics import Numerics
from .pack import NO_INPUTS, OptionalInputs, Shape, Tiling, projected

ROW = 64  # positions of a row of the usual length: decides how attention is tiled
FINEST = 16  # positions between two sizes where a step's time is flat
MOST_SIZES = 256  # each takes time at start
MOST_PADDINGS = 1024  # kept at once: steps that leave out positions have many
ROWS = 64  # of a step at least: some requests have several
RARE = 1024  # positions up to which steps with rarer inputs have graphs, too
ROOM = 2048  # entries of biases
GUIDED = (8, 64)  # restricted rows
COMMON = 2  # variants of large tails, too
LEAST_COARSE = 64  # a power of two; three quarters of it are the smallest coarse size
CANVAS_TILES = AttentionConfig(block_m=64, block_n=64, warps=4, stages=2)  # swept on an H200


PaddingKey = tuple[int, int, int, OptionalInputs]  # positions, projected positions, rows, inputs


@dataclass(frozen=True, slots=True, eq=False)
class Padding:
    """A shape of whole steps, and the shapes of its parts that may have graphs: those in the set, and those with a
    selection that are no larger. Equal sets have the same padding for a `key`."""

    key: PaddingKey
    shape: Shape
    body: Shape | None
    tail: Shape | None


class Fit(NamedTuple):
    """The padding of a plan, and the inputs that the plan itself needs."""

    padding: Padding
    needed: OptionalInputs


def spacing(tokens: int) -> int:
    """Distance between sizes of about `tokens` positions: an eighth at most, and at least `FINEST`."""
    return max(FINEST, (1 << (tokens - 1).bit_length()) // 16)


def rounded(tokens: int) -> int:
    """The size on the ladder that holds so many positions."""
    return tokens + -tokens % spacing(tokens)


def coarse(tokens: int) -> int:
    """The next power of two, or three quarters of it."""
    power = max(LEAST_COARSE, 1 << (tokens - 1).bit_length())
    return power if tokens > power // 4 * 3 else power // 4 * 3


def default_sizes(most: int) -> tuple[int, ...]:
    """The whole ladder up to a step of `most` positions."""
    sizes = [FINEST]
    while sizes[-1] < most:
        sizes.append(rounded(sizes[-1] + 1))
    return tuple(sizes)


def checked_sizes(sizes: Sequence[int], most: int) -> tuple[int, ...]:
    """Sizes in order. Raises `ValueError` for one that no step of at most `most` positions needs."""
    found = tuple(sorted(set(sizes)))
    if not found or found[0] < 1:
        raise ValueError("give positions of steps, each 1 at least")
    if len(found) > MOST_SIZES:
        raise ValueError(f"{len(found)} sizes take long to capture: give {MOST_SIZES} at most")
    if found[-1] > rounded(most):
        raise ValueError(f"no step has {found[-1]} positions: --max-step-tokens is {most}")
    return found


def variants(mask_words: int, denoised: bool = False) -> tuple[OptionalInputs, ...]:
    """Inputs of the tails in the set, the cheapest first. `mask_words`: of a mask of the vocabulary. A network that is
    `denoised` has no other tails than those of its canvases.

    Room that a step does not need costs little, and changes no answer. The first `COMMON` serve most steps.
    """
    drawn = OptionalInputs(sampled=True, narrowed=True)
    measured = drawn._replace(measured=True, biases=ROOM)
    if denoised:
        every = drawn._replace(measured=True, denoised=True)
        return every, every._replace(biases=ROOM)
    guided = (measured._replace(restricted=rows, mask_words=mask_words) for rows in GUIDED)
    return (NO_INPUTS, drawn, measured, measured._replace(ranks=MOST_RANKS), *guided)


def covers(room: OptionalInputs, needed: OptionalInputs) -> bool:
    """True if a tail with `room` can take a step with the inputs `needed`, but for what a selection needs."""
    return (
        room.sampled >= needed.sampled
        and room.narrowed >= needed.narrowed
        and room.measured >= needed.measured
        and room.biases >= needed.biases
        and (needed.ranks is None or (room.ranks is not None and room.ranks >= needed.ranks))
        and room.restricted >= needed.restricted
        and (not needed.restricted or room.mask_words == needed.mask_words)
        and room.copied >= needed.copied
        and room.causal >= needed.causal
        and room.scored >= needed.scored
        and room.reordered >= needed.reordered
        and room.denoised >= needed.denoised
    )


class ShapeSet:
    """The shapes of a network whose steps have rows of up to `slots` requests. Holds numbers alone."""

    def __init__(self, config: ModelConfig, numerics: Numerics, slots: int, sizes: Sequence[int]) -> None:
        self.config = config
        self.numerics = numerics
        self._sizes = tuple(sizes)
        self._rows = min(max(slots, ROWS), self.most) if sizes else slots
        self._denoised = config.canvas is not None
        self.selects = config.pattern.selects and bool(sizes)
        # A network that reads known tokens first has the inputs for it in all steps, so that one set serves them.
        found = variants(-(-config.vocab_size // 32), self._denoised)
        self._variants = tuple([each._replace(reordered=config.known_first) for each in found])
        self._paddings: dict[PaddingKey, Padding] = {}

    @property
    def most(self) -> int:
        """Positions of the largest step in the set."""
        return self._sizes[-1] if self._sizes else 0

    def bodies(self) -> list[Shape]:
        """The largest first, so that memory taken for it serves the others."""
        plain = [self.body(size) for size in self._sizes]
        written = [self.body(size, host_tokens=True) for size in self._sizes if size <= self._written]
        selecting = [self.body(self.most, kept=self.most)] if self.selects else []
        return sorted(plain + written + selecting, key=lambda shape: -shape.tokens)

    def tails(self) -> list[Shape]:
        """The largest first."""
        common = self._variants[:COMMON] if self.selects else ()
        return [
            *(self.tail(self.most, inputs, self.most) for inputs in common),
            *(
                self.tail(size, inputs)
                for size in reversed(self._sizes)
                for number, inputs in enumerate(self._variants)
                if size <= RARE or number < COMMON
            ),
        ]

    @property
    def _written(self) -> int:
        """Positions up to which bodies with host tokens are in the set. Canvases of random tokens always have them."""
        return self.most if self._denoised else RARE

    def body(self, tokens: int, host_tokens: bool = False, kept: int = 0) -> Shape:
        """The body of so many positions. With a selection `kept` of them go on, else it is 0."""
        inputs = OptionalInputs(host_tokens=host_tokens, reordered=self.config.known_first, denoised=self._denoised)
        inputs = inputs._replace(kept=kept, candidates=tokens if kept else 0)
        return Shape(tokens, self._rows, 0, 0, self._tiling(tokens), self._tiling(0), inputs)

    def tail(self, count: int, inputs: OptionalInputs, kept: int = 0) -> Shape:
        """The tail of `count` projected positions. With a selection `kept` of them are predicted, else it is 0."""
        inputs = inputs._replace(kept_projected=kept)
        return Shape(0, self._rows, count, count, self._tiling(0), self._tiling(count), inputs)

    def fit(self, plan: StepPlan) -> Fit:
        """The smallest shape that holds a plan."""
        needed, rows = OptionalInputs.of(plan), self._rows
        padded = needed.rounded()._replace(reordered=self.config.known_first, denoised=self._denoised)
        tokens, count = self._size(plan.tokens), self._size(projected(plan))
        if padded.kept:
            tokens, count = self._coarse(plan.tokens), self._coarse(projected(plan))
            kept = min(rounded(padded.kept), tokens)
            kept_projected = min(rounded(padded.kept_projected), count)
            padded = padded._replace(kept=kept, kept_projected=kept_projected, candidates=tokens)
        while rows < len(plan.rows):
            rows *= 2
        return Fit(self.padding((tokens, count, rows, padded)), needed)

    def padding(self, key: PaddingKey) -> Padding:
        found = self._paddings.get(key)
        if found is None:
            if len(self._paddings) == MOST_PADDINGS:
                self._paddings.clear()
            found = self._paddings[key] = self._padding(*key)
        return found

    def _padding(self, tokens: int, count: int, rows: int, needed: OptionalInputs) -> Padding:
        in_set = tokens <= self.most and rows == self._rows and not (needed.copied or needed.causal)
        few = self._variants if count <= RARE else self._variants[:COMMON]
        room = next((inputs for inputs in few if covers(inputs, needed)), None)
        inputs, kept, kept_projected = needed, needed.kept, needed.kept_projected
        if room is not None:
            inputs = room._replace(
                host_tokens=needed.host_tokens,
                kept=kept,
                kept_projected=kept_projected,
                candidates=needed.candidates,
            )
        body = tail = None
        if in_set and (tokens <= self._written or not needed.host_tokens):
            body = self.body(tokens, needed.host_tokens, kept)
        if in_set and count and room is not None:
            tail = self.tail(count, room, kept_projected)
        shape = Shape(tokens, rows, count, count, self._tiling(tokens), self._tiling(count), inputs)
        return Padding((tokens, count, rows, needed), shape, body, tail)

    @property
    def body_words(self) -> int:
        """Words of the largest body."""
        return self.body(self.most, host_tokens=True, kept=self.most if self.selects else 0).body_words

    @property
    def tail_words(self) -> int:
        """Words of the largest tail."""
        tails = self.tails()
        if self.selects:
            few = min(self.most, RARE)
            tails += [self.tail(few, inputs, few) for inputs in self._variants]
        return max((shape.words - shape.body_words for shape in tails), default=0)

    def _coarse(self, count: int) -> int:
        """The size of a step or a tail with a selection that holds so many positions."""
        return min(coarse(count), self.most) if count <= self.most else rounded(count)

    def _size(self, count: int) -> int:
        """The size that holds so many positions: of the set, or else of the ladder. 0 for none."""
        if count > self.most:
            return rounded(count)
        return self._sizes[bisect_left(self._sizes, count)] if count else 0

    def _tiling(self, tokens: int) -> Tiling:
        config = self.config
        of_heads = config.heads, config.kv_heads, config.head_dim, self.numerics.dtype.itemsize
        if self._denoised:  # its layers differ: see `Gemma._plan`
            chosen = fitting(CANVAS_TILES, *of_heads[2:])
        elif self.numerics.fixed:
            chosen = fixed_config(*of_heads)
        else:
            chosen = attention_config(tokens, max(1, tokens // ROW), *of_heads)
        queries = tile_queries(chosen, config.heads, config.kv_heads)
        return Tiling(chosen, queries, groups=config.kv_heads, split=not self.numerics.fixed)
