"""Reads safetensors, one file or many, and checks names and shapes in both directions before any memory is taken."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path, PurePath

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from ...kernels.common.types import Fp8Matrix, GroupedMatrix, Matrix
from ...kernels.linear import dequantize, pack_int4, quantize_groups, quantize_rows, unpack_int4
from .config import ModelConfig, ModelError
from .families import as_in_files, left_out, tensor_shapes, tied_copy, twins_of
from .finite import require_finite
from .layouts import GptqLayout, Int4Layout, Layout
from .lora import Adapter
from .quantization import is_cache_scale

PREFIX = "model."
SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
DTYPES = ("BF16", "F16", "F32")  # of plain tensors
FP8_TYPES = ("F8_E4M3", "F8_E5M2")
ITEM_BYTES = {"BF16": 2, "F16": 2, "F32": 4, "F8_E4M3": 1, "I32": 4, "I64": 8}
DERIVED = re.compile(r"(.+\.)?rotary_emb\.((original_)?inv_freq|(cos|sin)_cached)")  # follow from config.json
ROWS = 1024  # that are compared at once
SHOWN = 3  # names in an error, before "and N more"


@dataclass(frozen=True, slots=True)
class TensorPlace:
    """The place of a tensor of the checkpoint: rows `[start, end)` of a weight. `part` takes of the tensor what this
    device has; None: all of it."""

    weight: Matrix
    start: int
    end: int
    part: Callable[[Tensor], Tensor] | None = None
    also: TensorPlace | None = None  # of the same tensor

    def put(self, found: Matrix) -> None:
        """Copy a matrix to its place: numbers and scales as they are if the weight is in the same form, else in the
        weight's type."""
        if self.also is not None:
            self.also.put(found)
        if isinstance(found, Tensor) and found.dim() == 3:  # one of several matrices lies there row by row
            found = found.flatten(0, 1)
        weight, rows = self.weight, slice(self.start, self.end)
        if isinstance(weight, Tensor):
            weight[rows].copy_(self._own(dequantize(found)) if not isinstance(found, Tensor) else self._own(found))
            return
        own = self._in_form(found, weight)
        weight.values[rows] = own.values
        weight.scales[rows] = own.scales

    def _in_form(self, found: Matrix, weight: Fp8Matrix | GroupedMatrix) -> Fp8Matrix | GroupedMatrix:
        """This device's part of a matrix, in the form of `weight`."""
        if isinstance(found, Fp8Matrix) and isinstance(weight, Fp8Matrix):
            scales = self._own(found.scales[:, None].expand(found.shape))[:, 0]
            return Fp8Matrix(self._own(found.values).contiguous(), scales.contiguous())
        if (
            isinstance(found, GroupedMatrix)
            and isinstance(weight, GroupedMatrix)
            and (found.group, found.int4) == (weight.group, weight.int4)
        ):
            values = found.values
            if self.part is not None:
                values = pack_int4(self._own(unpack_int4(values))) if found.int4 else self._own(values).contiguous()
            return GroupedMatrix(values, self._own(found.scales).contiguous(), found.group)
        plain = found if isinstance(found, Tensor) else dequantize(found)
        plain = self._own(plain).to(weight.device)
        if isinstance(weight, Fp8Matrix):
            return Fp8Matrix(*quantize_rows(plain))
        if not weight.int4:  # random ones: those of a checkpoint are stored so
            values, scales = quantize_rows(plain)
            return GroupedMatrix(values, scales[:, None].expand(weight.scales[: len(plain)].shape), weight.group)
        return quantize_groups(plain, weight.group)

    def _own(self, tensor: Tensor) -> Tensor:
        return tensor if self.part is None else self.part(tensor)


@dataclass(frozen=True, slots=True)
class Header:
    """A tensor in a file."""

    path: Path
    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class StoredWeights:
    """The weights in the files of a checkpoint that fits its configuration.

    `tensors` of each weight: names, by what a layout calls them (`weight`: a plain tensor, or the numbers of an FP8
    one). `quantized`: the weights that `layout` stores.
    """

    files: tuple[Path, ...]
    tensors: Mapping[str, Mapping[str, str]]
    headers: Mapping[str, Header]  # of these tensors, by name
    shapes: Mapping[str, tuple[int, ...]]  # of the weights
    quantized: frozenset[str] = frozenset()
    layout: Layout | None = None
    adapter: Adapter | None = None

    def dtype(self, weight: str) -> str:
        """The type of a weight's numbers."""
        if weight not in self.quantized:
            return self.headers[self.tensors[weight]["weight"]].dtype
        return "I4" if isinstance(self.layout, Int4Layout) else "F8_E4M3"

    @property
    def stored_bytes(self) -> int:
        headers = (self.headers[name] for names in self.tensors.values() for name in names.values())
        return sum(ITEM_BYTES[header.dtype] * prod(header.shape) for header in headers)


