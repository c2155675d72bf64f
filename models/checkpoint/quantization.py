"""Reads how a checkpoint is quantized, from config.json or from the file of its tool; refuses what cannot be read."""

from __future__ import annotations

import fnmatch
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .layouts import AwqLayout, Fp8Layout, GptqLayout, Layout, PackedLayout
from .patterns import checked_pattern

# Scales of keys and values, which are kept in the network's type.
CACHE_SCALE = re.compile(r".+\.([kvq]_scale|[kvq]_zero_point|output_scale|(k|v)_proj\.(k|v)_scale)")
MOST_BLOCK = 2**12  # rows or columns that share a scale: the published ones have 128
OWN_FILES = ("quantize_config.json", "quant_config.json", "hf_quant_config.json")


@dataclass(frozen=True, slots=True)
class Quantization:
    """The format of a checkpoint's matrices.

    `method`: its name in the configuration. `left_alone`: patterns of modules that are not quantized. `plain`: the
    matrices that the files have as plain numbers, known once their headers are read.
    """

    method: str
    layout: Layout
    left_alone: tuple[str, ...] = ()
    plain: frozenset[str] = frozenset()

    def left_among(self, weights: Iterable[str]) -> Iterator[str]:
        """The weights of these names that the configuration says are not quantized: it names them, a module that they
        are in, or the last parts of its name."""
        exact = {pattern for pattern in self.left_alone if not pattern.startswith("re:")}
        wild = [re.compile(fnmatch.translate(pattern)) for pattern in exact if "*" in pattern or "?" in pattern]
        regular = [re.compile(pattern[3:]) for pattern in self.left_alone if pattern.startswith("re:")]
        for weight in weights if self.left_alone else ():
            module = weight.removesuffix(".weight")
            parts = module.split(".")
            ends = range(1, len(parts) + 1)
            wholes = [".".join(parts[start:end]) for end in ends for start in range(end)]
            if (
                not exact.isdisjoint(wholes)
                or any(pattern.match(module) for pattern in regular)
                or any(pattern.match(whole) for pattern in wild for whole in wholes)
            ):
                yield weight

    def __str__(self) -> str:
        return f"{self.method}: {self.layout}"


class _Section:
    """A part of a configuration, whose messages name it."""

    def __init__(self, where: str, raw: object) -> None:
        if not isinstance(raw, dict):
            raise ValueError(f"{where} is {_short(raw)}, not an object")
        self.where, self.raw = where, raw

    def get(self, *keys: str, default: Any = None) -> Any:
        """The value of the first of these keys that is there."""
        return next((self.raw[key] for key in keys if self.raw.get(key) is not None), default)

    def only(self, key: str, *values: object, default: object = None, also: str | None = None) -> Any:
        """The value of a key, or of `also`, its other name; the `default` of one that is missing. Raises `ValueError`
        unless it is one of these, and of the same kind: 4.0 is not 4, and null is a value."""
        key = self._named(key, also)
        found = self.raw.get(key, default)
        if not any(type(found) is type(value) and found == value for value in values):
            allowed = " or ".join(repr(value) for value in values)
            raise self.refusal(key, found, f"only {allowed}")
        return found

    def has(self, key: str) -> bool:
        """False if a key is missing, null or an empty object: tools write nothing in each of these ways."""
        return self.raw.get(key) not in (None, {})

    def absent(self, *keys: str) -> None:
        """Raises `ValueError` if one of these changes the numbers."""
        for key in keys:
            if self.has(key):
                raise self.refusal(key, self.raw[key], "only none")

    def section(self, key: str) -> _Section:
        return _Section(f"{self.where}.{key}", self.raw.get(key))

    def names(self, *keys: str) -> tuple[str, ...]:
        key = next((key for key in keys if self.raw.get(key) is not None), keys[0])
        found = self.get(key, default=[])
        if not isinstance(found, list) or not all(isinstance(name, str) for name in found):
            raise self.refusal(key, found, "only a list of names")
        for name in found:
            try:
                checked_pattern(name[3:] if name.startswith("re:") else "")
            except ValueError as error:
                raise self.refusal(key, name, f"only regular expressions after re:, and it is {error}") from None
        return tuple(found)

    def group(self, key: str, also: str | None = None) -> int:
        key = self._named(key, also)
        found = self.raw.get(key)
        if type(found) is not int or not (found > 0 or found == -1):
            raise self.refusal(key, found, "only a positive whole number, or -1")
        return found

    def _named(self, key: str, also: str | None) -> str:
        """`also` if only that name of the key is there, else `key`."""
        return also if also is not None and also in self.raw and key not in self.raw else key

    def refusal(self, key: str, value: object, allowed: str) -> ValueError:
        return ValueError(f"{self.where}.{key} = {_short(value)} is not supported, {allowed}")


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:75]} ..."


