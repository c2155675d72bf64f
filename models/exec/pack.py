"""Packs a plan into one int32 buffer, so that a step costs one copy to the device.

With a `Shape` all sections are padded to its capacities, so a CUDA graph finds every number where it was when it was
captured. Padding is inert: its tokens write no keys, its rows and spans are empty.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ...kernels.attention.tiles import AttentionConfig, row_tiles, tile_capacity
from ...kernels.common.types import Draws, SpanRules
from ...scheduler.contract import StepPlan
from .optional_inputs import (
    BIASES_OF_ROW,
    DRAW_WORDS,
    MEASURE_SECTIONS,
    Biases,
    Measures,
    Restrictions,
    bias_sections,
    bias_words,
    biases_of,
    copy_words,
    draw_words,
    float_words,
    measure_words,
    measures_of,
    most_ranks,
    restriction_sections,
    restriction_words,
    restrictions_of,
    told_words,
)

NOWHERE = -1  # position of a padding token


@dataclass(frozen=True, slots=True)
class Tiling:
    """How attention over one list of rows is launched: so many `queries` to a tile."""

    config: AttentionConfig
    queries: int

    def capacity(self, tokens: int, rows: int) -> int:
        return tile_capacity(tokens, rows, self.queries)


@dataclass(frozen=True, slots=True)
class Shape:
    """Capacities of a padded step, and which extras it has: `sampled` rows, and `narrowed` ones among them (top-p,
    top-k); up to so many entries of `biases`; log-probabilities with so many `ranks`, if not None; up to so many
    `restricted` rows, with as many words in each one's mask of the vocabulary; `measured` positions, by
    more than probability; tokens that are `told`; rows that are `copied`."""

    tokens: int
    rows: int
    projected: int
    spans: int
    sampled: bool
    narrowed: bool
    tiling: Tiling
    projected_tiling: Tiling
    biases: int = 0
    ranks: int | None = None
    restricted: int = 0
    mask_words: int = 0
    measured: bool = False
    told: bool = False
    copied: bool = False

    def sections(self) -> dict[str, int]:
        """Words of each section of the buffer, in order."""
        return {
            "slots": self.tokens,
            "positions": self.tokens,
            **({"told": self.tokens} if self.told else {}),
            **({"turned": self.tokens, "hides": self.rows} if self.copied else {}),
            "row_slots": self.rows,
            "row_starts": self.rows + 1,
            "visible": self.rows,
            "projected": self.projected,
            "projected_starts": self.rows + 1,
            "span_starts": self.spans + 1,
            "sure": self.spans,
            "threshold": self.spans,
            "factor": self.spans,
            "last_free": self.spans,
            "endless": self.projected,
            **({"draws": DRAW_WORDS * self.projected} if self.drawn else {}),
            **(dict.fromkeys(MEASURE_SECTIONS, self.projected) if self.measured else {}),
            **(bias_sections(BIASES_OF_ROW * self.rows, self.biases) if self.biases else {}),
            **(restriction_sections(self.restricted, self.mask_words) if self.restricted else {}),
            "tiles": 2 * self.tiling.capacity(self.tokens, self.rows),
            "projected_tiles": 2 * self.projected_tiling.capacity(self.projected, self.rows),
        }

    @property
    def drawn(self) -> bool:
        """Whether noise is asked for."""
        return self.sampled or self.measured

    @property
    def words(self) -> int:
        return sum(self.sections().values())


@dataclass(frozen=True, slots=True)
class Batch:
    """A plan on the device. T tokens in R rows laid end to end; N projected positions in S spans likewise."""

    slots: Tensor  # [T] int64: canvas of each token
    positions: Tensor  # [T] int64, absolute; NOWHERE for padding
    row_slots: Tensor  # [R] int64
    row_starts: Tensor  # [R + 1] int32
    visible: Tensor  # [R] int32
    projected: Tensor  # [N] int64: index among the tokens of what predicts each projected position
    targets: Tensor  # [N] int64: the projected positions, absolute
    projected_starts: Tensor  # [R + 1] int32: row r owns the projected positions between two of them
    rules: SpanRules  # of the spans, with those that join them
    endless: Tensor  # [N] bool: no end token may commit there
    draws: Draws | None  # None: no row is sampled, nor measured
    measures: Measures | None  # None: all spans go by probability
    biases: Biases | None  # None: no row has any
    ranks: int | None  # of the row that asks for most; None: no row asks
    restrictions: Restrictions | None  # None: no row has any
    told: Tensor | None  # [T] int32: written to the canvases first, below 0 for nothing; None: nothing anywhere
    turned: Tensor | None  # [T] int64: as which positions they are rotated; None: as their own
    hides: Tensor | None  # [R] int32: how far before a query the key lies that it does not see; None: none anywhere
    shape: Shape | None  # None: nothing is padded
    tiles: Tensor | None  # [tiles, 2] int32 of attention over all tokens; None without a shape
    projected_tiles: Tensor | None  # the same over projected positions


def projected(plan: StepPlan) -> int:
    """Positions of a plan for which the vocabulary is asked."""
    return sum(span.end - span.start for row in plan.rows for span in row.spans)


def pack(plan: StepPlan, device: torch.device, shift: int = 0) -> Batch:
    """Unpadded, for a step that is computed once. `shift` 1: a position is predicted at the one before it."""
    sections = {name: np.asarray(part).astype(np.int32, copy=False) for name, part in _sections(plan, shift).items()}
    buffer = torch.from_numpy(np.concatenate(list(sections.values()))).to(device)
    return batch_of(buffer, {name: len(part) for name, part in sections.items()}, None, shift, most_ranks(plan))


def pack_into(words: np.ndarray, plan: StepPlan, shape: Shape, shift: int = 0) -> None:
    """Fills `words` [shape.words] int32 with a plan that fits the shape."""
    parts = _sections(plan, shift)
    if not shape.drawn:
        del parts["draws"]
    else:  # some numbers of each position, each in a block of its own
        draws = np.zeros((DRAW_WORDS, shape.projected), np.int32)
        draws[:, : len(parts["endless"])] = parts["draws"].reshape(DRAW_WORDS, -1)
        parts["draws"] = draws.reshape(-1)
    visible = np.asarray(parts["visible"])
    sections = shape.sections()
    for name, tiling, starts in (
        ("tiles", shape.tiling, parts["row_starts"]),
        ("projected_tiles", shape.projected_tiling, parts["projected_starts"]),
    ):
        capacity = sections[name] // 2
        parts[name] = row_tiles(np.diff(starts), tiling.queries, capacity, visible).reshape(-1)
    start = 0
    for name, size in sections.items():
        part = parts[name]
        if len(part) > size:
            raise ValueError(f"{len(part)} words of {name} do not fit a shape with {size}")
        words[start : start + len(part)] = part
        words[start + len(part) : start + size] = _padding(name, part)
        start += size


def _padding(name: str, part: np.ndarray) -> int:
    """Rows and spans without positions, tokens and restrictions nowhere, tiles of no row; elsewhere nothing looks."""
    if name.endswith("_starts"):
        return int(part[-1])
    return NOWHERE if name in ("positions", "restricted_places", "told") else 0


def batch_of(
    buffer: Tensor, sizes: Mapping[str, int], shape: Shape | None, shift: int = 0, ranks: int | None = None
) -> Batch:
    """Views, and copies where a kernel wants another type, of a buffer with sections of `sizes` words. `ranks` are
    those of the shape, if there is one."""
    views = dict(zip(sizes, torch.split(buffer, list(sizes.values())), strict=True))
    positions, projected = views["positions"].long(), views["projected"].long()
    targets = positions[projected] + shift
    draws = _draws(views["draws"], targets) if len(views.get("draws", ())) else None
    return Batch(
        slots=views["slots"].long(),
        positions=positions,
        row_slots=views["row_slots"].long(),
        row_starts=views["row_starts"],
        visible=views["visible"],
        projected=projected,
        targets=targets,
        projected_starts=views["projected_starts"],
        rules=SpanRules(
            starts=views["span_starts"],
            sure=views["sure"],
            threshold=views["threshold"].view(torch.float32),
            factor=views["factor"].view(torch.float32),
            last_free=views["last_free"].bool(),
        ),
        endless=views["endless"].bool(),
        draws=draws,
        measures=measures_of(views, draws),
        biases=biases_of(views) if len(views.get("bias_ids", ())) else None,
        ranks=shape.ranks if shape else ranks,
        restrictions=restrictions_of(views) if len(views.get("restricted_words", ())) else None,
        told=views["told"] if len(views.get("told", ())) else None,
        turned=views["turned"].long() if len(views.get("turned", ())) else None,
        hides=views["hides"] if len(views.get("hides", ())) else None,
        shape=shape,
        tiles=views["tiles"].view(-1, 2) if shape else None,
        projected_tiles=views["projected_tiles"].view(-1, 2) if shape else None,
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


def _sections(plan: StepPlan, shift: int) -> dict[str, np.ndarray]:
    rows = plan.rows
    spans = [(row, span) for row in rows for span in row.spans]
    row_sizes = np.array([row.tokens for row in rows])
    row_starts = _starts(row_sizes)
    span_sizes = np.array([span.end - span.start for _, span in spans], np.int64)
    span_starts = _starts(span_sizes)
    spans_of_row = [len(row.spans) for row in rows]
    row_of_span = np.repeat(np.arange(len(rows)), spans_of_row)
    parts = [(at, span.rule) for at, (_, span) in enumerate(spans) if not span.joined]
    within = np.array([span.start - row.start for row, span in spans], np.int64) - shift
    if (within < 0).any():
        raise ValueError("a row lacks the position that predicts the first one of its spans")
    first_token = row_starts[row_of_span] + within
    projected = np.repeat(first_token - span_starts[:-1], span_sizes) + np.arange(span_starts[-1])
    return {
        "slots": np.repeat([row.slot for row in rows], row_sizes),
        "positions": np.repeat([row.start for row in rows] - row_starts[:-1], row_sizes) + np.arange(row_starts[-1]),
        "told": told_words(plan),
        **copy_words(plan),
        "row_slots": np.array([row.slot for row in rows]),
        "row_starts": row_starts,
        "visible": np.array([row.visible for row in rows]),
        "projected": projected,
        "projected_starts": span_starts[_starts(np.array(spans_of_row))],
        "span_starts": span_starts[[*(at for at, _ in parts), len(spans)]],
        "sure": np.array([rule.sure for _, rule in parts], np.int32),
        "threshold": float_words([rule.threshold for _, rule in parts]),
        "factor": float_words([rule.factor for _, rule in parts]),
        "last_free": np.array([rule.last_free for _, rule in parts], np.bool_),
        "endless": np.repeat(np.array([not span.may_end for _, span in spans], np.bool_), span_sizes),
        "draws": draw_words(plan, span_sizes),
        **measure_words(plan, span_sizes),
        **bias_words(plan),
        **restriction_words(plan),
    }


def _starts(sizes: np.ndarray) -> np.ndarray:
    return np.concatenate(([0], np.cumsum(sizes)))
