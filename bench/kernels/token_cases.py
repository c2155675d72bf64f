"""Operations after the logits, measured: caps, temperatures, the proposed tokens, their confidence, and commits."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ...kernels import commit as commits
from ...kernels import logits as changes
from ...kernels import predict as predictions
from ...kernels.common.types import Draws, Prediction, SpanRules
from .cases import (
    DIFFUSION_GEMMA,
    DTYPE,
    ITEM,
    LLADA,
    SMALL,
    TOKENS,
    Case,
    Inputs,
    Shape,
    Workload,
    compiled,
    drawn,
    eager,
)

SPAN = 32  # positions of a lane: a block
LONG_SPAN = 1024
TEMPERATURE, TOP_P = 0.8, 0.9
CAP = 30.0
# A row's best logit against noise of this size: over 126,464 tokens it has a probability of about a half.
NOISE, PEAK = 3.0, 16.25


def cases(quick: bool) -> list[Case]:
    shape, counts = (SMALL, (64,)) if quick else (LLADA, TOKENS)
    spans = [(SPAN, 2)] if quick else [*((SPAN, tokens // SPAN) for tokens in TOKENS), (LONG_SPAN, 1)]
    canvas = (SMALL, 16) if quick else (DIFFUSION_GEMMA, 256)
    return [
        soft_cap(*canvas),
        temper(*canvas),
        *(predict(shape, count) for count in counts),
        *(predict(shape, count, TEMPERATURE) for count in counts),
        *(predict(shape, count, TEMPERATURE, TOP_P) for count in counts),
        *(make(*span) for make in (transfer, commit) for span in spans),
    ]


def soft_cap(shape: Shape, count: int) -> Case:
    def inputs(device: torch.device, sets: int) -> Inputs:
        return [(_logits(shape, count, device), CAP) for _ in range(sets)]

    def capped(logits: Tensor, cap: float) -> Tensor:
        return cap * torch.tanh(logits.float() / cap)

    return Case(
        "soft_cap", f"{count} x {shape.vocabulary}", Workload(count * shape.vocabulary * (ITEM + 4)), inputs,
        changes.soft_cap, changes.reference.soft_cap, [eager("tanh", capped), compiled(capped)],
    )  # fmt: skip


def temper(shape: Shape, count: int) -> Case:
    """The bound reads and writes the logits once, and writes the shares. At temperature 1 a call leaves the logits as
    they are, so that all calls have the same."""

    def inputs(device: torch.device, sets: int) -> Inputs:
        ones = torch.ones(count, device=device)
        return [(_logits(shape, count, device).float(), ones, DTYPE) for _ in range(sets)]

    def shared(logits: Tensor, temperatures: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        quotients = logits / temperatures[:, None]
        return quotients.to(dtype).softmax(-1, dtype=torch.float32).to(dtype), quotients.argmax(-1)

    return Case(
        "temper", f"{count} x {shape.vocabulary}", Workload(count * (shape.vocabulary * (2 * 4 + ITEM) + 4 + 8)),
        inputs, changes.temper, changes.reference.temper, [eager("softmax, argmax", shared), compiled(shared)],
    )  # fmt: skip


def predict(shape: Shape, count: int, temperature: float = 0.0, top_p: float = 1.0) -> Case:
    """The bound is one reading of the logits, with any sampling."""
    narrowed = top_p < 1

    def inputs(device: torch.device, sets: int) -> Inputs:
        banned, ends = (torch.tensor([id_], device=device) for id_ in (shape.vocabulary - 2, 1))
        endless = torch.arange(count, device=device) % 2 == 0
        return [
            (_logits(shape, count, device), banned, ends, endless, _draws(count, temperature, top_p, device))
            for _ in range(sets)
        ]

    def ours(logits: Tensor, banned: Tensor, ends: Tensor, endless: Tensor, draws: Draws | None) -> Prediction:
        return predictions.predict(logits, banned, ends, endless, draws, narrowed)

    extra = "".join([f", temperature {temperature}" if temperature else "", f", top_p {top_p}" if narrowed else ""])
    libraries = [eager("softmax, max", _best), compiled(_best)]
    if temperature:
        libraries = [eager("softmax, race", _race(temperature)), compiled(_race(temperature))]
    if narrowed:
        libraries = [eager("sort, softmax, race", _nucleus_race(temperature, top_p), graph=False)]
    return Case(
        "predict", f"{count} x {shape.vocabulary}{extra}", Workload(count * (shape.vocabulary * ITEM + 5 * 8 + 4)),
        inputs, ours, predictions.reference.predict, libraries, reference_graph=False,
    )  # fmt: skip


def _logits(shape: Shape, count: int, device: torch.device) -> Tensor:
    logits = drawn((count, shape.vocabulary), device).mul_(NOISE)
    best = torch.randint(2, shape.vocabulary - 2, (count, 1), device=device)
    return logits.scatter_(1, best, PEAK)


def _draws(count: int, temperature: float, top_p: float, device: torch.device) -> Draws | None:
    if not temperature:
        return None
    number = torch.arange(count, device=device)
    ones, off = torch.ones(count, device=device), torch.zeros(count, device=device)
    return Draws(temperature * ones, top_p * ones, off.int(), off, seeds=number, positions=number, steps=number)


def _best(logits: Tensor, *_: object) -> object:
    return logits.softmax(-1).max(-1)


def _race(temperature: float) -> Callable[..., object]:
    """A draw without waiting for the device: the first of exponential clocks that run at the probabilities."""

    def race(logits: Tensor, *_: object) -> Tensor:
        shares = (logits / temperature).softmax(-1)
        return (shares / torch.empty_like(shares).exponential_(1.0)).argmax(-1)

    return race


def _nucleus_race(temperature: float, top_p: float) -> Callable[..., object]:
    def race(logits: Tensor, *_: object) -> Tensor:
        ordered, ids = (logits / temperature).sort(-1, descending=True)
        shares = ordered.softmax(-1, dtype=torch.float32)
        shares = shares.masked_fill(shares.cumsum(-1) - shares >= top_p, 0.0)
        return ids.gather(-1, (shares / torch.empty_like(shares).exponential_(1.0)).argmax(-1, keepdim=True))

    return race


def transfer(span: int, spans: int) -> Case:
    count = span * spans

    def inputs(device: torch.device, sets: int) -> Inputs:
        return [
            (_confidence(count, device), torch.rand(count, device=device) < 0.7, _rules(span, spans, device))
            for _ in range(sets)
        ]

    work = Workload(count * (8 + 1 + 1) + spans * 17)
    return Case(
        "transfer", f"{spans} x {span} positions", work, inputs, commits.transfer, commits.reference.transfer, [],
        reference_graph=False,
    )  # fmt: skip


def commit(span: int, spans: int) -> Case:
    """Masks are written where masks were, so that the next call finds as much to do. `transfer` shows what commits."""
    count, mask_id = span * spans, 5

    def inputs(device: torch.device, sets: int) -> Inputs:
        where = torch.zeros(count, dtype=torch.int64, device=device), torch.arange(count, device=device)
        tokens = torch.full((count,), mask_id, device=device)
        return [
            (
                torch.where(torch.rand((1, count), device=device) < 0.7, mask_id, 7), *where, tokens,
                _confidence(count, device), mask_id, _rules(span, spans, device),
            )
            for _ in range(sets)
        ]  # fmt: skip

    work = Workload(count * (4 * 8 + 2 * 8) + spans * 17)
    return Case(
        "commit", f"{spans} x {span} positions", work, inputs, commits.commit, commits.reference.commit, [],
        reference_graph=False,
    )  # fmt: skip


def _confidence(count: int, device: torch.device) -> Tensor:
    return torch.rand(count, dtype=torch.float64, device=device)


def _rules(span: int, spans: int, device: torch.device) -> SpanRules:
    """Rules of equal spans: one position commits for sure, or those above 0.9."""
    return SpanRules(
        torch.arange(0, span * spans + 1, span, dtype=torch.int32, device=device),
        torch.ones(spans, dtype=torch.int32, device=device),
        torch.full((spans,), 0.9, device=device),
        torch.zeros(spans, device=device),
        torch.zeros(spans, dtype=torch.bool, device=device),
    )
