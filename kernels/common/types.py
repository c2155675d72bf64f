"""Types of arguments and results that a reference and its kernel share. They hold tensors and numbers, no behaviour."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from .checks import expect

FP8 = torch.float8_e4m3fn
INT4_PER_WORD = 8


@dataclass(frozen=True, slots=True)
class Fp8Matrix:
    """A weight in FP8: `values` [out, in] float8_e4m3fn times `scales` [out] float32, one for each output channel."""

    values: Tensor
    scales: Tensor

    def __post_init__(self) -> None:
        expect("values", self.values, ("out", "in"), (FP8,))
        expect("scales", self.scales, (len(self.values),), (torch.float32,))

    @property
    def shape(self) -> torch.Size:
        return self.values.shape

    @property
    def nbytes(self) -> int:
        return self.values.nbytes + self.scales.nbytes

    @property
    def device(self) -> torch.device:
        return self.values.device

    @classmethod
    def empty(cls, rows: int, columns: int, device: torch.device) -> Fp8Matrix:
        """Raise `ValueError` for sizes that the product cannot take."""
        if rows % 16 or columns % 16:
            raise ValueError(f"FP8 products take sizes that are multiples of 16, not [{rows}, {columns}]")
        return cls(
            torch.empty((rows, columns), dtype=FP8, device=device),
            torch.empty(rows, dtype=torch.float32, device=device),
        )


@dataclass(frozen=True, slots=True)
class GroupedMatrix:
    """A weight [out, in] of which `group` neighbouring columns of a row share a scale. In FP8 the last group may be
    shorter.

    `values`: [out, in] float8_e4m3fn, or numbers of 4 bits in words as `pack_int4` makes them: [out, in / 8] int32.
    `scales` float32: [out, groups], or of 4-bit numbers [out, groups, 2], each with the whole number that is subtracted
    before it multiplies. Rows and groups may have any strides: products read them fastest where those of neighbouring
    rows are neighbours in memory, as `empty` makes them.
    """

    values: Tensor
    scales: Tensor
    group: int

    def __post_init__(self) -> None:
        if self.int4:
            expect("scales", self.scales, ("out", "groups", 2), (torch.float32,), contiguous=False)
            if self.scales.stride(2) != 1:
                raise ValueError(f"a scale and its zero must be neighbours, not {self.scales.stride(2)} apart")
            words = self.shape[1] // INT4_PER_WORD
            expect("values", self.values, (len(self.scales), words), (torch.int32,))
        else:
            expect("values", self.values, ("out", "in"), (FP8,))
            rows, columns = self.values.shape
            expect("scales", self.scales, (rows, -(-columns // self.group)), (torch.float32,), contiguous=False)

    @property
    def int4(self) -> bool:
        return self.scales.dim() == 3

    @property
    def shape(self) -> torch.Size:
        rows, groups = self.scales.shape[:2]
        return torch.Size((rows, groups * self.group)) if self.int4 else self.values.shape

    @property
    def nbytes(self) -> int:
        return self.values.nbytes + self.scales.nbytes

    @property
    def device(self) -> torch.device:
        return self.values.device

    @classmethod
    def empty(cls, rows: int, columns: int, group: int, int4: bool, device: torch.device) -> GroupedMatrix:
        """Raise `ValueError` for sizes that the product cannot take."""
        if group % 32 or columns % 16 or (int4 and columns % group):
            raise ValueError(f"products with scales for {group} columns cannot take [{rows}, {columns}]")
        kind, width = (torch.int32, columns // INT4_PER_WORD) if int4 else (FP8, columns)
        scales = torch.empty((-(-columns // group), rows, *(2,) * int4), dtype=torch.float32, device=device)
        values = torch.empty((rows, width), dtype=kind, device=device)
        return cls(values, scales.transpose(0, 1), group)


Matrix = Tensor | Fp8Matrix | GroupedMatrix


class FeedForwardNorms(NamedTuple):
    """Norms [dim] after a layer's MLP, after its experts, and after the sum of both."""

    mlp: Tensor
    experts: Tensor
    both: Tensor


@dataclass(frozen=True, slots=True)
class Fp8Heads:
    """Keys or values in pages, in FP8: `numbers` [pages, page_size, G, D] float8_e4m3fn times `scales` [pages, G,
    page_size] float32, one for each position and head, those of a head side by side."""

    numbers: Tensor
    scales: Tensor

    def __post_init__(self) -> None:
        expect("numbers", self.numbers, ("pages", "page_size", "G", "D"), (FP8,))
        pages, page_size, heads, _ = self.numbers.shape
        expect("scales", self.scales, (pages, heads, page_size), (torch.float32,))

    @property
    def shape(self) -> torch.Size:
        return self.numbers.shape

    @classmethod
    def zeros(cls, shape: tuple[int, int, int, int], device: torch.device) -> Fp8Heads:
        pages, page_size, heads, _ = shape
        scales = torch.zeros((pages, heads, page_size), dtype=torch.float32, device=device)
        return cls(torch.zeros(shape, dtype=FP8, device=device), scales)


