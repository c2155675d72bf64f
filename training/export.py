"""Writes a trained network as a checkpoint that the server, and any other program of its family, can read."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from ..models.checkpoint.families import NAMES
from .network import Network

TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "generation_config.json")
WEIGHTS = "model.safetensors"


def tensor_names(network: Network) -> dict[str, str]:
    """From the names of the network's parameters to those of its family."""
    names = NAMES[network.shape.architecture]

    def named(parameter: str) -> str:
        first, *rest = parameter.split(".")
        if first != "blocks":
            return names[first]
        number, part, kind = rest
        return names[part if kind == "weight" else f"{part}_{kind}"].format(layer=number)

    return {parameter: named(parameter) for parameter, _ in network.named_parameters()}


def export(network: Network, directory: Path, tokenizer: Path, template: Path | None = None) -> None:
    """Weights in bfloat16, config.json, and the tokenizer's files of the directory `tokenizer`, with the chat template
    of the file `template` if there is one."""
    directory.mkdir(parents=True, exist_ok=True)
    names = tensor_names(network)
    weights = {
        names[name]: weight.detach().to(torch.bfloat16).cpu().contiguous()
        for name, weight in network.named_parameters()
    }
    save_file(weights, directory / WEIGHTS, metadata={"format": "pt"})
    (directory / WEIGHTS).chmod(0o644)  # whoever serves it may be another user
    config = json.dumps(network.shape.config(), indent=2, sort_keys=True)
    (directory / "config.json").write_text(config + "\n", encoding="utf-8")
    for name in TOKENIZER_FILES:
        if (tokenizer / name).resolve() != (directory / name).resolve():
            shutil.copyfile(tokenizer / name, directory / name)
    if template:
        path = directory / "tokenizer_config.json"
        config_ = json.loads(path.read_text(encoding="utf-8"))
        config_["chat_template"] = template.read_text(encoding="utf-8").rstrip("\n")
        path.write_text(json.dumps(config_, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def restore(network: Network, directory: Path) -> None:
    """Takes the weights of a checkpoint in one file or many."""
    weights: dict[str, torch.Tensor] = {}
    for path in sorted(directory.glob("*.safetensors")):
        weights |= load_file(path)
    network.load_state_dict({name: weights[tensor].float() for name, tensor in tensor_names(network).items()})
