"""Packs a plan into one int32 buffer, so that a step costs one copy to the device."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ..scheduler.contract import StepPlan


@dataclass(frozen=True, slots=True)
class Batch:
    """A plan on the device. T tokens in R rows laid end to end; N projected positions in S spans likewise."""

    slots: Tensor  # [T] int64: canvas of each token
    positions: Tensor  # [T] int64, absolute
    row_slots: Tensor  # [R] int64
    row_starts: Tensor  # [R + 1] int32
    visible: Tensor  # [R] int32
    projected: Tensor  # [N] int64: index of each projected position among the tokens
    projected_starts: Tensor  # [R + 1] int32: row r owns the projected positions between two of them
    span_starts: Tensor  # [S + 1] int32
    sure: Tensor  # [S] int32
    threshold: Tensor  # [S] float32
    factor: Tensor  # [S] float32
    last_free: Tensor  # [S] bool
    endless: Tensor  # [N] bool: no end token may commit there
    drawn: Tensor  # [M] int64: which of the projected positions are sampled, not argmax
    temperature: Tensor  # [M] float32
    top_p: Tensor  # [M] float32
    seeds: Tensor  # [M] int64
    steps: Tensor  # [M] int64


def pack(plan: StepPlan, device: torch.device) -> Batch:
    rows = plan.rows
    spans = [(row, span) for row in rows for span in row.spans]
    row_sizes = np.array([row.tokens for row in rows])
    row_starts = _starts(row_sizes)
    span_sizes = np.array([span.end - span.start for _, span in spans], np.int64)
    span_starts = _starts(span_sizes)
    spans_of_row = [len(row.spans) for row in rows]
    row_of_span = np.repeat(np.arange(len(rows)), spans_of_row)
    first_token = row_starts[row_of_span] + np.array([span.start - row.start for row, span in spans], np.int64)
    projected = np.repeat(first_token - span_starts[:-1], span_sizes) + np.arange(span_starts[-1])

    samplings = [row.sampling for row, _ in spans]
    hot = np.repeat(np.array([s.temperature > 0 for s in samplings], np.bool_), span_sizes)
    drawn = np.flatnonzero(hot)
    owner = np.repeat(np.arange(len(spans)), span_sizes)[drawn]
    seeds = np.array([s.seed for s in samplings], np.int64)[owner].view(np.int32)

    sections: dict[str, np.ndarray] = {
        "slots": np.repeat([row.slot for row in rows], row_sizes),
        "positions": np.repeat([row.start for row in rows] - row_starts[:-1], row_sizes) + np.arange(row_starts[-1]),
        "row_slots": np.array([row.slot for row in rows]),
        "row_starts": row_starts,
        "visible": np.array([row.visible for row in rows]),
        "projected": projected,
        "projected_starts": span_starts[_starts(np.array(spans_of_row))],
        "span_starts": span_starts,
        "sure": np.array([span.transfer.sure for _, span in spans], np.int32),
        "threshold": _bits([span.transfer.threshold for _, span in spans]),
        "factor": _bits([span.transfer.factor for _, span in spans]),
        "last_free": np.array([span.transfer.last_free for _, span in spans], np.bool_),
        "endless": np.repeat(np.array([not span.may_end for _, span in spans], np.bool_), span_sizes),
        "drawn": drawn,
        "temperature": _bits([s.temperature for s in samplings])[owner],
        "top_p": _bits([s.top_p for s in samplings])[owner],
        "seeds": seeds,
        "steps": np.array([row.step for row, _ in spans], np.int32)[owner],
    }
    buffer = torch.from_numpy(np.concatenate([part.astype(np.int32, copy=False) for part in sections.values()]))
    buffer = buffer.to(device, non_blocking=True)
    views = dict(zip(sections, torch.split(buffer, [len(part) for part in sections.values()]), strict=True))
    return Batch(
        slots=views["slots"].long(),
        positions=views["positions"].long(),
        row_slots=views["row_slots"].long(),
        row_starts=views["row_starts"],
        visible=views["visible"],
        projected=views["projected"].long(),
        projected_starts=views["projected_starts"],
        span_starts=views["span_starts"],
        sure=views["sure"],
        threshold=views["threshold"].view(torch.float32),
        factor=views["factor"].view(torch.float32),
        last_free=views["last_free"].bool(),
        endless=views["endless"].bool(),
        drawn=views["drawn"].long(),
        temperature=views["temperature"].view(torch.float32),
        top_p=views["top_p"].view(torch.float32),
        seeds=_wide(views["seeds"]),
        steps=views["steps"].long(),
    )


def _starts(sizes: np.ndarray) -> np.ndarray:
    return np.concatenate(([0], np.cumsum(sizes)))


def _bits(values: list[float]) -> np.ndarray:
    """float32 values as the int32 words that hold them."""
    return np.array(values, np.float32).view(np.int32)


def _wide(halves: Tensor) -> Tensor:
    """[2 * M] int32 words, low half first -> [M] int64."""
    low, high = halves.view(-1, 2).long().unbind(-1)
    return high << 32 | low & 0xFFFFFFFF
