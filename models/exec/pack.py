"""Packs a plan into one int32 buffer, so that a step costs one copy to the device.

The buffer is a sequence of named sections. Those of `OptionalInputs` exist only if a plan needs them. With a `Shape`
all sections are padded to its capacities, so a CUDA graph finds every number where it was when it was captured. Padding
is inert: its tokens write no keys, its rows and spans are empty.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ...kernels.attention.tiles import (
    MOST_SPLITS,
    TILE_WORDS,
    AttentionConfig,
    AttentionPlan,
    arrival_words,
    key_splits,
    most_split_tiles,
    row_tiles,
    tile_capacity,
    tiles_of_row,
    turn_share,
)
from ...kernels.common.types import Draws, SpanRules
from ...scheduler.contract import (
    MOST_RANKS,
    WIDE_RANKS,
    Bias,
    Columns,
    Denoising,
    Ints,
    Row,
    Sampling,
    Selection,
    Span,
    StepPlan,
    make,
)

NOWHERE = -1  # position of a padding token
# Sections of the buffer whose padding is NOWHERE.
NOWHERE_SECTIONS = (
    "positions",
    "stored",
    "restricted_places",
    "host_tokens",
    "scored",
    "causal_offsets",
    "canvas_starts",
)
LOGIT_ROWS = (
    1024  # projected positions whose logits are in memory at once: products of so many are as fast as longer ones
)
UNCHANGED = -1  # host token of a position whose canvas keeps its token
DRAW_WORDS = 7  # numbers that say how a position is drawn
STOPS, GOES_ON, CANDIDATE, UNREAD = range(4)  # what a selection does to a token; unread ones go on, unpredicted
TEXT, CANVAS, CONDITIONED = range(3)  # what a token belongs to; the last step conditions all but a canvas's first one
# By section of tiles, that of the rows which it cuts.
TILED = {
    "tiles": "row_starts",
    "projected_tiles": "projected_starts",
    "kept_tiles": "kept_starts",
    "kept_projected_tiles": "kept_projected_starts",
}
BIASES_OF_ROW = 2  # the start of an answer may have one of its own
LEAST_BIASES = 256  # entries of biases that a shape with any has room for, else a power of two
NO_WORDS = np.empty(0, np.int32)  # a shape may have room for what no row of a plan has

Words = dict[str, np.ndarray]


class OptionalInputs(NamedTuple):
    """The inputs that only some requests need, and how many of them.

    `sampled` rows, and `narrowed` ones among them (top-p, top-k); entries of `biases`; log-probabilities with so many
    `ranks`, if not None; `restricted` rows, with `mask_words` in each one's mask of the vocabulary; spans that are
    `measured`, by more than plain probability; `host_tokens`; rows that are `copied`; rows with `scored` tokens; rows
    that are `causal`; rows that are `reordered`; rows that are `denoised`; with a selection the `kept` tokens of all
    rows, the `kept_projected` positions among these, and the `candidates`.
    """

    sampled: bool = False
    narrowed: bool = False
    biases: int = 0
    ranks: int | None = None
    restricted: int = 0
    mask_words: int = 0
    measured: bool = False
    host_tokens: bool = False
    copied: bool = False
    scored: bool = False
    causal: bool = False
    reordered: bool = False
    denoised: bool = False
    kept: int = 0
    kept_projected: int = 0
    candidates: int = 0

    @classmethod
    def of(cls, plan: StepPlan) -> OptionalInputs:
        sampled = narrowed = host_tokens = copied = scored = causal = reordered = denoised = False
        biases = restricted = mask_words = kept = kept_projected = candidates = 0
        selections: list[tuple[Selection, tuple[Span, ...]]] = []
        ranks: int | None = None
        for row in plan.rows:
            spans, sampling, _, own, reported, restriction, tokens, copy, given, in_order, order, canvas, selection = (
                row[4:17]
            )
            if sampling.temperature > 0 and spans:
                sampled, narrowed = True, narrowed or sampling.top_p < 1 or sampling.top_k > 0
            if own:
                biases += sum([len(bias.tokens) for bias in own])
            if reported is not None:
                # As many as any request may need, so that ties are broken alike whatever the others need.
                ranks = max(ranks or 0, MOST_RANKS if reported else 0, WIDE_RANKS if reported > MOST_RANKS else 0)
            if restriction is not None:
                restricted, mask_words = restricted + 1, max(mask_words, len(restriction.words))
            if tokens is not None:
                host_tokens = True
            if copy is not None:
                copied = True
            if given is not None:
                scored = True
            if in_order:
                causal = True
            if order is not None:
                reordered = True
            if canvas is not None:
                denoised = True
            if selection is not None:
                selections.append((selection, spans))
        if selections:
            kept = plan.passed
            unread = [sum([span.end - span.start for span in spans]) - one.keep for one, spans in selections]
            kept_projected = plan.projected - sum(unread)
            candidates = sum([len(selection.candidates) for selection, _ in selections])
        found = sampled, narrowed, biases, ranks, restricted, mask_words, measured(plan), host_tokens, copied, scored
        return make(cls, (*found, causal, reordered, denoised, kept, kept_projected, candidates))

    def rounded(self) -> OptionalInputs:
        """With room to spare, so that few shapes fit many plans."""
        if not self.biases and not self.restricted:
            return self
        return self._replace(
            biases=max(LEAST_BIASES, _power_of_two(self.biases)) if self.biases else 0,
            restricted=_power_of_two(self.restricted) if self.restricted else 0,
        )

    @property
    def drawn(self) -> bool:
        """True if positions need noise."""
        return self.sampled or self.measured


NO_INPUTS = OptionalInputs()


def measured(plan: StepPlan) -> bool:
    """True if the rule of some span does not go by plain probability."""
    rules = [span.rule for span in plan.rows[0].spans] if len(plan.rows) == 1 else plan.columns.rules
    return not all(rule.plain for rule in rules)


def projected(plan: StepPlan) -> int:
    """Positions of a plan that get logits."""
    return plan.projected


def _power_of_two(count: int) -> int:
    return 1 << (count - 1).bit_length()


@dataclass(frozen=True, slots=True)
class Tiling:
    """How attention over one list of rows is launched: `queries` to a tile, for each of `groups` groups of heads;
    `split` if rows may have several splits of their keys."""

    config: AttentionConfig
    queries: int
    groups: int
    split: bool

    def capacity(self, tokens: int, rows: int) -> int:
        """The most tiles of up to `rows` rows of `tokens` tokens in all."""
        return tile_capacity(tokens, rows, self.queries) + (most_split_tiles(self.groups) if self.split else 0)

    @property
    def arrival_words(self) -> int:
        return arrival_words(self.groups) if self.split else 0

    def tiles(self, sizes: np.ndarray, visible: np.ndarray, capacity: int) -> np.ndarray:
        """Words [capacity * 4] int32 of the tiles of rows with `sizes` [R] queries, which see `visible` [R] keys."""
        splits = None
        if self.split:
            counts, turns = -(-sizes // self.queries), -(-visible // self.config.block_n)
            splits = key_splits(turns, turn_share(int(counts @ turns), self.groups))
        return row_tiles(sizes, self.queries, capacity, visible, splits).reshape(-1)

    def tiles_of_row(self, size: int, visible: int) -> list[int]:
        """The same for one row alone, without padding."""
        splits = 1
        if self.split:
            count, turns = -(-size // self.queries), -(-visible // self.config.block_n)
            share = turn_share(count * turns, self.groups)
            splits = min(max((turns + share // 2) // share, 1), MOST_SPLITS)
        return tiles_of_row(size, self.queries, splits)


@dataclass(frozen=True)
class Shape:
    """Capacities of a padded step. Its body is all layers; its tail, what projected positions need after their last
    keys and values are written. Either may be empty."""

    tokens: int
    rows: int
    projected: int
    spans: int
    tiling: Tiling
    projected_tiling: Tiling
    inputs: OptionalInputs = NO_INPUTS

    @cached_property
    def sections(self) -> dict[str, int]:
        """Words of each section of the buffer, in order: those of the body, then those of the tail."""
        return self.body_sections() | self.tail_sections()

    @cached_property
    def places(self) -> dict[str, int]:
        """Where each section begins."""
        return dict(zip(self.sections, accumulate(self.sections.values(), initial=0), strict=False))

    @cached_property
    def padding(self) -> np.ndarray:
        """The words of a step that writes nothing."""
        words = np.empty(self.words, np.int32)
        pack_nothing(words, self)
        return words

    def body_sections(self) -> dict[str, int]:
        """Words that all layers need. Those that the tail needs, too, come last: with a number of rows they lie as far
        before the tail's own in every shape."""
        sizes = {"slots": self.tokens, "positions": self.tokens}
        if self.inputs.reordered:
            sizes["stored"] = self.tokens
        if self.inputs.host_tokens:
            sizes["host_tokens"] = self.tokens
        if self.inputs.copied:
            sizes["rope_positions"] = self.tokens
        if self.inputs.denoised:
            sizes["canvas_kinds"] = self.tokens
        if self.inputs.kept:
            sizes |= {"fates": self.tokens, "candidates": self.inputs.candidates}
            sizes |= {"kept_tiles": TILE_WORDS * self.tiling.capacity(self.inputs.kept, self.rows)}
        sizes["tiles"] = TILE_WORDS * self.tiling.capacity(self.tokens, self.rows)
        sizes["row_starts"] = self.rows + 1
        if self.inputs.copied:
            sizes["mask_offsets"] = self.rows
        if self.inputs.causal:
            sizes["causal_offsets"] = self.rows
        if self.inputs.denoised:
            sizes["canvas_starts"] = self.rows
        if self.inputs.kept:
            sizes |= {"candidate_starts": self.rows + 1, "keeps": self.rows, "kept_starts": self.rows + 1}
        return sizes | {"arrivals": self.tiling.arrival_words, "row_slots": self.rows, "visible": self.rows}

    def tail_sections(self) -> dict[str, int]:
        """Words that only the projected positions need."""
        inputs, biases = self.inputs, BIASES_OF_ROW * self.rows
        sizes = dict.fromkeys(("projected", "targets", "target_slots", "endless"), self.projected)
        if inputs.reordered:
            sizes["projected_stored"] = self.projected
        sizes |= {"projected_starts": self.rows + 1, "span_starts": self.spans + 1}
        sizes |= dict.fromkeys(("sure", "threshold", "factor", "last_free"), self.spans)
        if inputs.drawn:
            sizes["draws"] = DRAW_WORDS * self.projected
        if inputs.measured:
            sizes |= {"measure_kinds": self.projected, "measure_noise": self.projected}
            sizes |= {"budget": self.spans, "inclusive": self.spans}
        if inputs.biases:
            sizes |= {"bias_begins": biases, "bias_ends": biases, "bias_starts": biases + 1}
            sizes |= dict.fromkeys(("bias_ids", "bias_deltas", "bias_factors"), inputs.biases)
        if inputs.restricted:
            sizes |= {"restricted_places": inputs.restricted}
            sizes |= {"restricted_words": inputs.restricted * inputs.mask_words}
        if inputs.scored:
            sizes["scored"] = self.projected
        if inputs.denoised:
            sizes["canvas_temperatures"] = self.projected
        if inputs.kept_projected:
            sizes |= {"kept_projected_starts": self.rows + 1, "kept_span_starts": self.spans + 1}
            capacity = self.projected_tiling.capacity(inputs.kept_projected, self.rows)
            sizes["kept_projected_tiles"] = TILE_WORDS * capacity
        sizes["projected_tiles"] = TILE_WORDS * self.projected_tiling.capacity(self.projected, self.rows)
        return sizes

    @cached_property
    def words(self) -> int:
        return sum(self.sections.values())

    @cached_property
    def body_words(self) -> int:
        return sum(self.body_sections().values())