def check_weights(directory: Path, config: ModelConfig) -> StoredWeights:
    """The weights, from the files' headers. Raises `ModelError` if a file cannot be read, or a tensor is missing,
    unexpected, there twice or of another shape.

    A head that the embedding replaces may be stored if it equals it: only then both are read.
    """
    files = weight_files(directory)
    headers = _headers(files)
    config = as_in_files(config, headers)
    shapes, tied = tensor_shapes(config), tied_copy(config)
    head, embedding = tied or ("", "")
    expected = {**shapes, head: shapes[embedding]} if tied else shapes
    layout = config.quantization.layout if config.quantization is not None else None
    tensors, quantized = dict[str, dict[str, str]](), set[str]()
    twins = twins_of(config, headers, expected)
    for name, twin in twins.items():
        if name in headers and not _equal(headers, name, twin):
            raise ModelError(f"{headers[twin].path}: {twin} is not equal to {name}, but the network has only one")
    meant = {twin: name for name, twin in twins.items() if name not in headers}
    copies = {*twins.values()} - meant.keys()
    for name, header in headers.items():
        if name in copies:
            continue
        weight, role = _place(meant.get(name, name), expected, layout)
        if role in tensors.get(weight, ()):
            raise ModelError(f"{header.path}: {weight} is there twice")
        if weight:
            tensors.setdefault(weight, {})[role] = name
        elif not left_out(config, name) and not _is_ignored(name, header, expected, layout):
            raise ModelError(f"{header.path} has an unexpected tensor {name}")
    for weight, names in tensors.items():
        of_weight = {role: headers[name] for role, name in names.items()}
        if layout is not None and (of_weight.keys() != {"weight"} or of_weight["weight"].dtype in FP8_TYPES):
            _check_quantized(of_weight, weight, expected[weight], layout)
            quantized.add(weight)
        else:
            _check_plain(of_weight["weight"], weight, expected[weight], layout)
    missing = [name for name in shapes if name not in tensors]
    if missing:
        raise ModelError(f"{directory} lacks {some(missing)}")
    if layout is not None:
        scales = (names[layout.scales] for weight, names in tensors.items() if weight in quantized)
        require_finite({name: headers[name].path for name in scales})
    if config.quantization and (left := next(config.quantization.left_among(sorted(quantized)), None)):
        raise ModelError(f"{directory}: {left} is quantized, but the configuration leaves it out")
    if tied and (copy := tensors.pop(head, None)):
        name, other = copy.get("weight", ""), tensors[embedding].get("weight", "")
        path = headers[next(iter(copy.values()))].path
        if {head, embedding} & quantized or not _equal(headers, name, other):
            raise ModelError(f"{path}: {head} is not equal to {embedding}, but config.json ties them")
    return StoredWeights(tuple(files), tensors, headers, shapes, frozenset(quantized), layout, config.adapter)


def as_stored(config: ModelConfig, stored: StoredWeights) -> ModelConfig:
    """The configuration, as the tensors are stored, with the names of the matrices that come as plain numbers from a
    quantized checkpoint: those that it has so, and those that an adapter changes."""
    config = as_in_files(config, stored.headers)
    if config.quantization is None:
        return config
    changed = config.adapter.factors.keys() if config.adapter is not None else set[str]()
    plain = frozenset((stored.tensors.keys() - stored.quantized) | changed)
    return replace(config, quantization=replace(config.quantization, plain=plain))


def _headers(files: Sequence[Path]) -> dict[str, Header]:
    found = dict[str, Header]()
    for path in files:
        try:
            with safe_open(path, framework="pt") as shard:
                for name in shard.keys():  # noqa: SIM118 - not a mapping
                    if name in found:
                        raise ModelError(f"{path}: {name} is in another file too")
                    tensor = shard.get_slice(name)
                    found[name] = Header(path, tensor.get_dtype(), tuple(tensor.get_shape()))
        except (OSError, SafetensorError) as error:
            raise ModelError(f"{path} cannot be read: {error}") from None
    return found


