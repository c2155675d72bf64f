"""Writes a checkpoint in the shape of a published model with random weights: for speed and memory, not for answers.

Usage: python -m asynclane.bench.steps.checkpoint DIRECTORY [--shape llada-8b] [--no-weights]
Without weights the directory is for `asynclane serve --load-format dummy`.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from ...models.checkpoint.config import Experts, ModelConfig
from ...models.checkpoint.families import tensor_shapes
from ...models.checkpoint.weights import SINGLE, random_tensor
from .shapes import SHAPES

TEMPLATE = "{% for m in messages %}{{ m.content }} {% endfor %}"


def write(directory: Path, config: ModelConfig, device: torch.device | None) -> None:
    """Write weights in bf16, made on a device, if there is one, a tokenizer with one word for each id, and the
    configuration in the family's format."""
    directory.mkdir(parents=True, exist_ok=True)
    if device is not None:
        (directory / SINGLE).touch()  # with the permissions of other files
        generator = torch.Generator(device).manual_seed(0)
        shapes = tensor_shapes(config)
        save_file(
            {name: random_tensor(shape, generator).bfloat16().cpu() for name, shape in shapes.items()},
            directory / SINGLE,
        )
    _write(directory / "config.json", CONFIGS[config.architecture](config))
    _write_tokenizer(directory, config)


def _llada(config: ModelConfig) -> dict[str, object]:
    return {
        "architectures": [config.architecture],
        "d_model": config.dim,
        "n_layers": config.layers,
        "n_heads": config.heads,
        "n_kv_heads": config.kv_heads,
        "mlp_hidden_size": config.ff_dim,
        "vocab_size": config.vocab_size,
        "embedding_size": config.vocab_size,
        "max_sequence_length": config.max_model_len,
        "rms_norm_eps": config.norm_eps,
        "rope_theta": config.rope_theta,
        "weight_tying": config.tied_head,
        "mask_token_id": config.mask_id,
        "eos_token_id": 1,
    }


def _qwen(config: ModelConfig) -> dict[str, object]:
    """Return the fields of Qwen's configurations, which all families but LLaDA have."""
    return {
        "architectures": [config.architecture],
        "hidden_size": config.dim,
        "num_hidden_layers": config.layers,
        "num_attention_heads": config.heads,
        "num_key_value_heads": config.kv_heads,
        "head_dim": config.head_dim,
        "intermediate_size": config.ff_dim,
        "vocab_size": config.vocab_size,
        "max_position_embeddings": config.max_model_len,
        "rms_norm_eps": config.norm_eps,
        "rope_theta": config.rope_theta,
        "tie_word_embeddings": config.tied_head,
        "mask_token_id": config.mask_id,
        "eos_token_id": 1,
    }


def _sdar(config: ModelConfig) -> dict[str, object]:
    return _qwen(config) | {"attention_bias": False, "block_size": config.block_size}


def _fast_dllm_v2(config: ModelConfig) -> dict[str, object]:
    return _qwen(config) | {"bd_size": config.block_size}


def _wedlm(config: ModelConfig) -> dict[str, object]:
    return _qwen(config) | {"attention_bias": config.qkv_bias, "qk_norm": config.qk_norm}


def _gemma(config: ModelConfig) -> dict[str, object]:
    experts, canvas = _experts(config), config.canvas
    if canvas is None:
        raise ValueError(f"a shape of {config.architecture} has canvases")
    kinds = "sliding_attention", "full_attention"
    text = _qwen(config) | {
        "layer_types": [kinds[layer in canvas.full_layers] for layer in range(config.layers)],
        "num_global_key_value_heads": canvas.full.kv_heads,
        "global_head_dim": canvas.full.head_dim,
        "moe_intermediate_size": experts.ff_dim,
        "num_experts": experts.count,
        "top_k_experts": experts.routing.chosen,
        "hidden_activation": "gelu_pytorch_tanh",
        "sliding_window": canvas.sliding.window,
        "final_logit_softcapping": canvas.softcap,
        "pad_token_id": config.mask_id,
    }
    # Both kinds of layers say their own angles.
    return {
        "architectures": [config.architecture],
        "text_config": {key: value for key, value in text.items() if key not in ("rope_theta", "architectures")},
        "canvas_length": canvas.canvas_length,
        "tie_word_embeddings": True,
        "eos_token_id": 1,
    }