class Biases(NamedTuple):
    """B biases with E entries in all: arguments of `kernels.logits.adjust`."""

    begins: Tensor  # [B] int32, projected positions
    ends: Tensor  # [B] int32
    starts: Tensor  # [B + 1] int32
    ids: Tensor  # [E] int32
    deltas: Tensor  # [E] float32
    factors: Tensor  # [E] float32


class Restrictions(NamedTuple):
    """R masks of the vocabulary: arguments of `kernels.logits.restrict`."""

    places: Tensor  # [R] int32, projected positions; below 0 for padding
    words: Tensor  # [R, W] int32


class Measures(NamedTuple):
    """The confidence of N projected positions: arguments of `kernels.measure.measure`."""

    kinds: Tensor  # [N] int32
    noise: Tensor  # [N] float32
    draws: Draws


class Denoised(NamedTuple):
    """The rows of a batch that are canvases of random tokens."""

    kinds: Tensor  # [T] int32: TEXT, CANVAS, or CONDITIONED
    canvas_starts: Tensor  # [R] int32: the position of a canvas, below 0 for a row of text
    temperatures: Tensor  # [N] float32: 0 for projected positions of text


class Selecting(NamedTuple):
    """The tokens that go on after the second layer: arguments of `selection.select`. Of C candidates row r has those
    between two of `candidate_starts`, of K tokens that go on those between two of `row_starts`."""

    fates: Tensor  # [T] int32: `STOPS`, `GOES_ON`, `CANDIDATE` or `UNREAD`
    candidates: Tensor  # [C] int64: index among the tokens
    candidate_starts: Tensor  # [R + 1] int32
    keeps: Tensor  # [R] int32: candidates that go on
    kept: int  # K, and padding
    row_starts: Tensor  # [R + 1] int32
    attention: AttentionPlan | None