def read_quantization(directory: Path, raw: Mapping[str, Any]) -> Quantization | None:
    """The quantization that `raw`, config.json, names, or the file of a tool beside it; None: nothing says of any.
    Raises `ValueError` with the key that cannot be read, or for two that contradict each other."""
    text = raw.get("text_config")
    given = {
        place + key: part[key]
        for place, part in (("", raw), ("text_config.", text if isinstance(text, Mapping) else {}))
        for key in ("quantization_config", "compression_config")
        if part.get(key) not in (None, {}, [])
    }
    if any(value != next(iter(given.values())) for value in given.values()):
        raise ValueError(f"{' and '.join(given)} differ: remove the one that the tensors contradict")
    found = [(key, _of(_Section(key, value))) for key, value in [*given.items()][:1]]
    for name in OWN_FILES:
        if (directory / name).is_file():
            try:
                said = json.loads((directory / name).read_text(encoding="utf-8"))
            except (OSError, ValueError, RecursionError) as error:
                raise ValueError(f"{name} cannot be read: {error}") from None
            found.append((name, _of(_own_file(_Section(name, said)))))
    if not found:
        return None
    (place, first), *others = found
    for other, second in others:
        if second.layout != first.layout:
            raise ValueError(
                f"{place} ({first}) and {other} ({second}) differ: remove the one that the tensors contradict"
            )
    return first


def _own_file(said: _Section) -> _Section:
    """The section of a tool's file, with the method that it does not name."""
    if said.where == "hf_quant_config.json":
        inner = said.section("quantization")
        inner.raw = {"quant_method": "modelopt", **inner.raw}
        return inner
    awq = "zero_point" in said.raw or "w_bit" in said.raw
    said.raw = {"quant_method": "awq" if awq else "gptq", **said.raw}
    return said


def _of(said: _Section) -> Quantization:
    method = said.get("quant_method")
    if not isinstance(method, str) or method not in READERS:
        raise said.refusal("quant_method", method, f"only {', '.join(READERS)}")
    return READERS[method](said)


def _fp8(said: _Section) -> Quantization:
    said.only("activation_scheme", "dynamic", "static", default="dynamic")
    said.only("fmt", "e4m3", default="e4m3")
    left = said.names("ignored_layers", "modules_to_not_convert")
    if said.get("weight_block_size") is None:
        return Quantization("fp8", Fp8Layout(), left)
    said.only("activation_scheme", "dynamic", default="dynamic")
    block = _block(said, "weight_block_size")
    return Quantization("fp8", Fp8Layout("weight_scale_inv", "block", block), left)


def _block(said: _Section, key: str) -> tuple[int, int]:
    block = said.get(key)
    if not (
        isinstance(block, list)
        and len(block) == 2
        and all(type(size) is int and 0 < size <= MOST_BLOCK for size in block)
    ):
        raise said.refusal(key, block, f"only two numbers from 1 to {MOST_BLOCK}")
    return block[0], block[1]