def _mixture(config: ModelConfig, experts: Experts) -> dict[str, object]:
    return _qwen(config) | {
        "num_experts": experts.count,
        "num_experts_per_tok": experts.routing.chosen,
        "partial_rotary_factor": config.rotary_share,
    }


def _experts(config: ModelConfig) -> Experts:
    if config.experts is None:
        raise ValueError(f"a shape of {config.architecture} has experts")
    return config.experts


def _sdar_moe(config: ModelConfig) -> dict[str, object]:
    experts = _experts(config)
    return _sdar(config) | {
        "num_experts": experts.count,
        "num_experts_per_tok": experts.routing.chosen,
        "moe_intermediate_size": experts.ff_dim,
        "norm_topk_prob": experts.routing.normed,
    }


def _llada_moe(config: ModelConfig) -> dict[str, object]:
    experts = _experts(config)
    return _mixture(config, experts) | {
        "expert_intermediate_size": experts.ff_dim,
        "moe_layer_freq": [1] * config.layers,
        "qk_layernorm": config.qk_norm,
    }


def _llada2(config: ModelConfig) -> dict[str, object]:
    experts = _experts(config)
    return _mixture(config, experts) | {
        "moe_intermediate_size": experts.ff_dim,
        "num_shared_experts": experts.shared_ff_dim // experts.ff_dim,
        "first_k_dense_replace": experts.first_layer,
        "n_group": experts.routing.groups,
        "topk_group": experts.routing.live_groups,
        "routed_scaling_factor": experts.routing.scale,
        "block_size": config.block_size,
    }


CONFIGS: Mapping[str, Callable[[ModelConfig], dict[str, object]]] = {
    "LLaDAModelLM": _llada,
    "DreamModel": _qwen,
    "Fast_dLLM_QwenForCausalLM": _fast_dllm_v2,
    "WeDLMForCausalLM": _wedlm,
    "DiffusionGemmaForBlockDiffusion": _gemma,
    "SDARForCausalLM": _sdar,
    "SDARMoeForCausalLM": _sdar_moe,
    "LLaDAMoEModelLM": _llada_moe,
    "LLaDA2MoeModelLM": _llada2,
}


def _write_tokenizer(directory: Path, config: ModelConfig) -> None:
    """Write words that are numbers, a full stop, and the mask. Only the end token, id 1, ends an answer."""
    words = {f"w{number}": number for number in range(config.vocab_size)}
    special = {"<|mask|>": config.mask_id, "<|end|>": 1}
    words = {word: number for word, number in words.items() if number not in (*special.values(), 2)}
    tokenizer = Tokenizer(models.WordLevel(words | special | {".": 2}, unk_token="w3"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.decoder = decoders.Sequence([])
    tokenizer.add_special_tokens(list(special))
    tokenizer.save(str(directory / "tokenizer.json"))
    _write(
        directory / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "mask_token": "<|mask|>",
            "eos_token": "<|end|>",
            "chat_template": TEMPLATE,
        },
    )


def _write(path: Path, value: object) -> None:
    path.write_text(json.dumps(value), encoding="utf-8")


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m asynclane.bench.steps.checkpoint",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("directory", type=Path)
    parser.add_argument("--shape", choices=SHAPES, default="llada-8b")
    parser.add_argument("--weights", action=argparse.BooleanOptionalAction, default=True, help="write them, too")
    options = parser.parse_args(argv)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")  # a GPU draws billions of numbers at once
    try:
        write(options.directory, SHAPES[options.shape], device if options.weights else None)
    except OSError as error:
        parser.error(f"{options.directory} cannot be written: {error.strerror or error}")
    print(f"{options.directory}: {options.shape}, random weights")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
