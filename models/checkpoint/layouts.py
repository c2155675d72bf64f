"""The layouts in which checkpoints store a quantized matrix [N, K]: its tensors, and the matrix that they make up.

Sources: the packers and loaders of vLLM, AutoAWQ, AutoGPTQ and compressed-tensors.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from ...kernels.common.types import Fp8Matrix, GroupedMatrix, Matrix
from ...kernels.linear import pack_int4

Shape = tuple[int, ...]
FLOATS = ("BF16", "F16", "F32")
PER_WORD = 8  # numbers of 4 bits
AWQ_ORDER = (0, 4, 1, 5, 2, 6, 3, 7)  # the nibble that has each of eight outputs
LEAST_GROUP = 32  # that the products of `GroupedMatrix` take


class Stored(NamedTuple):
    """A tensor of a matrix: the shapes and types that it may have."""

    shapes: tuple[Shape, ...]
    dtypes: tuple[str, ...]
    optional: bool = False


@dataclass(frozen=True, slots=True)
class Layout(ABC):
    """A layout. Tensors are named after what follows the last dot of their names; `NAME.weight` is the matrix's own
    name. `names`: all that its kind of layout may have."""

    names: ClassVar[frozenset[str]]

    @abstractmethod
    def tensors(self, rows: int, columns: int) -> Mapping[str, Stored]:
        """Raises `ValueError` for sizes that the layout cannot have, with the key that says so."""

    @abstractmethod
    def read(self, tensors: Mapping[str, Tensor], rows: int, columns: int) -> Matrix:
        """The matrix. Raises `ValueError` for tensors that contradict the configuration."""

    @property
    @abstractmethod
    def scales(self) -> str:
        """The name of the tensor of scales."""

    @property
    @abstractmethod
    def kept(self) -> Literal["fp8", "int4"] | None:
        """The form in which a device can keep the matrix, with its numbers and scales as they are."""

    @property
    @abstractmethod
    def group(self) -> int | None:
        """Columns that share a scale; -1: all of them; None: that is no matter of the columns."""


@dataclass(frozen=True, slots=True)
class Fp8Layout(Layout):
    """Numbers of 8 bits (e4m3), with a scale for the `tensor`, for each row (`channel`) or for each `block`.

    `scale_name`: the tensor of scales, which always multiply. The scale of the input that a `static` checkpoint has is
    not used: each row of the input gets a scale of its own.
    """

    names: ClassVar = frozenset({"weight", "weight_scale", "weight_scale_inv", "input_scale"})

    scale_name: str = "weight_scale"
    strategy: Literal["tensor", "channel", "block"] = "tensor"
    block: tuple[int, int] = (128, 128)

    def tensors(self, rows: int, columns: int) -> Mapping[str, Stored]:
        down, across = self.block
        scales: dict[str, tuple[Shape, ...]] = {
            "tensor": ((), (1,), (1, 1)),
            "channel": ((rows, 1), (rows,)),
            "block": ((-(-rows // down), -(-columns // across)),),
        }
        return {
            "weight": Stored(((rows, columns),), ("F8_E4M3",)),
            self.scale_name: Stored(scales[self.strategy], FLOATS),
            "input_scale": Stored(((), (1,)), FLOATS, optional=True),
        }

    def read(self, tensors: Mapping[str, Tensor], rows: int, columns: int) -> Matrix:
        values, scales = tensors["weight"], tensors[self.scale_name].float()
        if self.strategy == "block":
            down, across = self.block
            return GroupedMatrix(values, scales.repeat_interleave(min(down, rows), 0)[:rows].contiguous(), across)
        return Fp8Matrix(values, scales.reshape(-1).expand(rows).contiguous())

    @property
    def scales(self) -> str:
        return self.scale_name

    @property
    def kept(self) -> Literal["fp8", "int4"] | None:
        return "fp8" if self.group is None or self.group % LEAST_GROUP == 0 else None

    @property
    def group(self) -> int | None:
        return self.block[1] if self.strategy == "block" else None

    def __str__(self) -> str:
        kinds = {"tensor": "a scale for each matrix", "channel": "a scale for each row"}
        return f"fp8, {kinds.get(self.strategy) or 'a scale for each block of {} x {}'.format(*self.block)}"


@dataclass(frozen=True, slots=True)
class Int4Layout(Layout):
    """Numbers of 4 bits, of which `columns_per_scale` (-1: all) columns share a scale and a zero point.

    `act_order`: the columns of a group need not be neighbours; a tensor has the group of each.
    """

    columns_per_scale: int
    act_order: bool = False

    @property
    def scales(self) -> str:
        return "scales"

    @property
    def group(self) -> int | None:
        return self.columns_per_scale

    @property
    def kept(self) -> Literal["fp8", "int4"] | None:
        return "int4" if not self.act_order and (self.columns_per_scale % LEAST_GROUP == 0 or self._whole) else None

    @property
    def _whole(self) -> bool:
        return self.columns_per_scale == -1

    def groups(self, rows: int, columns: int) -> int:
        size = columns if self._whole else self.columns_per_scale
        if columns % size:
            raise ValueError(f"group_size {size} does not divide {columns} inputs")
        for name, count in (("inputs", columns), ("outputs", rows)):
            if count % PER_WORD:
                raise ValueError(f"{count} {name} are no multiple of {PER_WORD}, which a word of 4-bit numbers has")
        return columns // size

    def made(self, numbers: Tensor, scales: Tensor, zeros: Tensor, of_column: Tensor | None) -> Matrix:
        """The matrix of numbers [N, K], scales and zeros [N, groups], and the group of each column, if it is said."""
        columns, groups = numbers.shape[1], scales.shape[1]
        scales, zeros = scales.float(), zeros.float()
        if of_column is not None:
            if not 0 <= int(of_column.min()) <= int(of_column.max()) < groups:
                raise ValueError(f"g_idx names groups that are not among {groups}")
            if not torch.equal(of_column, torch.arange(columns, device=numbers.device) // (columns // groups)):
                if not self.act_order:
                    raise ValueError("g_idx is not in order, but the configuration has no desc_act or actorder")
                index = of_column.long()
                return (numbers.float() - zeros[:, index]) * scales[:, index]
        return GroupedMatrix(pack_int4(numbers), torch.stack((scales, zeros), -1), columns // groups)

    def __str__(self) -> str:
        size = "a scale for each row" if self._whole else f"groups of {self.columns_per_scale}"
        return f"int4, {size}{', in the order of activations' * self.act_order}"


@dataclass(frozen=True, slots=True)
class AwqLayout(Int4Layout):
    """AWQ's `gemm`: a word has eight outputs, in an order of its own."""

    names: ClassVar = frozenset({"qweight", "qzeros", "scales"})

    def tensors(self, rows: int, columns: int) -> Mapping[str, Stored]:
        groups, words = self.groups(rows, columns), rows // PER_WORD
        return {
            "qweight": Stored(((columns, words),), ("I32",)),
            "qzeros": Stored(((groups, words),), ("I32",)),
            "scales": Stored(((groups, rows),), FLOATS),
        }

    def read(self, tensors: Mapping[str, Tensor], rows: int, columns: int) -> Matrix:
        numbers, zeros = (
            _nibbles(tensors[name]).view(-1, rows // PER_WORD, PER_WORD)[..., AWQ_ORDER].flatten(1).T
            for name in ("qweight", "qzeros")
        )
        return self.made(numbers, tensors["scales"].T, zeros, None)


@dataclass(frozen=True, slots=True)
class GptqLayout(Int4Layout):
    """GPTQ: a word has eight inputs. `zero_offset`: the first version stores zero points less 1."""

    names: ClassVar = frozenset({"qweight", "qzeros", "scales", "g_idx"})

    zero_offset: int = 1

    def tensors(self, rows: int, columns: int) -> Mapping[str, Stored]:
        groups = self.groups(rows, columns)
        return {
            "qweight": Stored(((columns // PER_WORD, rows),), ("I32",)),
            "qzeros": Stored(((groups, rows // PER_WORD),), ("I32",)),
            "scales": Stored(((groups, rows),), FLOATS),
            "g_idx": Stored(((columns,),), ("I32",), optional=not self.act_order),
        }

    def read(self, tensors: Mapping[str, Tensor], rows: int, columns: int) -> Matrix:
        zeros = _nibbles(tensors["qzeros"]).T + self.zero_offset
        return self.made(_nibbles(tensors["qweight"].T), tensors["scales"].T, zeros, tensors.get("g_idx"))


@dataclass(frozen=True, slots=True)
class PackedLayout(Int4Layout):
    """compressed-tensors' `pack-quantized`: a word has eight inputs; numbers and zero points are stored plus 8."""

    names: ClassVar = frozenset({"weight_packed", "weight_scale", "weight_zero_point", "weight_shape", "weight_g_idx"})

    symmetric: bool = True

    @property
    def scales(self) -> str:
        return "weight_scale"

    def tensors(self, rows: int, columns: int) -> Mapping[str, Stored]:
        groups = self.groups(rows, columns)
        found = {
            "weight_packed": Stored(((rows, columns // PER_WORD),), ("I32",)),
            "weight_scale": Stored(((rows, groups),), FLOATS),
            "weight_shape": Stored(((2,),), ("I64", "I32"), optional=True),
        }
        if not self.symmetric:
            found["weight_zero_point"] = Stored(((rows // PER_WORD, groups),), ("I32",))
        if self.act_order:
            found["weight_g_idx"] = Stored(((columns,),), ("I32",))
        return found

    def read(self, tensors: Mapping[str, Tensor], rows: int, columns: int) -> Matrix:
        words, scales, shape = (tensors.get(name) for name in ("weight_packed", "weight_scale", "weight_shape"))
        assert words is not None
        assert scales is not None
        if shape is not None and shape.tolist() != [rows, columns]:
            raise ValueError(f"weight_shape is {shape.tolist()}, not {[rows, columns]}")
        if self.symmetric:
            zeros = torch.full(scales.shape, 8, device=words.device)
        else:
            zeros = _nibbles(tensors["weight_zero_point"].T).T
        return self.made(_nibbles(words), scales, zeros, tensors.get("weight_g_idx"))


def _nibbles(words: Tensor) -> Tensor:
    """words [..., n] int32 -> their numbers of 4 bits [..., 8 * n] uint8, of each word from the lowest."""
    return torch.stack([(words >> shift & 15).to(torch.uint8) for shift in range(0, 32, 4)], -1).flatten(-2)