def _place(stored: str, expected: Mapping[str, tuple[int, ...]], layout: Layout | None) -> tuple[str, str]:
    """The weight that a tensor is a part of, "" for none, and the tensor's name in the layout. Some files leave out the
    prefix of the network within its head's class."""
    for name in (stored, PREFIX + stored):
        if name in expected:
            return name, "weight"
        module, _, role = name.rpartition(".")
        if layout is not None and role in layout.names and len(expected.get(f"{module}.weight", ())) == 2:
            return f"{module}.weight", role
    return "", ""


def _is_ignored(stored: str, header: Header, expected: Mapping[str, tuple[int, ...]], layout: Layout | None) -> bool:
    """True for tensors that follow from others, scales of keys and values in FP8, and GPTQ's biases, which are zero
    where a family has none."""
    if DERIVED.fullmatch(stored) or (layout is not None and is_cache_scale(stored)):
        return True
    module, _, role = stored.rpartition(".")
    known = f"{module}.weight" in expected or f"{PREFIX}{module}.weight" in expected
    if not isinstance(layout, GptqLayout) or role != "bias" or not known:
        return False
    with safe_open(header.path, framework="pt") as shard:
        return not shard.get_tensor(stored).any()


def _check_plain(header: Header, name: str, shape: tuple[int, ...], layout: Layout | None) -> None:
    if header.shape != shape:
        raise ModelError(f"{header.path}: {name} is {list(header.shape)}, config.json says {list(shape)}")
    if header.dtype not in DTYPES:
        why = "" if layout else "; no configuration says how it is quantized" * (header.dtype in FP8_TYPES)
        raise ModelError(f"{header.path}: {name} is {header.dtype}, only {', '.join(DTYPES)} can be read{why}")


def _check_quantized(headers: Mapping[str, Header], weight: str, shape: tuple[int, ...], layout: Layout) -> None:
    module, path = weight.removesuffix(".weight"), next(iter(headers.values())).path
    if len(shape) != 2:
        apart = "; experts are read where each has a tensor of its own" * (len(shape) == 3)
        raise ModelError(f"{path}: {weight} is quantized, but no matrix{apart}")
    rows, columns = shape
    try:
        wanted = layout.tensors(rows, columns)
    except ValueError as error:
        raise ModelError(f"{path}: {weight}: {error}") from None
    for role, header in headers.items():
        name, stored = f"{module}.{role}", wanted.get(role)
        if stored is None:
            raise ModelError(f"{header.path}: {name} does not go with {layout}")
        if header.shape not in stored.shapes:
            said = " or ".join(str(list(each)) for each in stored.shapes)
            raise ModelError(f"{header.path}: {name} is {list(header.shape)}, config.json says {said}")
        if header.dtype not in stored.dtypes:
            raise ModelError(f"{header.path}: {name} is {header.dtype}, only {', '.join(stored.dtypes)} can be read")
    missing = [f"{module}.{role}" for role, each in wanted.items() if not each.optional and role not in headers]
    if missing:
        raise ModelError(f"{path.parent} lacks {some(missing)}")


def _equal(headers: Mapping[str, Header], name: str, other: str) -> bool:
    path, other_path = headers[name].path, headers[other].path
    if headers[name].shape != headers[other].shape:
        return False
    try:
        with safe_open(path, framework="pt") as shard, safe_open(other_path, framework="pt") as other_shard:
            if not headers[name].shape:
                return _same(shard.get_tensor(name), other_shard.get_tensor(other))
            one, two = shard.get_slice(name), other_shard.get_slice(other)
            return all(
                _same(one[row : row + ROWS], two[row : row + ROWS]) for row in range(0, headers[name].shape[0], ROWS)
            )
    except (OSError, SafetensorError) as error:
        raise ModelError(f"{path} cannot be read: {error}") from None


def _same(one: Tensor, other: Tensor) -> bool:
    """True for the same numbers, also in two types."""
    if one.dtype != other.dtype:
        one, other = one.double(), other.double()
    elif one.itemsize == 1:  # FP8 has no comparison
        one, other = one.view(torch.uint8), other.view(torch.uint8)
    return torch.equal(one, other)


