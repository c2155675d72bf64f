"""Quantized DiffusionGemma: matrices of the dense layers and of each expert are read in the published form, and compute
what their dequantized twin does; what contradicts itself is refused by name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from asynclane.models.checkpoint.config import ModelError, read_config
from asynclane.models.checkpoint.weight_report import weight_report
from asynclane.models.checkpoint.weights import SINGLE, check_weights

from ..support.checkpoints import GEMMA, write_checkpoint
from ..support.gemma import denoised, encoded, gemma_runner, placed, plan
from ..support.quantized import FORMATS, quantize

LAYER, TWIN, OWN = "model.decoder.layers.0.", "model.encoder.language_model.", "model.decoder."
ROUTER = ("router.proj",)
SIZES = {"experts": 4, "chosen": 4}  # every token chooses all: none can choose another one for a rounding
Tensors = dict[str, Tensor]


def split(tensors: Tensors) -> Tensors:
    """Experts as quantized checkpoints have them: each matrix is a tensor of its own."""
    found: Tensors = {}
    for name, tensor in tensors.items():
        if tensor.dim() != 3:
            found[name] = tensor
            continue
        layer, _, kind = name.rpartition(".experts.")
        for number, matrix in enumerate(tensor):
            halves = dict(zip(("gate_proj", "up_proj"), matrix.chunk(2), strict=True))
            parts = halves if kind == "gate_up_proj" else {"down_proj": matrix}
            found |= {f"{layer}.experts.{number}.{part}.weight": each.clone() for part, each in parts.items()}
    return found


def rewrite(directory: Path, change: Callable[[Tensors], Tensors]) -> Path:
    save_file(change(load_file(directory / SINGLE)), directory / SINGLE)
    return directory


def written(directory: Path, name: str, *, experts: bool = True) -> Tensors:
    """A checkpoint in a format, with its `experts` or without. Returns the numbers that its weights mean."""
    write_checkpoint(directory, GEMMA, **SIZES)
    if experts:
        rewrite(directory, split)
    return quantize(directory, name, leave=ROUTER)


def logits(directory: Path, **hardware: Any) -> tuple[Tensor, Tensor]:
    """Those of a canvas after a prompt, and those of the next step, with what the first one expected."""
    runner = gemma_runner(directory, **hardware)
    prompt, canvas = (np.random.default_rng(size).integers(100, 1400, size, np.int32) for size in (11, 16))
    first = plan([placed(0, prompt.tolist())], encoded(0, 0, 11), denoised(0, 11, canvas, 0.7, True))
    found = runner.logits(first).clone()
    runner.execute(first)
    return found, runner.logits(plan([], denoised(0, 11, canvas, 1.0, False)))


@pytest.mark.parametrize(
    ("name", "experts"),
    [
        *((name, True) for name in ("ct channel", "ct tensor", "ct block", "ct int4", "awq", "gptq act order")),
        *((name, False) for name in ("ct channel", "ct block", "ct int4")),
    ],
)
def test_it_computes_what_its_dequantized_twin_does(tmp_path: Path, name: str, experts: bool) -> None:
    meant = written(tmp_path / "stored", name, experts=experts)
    plain = write_checkpoint(tmp_path / "plain", GEMMA, **SIZES)
    save_file(meant, plain / SINGLE)  # plain experts may lie apart, too
    want = logits(plain)
    assert all(map(torch.equal, logits(tmp_path / "stored"), want))
    report = weight_report(tmp_path / "stored", read_config(tmp_path / "stored"))
    assert report.quantized == sum(
        tensor.dim() == 2 and "layers" in key and "router" not in key for key, tensor in meant.items()
    )
    kept = FORMATS[name].kept
    if kept is None or (name == "ct block" and experts):  # blocks of 48 rows end within an expert
        return
    near, _ = logits(tmp_path / "stored", quantization="int4" if kept == "int4" else "fp8")
    likeness = torch.cosine_similarity(near, want[0], dim=-1)
    assert likeness.min() > (0.99999 if kept == "int4" else 0.95), likeness  # weights in FP8 have inputs in FP8


@pytest.mark.parametrize("name", [None, "ct channel"])
def test_the_encoders_tensors_stand_for_the_decoders(tmp_path: Path, name: str | None) -> None:
    """Under the encoder's prefix alone, or under both if they are equal; a head may be stored as well."""
    if name is None:
        write_checkpoint(tmp_path, GEMMA, **SIZES)
    else:
        written(tmp_path, name)
    want = logits(tmp_path)

    def moved(tensors: Tensors) -> Tensors:
        alone = ("layer_scalar", "self_conditioning")
        found = {
            TWIN + name.removeprefix(OWN) if name.startswith(OWN) and not any(map(name.count, alone)) else name: tensor
            for name, tensor in tensors.items()
        }
        return found | {"lm_head.weight": tensors[f"{OWN}embed_tokens.weight"].clone()}

    decoders = load_file(tmp_path / SINGLE)
    rewrite(tmp_path, moved)
    assert all(map(torch.equal, logits(tmp_path), want))
    rewrite(tmp_path, lambda tensors: {name: tensor.clone() for name, tensor in tensors.items()} | decoders)
    assert all(map(torch.equal, logits(tmp_path), want))
    if name is None:
        return
    for name in (f"{LAYER}experts.3.up_proj.weight_scale", f"{LAYER}mlp.gate_proj.weight", f"{OWN}norm.weight"):
        changed = decoders[name].float()
        changed.view(-1)[-1] *= -1
        other = {TWIN + name.removeprefix(OWN): changed.to(decoders[name].dtype)}
        rewrite(tmp_path, lambda tensors, other=other: tensors | other)
        with pytest.raises(ModelError, match=r"is not equal to model\.decoder\..*, but the network has") as refused:
            check_weights(tmp_path, read_config(tmp_path))
        assert next(iter(other)) in str(refused.value)
        rewrite(tmp_path, lambda tensors, other=other: {k: v for k, v in tensors.items() if k not in other})


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        (
            "ct int4",
            lambda found: {key: each for key, each in found.items() if key != f"{LAYER}layer_scalar"},
            r"lacks model\.decoder\.layers\.0\.layer_scalar",
        ),
        (
            "ct channel",
            lambda found: {
                key: each for key, each in found.items() if key != f"{LAYER}experts.2.down_proj.weight_scale"
            },
            r"lacks model.decoder.layers.0.experts.2.down_proj.weight_scale",
        ),
        (
            "ct int4",
            lambda found: found | {f"{LAYER}experts.0.up_proj.weight_scale": torch.ones(3, 1)},
            r"experts.0.up_proj.weight_scale is \[3, 1\], config.json says \[32, 2\]",
        ),
        (
            "ct channel",
            lambda found: found | {f"{LAYER}experts.4.up_proj.weight": torch.ones(32, 64)},
            "unexpected tensor model.decoder.layers.0.experts.4.up_proj.weight",
        ),
        (
            "ct channel",
            lambda found: (
                {key: each for key, each in found.items() if ".experts." not in key}
                | {
                    f"model.decoder.layers.{layer}.experts.{kind}": torch.zeros(shape).to(torch.float8_e4m3fn)
                    for layer in (0, 1)
                    for kind, shape in (("gate_up_proj", (4, 64, 64)), ("down_proj", (4, 64, 32)))
                }
            ),
            "experts.down_proj is quantized, but no matrix; experts are read where each has a tensor of its own",
        ),
    ],
    ids=range(5),
)
def test_what_cannot_be_read_is_refused_by_name(tmp_path: Path, name: str, change: Any, message: str) -> None:
    written(tmp_path, name)
    rewrite(tmp_path, change)
    with pytest.raises(ModelError, match=message) as refused:
        check_weights(tmp_path, read_config(tmp_path))
    assert "\n" not in str(refused.value)