class Predicting(NamedTuple):
    """The projected positions that a selection leaves: arguments of `selection.predicted`. Row r and span s have those
    of M between two of these starts."""

    kept: int  # M, and padding
    starts: Tensor  # [R + 1] int32
    span_starts: Tensor  # [S + 1] int32
    attention: AttentionPlan | None


@dataclass(frozen=True, slots=True)
class Batch:
    """A plan on the device. T tokens in R rows laid end to end; N projected positions in S spans likewise."""

    slots: Tensor  # [T] int64: canvas of each token
    positions: Tensor  # [T] int64, absolute; NOWHERE for padding
    stored: Tensor | None  # [T] int64: the positions as which keys are stored and seen, NOWHERE; None: their own
    row_slots: Tensor  # [R] int64
    row_starts: Tensor  # [R + 1] int32
    visible: Tensor  # [R] int32
    projected: Tensor  # [N] int64: index among the tokens of the state that predicts each projected position
    targets: Tensor  # [N] int64: the projected positions, absolute
    projected_stored: Tensor | None  # [N] int64: the positions as which the keys beside these states are stored
    target_slots: Tensor  # [N] int64: canvas of each projected position
    projected_starts: Tensor  # [R + 1] int32: row r has the projected positions between two of them
    endless: Tensor  # [N] bool: no end token may commit there
    rules: SpanRules  # of the spans, each with those that join it
    narrowed: bool  # False: no position has top-k or top-p
    draws: Draws | None  # None: no row is sampled, nor measured
    measures: Measures | None  # None: all spans go by probability
    biases: Biases | None
    ranks: int | None  # the most that a row needs; None: no row needs log-probabilities
    restrictions: Restrictions | None
    scored: Tensor | None  # [N] int64: the token whose log-probability is reported, below 0: the one that may commit
    host_tokens: Tensor | None  # [T] int32: written to the canvases first, except UNCHANGED
    rope_positions: Tensor | None  # [T] int64: the positions that tokens are rotated as; None: their own
    mask_offsets: Tensor | None  # [R] int32: how far before a query the key lies that it does not see, 0: none
    causal_offsets: Tensor | None  # [R] int32: from a query to the key before which it sees keys, below 0: all of them
    denoised: Denoised | None  # None: no row is a canvas of random tokens
    attention: AttentionPlan | None  # of all tokens; None without a shape
    projected_attention: AttentionPlan | None  # of the projected positions
    selecting: Selecting | None = None  # None: all tokens pass all layers
    predicting: Predicting | None = None  # None: all projected positions are predicted