def load_weights(
    stored: StoredWeights,
    parts: Mapping[str, TensorPlace],
    report: Callable[[int, int], None] = lambda done, total: None,
) -> None:
    """Copy each weight to its place. Besides the weights, memory holds the tensors of one at a time, and those of
    weights that lie in two files. `report` hears how many are in place, of how many.

    Raises `ModelError` if a file can no longer be read, or numbers contradict the configuration.
    """
    weights = {name: (weight, role) for weight, names in stored.tensors.items() for role, name in names.items()}
    begun = dict[str, dict[str, Tensor]]()
    done, weight = 0, ""
    report(done, len(parts))
    for path in stored.files:
        try:
            with safe_open(path, framework="pt") as shard:
                for name in filter(weights.__contains__, shard.keys()):
                    weight, role = weights[name]
                    tensors = begun.setdefault(weight, {})
                    tensors[role] = shard.get_tensor(name)
                    if len(tensors) == len(stored.tensors[weight]):
                        parts[weight].put(_read(begun.pop(weight), weight, stored, parts[weight]))
                        done += 1
                        report(done, len(parts))
        except (OSError, SafetensorError) as error:
            raise ModelError(f"{path} cannot be read: {error}") from None
        except ValueError as error:
            raise ModelError(f"{path}: {weight}: {error}") from None


class _Checked(TensorPlace):
    """No place: what would be put there has to be finite."""

    def put(self, found: Matrix) -> None:
        if not dequantize(found).isfinite().all():
            raise ValueError("numbers times scales are not finite")


def check_matrices(stored: StoredWeights) -> None:
    """Make each matrix that is quantized or that an adapter changes, one at a time, as loading does. Raises
    `ModelError` for tensors that contradict the configuration, and for numbers that are not finite."""
    changed = stored.adapter.factors.keys() if stored.adapter is not None else set[str]()
    tensors = {name: stored.tensors[name] for name in stored.tensors if name in stored.quantized | changed}
    load_weights(replace(stored, tensors=tensors), dict.fromkeys(tensors, _Checked(torch.empty(0), 0, 0)))


def _read(tensors: Mapping[str, Tensor], weight: str, stored: StoredWeights, place: TensorPlace) -> Matrix:
    """The matrix that these tensors make up, on the device of its place if it is quantized."""
    found: Matrix = tensors["weight"] if weight not in stored.quantized else _matrix(tensors, weight, stored, place)
    return found if stored.adapter is None else stored.adapter.merged(weight, found)


def _matrix(tensors: Mapping[str, Tensor], weight: str, stored: StoredWeights, place: TensorPlace) -> Matrix:
    assert stored.layout is not None
    here = {role: tensor.to(place.weight.device) for role, tensor in tensors.items()}
    rows, columns = stored.shapes[weight]
    return stored.layout.read(here, rows, columns)


def random_tensor(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """A matrix that keeps the scale of its input, or ones."""
    device = generator.device
    if len(shape) == 1:
        return torch.ones(shape, device=device)
    scale: float = shape[-1] ** -0.5
    return torch.randn(shape, generator=generator, device=device) * scale


def fill_randomly(config: ModelConfig, parts: Mapping[str, TensorPlace], device: torch.device) -> None:
    """Random weights of a plausible scale, made on the device: the same for the same configuration, however many
    devices share them."""
    generator = torch.Generator(device).manual_seed(0)
    for name, shape in tensor_shapes(config).items():
        parts[name].put(random_tensor(shape, generator))


def absent_files(directory: Path, weights: bool = True) -> list[str]:
    """Names of the files that every checkpoint needs, with or without its weights, and this one lacks. Raises
    `ModelError` for a broken index."""
    names = ("config.json", *(_shards(directory) if weights else ()))
    return [name for name in names if not (directory / name).exists()]


def weight_files(directory: Path) -> list[Path]:
    """The files with the weights. Raises `ModelError` if one is missing."""
    names = _shards(directory)
    missing = [name for name in names if not (directory / name).exists()]
    if missing == [SINGLE]:
        raise ModelError(f"{directory} has neither {SINGLE} nor {INDEX}: other formats cannot be read")
    if missing:
        raise ModelError(f"{directory} lacks {some(missing)}, named in {INDEX}")
    return [directory / name for name in names]


def _shards(directory: Path) -> list[str]:
    """Names of the files with the weights, which may be missing."""
    index = directory / INDEX
    if not index.exists():
        return [SINGLE]
    try:
        names = sorted({str(name) for name in json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()})
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ModelError(f"{index} cannot be read: {error!r}") from None
    outside = [name for name in names if PurePath(name).name != name]
    if outside:
        raise ModelError(f"{index} names {some(outside)}, which is no file beside it")
    return names


def some(names: list[str]) -> str:
    """The first of the names, for a message."""
    rest = len(names) - SHOWN
    return ", ".join(names[:SHOWN]) + (f" and {rest} more" if rest > 0 else "")
