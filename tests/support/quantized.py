"""Quantized checkpoints for tests, packed by code of their own: numbers are placed one by one, as each layout says."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from asynclane.models.checkpoint.weights import SINGLE

GROUP = 32
Packed = tuple[dict[str, Tensor], Tensor]  # tensors by the last part of their names, and the numbers that they mean
AWQ_PLACES = [0, 2, 4, 6, 1, 3, 5, 7]  # nibble n of a word has the output of this number


def words(numbers: np.ndarray, places: list[int]) -> Tensor:
    """[..., 8 * n] -> [..., n]: nibble n of a word has the number at `places[n]` of its eight."""
    grouped = numbers.reshape(*numbers.shape[:-1], -1, 8).astype(np.uint32)
    found = sum(grouped[..., place] << np.uint32(4 * nibble) for nibble, place in enumerate(places))
    return torch.from_numpy(np.asarray(found, np.uint32).view(np.int32).copy())


def spread(weight: Tensor, group: int, symmetric: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray, Tensor]:
    """Numbers [N, K], zeros [N, G] and float16 scales [N, G] of a weight rounded to 4 bits, and its rounded numbers."""
    rows, columns = weight.shape
    grouped = weight.float().numpy().reshape(rows, columns // group, group)
    low, high = np.minimum(grouped.min(-1), 0), np.maximum(grouped.max(-1), 0)
    scales = (np.abs(grouped).max(-1) / 7 if symmetric else (high - low) / 15).astype(np.float16)
    zeros = np.full_like(scales, 8) if symmetric else np.round(-low / scales.astype(np.float32)).clip(1, 15)
    wide = scales.astype(np.float32)[..., None]
    numbers = (np.round(grouped / wide) + zeros.astype(np.float32)[..., None]).clip(0, 15)
    meant = torch.from_numpy((numbers - zeros[..., None]).astype(np.float32) * wide).view(rows, columns)
    return numbers.reshape(rows, columns), zeros, scales, meant


def awq(weight: Tensor, group: int = GROUP, places: list[int] = AWQ_PLACES) -> Packed:
    numbers, zeros, scales, meant = spread(weight, group, symmetric=False)
    tensors = {
        "qweight": words(numbers.T, places),
        "qzeros": words(zeros.T, places),
        "scales": torch.from_numpy(scales.T.copy()),
    }
    return tensors, meant


def gptq(
    weight: Tensor, group: int = GROUP, first: bool = True, symmetric: bool = False, order: bool = False
) -> Packed:
    """`order`: the columns are quantized in another order, so that those of a group are not neighbours."""
    columns = weight.shape[1]
    mixed = torch.randperm(columns, generator=torch.Generator().manual_seed(1)) if order else torch.arange(columns)
    numbers, zeros, scales, meant = spread(weight[:, mixed], group, symmetric)
    back = mixed.argsort()
    tensors = {
        "qweight": words(numbers[:, back.numpy()], [*range(8)]).T.contiguous(),
        "qzeros": words(zeros.T - (1 if first else 0), [*range(8)]),
        "scales": torch.from_numpy(scales.T.copy()),
        "g_idx": (back // group).int(),
    }
    return tensors, meant[:, back]


def packed(weight: Tensor, group: int = GROUP, symmetric: bool = True, order: bool = False) -> Packed:
    found, meant = gptq(weight, group, symmetric=symmetric, order=order)
    rows, columns = weight.shape
    _, zeros, _, _ = spread(weight, group, symmetric)
    tensors = {
        "weight_packed": found["qweight"].T.contiguous(),
        "weight_scale": found["scales"].T.contiguous(),
        "weight_shape": torch.tensor([rows, columns]),
    }
    if not symmetric:
        tensors["weight_zero_point"] = words(zeros.T, [*range(8)]).T.contiguous()
    if order:
        tensors["weight_g_idx"] = found["g_idx"]
    return tensors, meant


def fp8(weight: Tensor, scales: Tensor) -> tuple[Tensor, Tensor]:
    values = (weight / scales).clamp(-448, 448).to(torch.float8_e4m3fn)
    return values, values.float() * scales


def fp8_tensor(weight: Tensor, static: bool = False) -> Packed:
    scale = weight.abs().max() / 448
    values, meant = fp8(weight, scale)
    return {"weight": values, "weight_scale": scale} | ({"input_scale": torch.tensor(0.5)} if static else {}), meant


def fp8_channel(weight: Tensor) -> Packed:
    scales = weight.abs().amax(1, keepdim=True) / 448
    values, meant = fp8(weight, scales)
    return {"weight": values, "weight_scale": scales}, meant


def fp8_blocks(weight: Tensor, name: str = "weight_scale_inv", block: tuple[int, int] = (48, 32)) -> Packed:
    rows, columns = weight.shape
    scales = torch.empty_like(weight)
    for row in range(0, rows, block[0]):
        for column in range(0, columns, block[1]):
            here = slice(row, row + block[0]), slice(column, column + block[1])
            scales[here] = weight[here].abs().max() / 448
    kept = scales[:: block[0], :: block[1]].contiguous()
    values, meant = fp8(weight, scales)
    return {"weight": values, name: kept}, meant


def compressed(form: str, **weights: Any) -> dict[str, Any]:
    kind = {"num_bits": 4, "type": "int"} if form == "pack-quantized" else {"num_bits": 8, "type": "float"}
    inputs = (
        None if form == "pack-quantized" else {"num_bits": 8, "type": "float", "dynamic": True, "strategy": "token"}
    )
    group = {"targets": ["Linear"], "weights": kind | weights, "input_activations": inputs}
    return {"quant_method": "compressed-tensors", "format": form, "config_groups": {"group_0": group}}


@dataclass(frozen=True)
class Format:
    """`config`: of config.json, or, with `file`, of a file of that name beside it. `left`: the key of modules that are
    left alone. `kept`: the form in which memory can keep it."""

    config: Mapping[str, Any]
    pack: Callable[[Tensor], Packed]
    left: str = "modules_to_not_convert"
    file: str | None = None
    kept: str | None = None


BLOCKS = {"strategy": "block", "block_structure": [48, 32]}
FORMATS: Mapping[str, Format] = {
    "fp8": Format({"quant_method": "fp8", "activation_scheme": "dynamic"}, fp8_tensor, kept="fp8"),
    "fp8 static": Format(
        {"quant_method": "fp8", "activation_scheme": "static"},
        lambda weight: fp8_tensor(weight, static=True),
        "ignored_layers",
        kept="fp8",
    ),
    "fp8 blocks": Format({"quant_method": "fp8", "weight_block_size": [48, 32]}, fp8_blocks, kept="fp8 blocks"),
    "ct tensor": Format(compressed("naive-quantized", strategy="tensor"), fp8_tensor, "ignore", kept="fp8"),
    "ct channel": Format(compressed("float-quantized", strategy="channel"), fp8_channel, "ignore", kept="fp8"),
    "ct block": Format(
        compressed("float-quantized", **BLOCKS), lambda w: fp8_blocks(w, "weight_scale"), "ignore", kept="fp8 blocks"
    ),
    "modelopt": Format(
        {"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8"}},
        lambda weight: fp8_tensor(weight, static=True),
        "exclude_modules",
        "hf_quant_config.json",
        kept="fp8",
    ),
    "awq": Format(
        {"quant_method": "awq", "bits": 4, "group_size": GROUP, "zero_point": True, "version": "gemm"},
        awq,
        kept="int4",
    ),
    "awq file": Format(
        {"w_bit": 4, "q_group_size": 16, "zero_point": True, "version": "GEMM"},
        lambda weight: awq(weight, 16),
        file="quant_config.json",
    ),
    "gptq": Format({"quant_method": "gptq", "bits": 4, "group_size": GROUP, "sym": False}, gptq, kept="int4"),
    "gptq sym": Format(
        {"quant_method": "gptq", "bits": 4, "group_size": GROUP, "sym": True, "checkpoint_format": "gptq"},
        lambda weight: gptq(weight, symmetric=True),
        kept="int4",
    ),
    "gptq v2": Format(
        {"quant_method": "gptq", "bits": 4, "group_size": -1, "checkpoint_format": "gptq_v2"},
        lambda weight: gptq(weight, weight.shape[1], first=False),
        kept="int4",
    ),
    "gptq act order": Format(
        {"bits": 4, "group_size": GROUP, "desc_act": True},
        lambda weight: gptq(weight, order=True),
        file="quantize_config.json",
    ),
    "ct int4": Format(
        compressed("pack-quantized", strategy="group", group_size=GROUP, symmetric=True),
        packed,
        "ignore",
        kept="int4",
    ),
    "ct int4 asym": Format(
        compressed("pack-quantized", strategy="group", group_size=GROUP, symmetric=False),
        lambda weight: packed(weight, symmetric=False),
        "ignore",
        kept="int4",
    ),
    "ct int4 channel": Format(
        compressed("pack-quantized", strategy="channel"),
        lambda weight: packed(weight, weight.shape[1]),
        "ignore",
        kept="int4",
    ),
    "ct int4 act order": Format(
        compressed("pack-quantized", strategy="group", group_size=GROUP, actorder="group"),
        lambda weight: packed(weight, order=True),
        "ignore",
    ),
}


def quantize(directory: Path, name: str, leave: tuple[str, ...] = ()) -> dict[str, Tensor]:
    """Quantize the blocks' matrices of a checkpoint in one file, except those that `leave` names. Returns the numbers
    that the weights then mean, by name."""
    form = FORMATS[name]
    stored, meant = dict[str, Tensor](), load_file(directory / SINGLE)
    for weight, tensor in list(meant.items()):
        module = weight.removesuffix(".weight")
        inner = "layers." in weight or "blocks." in weight
        if tensor.dim() == 2 and inner and not weight.endswith("mlp.gate.weight") and not module.endswith(leave or "?"):
            parts, meant[weight] = form.pack(tensor)
            stored |= {f"{module}.{role}": part for role, part in parts.items()}
        else:
            stored[weight] = tensor
    save_file({key: tensor.contiguous() for key, tensor in stored.items()}, directory / SINGLE)
    said = copy.deepcopy(dict(form.config))
    inside = said.get("quantization", said)
    inside[form.left] = ["lm_head", *leave]
    if form.file:
        (directory / form.file).write_text(json.dumps(said))
    else:
        edit(directory, quantization_config=said)
    return meant


def edit(directory: Path, **changes: Any) -> None:
    path = directory / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