def _compressed(said: _Section) -> Quantization:
    kind = said.only("format", "float-quantized", "naive-quantized", "pack-quantized")
    said.only("quantization_status", "compressed", "frozen", default="compressed")
    said.absent("transform_config")
    if said.has("sparsity_config"):
        said.section("sparsity_config").only("format", "dense", default="dense")
    groups = said.section("config_groups")
    if len(groups.raw) != 1:
        raise said.refusal("config_groups", sorted(groups.raw), "only one group")
    group = groups.section(next(iter(groups.raw)))
    group.only("format", kind, None)
    group.absent("output_activations")
    left = said.names("ignore")
    return Quantization("compressed-tensors", (_packed if kind == "pack-quantized" else _float)(group), left)


def _float(group: _Section) -> Layout:
    weights = group.section("weights")
    weights.only("type", "float")
    weights.only("num_bits", 8)
    weights.only("symmetric", True, default=True)
    weights.only("dynamic", False, default=False)
    if group.has("input_activations"):
        inputs = group.section("input_activations")
        inputs.only("type", "float", default="float")
        inputs.only("num_bits", 8)
    strategy = weights.only("strategy", "tensor", "channel", "block")
    return Fp8Layout(
        "weight_scale", strategy, _block(weights, "block_structure") if strategy == "block" else (128, 128)
    )


def _packed(group: _Section) -> Layout:
    weights = group.section("weights")
    weights.only("type", "int")
    weights.only("num_bits", 4)
    weights.only("dynamic", False, default=False)
    group.absent("input_activations")
    strategy = weights.only("strategy", "group", "channel")
    size = weights.group("group_size") if strategy == "group" else -1
    act_order = weights.only("actorder", None, False, True, "group", "weight", "static") in (True, "group")
    return PackedLayout(size, act_order, bool(weights.only("symmetric", True, False, default=True)))


def _modelopt(said: _Section) -> Quantization:
    algorithm = said.get("quant_algo")
    if not isinstance(algorithm, str) or algorithm.upper() not in MODELOPT:
        raise said.refusal("quant_algo", algorithm, f"only {', '.join(MODELOPT)}")
    return Quantization("modelopt", MODELOPT[algorithm.upper()], said.names("ignore", "exclude_modules"))


def _awq(said: _Section) -> Quantization:
    said.only("bits", 4, also="w_bit")
    said.only("zero_point", True, default=True)
    version = said.raw.get("version", "gemm")
    if not isinstance(version, str) or version.lower() != "gemm":
        raise said.refusal("version", version, "only 'gemm'")
    return Quantization(
        "awq", AwqLayout(said.group("group_size", "q_group_size")), said.names("modules_to_not_convert")
    )


def _gptq(said: _Section) -> Quantization:
    said.only("bits", 4)
    version = said.only("checkpoint_format", "gptq", "gptq_v2", default="gptq")
    said.only("pack_dtype", "int32", default="int32")
    act_order = bool(said.only("desc_act", True, False, default=False))
    said.only("sym", True, False, default=True)  # zeros are stored either way
    rules = said.get("dynamic", default={})
    if not isinstance(rules, dict) or not all(rule.startswith("-:") for rule in rules):
        raise said.refusal("dynamic", rules, "only rules that leave modules out ('-:')")
    said.raw = {**said.raw, "dynamic": [f"re:{rule[2:]}" for rule in rules]}
    left = said.names("dynamic")
    layout = GptqLayout(said.group("group_size"), act_order, 1 if version == "gptq" else 0)
    return Quantization("gptq", layout, left + said.names("modules_to_not_convert"))


MODELOPT: Mapping[str, Layout] = {"FP8": Fp8Layout(), "FP8_PER_CHANNEL_PER_TOKEN": Fp8Layout(strategy="channel")}
READERS: Mapping[str, Callable[[_Section], Quantization]] = {
    "fp8": _fp8,
    "compressed-tensors": _compressed,
    "modelopt": _modelopt,
    "awq": _awq,
    "gptq": _gptq,
}


def is_cache_scale(name: str) -> bool:
    """True for a tensor that scales keys or values kept in FP8."""
    return CACHE_SCALE.fullmatch(name) is not None
