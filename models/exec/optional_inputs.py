"""Sections of a plan's buffer that only some requests need: biases of their logits, masks of the vocabulary,
log-probabilities, other measures of confidence, noise, what the host has decided itself, copies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ...kernels.common.types import Draws
from ...scheduler.contract import MOST_RANKS, Bias, Row, StepPlan

UNTOLD = -1  # the canvas keeps what it holds
DRAW_WORDS = 7  # numbers that say how a position is drawn
BIASES_OF_ROW = 2  # the start of an answer may have one of its own


@dataclass(frozen=True, slots=True)
class Biases:
    """B biases with E entries in all, as `kernels.logits.adjust` takes them."""

    begins: Tensor  # [B] int32, projected positions
    ends: Tensor  # [B] int32
    starts: Tensor  # [B + 1] int32
    ids: Tensor  # [E] int32
    deltas: Tensor  # [E] float32


@dataclass(frozen=True, slots=True)
class Restrictions:
    """R restrictions, as `kernels.logits.restrict` takes them."""

    places: Tensor  # [R] int32, projected positions; below 0 for padding
    words: Tensor  # [R, W] int32


@dataclass(frozen=True, slots=True)
class Measures:
    """What is confidence at N projected positions, as `kernels.measure.measure` takes it."""

    kinds: Tensor  # [N] int32
    noise: Tensor  # [N] float32
    draws: Draws


MEASURE_SECTIONS = ("measure_kinds", "measure_noise")


def measured(plan: StepPlan) -> bool:
    """Whether some span does not go by plain probability."""
    return not all(span.rule.plain for row in plan.rows for span in row.spans)


COPY_SECTIONS = ("turned", "hides")


def copied(plan: StepPlan) -> bool:
    """Whether some row is a copy."""
    return any(row.copy is not None for row in plan.rows)


def copy_words(plan: StepPlan) -> dict[str, np.ndarray]:
    """As which positions a step's are rotated, and how far before each lies the key that it does not see, by row;
    nothing if no row is a copy."""
    if not copied(plan):
        return dict.fromkeys(COPY_SECTIONS, np.zeros(0, np.int32))
    rows = plan.rows
    turned = [np.arange(row.start, row.end) - (0 if row.copy is None else row.copy.rope_offset) for row in rows]
    hides = np.array([0 if row.copy is None else row.copy.mask_offset for row in rows], np.int32)
    return {"turned": np.concatenate(turned).astype(np.int32), "hides": hides}


def told(plan: StepPlan) -> bool:
    """Whether the host says what some canvas holds."""
    return any(row.host_tokens is not None for row in plan.rows)


def told_words(plan: StepPlan) -> np.ndarray:
    """What is written at each position of the rows, below 0 for nothing; no word if no row says."""
    if not told(plan):
        return np.zeros(0, np.int32)
    rows = plan.rows
    untold = [np.full(row.tokens, UNTOLD, np.int32) if row.host_tokens is None else row.host_tokens for row in rows]
    return np.concatenate(untold)


def measures_of(views: Mapping[str, Tensor], draws: Draws | None) -> Measures | None:
    if draws is None or not len(views.get("measure_kinds", ())):
        return None
    kinds, noise = (views[name] for name in MEASURE_SECTIONS)
    return Measures(kinds, noise.view(torch.float32), draws)


def measure_words(plan: StepPlan, span_sizes: np.ndarray) -> dict[str, np.ndarray]:
    """Measure and noise of each projected position; nothing if all go by probability."""
    if not measured(plan):
        return dict.fromkeys(MEASURE_SECTIONS, np.zeros(0, np.int32))
    rules = [span.rule for row in plan.rows for span in row.spans]
    kinds = np.array([rule.measure for rule in rules], np.int32)
    noise = np.array([rule.noise for rule in rules], np.float32).view(np.int32)
    return {name: np.repeat(words, span_sizes) for name, words in zip(MEASURE_SECTIONS, (kinds, noise), strict=True)}


def bias_entries(plan: StepPlan) -> int:
    return sum(len(bias.tokens) for row in plan.rows for bias in row.biases)


def bias_sections(biases: int, entries: int) -> dict[str, int]:
    return {
        "bias_begins": biases,
        "bias_ends": biases,
        "bias_starts": biases + 1,
        "bias_ids": entries,
        "bias_deltas": entries,
    }


def biases_of(views: Mapping[str, Tensor]) -> Biases:
    return Biases(
        begins=views["bias_begins"],
        ends=views["bias_ends"],
        starts=views["bias_starts"],
        ids=views["bias_ids"],
        deltas=views["bias_deltas"].view(torch.float32),
    )


def masks(plan: StepPlan) -> tuple[int, int]:
    """How many rows have a mask of the vocabulary, and the words of one."""
    sizes = [len(row.restriction.words) for row in plan.rows if row.restriction is not None]
    return len(sizes), max(sizes, default=0)


def restriction_sections(restricted: int, mask_words: int) -> dict[str, int]:
    return {"restricted_places": restricted, "restricted_words": restricted * mask_words}


def restrictions_of(views: Mapping[str, Tensor]) -> Restrictions:
    places, words = views["restricted_places"], views["restricted_words"]
    return Restrictions(places, words.view(len(places), -1))


def restriction_words(plan: StepPlan) -> dict[str, np.ndarray]:
    """Restrictions with their positions as projected ones."""
    places: list[int] = []
    words = [np.zeros(0, np.int32)]
    offset = 0
    for row in plan.rows:
        if row.restriction is not None:
            places.append(offset + _projected_before(row, row.restriction.position))
            words.append(row.restriction.words)
        offset += sum(span.end - span.start for span in row.spans)
    return {"restricted_places": np.array(places, np.int32), "restricted_words": np.concatenate(words)}


def _projected_before(row: Row, position: int) -> int:
    """How many of a row's projected positions come before an absolute one."""
    return sum(min(max(position - span.start, 0), span.end - span.start) for span in row.spans)


