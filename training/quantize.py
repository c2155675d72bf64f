"""Writes a checkpoint in a quantized format, to measure what rounding costs.

Usage: python -m asynclane.training.quantize MODEL DIRECTORY --format awq [--group-size 128]
Numbers are rounded to nearest: nothing is calibrated, as the tools of AWQ and GPTQ do. Matrices of the blocks are
quantized; embedding, head and routers are not.
"""

from __future__ import annotations

import argparse
import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from ..models.checkpoint.config import ModelConfig, ModelError, read_config
from ..models.checkpoint.families import layer_sources
from ..models.checkpoint.registry import find_model
from ..models.checkpoint.weights import SINGLE

FP8_MAX = 448
BLOCK = 128
AWQ_PLACES = [0, 2, 4, 6, 1, 3, 5, 7]  # the output that each nibble of a word has

Tensors = dict[str, Tensor]


def fp8_channel(weight: Tensor, group: int) -> Tensors:
    scales = weight.abs().amax(1, keepdim=True).clamp_min(1e-12) / FP8_MAX
    return {"weight": _fp8(weight / scales), "weight_scale": scales}


def fp8_blocks(weight: Tensor, group: int) -> Tensors:
    scales = torch.stack(
        [
            torch.stack([part.abs().max().clamp_min(1e-12) for part in rows.split(BLOCK, 1)])
            for rows in weight.split(BLOCK)
        ]
    )
    scales = scales / FP8_MAX
    wide = scales.repeat_interleave(BLOCK, 0).repeat_interleave(BLOCK, 1)
    return {"weight": _fp8(weight / wide[: weight.shape[0], : weight.shape[1]]), "weight_scale_inv": scales}


def awq(weight: Tensor, group: int) -> Tensors:
    numbers, zeros, scales = _int4(weight, group)
    return {"qweight": _words(numbers.T, AWQ_PLACES), "qzeros": _words(zeros.T, AWQ_PLACES), "scales": scales.T}


def gptq(weight: Tensor, group: int) -> Tensors:
    """The first version, which stores zeros less 1: none of them is 0."""
    numbers, zeros, scales = _int4(weight, group, least_zero=1)
    return {
        "qweight": _words(numbers, [*range(8)]).T,
        "qzeros": _words(zeros.T - 1, [*range(8)]),
        "scales": scales.T,
        "g_idx": (torch.arange(weight.shape[1]) // group).int(),
    }


def compressed_int4(weight: Tensor, group: int) -> Tensors:
    numbers, zeros, scales = _int4(weight, group)
    return {
        "weight_packed": _words(numbers, [*range(8)]),
        "weight_zero_point": _words(zeros.T, [*range(8)]).T,
        "weight_scale": scales,
        "weight_shape": torch.tensor(weight.shape),
    }


def _fp8(scaled: Tensor) -> Tensor:
    return scaled.clamp(-FP8_MAX, FP8_MAX).to(torch.float8_e4m3fn)


def _int4(weight: Tensor, group: int, least_zero: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Numbers [N, K], zeros [N, groups], and scales [N, groups] in float16, of which each group spans 15."""
    rows, columns = weight.shape
    if columns % group:
        raise ValueError(f"--group-size {group} does not divide {columns} inputs")
    grouped = weight.view(rows, columns // group, group)
    least, most = grouped.amin(-1).clamp_max(0), grouped.amax(-1).clamp_min(0)
    scales = ((most - least) / 15).clamp_min(1e-7).half()
    wide = scales.float()
    zeros = (-least / wide).round().clamp(least_zero, 15)
    numbers = ((grouped / wide[..., None]).round() + zeros[..., None]).clamp(0, 15)
    return numbers.flatten(1).int(), zeros.int(), scales


def _words(numbers: Tensor, places: Sequence[int]) -> Tensor:
    """[..., 8 * n] -> [..., n] int32: nibble n of a word has the number at `places[n]` of its eight."""
    eights = numbers.reshape(*numbers.shape[:-1], -1, 8)
    words = torch.zeros(eights.shape[:-1], dtype=torch.int32)
    for nibble, place in enumerate(places):
        words |= eights[..., place] << 4 * nibble
    return words


def _compressed(form: str, weights: Mapping[str, Any], inputs: Mapping[str, Any] | None) -> dict[str, Any]:
    group = {"targets": ["Linear"], "weights": weights, "input_activations": inputs}
    said = {"quant_method": "compressed-tensors", "format": form, "quantization_status": "compressed"}
    return {**said, "config_groups": {"group_0": group}, "ignore": ["lm_head"]}


EIGHT = {"num_bits": 8, "type": "float", "symmetric": True}
FORMATS: Mapping[str, tuple[Callable[[Tensor, int], Tensors], Callable[[int], dict[str, Any]]]] = {
    "fp8-channel": (
        fp8_channel,
        lambda group: _compressed(
            "float-quantized",
            {**EIGHT, "strategy": "channel", "dynamic": False},
            {**EIGHT, "strategy": "token", "dynamic": True},
        ),
    ),
    "fp8-blocks": (
        fp8_blocks,
        lambda group: {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [BLOCK, BLOCK]},
    ),
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


def quantize(source: Path, target: Path, form: str, group: int) -> None:
    """Write the checkpoint in `source` to `target` in a format. Raises `ValueError` for groups that do not divide."""
    pack, describe = FORMATS[form]
    config = read_config(source)
    inner = _inner_matrices(config)
    stored = Tensors()
    for shard in sorted(source.glob("*.safetensors")):
        for name, tensor in load_file(shard).items():
            if name in inner:
                module = name.removesuffix(".weight")
                stored |= {f"{module}.{role}": part for role, part in pack(tensor.float(), group).items()}
            else:
                stored[name] = tensor
    target.mkdir(parents=True)
    for path in source.iterdir():
        if path.is_file() and ".safetensors" not in path.suffixes and path.name != "config.json":
            shutil.copy(path, target / path.name)
    said = json.loads((source / "config.json").read_text(encoding="utf-8")) | {"quantization_config": describe(group)}
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
    parser.add_argument("--format", required=True, choices=list(FORMATS))
    parser.add_argument(
        "--group-size", type=int, default=128, help="columns that share a scale in int4 (default: %(default)s)"
    )
    options = parser.parse_args(argv)
    if options.group_size < 1:
        parser.error(f"--group-size must be positive, not {options.group_size}")
    if options.directory.exists():
        parser.error(f"{options.directory} exists already")
    try:
        source = find_model(options.model)
        if read_config(source).quantization is not None:
            raise ModelError(f"{source} is quantized already")
        quantize(source, options.directory, options.format, options.group_size)
    except (ValueError, OSError) as error:
        parser.error(str(error))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