def logit_rows(count: int, several: bool) -> int:
    """Positions of the largest part that `count` projected ones make. A step that needs `several` arrays of the size of
    its logits has half as many in a part."""
    most = LOGIT_ROWS // 2 if several else LOGIT_ROWS
    return -(-count // max(1, -(-count // most)))


def logit_parts(batch: Batch) -> Iterator[tuple[int, int, Batch]]:
    """The parts of a batch whose logits are in memory at once, as evenly as goes: where each begins and ends among the
    projected positions, and the batch with these alone. What belongs to tokens, rows or spans is that of the whole."""
    count = len(batch.projected)
    size = logit_rows(count, several=batch.denoised is not None)
    if size == count:
        yield 0, count, batch
        return
    for start in range(0, count, size):
        end = min(start + size, count)
        yield start, end, _part(batch, start, end)


def _part(batch: Batch, start: int, end: int) -> Batch:
    here = slice(start, end)
    draws = None if batch.draws is None else Draws(*(each[here] for each in batch.draws))
    measures, biases, restrictions, denoised = batch.measures, batch.biases, batch.restrictions, batch.denoised
    if measures is not None and draws is not None:
        measures = Measures(measures.kinds[here], measures.noise[here], draws)
    if biases is not None:
        begins, ends = (each.clamp(start, end) - start for each in (biases.begins, biases.ends))
        biases = biases._replace(begins=begins, ends=ends)
    if restrictions is not None:
        places = restrictions.places
        inside = (places >= start) & (places < end)
        restrictions = restrictions._replace(places=torch.where(inside, places - start, NOWHERE))
    if denoised is not None:
        denoised = denoised._replace(temperatures=denoised.temperatures[here])
    return replace(
        batch,
        projected=batch.projected[here],
        targets=batch.targets[here],
        target_slots=batch.target_slots[here],
        endless=batch.endless[here],
        draws=draws,
        measures=measures,
        biases=biases,
        restrictions=restrictions,
        scored=None if batch.scored is None else batch.scored[here],
        denoised=denoised,
    )


class Unpadded(NamedTuple):
    """How the words of an unpadded plan are read: sizes of the sections, and the inputs."""

    sizes: tuple[tuple[str, int], ...]
    inputs: OptionalInputs

    def batch(self, words: np.ndarray, device: torch.device) -> Batch:
        return _batch(torch.from_numpy(words).to(device), dict(self.sizes), self.inputs)


def pack(plan: StepPlan, device: torch.device, shift: int = 0) -> Batch:
    """Unpadded, for a step that is computed once. `shift` 1: a position is predicted at the one before it."""
    unpadded, words = pack_words(plan, shift)
    return unpadded.batch(words, device)


def pack_words(plan: StepPlan, shift: int = 0) -> tuple[Unpadded, np.ndarray]:
    """How an unpadded plan is read, and its words."""
    inputs = OptionalInputs.of(plan)
    sections = {
        name: np.asarray(part).astype(np.int32, copy=False) for name, part in _words(plan, inputs, shift).items()
    }
    sizes = tuple([(name, len(part)) for name, part in sections.items()])
    return Unpadded(sizes, inputs), np.concatenate(list(sections.values()))


def pack_nothing(words: np.ndarray, shape: Shape) -> None:
    """Fill `words` [shape.words] int32 with padding alone: a step that writes nothing."""
    start = 0
    for name, size in shape.sections.items():
        words[start : start + size] = NOWHERE if name in NOWHERE_SECTIONS or name.endswith("tiles") else 0
        start += size


def pack_into(words: np.ndarray, plan: StepPlan, shape: Shape, shift: int = 0) -> None:
    """Fill `words` [shape.words] int32 with a plan that fits the shape."""
    if len(plan.rows) != 1 or not _pack_row(words, plan.rows[0], shape, shift):
        pack_rows(words, plan, shape, shift)


def pack_rows(words: np.ndarray, plan: StepPlan, shape: Shape, shift: int = 0) -> None:
    """Fill `words` [shape.words] int32 with any plan that fits the shape, by arrays."""
    parts = _words(plan, shape.inputs, shift)
    if shape.inputs.drawn:  # some numbers of each position, each in a block of its own
        draws = np.zeros((DRAW_WORDS, shape.projected), np.int32)
        draws[:, : len(parts["endless"])] = parts["draws"].reshape(DRAW_WORDS, -1)
        parts["draws"] = draws.reshape(-1)
    words[:] = shape.padding
    start = 0
    for name, size in shape.sections.items():
        if name.endswith("tiles"):
            tiling = shape.projected_tiling if "projected" in name else shape.tiling
            sizes = np.diff(parts[TILED[name]])
            part = tiling.tiles(sizes, parts["visible"], size // TILE_WORDS)
        elif name == "arrivals":
            part = NO_WORDS  # zeros
        else:
            part = parts[name]
        if len(part) > size:
            raise ValueError(f"{len(part)} words of {name} do not fit a shape with {size}")
        end, start = start + len(part), start + size
        words[start - size : end] = part
        if end < start and name.endswith("_starts"):
            words[end:start] = part[-1]  # rows and spans without positions


def _pack_row(words: np.ndarray, row: Row, shape: Shape, shift: int) -> bool:
    """Fill `words` [shape.words] int32 with one row, as mostly for a single stream: a device waits, and a hundred calls
    of numpy would take 0.4 ms after a rest. Return whether it was done: not if the row has what few rows have."""
    slot, start, end, visible, spans, sampling, step, biases, _ = row[:9]
    inputs, at = shape.inputs, shape.places
    size, count = end - start, sum([span.end - span.start for span in spans])
    denoising, tokens = row.denoising, row.host_tokens
    if inputs.restricted or inputs.copied or inputs.scored or inputs.causal or inputs.reordered or inputs.kept:
        return False
    if not (row.plain or row._replace(denoising=None, host_tokens=None).plain):
        return False
    if size > shape.tokens or count > shape.projected or len(spans) > shape.spans:
        return False
    if sum([len(bias.tokens) for bias in biases]) > inputs.biases or len(biases) > BIASES_OF_ROW * shape.rows:
        return False
    words[:] = shape.padding
    floats, begin = words.view(np.float32), at["positions"]
    words[begin : begin + size] = np.arange(start, end, dtype=np.int32)
    for name, many, value in (("slots", size, slot), ("target_slots", count, slot)):
        words[at[name] : at[name] + many] = value
    words[at["row_slots"]], words[at["visible"]] = slot, visible
    for name, many, value in (("row_starts", shape.rows, size), ("projected_starts", shape.rows, count)):
        words[at[name] + 1 : at[name] + 1 + many] = value
    for name, queries, tiling in (("tiles", size, shape.tiling), ("projected_tiles", count, shape.projected_tiling)):
        tiles = tiling.tiles_of_row(queries, visible)
        words[at[name] : at[name] + len(tiles)] = tiles
    done, ruled, begin = 0, 0, at["span_starts"]
    words[begin : begin + 1 + shape.spans] = count
    for first, last, rule, may_end, joined in spans:
        if first - shift < start:
            raise ValueError("a row lacks the position that predicts the first one of its spans")
        stop = done + last - first
        targets = np.arange(first, last, dtype=np.int32)
        words[at["targets"] + done : at["targets"] + stop] = targets
        words[at["projected"] + done : at["projected"] + stop] = targets - (shift + start)
        if not may_end:
            words[at["endless"] + done : at["endless"] + stop] = 1
        if not joined:
            words[begin + ruled] = done
            words[at["sure"] + ruled], words[at["last_free"] + ruled] = rule.sure, rule.last_free
            floats[at["threshold"] + ruled], floats[at["factor"] + ruled] = rule.threshold, rule.factor
            if inputs.measured:
                floats[at["budget"] + ruled], words[at["inclusive"] + ruled] = rule.budget, rule.inclusive
            ruled += 1
        if inputs.measured:
            words[at["measure_kinds"] + done : at["measure_kinds"] + stop] = rule.measure
            floats[at["measure_noise"] + done : at["measure_noise"] + stop] = rule.noise
        done = stop
    if tokens is not None:
        words[at["host_tokens"] : at["host_tokens"] + size] = tokens
    if denoising is not None:
        words[at["canvas_kinds"] : at["canvas_kinds"] + size] = _canvas_kind(denoising)
        words[at["canvas_starts"] : at["canvas_starts"] + shape.rows] = start
        floats[at["canvas_temperatures"] : at["canvas_temperatures"] + count] = denoising.temperature
    if inputs.drawn:
        lines = words[at["draws"] : at["draws"] + DRAW_WORDS * shape.projected].reshape(DRAW_WORDS, -1)
        lines[:, :count] = _draw_words([sampling], [step])
    if inputs.biases:
        _pack_biases(words, biases, spans, shape)
    return True


def _pack_biases(words: np.ndarray, biases: tuple[Bias, ...], spans: tuple[Span, ...], shape: Shape) -> None:
    """Write the biases of a single row."""
    at, entries = shape.places, 0
    for number, bias in enumerate(biases):
        words[at["bias_begins"] + number] = _before(spans, bias.start)
        words[at["bias_ends"] + number] = _before(spans, bias.end)
        words[at["bias_starts"] + number] = entries
        begin, length = entries, len(bias.tokens)
        entries += length
        words[at["bias_ids"] + begin : at["bias_ids"] + entries] = bias.tokens
        words[at["bias_deltas"] + begin : at["bias_deltas"] + entries] = bias.deltas.view(np.int32)
        words[at["bias_factors"] + begin : at["bias_factors"] + entries] = _factor_words(bias)
    begin = at["bias_starts"]
    words[begin + len(biases) : begin + BIASES_OF_ROW * shape.rows + 1] = entries


def _factor_words(bias: Bias) -> Ints:
    factors = np.ones(len(bias.tokens), np.float32) if bias.factors is None else bias.factors
    return factors.view(np.int32)


def _before(spans: tuple[Span, ...], position: int) -> int:
    """Positions of `spans` before an absolute position."""
    return sum([min(max(position, span.start), span.end) - span.start for span in spans])


def unpack(buffer: Tensor, shape: Shape) -> Batch:
    """The batch of a buffer that `pack_into` has filled."""
    return _batch(buffer, shape.sections, shape.inputs, shape)


def _batch(buffer: Tensor, sizes: Mapping[str, int], inputs: OptionalInputs, shape: Shape | None = None) -> Batch:
    """Views, and copies where a kernel needs another type, of a buffer with sections of `sizes` words."""
    views = dict(zip(sizes, torch.split(buffer, list(sizes.values())), strict=True))

    def floats(name: str) -> Tensor:
        return views[name].view(torch.float32)

    def plan_of(tiling: Tiling, name: str) -> AttentionPlan:
        arrivals = views["arrivals"] if tiling.split else None
        return AttentionPlan(tiling.config, views[name].view(-1, TILE_WORDS), arrivals)

    targets = views["targets"].long()
    draws = _draws(views["draws"], targets) if inputs.drawn else None
    measures = biases = restrictions = None
    if inputs.measured and draws is not None:
        measures = Measures(views["measure_kinds"], floats("measure_noise"), draws)
    if inputs.biases:
        begins, ends, starts, ids = (views[f"bias_{name}"] for name in ("begins", "ends", "starts", "ids"))
        biases = Biases(begins, ends, starts, ids, floats("bias_deltas"), floats("bias_factors"))
    if inputs.restricted:
        places = views["restricted_places"]
        restrictions = Restrictions(places, views["restricted_words"].view(len(places), -1))
    selecting = predicting = None
    if inputs.kept:
        selecting = Selecting(
            fates=views["fates"],
            candidates=views["candidates"].long(),
            candidate_starts=views["candidate_starts"],
            keeps=views["keeps"],
            kept=inputs.kept,
            row_starts=views["kept_starts"],
            attention=plan_of(shape.tiling, "kept_tiles") if shape else None,
        )
    if inputs.kept_projected:
        predicting = Predicting(
            kept=inputs.kept_projected,
            starts=views["kept_projected_starts"],
            span_starts=views["kept_span_starts"],
            attention=plan_of(shape.projected_tiling, "kept_projected_tiles") if shape else None,
        )
    return Batch(
        slots=views["slots"].long(),
        positions=views["positions"].long(),
        stored=views["stored"].long() if inputs.reordered else None,
        row_slots=views["row_slots"].long(),
        row_starts=views["row_starts"],
        visible=views["visible"],
        projected=views["projected"].long(),
        targets=targets,
        projected_stored=views["projected_stored"].long() if inputs.reordered else None,
        target_slots=views["target_slots"].long(),
        projected_starts=views["projected_starts"],
        endless=views["endless"].bool(),
        rules=SpanRules(
            starts=views["span_starts"],
            sure=views["sure"],
            threshold=floats("threshold"),
            factor=floats("factor"),
            last_free=views["last_free"].bool(),
            budget=floats("budget") if inputs.measured else None,
            inclusive=views["inclusive"].bool() if inputs.measured else None,
        ),
        narrowed=inputs.narrowed,
        draws=draws,
        measures=measures,
        biases=biases,
        ranks=inputs.ranks,
        restrictions=restrictions,
        scored=views["scored"].long() if inputs.scored else None,
        host_tokens=views["host_tokens"] if inputs.host_tokens else None,
        rope_positions=views["rope_positions"].long() if inputs.copied else None,
        mask_offsets=views["mask_offsets"] if inputs.copied else None,
        causal_offsets=views["causal_offsets"] if inputs.causal else None,
        denoised=Denoised(views["canvas_kinds"], views["canvas_starts"], floats("canvas_temperatures"))
        if inputs.denoised
        else None,
        attention=plan_of(shape.tiling, "tiles") if shape else None,
        projected_attention=plan_of(shape.projected_tiling, "projected_tiles") if shape else None,
        selecting=selecting,
        predicting=predicting,
    )


def _draws(words: Tensor, positions: Tensor) -> Draws:
    temperature, top_p, top_k, min_p, low, high, steps = words.view(DRAW_WORDS, -1).unbind(0)
    return Draws(
        temperature=temperature.view(torch.float32),
        top_p=top_p.view(torch.float32),
        top_k=top_k,
        min_p=min_p.view(torch.float32),
        seeds=high.long() << 32 | low.long() & 0xFFFFFFFF,
        positions=positions,
        steps=steps.long(),
    )


# --- The numbers of each section ----------------------------------------------------------------------------


def _words(plan: StepPlan, inputs: OptionalInputs, shift: int) -> Words:
    columns = plan.columns
    row_sizes = columns.ends - columns.starts
    row_starts = _starts(row_sizes)
    span_sizes = columns.span_ends - columns.span_starts
    span_starts = _starts(span_sizes)
    row_offsets = columns.starts - row_starts[:-1]  # from a token's place in the step to its position
    before = columns.span_starts - shift
    if (before < columns.starts.repeat(columns.span_counts)).any():
        raise ValueError("a row lacks the position that predicts the first one of its spans")
    first_token = before - row_offsets.repeat(columns.span_counts)
    projected_starts = span_starts[_starts(columns.span_counts)]
    ruled = np.flatnonzero(~columns.joined)
    parts = {
        "slots": columns.slots.repeat(row_sizes),
        "positions": _ranges(row_offsets, row_sizes, row_starts),
        "row_slots": columns.slots,
        "row_starts": row_starts,
        "visible": columns.visible,
        "projected": _ranges(first_token - span_starts[:-1], span_sizes, span_starts),
        "targets": _ranges(columns.span_starts - span_starts[:-1], span_sizes, span_starts),
        "target_slots": columns.slots.repeat(np.diff(projected_starts)),
        "projected_starts": projected_starts,
        "endless": (~columns.may_end).repeat(span_sizes),
        "span_starts": span_starts[np.append(ruled, len(span_sizes))],
        **_rule_words(columns, columns.rule_numbers[ruled]),
    }
    if inputs.host_tokens:
        parts["host_tokens"] = np.full(row_starts[-1], UNCHANGED, np.int32)
        for row, tokens in enumerate(columns.host_tokens):
            if tokens is not None:
                parts["host_tokens"][row_starts[row] : row_starts[row + 1]] = tokens
    if inputs.reordered:
        parts |= _reordered(columns, parts)
    if inputs.copied:
        offsets = [0 if copy is None else copy.rope_offset for copy in columns.copies]
        parts["rope_positions"] = parts["positions"] - np.repeat(offsets, row_sizes)
        parts["mask_offsets"] = np.array([0 if copy is None else copy.mask_offset for copy in columns.copies])
    if inputs.causal:
        offsets = [0 if copy is None else copy.rope_offset for copy in columns.copies]
        parts["causal_offsets"] = np.where(columns.causal, offsets, NOWHERE)
    if inputs.drawn:
        parts["draws"] = np.repeat(
            _draw_words(columns.samplings, columns.steps), np.diff(projected_starts), axis=1
        ).reshape(-1)
    if inputs.measured:
        own = columns.rule_numbers[ruled]
        parts["budget"] = _float_words([rule.budget for rule in columns.rules])[own]
        parts["inclusive"] = np.array([rule.inclusive for rule in columns.rules], np.int32)[own]
        kinds = np.array([rule.measure for rule in columns.rules], np.int32)[columns.rule_numbers]
        noise = _float_words([rule.noise for rule in columns.rules])[columns.rule_numbers]
        parts["measure_kinds"] = np.repeat(kinds, span_sizes)
        parts["measure_noise"] = np.repeat(noise, span_sizes)
    if inputs.biases:
        parts |= _bias_words(columns, span_starts)
    if inputs.restricted:
        parts |= _restriction_words(columns, span_starts)
    if inputs.denoised:
        parts |= _denoised_words(columns, row_sizes, np.diff(projected_starts))
    if inputs.kept:
        parts |= _selection_words(columns, row_starts, span_sizes, ruled)
    if inputs.scored:
        parts["scored"] = np.full(span_starts[-1], NOWHERE, np.int32)
        for row, tokens in enumerate(columns.scored):
            if tokens is not None:
                parts["scored"][projected_starts[row] : projected_starts[row + 1]] = tokens
    return parts


def _reordered(columns: Columns, parts: Words) -> Words:
    """Sections of rows whose positions are read in an order of their own, from those in which they ascend."""
    stored, row_starts = parts["positions"], parts["row_starts"]
    positions = stored.copy()
    for row, order in enumerate(columns.orders):
        if order is not None:
            positions[row_starts[row] : row_starts[row + 1]] = order
    ascending = np.arange(len(stored), dtype=np.int32)
    ranks = ascending + positions - stored  # where each token would be if its row ascended
    places = np.full(len(stored), NOWHERE, np.int32)
    places[ranks] = ascending
    if (places == NOWHERE).any():
        raise ValueError("an order must have each position of its row once")
    projected = places[parts["projected"]]
    found = {"positions": positions, "stored": stored, "projected": projected, "projected_stored": stored[projected]}
    return found | ({"host_tokens": parts["host_tokens"][ranks]} if "host_tokens" in parts else {})


def _denoised_words(columns: Columns, row_sizes: np.ndarray, projected: np.ndarray) -> Words:
    """Sections of rows with so many positions, and so many of them `projected`."""
    kinds = [_canvas_kind(one) for one in columns.denoising]
    temperatures = [0.0 if one is None else one.temperature for one in columns.denoising]
    return {
        "canvas_kinds": np.repeat(np.array(kinds, np.int32), row_sizes),
        "canvas_starts": np.where(np.array(kinds) != TEXT, columns.starts, NOWHERE),
        "canvas_temperatures": np.repeat(_float_words(temperatures), projected),
    }


def _canvas_kind(denoising: Denoising | None) -> int:
    if denoising is None:
        return TEXT
    return CANVAS if denoising.first else CONDITIONED


def _selection_words(columns: Columns, row_starts: Ints, span_sizes: Ints, ruled: np.ndarray) -> Words:
    """Sections of rows that go on with some of their positions. `ruled` spans have rules of their own."""
    found = [(row, one) for row, one in enumerate(columns.selections) if one is not None]
    rows, selections = np.array([row for row, _ in found], np.int64), [one for _, one in found]
    first_span = _starts(columns.span_counts)
    sizes, kept_spans = np.diff(row_starts), span_sizes.copy()
    counts, keeps = np.zeros((2, len(sizes)), np.int32)
    counts[rows] = own_counts = [len(one.candidates) for one in selections]
    keeps[rows] = [one.keep for one in selections]
    if (columns.span_counts[rows] != 1).any() or (keeps > counts).any() or (keeps[rows] < 1).any():
        raise ValueError("a row with a selection has one span, and keeps some of its candidates")
    offsets = row_starts[rows] - columns.starts[rows]
    fates = np.full(row_starts[-1], GOES_ON, np.int32)
    for row in rows.tolist():
        fates[row_starts[row] : row_starts[row + 1]] = UNREAD
    candidates = np.concatenate([one.candidates for one in selections]) + offsets.repeat(own_counts)
    cached = [one.cached for one in selections]
    fates[np.concatenate(cached) + offsets.repeat([*map(len, cached)])] = STOPS
    fates[candidates] = CANDIDATE
    sizes[rows] -= [one.dropped for one in selections]
    kept_spans[first_span[rows]] = keeps[rows]
    span_starts = _starts(kept_spans)
    return {
        "fates": fates,
        "candidates": candidates,
        "candidate_starts": _starts(counts),
        "keeps": keeps,
        "kept_starts": _starts(sizes),
        "kept_projected_starts": span_starts[first_span],
        "kept_span_starts": span_starts[np.append(ruled, len(kept_spans))],
    }


def _rule_words(columns: Columns, numbers: np.ndarray) -> Words:
    """The numbers of the rules with these `numbers`."""
    rules = columns.rules
    ints = np.array([(rule.sure, rule.last_free) for rule in rules], np.int32).reshape(-1, 2)[numbers]
    floats = _float_words([(rule.threshold, rule.factor) for rule in rules]).reshape(-1, 2)[numbers]
    return {"sure": ints[:, 0], "threshold": floats[:, 0], "factor": floats[:, 1], "last_free": ints[:, 1]}


def _draw_words(samplings: Sequence[Sampling], steps: Sequence[int] | Ints) -> np.ndarray:
    """Temperature, top-p, top-k, min-p, both halves of the seed and the step of each row: [DRAW_WORDS, rows] int32."""
    words = np.empty((DRAW_WORDS, len(samplings)), np.int32)
    floats = words.view(np.float32)
    floats[0] = [sampling.temperature for sampling in samplings]
    floats[1] = [sampling.top_p for sampling in samplings]
    words[2] = [sampling.top_k for sampling in samplings]
    floats[3] = [sampling.min_p for sampling in samplings]
    words[4:6] = np.array([sampling.seed for sampling in samplings], np.int64).view(np.int32).reshape(-1, 2).T
    words[6] = steps
    return words


def _bias_words(columns: Columns, span_starts: np.ndarray) -> Words:
    """Biases with their positions as projected ones, which lie in the order of the spans."""
    biases = [bias for row in columns.biases for bias in row]
    rows = np.repeat(np.arange(len(columns.biases)), [*map(len, columns.biases)])
    sizes = [len(bias.tokens) for bias in biases]
    return {
        "bias_begins": _projected(columns, span_starts, rows, [bias.start for bias in biases]),
        "bias_ends": _projected(columns, span_starts, rows, [bias.end for bias in biases]),
        "bias_starts": _starts(np.array(sizes, np.int32)),
        "bias_ids": np.concatenate([NO_WORDS, *(bias.tokens for bias in biases)]),
        "bias_deltas": np.concatenate([NO_WORDS, *(bias.deltas.view(np.int32) for bias in biases)]),
        "bias_factors": np.concatenate([NO_WORDS, *map(_factor_words, biases)]),
    }


def _restriction_words(columns: Columns, span_starts: np.ndarray) -> Words:
    """Restrictions with their positions as projected ones."""
    found = [(row, each) for row, each in enumerate(columns.restrictions) if each is not None]
    rows, positions = np.array([row for row, _ in found], np.int64), [each.position for _, each in found]
    return {
        "restricted_places": _projected(columns, span_starts, rows, positions),
        "restricted_words": np.concatenate([NO_WORDS, *(each.words for _, each in found)]),
    }


def _projected(columns: Columns, span_starts: np.ndarray, rows: np.ndarray, positions: list[int]) -> np.ndarray:
    """Projected positions of the whole plan before an absolute position in each of `rows`."""
    counts, first = columns.span_counts[rows], _starts(columns.span_counts)[rows]
    ends = np.cumsum(counts)
    spans = np.arange(counts.sum()) + np.repeat(first - ends + counts, counts)  # those of each row
    starts = columns.span_starts[spans]
    before = np.clip(np.repeat(np.array(positions, np.int32), counts) - starts, 0, columns.span_ends[spans] - starts)
    projected: np.ndarray = span_starts[first] + np.diff(_starts(before)[_starts(counts)])
    return projected


def _starts(sizes: np.ndarray) -> np.ndarray:
    starts = np.zeros(len(sizes) + 1, np.int32)
    sizes.cumsum(out=starts[1:])
    return starts


def _ranges(offsets: np.ndarray, sizes: np.ndarray, starts: np.ndarray) -> np.ndarray:
    """Ranges of these `sizes`, laid end to end: the numbers of places, plus an offset for each range."""
    places = np.arange(starts[-1], dtype=np.int32)
    places += offsets.repeat(sizes)
    return places


def _float_words(values: Sequence[float | tuple[float, ...]]) -> np.ndarray:
    """float32 values as the int32 words that hold them."""
    return np.array(values, np.float32).view(np.int32)