PagedHeads = Tensor | Fp8Heads  # a tensor is [pages, page_size, G, D]


def paged_parts(
    keys: PagedHeads, values: PagedHeads, head_dim: int, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
    """Numbers of keys and of values, and their scales, if they have any. Raises `ValueError` unless both have the same
    shape and form, of heads of `head_dim` in FP8 or in `dtype`."""
    shape = "pages", "page_size", "G", head_dim
    if isinstance(keys, Fp8Heads) and isinstance(values, Fp8Heads):
        expect("keys", keys.numbers, shape, (FP8,))
        expect("values", values.numbers, tuple(keys.shape), (FP8,))
        return keys.numbers, values.numbers, keys.scales, values.scales
    if isinstance(keys, Fp8Heads) or isinstance(values, Fp8Heads):
        raise ValueError("keys and values must both be in FP8, or neither")
    expect("keys", keys, shape, (dtype,))
    expect("values", values, tuple(keys.shape), (dtype,))
    return keys, values, None, None


@dataclass(frozen=True, slots=True)
class QkNorm:
    """Bias and norms of the heads of a position, before they are rotated.

    `bias` [(H + 2 * G) * D] is added to queries, keys and values. Then each query and key is divided by its root mean
    square and multiplied by `query_norm` or `key_norm` [D]. None: the operation is left out; the norms come together.
    With them `norms_values` divides each value by its root mean square, too.
    """

    bias: Tensor | None = None
    query_norm: Tensor | None = None
    key_norm: Tensor | None = None
    eps: float = 1e-6
    norms_values: bool = False


PLAIN = QkNorm()  # changes nothing


@dataclass(frozen=True, slots=True)
class Routing:
    """How a token chooses `chosen` experts. Scores are a softmax over all experts, or a sigmoid of each logit.

    With `groups`, experts are chosen from the `live_groups` groups whose two best experts have the highest sum.
    `normed`: the weights of the chosen are divided by their sum. At last they are multiplied by `scale`.
    """

    chosen: int
    sigmoid: bool = False
    normed: bool = False
    scale: float = 1.0
    groups: int = 1
    live_groups: int = 1


class Mailbox(NamedTuple):
    """Memory of R devices that each of them can reach, in two halves of so many rows.

    `buffers` of each rank [2, rows, dim]: its parts of sums. `flags` of each rank [2, rows + 1, R, any] int32: which
    ranks have written a row, and in the last all of their rows, each flag in a line of the cache. `addresses` [2, R]
    int64: of both, by rank.
    """

    rank: int  # of this device
    buffers: tuple[Tensor, ...]
    flags: tuple[Tensor, ...]
    addresses: Tensor

    @property
    def rows(self) -> int:
        return self.buffers[0].shape[1]

    @property
    def dim(self) -> int:
        return self.buffers[0].shape[2]

    @classmethod
    def of(cls, rank: int, buffers: Sequence[Tensor], flags: Sequence[Tensor]) -> Mailbox:
        pointers = [[tensor.data_ptr() for tensor in kind] for kind in (buffers, flags)]
        addresses = torch.tensor(pointers, dtype=torch.int64, device=buffers[rank].device)
        return cls(rank, tuple(buffers), tuple(flags), addresses)


class Draws(NamedTuple):
    """How each of N positions is sampled. Positions with temperature 0 take the best token.

    The filters nest as in vLLM: `min_p`, then `top_k` of what it leaves, then `top_p` of the mass that these leave.
    Tokens as likely as the least likely kept one stay too.
    """

    temperature: Tensor  # [N] float32, 0: greedy
    top_p: Tensor  # [N] float32, 1: off
    top_k: Tensor  # [N] int32, 0: off
    min_p: Tensor  # [N] float32, share of the best token's probability; 0: off
    seeds: Tensor  # [N] int64
    positions: Tensor  # [N] int64
    steps: Tensor  # [N] int64


class SpanRules(NamedTuple):
    """The numbers of `scheduler.contract.DeviceCommitRule` for S spans, which lie end to end over N positions."""

    starts: Tensor  # [S + 1] int32
    sure: Tensor  # [S] int32
    threshold: Tensor  # [S] float32
    factor: Tensor  # [S] float32
    last_free: Tensor  # [S] bool
    budget: Tensor | None = None  # [S] float32; None: no span has one
    inclusive: Tensor | None = None  # [S] bool, if there are budgets


class Prediction(NamedTuple):
    """The prediction for N positions. Probabilities are at temperature 1 over all tokens that are not banned."""

    proposals: Tensor  # [N] int64: the best or the drawn token
    confidence: Tensor  # [N] float64: its probability
    tokens: Tensor  # [N] int64: what may commit: the proposal, or the best other token where none may end the answer
    commit_probability: Tensor  # [N] float64: the probability of `tokens`
    margin: Tensor  # [N] float64: the best token's probability less the second best's, 0 on a tie
    entropy: Tensor  # [N] float32, nats
