"""Writes a checkpoint in a quantized format, to measure what rounding costs.

Usage: python -m asynclane.training.quantize MODEL DIRECTORY --format awq [--group-size 128] [--calibrate]
Matrices of the blocks are quantized; embedding, head and routers are not. Numbers are rounded to nearest. With
--calibrate those of int4 are rounded column by column, and the columns after it make up for the error, as far as the
inputs of an embedded model allow (Frantar et al., arXiv 2210.17323).
"""

from __future__ import annotations

import argparse
import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from torch import Tensor

from ..models.checkpoint.config import ModelConfig, ModelError, read_config
from ..models.checkpoint.families import layer_sources
from ..models.checkpoint.registry import find_model
from ..models.checkpoint.weights import SINGLE
from .corpus import MARKS, first_source
from .export import restore, tensor_names
from .network import Network
from .noise import Rows, canvas, copies
from .shapes import SHAPES

FP8_MAX = 448
BLOCK, GROUP = 128, 128  # rows and columns that share a scale in FP8, columns in int4
IN_ORDER = range(8)
AWQ_PLACES = (0, 2, 4, 6, 1, 3, 5, 7)  # the output that each nibble of a word has
LEAST, LEAST_HALF = 1e-12, 1e-7  # scales
NOISE = 0.01  # of the mean, which is added to sums of inputs
TEXTS, TEXTS_AT_ONCE = 256, 32  # of the corpus

Tensors = dict[str, Tensor]


class Rounded(NamedTuple):
    """A matrix in int4: numbers [N, K], zeros and scales [N, groups]."""

    numbers: Tensor
    zeros: Tensor
    scales: Tensor

    @property
    def group(self) -> int:
        return self.numbers.shape[1] // self.scales.shape[1]


def fp8_channel(weight: Tensor) -> Tensors:
    scales = weight.abs().amax(1, keepdim=True).clamp_min(LEAST) / FP8_MAX
    return {"weight": _fp8(weight / scales), "weight_scale": scales}


def fp8_blocks(weight: Tensor) -> Tensors:
    rows, columns = weight.shape
    largest = [[part.abs().max() for part in below.split(BLOCK, 1)] for below in weight.split(BLOCK)]
    scales = torch.tensor(largest).clamp_min(LEAST) / FP8_MAX
    wide = scales.repeat_interleave(BLOCK, 0).repeat_interleave(BLOCK, 1)[:rows, :columns]
    return {"weight": _fp8(weight / wide), "weight_scale_inv": scales}


def _fp8(scaled: Tensor) -> Tensor:
    return scaled.clamp(-FP8_MAX, FP8_MAX).to(torch.float8_e4m3fn)


def awq(found: Rounded) -> Tensors:
    return {
        "qweight": _words(found.numbers.T, AWQ_PLACES),
        "qzeros": _words(found.zeros.T, AWQ_PLACES),
        "scales": found.scales.T,
    }