def bias_words(plan: StepPlan) -> dict[str, np.ndarray]:
    """Biases with their positions as projected ones, which lie in the order of the spans."""
    bounds: list[tuple[int, int]] = []
    biases: list[Bias] = []
    offset = 0
    for row in plan.rows:
        for bias in row.biases:
            before, through = (_projected_before(row, at) for at in (bias.start, bias.end))
            bounds.append((offset + before, offset + through))
        biases += row.biases
        offset += sum(span.end - span.start for span in row.spans)
    begins, ends = np.array(bounds, np.int32).reshape(-1, 2).T
    return {
        "bias_begins": begins,
        "bias_ends": ends,
        "bias_starts": np.cumsum([0, *(len(bias.tokens) for bias in biases)]),
        "bias_ids": np.concatenate([bias.tokens for bias in biases]) if biases else begins,
        "bias_deltas": np.concatenate([bias.deltas for bias in biases]).view(np.int32) if biases else begins,
    }


def most_ranks(plan: StepPlan) -> int | None:
    """How many likeliest tokens of a position a step tells: none, or as many as anybody may ask for, so that ties are
    broken alike whoever else asks."""
    asked = [row.ranks for row in plan.rows if row.ranks is not None]
    return (MOST_RANKS if any(asked) else 0) if asked else None


def draw_words(plan: StepPlan, span_sizes: np.ndarray) -> np.ndarray:
    """Temperature, top-p, top-k, min-p, both halves of the seed and the step, of each projected position; nothing if
    none is hot or measured."""
    rows = [row for row in plan.rows for _ in row.spans]
    samplings = [row.sampling for row in rows]
    if not any(sampling.temperature > 0 for sampling in samplings) and not measured(plan):
        return np.zeros(0, np.int32)
    seeds = np.array([sampling.seed for sampling in samplings], np.int64).view(np.int32).reshape(-1, 2)
    words = np.stack(
        [
            float_words([sampling.temperature for sampling in samplings]),
            float_words([sampling.top_p for sampling in samplings]),
            np.array([sampling.top_k for sampling in samplings], np.int32),
            float_words([sampling.min_p for sampling in samplings]),
            seeds[:, 0],
            seeds[:, 1],
            np.array([row.step for row in rows], np.int32),
        ]
    )
    return np.repeat(words, span_sizes, axis=1).reshape(-1)


def float_words(values: list[float]) -> np.ndarray:
    """float32 values as the int32 words that hold them."""
    return np.array(values, np.float32).view(np.int32)