def gptq(found: Rounded) -> Tensors:
    """The first version, which stores zeros less 1."""
    return {
        "qweight": _words(found.numbers, IN_ORDER).T,
        "qzeros": _words(found.zeros.T - 1, IN_ORDER),
        "scales": found.scales.T,
        "g_idx": (torch.arange(found.numbers.shape[1]) // found.group).int(),
    }


def compressed_int4(found: Rounded) -> Tensors:
    return {
        "weight_packed": _words(found.numbers, IN_ORDER),
        "weight_zero_point": _words(found.zeros.T, IN_ORDER).T,
        "weight_scale": found.scales,
        "weight_shape": torch.tensor(found.numbers.shape),
    }


def _words(numbers: Tensor, places: Sequence[int]) -> Tensor:
    """[..., 8 * n] -> [..., n] int32: nibble n of a word has the number at `places[n]` of its eight."""
    eights = numbers.reshape(*numbers.shape[:-1], -1, 8)
    words = torch.zeros(eights.shape[:-1], dtype=torch.int32)
    for nibble, place in enumerate(places):
        words |= eights[..., place] << 4 * nibble
    return words


# --- Rounding to int4 ---------------------------------------------------------------------------------------


def rounded(weight: Tensor, group: int, inputs: Tensor | None = None) -> Rounded:
    """A weight [N, K] with a scale for each `group` columns. `inputs` [K, K]: the sum of the products of inputs with
    themselves, by which the columns after a rounded one make up for its error; None: each is rounded to nearest."""
    rows, columns = weight.shape
    if columns % group:
        raise ValueError(f"--group-size {group} does not divide {columns} inputs")
    factors = None if inputs is None else _factors(inputs)
    weight, numbers = weight.clone(), torch.empty((rows, columns), dtype=torch.int32)
    zeros, scales = list[Tensor](), list[Tensor]()
    for start in range(0, columns, group):
        here = weight[:, start : start + group]
        least, most = here.amin(1).clamp_max(0), here.amax(1).clamp_min(0)
        scales.append(((most - least) / 15).clamp_min(LEAST_HALF).half())
        scale = scales[-1].float()
        zeros.append((-least / scale).round().clamp(1, 15))
        for column in range(start, start + group):
            number = ((weight[:, column] / scale).round() + zeros[-1]).clamp(0, 15)
            numbers[:, column] = number.int()
            if factors is not None:
                error = (weight[:, column] - (number - zeros[-1]) * scale) / factors[column, column]
                weight[:, column + 1 :] -= error[:, None] * factors[column, column + 1 :]
    return Rounded(numbers, torch.stack(zeros, 1).int(), torch.stack(scales, 1))


def _factors(inputs: Tensor) -> Tensor:
    """The upper Cholesky factor of the inverse, of inputs to which some noise is added."""
    noisy = inputs.double() + NOISE * inputs.diagonal().mean() * torch.eye(len(inputs), dtype=torch.float64)
    return torch.linalg.cholesky(torch.cholesky_inverse(torch.linalg.cholesky(noisy)), upper=True).float()


def inputs_of(name: str, directory: Path) -> dict[str, Tensor]:
    """For each matrix of an embedded model's blocks, by its name in the checkpoint: the sum of the products of its
    inputs with themselves, over masked texts of the corpus."""
    network = Network(SHAPES[name])
    restore(network, directory)
    names, sums = tensor_names(network), dict[str, Tensor]()

    def add(parameters: Sequence[str], x: Tensor) -> None:
        flat = x.detach().flatten(0, 1)
        for parameter in parameters:
            weight = names[parameter]
            sums[weight] = sums.get(weight, 0) + flat.T @ flat

    for number, block in enumerate(network.blocks):
        for module, parts in (("attn_norm", "q k v"), ("ff_norm", "gate up")):
            parameters = [f"blocks.{number}.{part}.weight" for part in parts.split()]
            getattr(block, module).register_forward_hook(lambda _, given, out, names=parameters: add(names, out))
        for part in ("attn_out", "ff_out"):
            parameters = [f"blocks.{number}.{part}.weight"]
            getattr(block, part).register_forward_pre_hook(lambda _, given, names=parameters: add(names, given[0]))
    torch.manual_seed(0)
    texts = list(islice(first_source("quantize", Tokenizer.from_file(str(directory / "tokenizer.json"))), TEXTS))
    length = max(len(text) for text, _ in texts)
    for start in range(0, TEXTS, TEXTS_AT_ONCE):
        some = texts[start : start + TEXTS_AT_ONCE]
        ids = torch.full((len(some), length), MARKS.end)
        for row, (text, _) in zip(ids, some, strict=True):
            row[: len(text)] = torch.from_numpy(text)
        prompts = torch.tensor([[prompt] for _, prompt in some])
        answers = torch.tensor([[len(text)] for text, _ in some]) - prompts
        rows = Rows(ids, prompts, answers)
        block_size = network.shape.block
        seen = copies(rows, block_size, -(-length // block_size) * block_size) if block_size else canvas(rows)
        with torch.inference_mode():
            network(seen.ids, seen.positions, seen.mask)
    return sums


# --- Checkpoints --------------------------------------------------------------------------------------------


def _compressed(form: str, weights: Mapping[str, Any], inputs: Mapping[str, Any] | None) -> dict[str, Any]:
    group = {"targets": ["Linear"], "weights": weights, "input_activations": inputs}
    said = {"quant_method": "compressed-tensors", "format": form, "quantization_status": "compressed"}
    return {**said, "config_groups": {"group_0": group}, "ignore": ["lm_head"]}


EIGHT = {"num_bits": 8, "type": "float", "symmetric": True}
FP8: Mapping[str, tuple[Callable[[Tensor], Tensors], dict[str, Any]]] = {
    "fp8-channel": (
        fp8_channel,
        _compressed(
            "float-quantized",
            {**EIGHT, "strategy": "channel", "dynamic": False},
            {**EIGHT, "strategy": "token", "dynamic": True},
        ),
    ),
    "fp8-blocks": (
        fp8_blocks,
        {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [BLOCK, BLOCK]},
    ),
}
INT4: Mapping[str, tuple[Callable[[Rounded], Tensors], Callable[[int], dict[str, Any]]]] = {
    "awq": (
        awq,
        lambda group: {
            "quant_method": "awq",
            "bits": 4,
            "group_size": group,
            "zero_point": True,
            "version": "gemm",
        },
    ),
    "gptq": (
        gptq,
        lambda group: {
            "quant_method": "gptq",
            "bits": 4,
            "group_size": group,
            "desc_act": False,
            "sym": False,
            "checkpoint_format": "gptq",
        },
    ),
    "int4": (
        compressed_int4,
        lambda group: _compressed(
            "pack-quantized",
            {"num_bits": 4, "type": "int", "strategy": "group", "group_size": group, "symmetric": False},
            None,
        ),
    ),
}
FORMATS = (*FP8, *INT4)


def quantize(source: Path, target: Path, form: str, group: int, inputs: Mapping[str, Tensor] | None = None) -> None:
    """Write the checkpoint in `source` to `target` in a format. Raises `ValueError` for groups that do not divide,
    numbers that are not finite, and matrices under other names."""
    inner, stored, done = _inner_matrices(read_config(source)), Tensors(), set[str]()
    for shard in sorted(source.glob("*.safetensors")):
        for name, tensor in load_file(shard).items():
            if name not in inner:
                stored[name] = tensor
                continue
            if not tensor.isfinite().all():
                raise ValueError(f"{shard}: {name} has numbers that are not finite")
            done.add(name)
            if form in FP8:
                parts = FP8[form][0](tensor.float())
            else:
                parts = INT4[form][0](rounded(tensor.float(), group, inputs and inputs[name]))
            stored |= {f"{name.removesuffix('.weight')}.{role}": part for role, part in parts.items()}
    if done != inner:  # as in files whose names lack a prefix
        raise ValueError(f"{source} has no {min(inner - done)} to quantize")
    target.mkdir(parents=True)
    for path in source.iterdir():
        if path.is_file() and ".safetensors" not in path.suffixes and path.name != "config.json":
            shutil.copy(path, target / path.name)
    described = FP8[form][1] if form in FP8 else INT4[form][1](group)
    said = json.loads((source / "config.json").read_text(encoding="utf-8")) | {"quantization_config": described}
    (target / "config.json").write_text(json.dumps(said, indent=2) + "\n", encoding="utf-8")
    save_file({name: tensor.contiguous() for name, tensor in stored.items()}, target / SINGLE)


def _inner_matrices(config: ModelConfig) -> set[str]:
    sources = (source for layer in range(config.layers) for source in layer_sources(config, layer))
    return {source.name for source in sources if len(source.shape) == 2 and source.weight != "router"}


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m asynclane.training.quantize",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("model", help="as in serving, with plain weights")
    parser.add_argument("directory", type=Path, help="must not exist")
    parser.add_argument("--format", required=True, choices=FORMATS)
    parser.add_argument(
        "--group-size", type=int, default=None, help=f"columns that share a scale in int4 (default: {GROUP})"
    )
    parser.add_argument(
        "--calibrate", action="store_true", help="round int4 by the inputs of an embedded model, not to nearest"
    )
    options = parser.parse_args(argv)
    if options.calibrate and (options.format in FP8 or options.model not in SHAPES):
        parser.error(f"--calibrate is for {', '.join(INT4)} and one of {', '.join(SHAPES)}")
    if options.group_size is not None and options.format in FP8:
        parser.error(f"--group-size is for {', '.join(INT4)}")
    group = GROUP if options.group_size is None else options.group_size
    if group < 1:
        parser.error(f"--group-size must be positive, not {group}")
    if options.directory.exists():
        parser.error(f"{options.directory} exists already")
    try:
        source = find_model(options.model)
        if read_config(source).quantization is not None:
            raise ModelError(f"{source} is quantized already")
        inputs = inputs_of(options.model, source) if options.calibrate else None
        quantize(source, options.directory, options.format, group, inputs)
    except (ValueError, OSError, SafetensorError) as error:
        parser.error(str(error))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
