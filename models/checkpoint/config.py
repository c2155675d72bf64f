"""Reads config.json of a checkpoint into one shape for all families; refuses what the network here cannot compute.

A new family: a reader in `READERS` here, and the names of its tensors in `families.NAMES`.
"""

from __future__ import annotations

import json
import math
import os
import re
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ...kernels.common.types import Routing
from ...scheduler.decoding.attention_pattern import AttentionPattern
from .lora import Adapter
from .quantization import Quantization, read_quantization

# No model comes near these sizes: larger ones would fill the memory before they are found not to match the weights.
MOST = {
    "dim": 2**20,
    "layers": 2**10,
    "heads": 2**12,
    "kv_heads": 2**12,
    "ff_dim": 2**22,
    "vocab_size": 2**24,
    "max_model_len": 2**24,
}
MOST_EXPERTS = 2**10
NAMED_BLOCK = re.compile(r"-b(8|16|32|64)$")  # the end of a checkpoint's name


class ModelError(ValueError):
    """A checkpoint that cannot be served; the message says what is wrong with which file."""


@dataclass(frozen=True, slots=True)
class Experts:
    """A mixture of experts: `count` MLPs of width `ff_dim` in all layers from `first_layer` on.

    `biased`: a bias is added to scores where experts are chosen. `shared_ff_dim`: width of an MLP that every token
    passes besides; 0: there is none. Raises `ValueError` for numbers that do not go together.
    """

    count: int
    ff_dim: int
    routing: Routing
    biased: bool = False
    shared_ff_dim: int = 0
    first_layer: int = 0

    def __post_init__(self) -> None:
        chosen, groups, live = self.routing.chosen, self.routing.groups, self.routing.live_groups
        if min(self.count, self.ff_dim, chosen, groups, live) < 1 or min(self.shared_ff_dim, self.first_layer) < 0:
            raise ValueError(f"experts cannot be computed: {self}")
        if not 0 < self.routing.scale < math.inf:
            raise ValueError(f"weights of experts cannot be scaled by {self.routing.scale}")
        size = self.count // groups
        # A group is as strong as its two best experts.
        if self.count % groups or live > groups or (groups > 1 and size < 2):
            raise ValueError(f"{live} of {groups} groups cannot be chosen of {self.count} experts")
        if chosen > size * live:
            raise ValueError(f"{chosen} experts cannot be chosen of {size * live}")


@dataclass(frozen=True, slots=True)
class Heads:
    """The attention of one layer, of the network's query heads: `kv_heads` for keys and values, `head_dim` numbers of a
    head. The first `rotated` pairs of each half turn by `rope_theta`. `window`: the last keys that a position sees, 0:
    all. `shared`: values are made by the same matrix as keys."""

    kv_heads: int
    head_dim: int
    rope_theta: float
    rotated: int
    window: int = 0
    shared: bool = False


@dataclass(frozen=True, slots=True)
class CanvasNetwork:
    """A network whose canvas holds random tokens instead of masks (DiffusionGemma): an encoder, which is
    causal, and a decoder of the same weights over whole canvases of `canvas_length` positions.

    `full_layers` see all keys, with `full` heads; all others have a window. Logits are `softcap * tanh(logits /
    softcap)`. `sampler` are the parameters of the decoder that generation_config.json names.
    """

    canvas_length: int
    softcap: float
    sliding: Heads
    full: Heads
    full_layers: tuple[int, ...]
    sampler: tuple[tuple[str, object], ...] = ()


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Shape of a transformer with rotary positions, RMS norms and SwiGLU; in most families it has no causal mask.

    `qkv_bias`: queries, keys and values have biases. `qk_norm`: each head's queries and keys are normed before they are
    rotated. `logit_shift` 1: the hidden state at a position predicts the next token. `block_size` 0: every position
    sees every other; n: position p sees those below `(p // n + 1) * n`. `known_first`: in the order of a row in which
    its masks come last. `rotary_share` of each head's numbers are rotated.
    """

    architecture: str
    dim: int
    layers: int
    heads: int
    kv_heads: int
    ff_dim: int
    vocab_size: int
    max_model_len: int
    norm_eps: float
    rope_theta: float
    tied_head: bool
    mask_id: int
    head_dim: int
    qkv_bias: bool = False
    qk_norm: bool = False
    logit_shift: int = 0
    block_size: int = 0
    known_first: bool = False
    rotary_share: float = 1.0
    experts: Experts | None = None
    block_source: str = ""  # what said the block size
    caveat: str = ""  # how what is computed differs from the published network
    quantization: Quantization | None = None  # of the files, not of the memory
    adapter: Adapter | None = None
    canvas: CanvasNetwork | None = None

    def heads_of(self, layer: int) -> Heads:
        if self.canvas is None:
            return Heads(self.kv_heads, self.head_dim, self.rope_theta, self.rotary_dim // 2)
        return self.canvas.full if layer in self.canvas.full_layers else self.canvas.sliding

    @property
    def rotary_dim(self) -> int:
        return int(self.head_dim * self.rotary_share)

    @property
    def pattern(self) -> AttentionPattern:
        """The part that the scheduler needs."""
        if self.canvas is None:
            return AttentionPattern(self.logit_shift, self.block_size, self.known_first)
        canvas = self.canvas
        return AttentionPattern(
            self.logit_shift, self.block_size, canvas_length=canvas.canvas_length, sampler=canvas.sampler
        )


def read_config(directory: Path, block_size: int | None = None) -> ModelConfig:
    """The configuration, with blocks of `block_size` if that is given. Raises `ModelError` for a missing or broken
    file, an unknown architecture or an unsupported variant."""
    path = directory / "config.json"
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        if (directory / "adapter_config.json").exists():
            raise ModelError(f"{directory} is a LoRA adapter: serve its base model with --lora {directory}") from None
        raise ModelError(f"{directory} has no config.json: not a model directory") from None
    except (OSError, ValueError, RecursionError) as error:
        raise ModelError(f"{path} cannot be read: {error}") from None
    if not isinstance(raw, dict):
        raise ModelError(f"{path} is no object but {type(raw).__name__}: not the configuration of a model")
    names = raw.get("architectures")
    name = names[0] if isinstance(names, list) and names else None
    if not isinstance(name, str) or name not in READERS:
        raise ModelError(f"{path}: architecture {name!r} is not supported; supported: {', '.join(READERS)}")
    if name in SAMPLERS:
        raw["generation_config"] = _generation_config(directory)
    if raw.get("mask_token_id") is None and (mask := _mask_of_tokenizer(directory)) is not None:
        raw["mask_token_id"] = mask
    said = _Keys(raw)
    said.block_size, said.names = block_size, _names(directory)
    try:
        config = _checked(READERS[name](name, said))
        _refuse_unread(said, config)
        if block_size is not None and (config.canvas is not None or not config.pattern.bounded):
            raise ValueError(f"--block-size is for block-causal models: {name} has no blocks")
        return replace(config, quantization=read_quantization(directory, raw))
    except KeyError as error:
        raise ModelError(f"{path} lacks {error}") from None
    except (TypeError, ValueError, OverflowError, AttributeError) as error:
        raise ModelError(f"{path}: {error}") from None


def _names(directory: Path) -> tuple[str, ...]:
    """The name of a directory, also of one that is given as `.`, and that of a repository in Hugging Face's cache."""
    whole = Path(os.path.abspath(directory))  # not resolved: the name of a link counts
    return (whole.name, *(above.name for above in whole.parents[1:2]))


class _Keys(dict[str, Any]):
    """A configuration that records which of its keys a reader has looked up. `block_size` is the one that a setting
    gives, `names` are those of its directory and, in the cache of Hugging Face, of its repository."""

    block_size: int | None = None
    names: tuple[str, ...] = ()

    def __init__(self, raw: Mapping[str, Any]) -> None:
        super().__init__(raw)
        self.read = set[str]()
        if isinstance(text := raw.get("text_config"), Mapping):  # that of the text part of a larger network
            self["text_config"] = _Keys(text)

    def __getitem__(self, key: str) -> Any:
        self.read.add(key)
        return super().__getitem__(key)

    def get(self, key: str, default: Any = None) -> Any:
        self.read.add(key)
        return super().get(key, default)


# Keys that change what some network computes, with the values at which they do not. A family whose reader does not look
# one up cannot compute any other value.
NEUTRAL: Mapping[str, tuple[object, ...]] = {
    **dict.fromkeys(
        (
            *("alibi", "use_alibi", "use_mrope", "rope_interleave", "rope_interleaved"),  # positions
            *("attention_bias", "attention_out_bias", "include_bias", "include_qkv_bias", "lm_head_bias", "mlp_bias"),
            *("qkv_bias", "use_bias", "use_qkv_bias", "bias_for_layer_norm"),
            *("attention_layer_norm", "input_emb_norm", "norm_head", "qk_layernorm", "qk_norm", "use_qk_norm"),
            *("attn_output_gate", "attention_sinks", "multi_query_attention", "use_sliding_window"),
            *("parallel_attn", "use_parallel_residual", "scale_embedding", "scale_logits"),
            "moe_router_enable_expert_bias",
        ),
        (None, False),
    ),
    **dict.fromkeys(
        (
            *("rope_scaling", "rope_parameters", "mrope_section", "no_rope_layers"),
            *("vision_config", "vision_tower", "mm_vision_tower", "audio_config"),
            "mlp_only_layers",
        ),
        (None, {}, []),
    ),
    **dict.fromkeys(
        (
            *("clip_qkv", "attention_chunk_size", "sliding_window", "sliding_window_pattern", "query_pre_attn_scalar"),
            *("attn_logit_softcap", "attn_logit_softcapping", "final_logit_softcap", "final_logit_softcapping"),
        ),
        (None,),
    ),
    **dict.fromkeys(
        (
            *("num_experts", "num_local_experts", "n_routed_experts", "num_shared_experts", "n_shared_experts"),
            *("shared_expert_intermediate_size", "first_k_dense_replace", "num_nextn_predict_layers"),
        ),
        (None, 0),
    ),
    **dict.fromkeys(
        (
            *("partial_rotary_factor", "rotary_pct", "rope_ratio", "decoder_sparse_step", "routed_scaling_factor"),
            *("attention_multiplier", "embedding_multiplier", "residual_multiplier", "logits_scaling", "logit_scale"),
            *("lm_head_multiplier", "scale_emb", "n_group", "topk_group"),
        ),
        (None, 1),
    ),
}


def _refuse_unread(raw: _Keys, config: ModelConfig) -> None:
    """Raises `ValueError` for a key that changes the computation and that the family's reader has not looked up."""
    neutral = dict(NEUTRAL)
    if "use_sliding_window" in raw.keys() | raw.read:  # it decides, and must be off
        del neutral["sliding_window"]
    for key, values in neutral.items():
        if key in raw and key not in raw.read and raw[key] not in values:
            raise ValueError(f"{key} = {_shown(raw[key])} is not supported by {config.architecture}")
    for kind in raw.get("layer_types") or ():
        if kind != "full_attention" and config.canvas is None:
            raise ValueError(f"layer_types with {_shown(kind)} is not supported, only 'full_attention'")
    if config.canvas is not None and isinstance(raw.get("text_config"), _Keys):
        _refuse_unread(raw["text_config"], config)
    if raw.get("rotary_dim") not in (None, config.rotary_dim):
        raise ValueError(f"rotary_dim = {_shown(raw['rotary_dim'])}, but {config.rotary_dim} numbers are rotated")


def _shown(value: object) -> str:
    return textwrap.shorten(repr(value), 80, placeholder=" ...")


def _generation_config(directory: Path) -> Mapping[str, Any]:
    """The contents of generation_config.json; nothing without such a file."""
    path = directory / "generation_config.json"
    try:
        said = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as error:
        raise ModelError(f"{path} cannot be read: {error}") from None
    if not isinstance(said, dict):
        raise ModelError(f"{path} is no object but {type(said).__name__}")
    return said


def _mask_of_tokenizer(directory: Path) -> int | None:
    """The id of the mask token that tokenizer_config.json names: some checkpoints say it nowhere else."""
    try:
        said = json.loads((directory / "tokenizer_config.json").read_text(encoding="utf-8"))
        mask = said["mask_token"]
        content = mask["content"] if isinstance(mask, dict) else mask
        return next(int(key) for key, token in said["added_tokens_decoder"].items() if token["content"] == content)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, StopIteration, RecursionError):
        return None  # then it is config.json that lacks it


def _checked(config: ModelConfig) -> ModelConfig:
    """`config`, if the network can have these sizes. Raises `ValueError` with the one that it cannot."""
    for name, most in MOST.items():
        if not 1 <= getattr(config, name) <= most:
            raise ValueError(f"{name} is {getattr(config, name)}, not from 1 to {most}")
    if config.experts is not None and config.experts.count > MOST_EXPERTS:
        raise ValueError(f"{config.experts.count} experts are more than {MOST_EXPERTS}")
    for name in ("norm_eps", "rope_theta"):
        if not 0 < getattr(config, name) < math.inf:
            raise ValueError(f"{name} is {getattr(config, name)}, not a positive number")
    for heads in {config.heads_of(layer) for layer in range(config.layers)}:
        if heads.kv_heads < 1 or config.heads % heads.kv_heads or heads.head_dim < 2 or heads.head_dim % 2:
            raise ValueError(
                f"{config.heads} heads of {heads.head_dim} on {heads.kv_heads} key heads cannot be computed"
            )
        if heads.window < 0 or not 0 <= heads.rotated <= heads.head_dim // 2 or not 0 < heads.rope_theta < math.inf:
            raise ValueError(f"heads cannot be computed: {heads}")
    if config.canvas is not None and not (
        1 <= config.canvas.canvas_length <= config.max_model_len and 0 < config.canvas.softcap < math.inf
    ):
        raise ValueError(
            f"canvas_length {config.canvas.canvas_length} and final_logit_softcapping {config.canvas.softcap} cannot be"
            f" computed in a context of {config.max_model_len}"
        )
    if not 0 <= config.mask_id < config.vocab_size:
        raise ValueError(f"mask token {config.mask_id} is not below the vocabulary's {config.vocab_size}")
    if not 2 <= config.rotary_dim <= config.head_dim or config.rotary_dim % 2:
        raise ValueError(f"{config.rotary_dim} of {config.head_dim} numbers of a head cannot be rotated")
    if config.block_size > config.max_model_len:
        raise ValueError(f"blocks of {config.block_size} positions do not fit a context of {config.max_model_len}")
    return config


def _require(raw: Mapping[str, Any], fixed: Mapping[str, object]) -> None:
    """Raises `ValueError` where a configuration says something else than the one way that the network knows."""
    for key, value in fixed.items():
        said = raw.get(key, value)
        if said != value and not (said is None and not value):
            raise ValueError(f"{key} = {_shown(said)} is not supported, only {value!r}")


def _whole(raw: Mapping[str, Any], key: str, default: int | None = None) -> int:
    """A whole number, which files may write with a point. `default`: of a key that is missing, null or 0. Raises
    `ValueError` for anything else, which `int` would cut or read as a number."""
    value = raw[key] if default is None else raw.get(key) or default
    if isinstance(value, bool) or not (isinstance(value, int) or (isinstance(value, float) and value.is_integer())):
        raise ValueError(f"{key} = {_shown(value)} is no whole number")
    return int(value)


def _number(raw: Mapping[str, Any], key: str) -> float:
    value = raw[key]
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < math.inf:
        raise ValueError(f"{key} = {_shown(value)} is no number")
    return value


def _flag(raw: Mapping[str, Any], key: str, default: bool | None = None) -> bool:
    """`default`: of a key that is missing. The string "false" is refused: for Python it is true."""
    value = raw[key] if default is None else raw.get(key, default)
    if value not in (None, True, False):
        raise ValueError(f"{key} = {_shown(value)} is neither true nor false")
    return bool(value)


# What a configuration must say where the network here knows only one way, if it says anything.
_LLADA_FIXED: Mapping[str, object] = {
    "activation_type": "silu",
    "alibi": False,
    "attention_layer_norm": False,
    "block_type": "llama",
    "include_bias": False,
    "include_qkv_bias": False,
    "input_emb_norm": False,
    "layer_norm_type": "rms",
    "layer_norm_with_affine": True,
    "rope": True,
    "scale_logits": False,
}
_QWEN_FIXED: Mapping[str, object] = {"hidden_act": "silu", "use_sliding_window": False, "use_mrope": False}
_SDAR_FIXED: Mapping[str, object] = {"attention_bias": False, "qk_norm": True, "use_qk_norm": True}


def _llada(name: str, raw: _Keys) -> ModelConfig:
    _require(raw, _LLADA_FIXED)
    dim, heads = _whole(raw, "d_model"), _whole(raw, "n_heads")
    return ModelConfig(
        architecture=name,
        dim=dim,
        layers=_whole(raw, "n_layers"),
        heads=heads,
        kv_heads=_whole(raw, "n_kv_heads", heads),
        ff_dim=_whole(raw, "mlp_hidden_size", 0) or int(_number(raw, "mlp_ratio") * dim),
        vocab_size=_whole(raw, "embedding_size", 0) or _whole(raw, "vocab_size"),
        max_model_len=_whole(raw, "max_sequence_length"),
        norm_eps=float(raw.get("rms_norm_eps", 1e-5)),
        rope_theta=_rope_theta(raw, 10000.0),
        tied_head=_flag(raw, "weight_tying", False),
        mask_id=_whole(raw, "mask_token_id"),
        head_dim=_head_dim(raw, dim, heads),
    )


def _qwen(name: str, raw: _Keys, *, ff_dim: int | None = None, mask_id: int | None = None, **more: Any) -> ModelConfig:
    """The shape of a family whose configuration has Qwen's names. `ff_dim`: where that is no dense layer's; `mask_id`:
    that of the published code, if no file names it."""
    _require(raw, _QWEN_FIXED)
    dim, heads = _whole(raw, "hidden_size"), _whole(raw, "num_attention_heads")
    return ModelConfig(
        architecture=name,
        dim=dim,
        layers=_whole(raw, "num_hidden_layers"),
        heads=heads,
        kv_heads=_whole(raw, "num_key_value_heads", heads),
        ff_dim=_whole(raw, "intermediate_size") if ff_dim is None else ff_dim,
        vocab_size=_whole(raw, "vocab_size"),
        max_model_len=_whole(raw, "max_position_embeddings"),
        norm_eps=float(raw["rms_norm_eps"]),
        rope_theta=_rope_theta(raw),
        tied_head=_flag(raw, "tie_word_embeddings", False),
        mask_id=_whole(raw, "mask_token_id") if mask_id is None or raw.get("mask_token_id") is not None else mask_id,
        head_dim=_head_dim(raw, dim, heads),
        **more,
    )


def _dream(name: str, raw: _Keys) -> ModelConfig:
    """Qwen2's network (Ye et al., arXiv 2508.15487), which predicts the token after each position."""
    _require(raw, {"attention_bias": True})
    return _qwen(name, raw, qkv_bias=True, logit_shift=1)


def _fast_dllm_v2(name: str, raw: _Keys) -> ModelConfig:
    """Qwen2.5's network with attention within blocks, which predicts the next token (Wu et al., arXiv 2509.26328). The
    mask is an argument of the published code."""
    _require(raw, {"attention_bias": True})
    return _qwen(name, raw, mask_id=151665, qkv_bias=True, logit_shift=1, **_blocks(raw, 32, ("bd_size",)))


def _stable_diffcoder(name: str, raw: _Keys) -> ModelConfig:
    """Llama's network with attention within blocks (arXiv 2601.15892). Block and mask are arguments of the published
    code."""
    return _qwen(name, raw, mask_id=5, **_blocks(raw, 4))


_SDAR_MASK = 151669  # of the published tokenizers
_SDAR_BLOCK = 4  # of the published ones whose names say no other


def _sdar(name: str, raw: _Keys) -> ModelConfig:
    """Qwen3's network with attention within blocks (Cheng et al., arXiv 2510.06303)."""
    _require(raw, _SDAR_FIXED)
    return _qwen(name, raw, mask_id=_SDAR_MASK, qk_norm=True, **_blocks(raw, _SDAR_BLOCK))


def _sdar_moe(name: str, raw: _Keys) -> ModelConfig:
    """Qwen3-MoE's network with attention within blocks."""
    _require(raw, {**_SDAR_FIXED, "decoder_sparse_step": 1, "mlp_only_layers": []})
    routing = Routing(_whole(raw, "num_experts_per_tok"), normed=_flag(raw, "norm_topk_prob", False))
    experts = Experts(_whole(raw, "num_experts"), _whole(raw, "moe_intermediate_size"), routing)
    return _qwen(name, raw, mask_id=_SDAR_MASK, qk_norm=True, **_blocks(raw, _SDAR_BLOCK), experts=experts)


_LLADA_MOE_FIXED: Mapping[str, object] = {
    "attention_bias": False,
    "clip_qkv": None,
    "moe_router_enable_expert_bias": False,
    "moe_router_score_function": "softmax",
    "shared_expert_intermediate_size": None,
}


def _llada_moe(name: str, raw: _Keys) -> ModelConfig:
    """The network of LLaDA-MoE's published code (Zhu et al., arXiv 2509.24389): softmax over experts, not normed."""
    _require(raw, _LLADA_MOE_FIXED)
    if raw.get("norm_topk_prob"):
        raise ValueError("norm_topk_prob is not supported: the published code norms in no case")
    if not all(raw["moe_layer_freq"]):
        raise ValueError("moe_layer_freq with layers that have no experts is not supported")
    experts = Experts(
        _whole(raw, "num_experts"), _whole(raw, "expert_intermediate_size"), Routing(_whole(raw, "num_experts_per_tok"))
    )
    return _qwen(
        name,
        raw,
        ff_dim=experts.ff_dim,
        qk_norm=_flag(raw, "qk_layernorm"),
        rotary_share=float(raw.get("partial_rotary_factor") or 1.0),
        experts=experts,
    )


_LLADA2_FIXED: Mapping[str, object] = {
    "moe_router_enable_expert_bias": True,
    "norm_topk_prob": True,
    "norm_head": False,
    "num_nextn_predict_layers": 0,
    "score_function": "sigmoid",
    "use_bias": False,
    "use_qk_norm": True,
    "use_qkv_bias": False,
}
_LLADA2_ROUTING = (
    "LLaDA2.2 chooses experts for whole blocks, in a way that is not published; here each token has its own, so answers"
    " differ a little"
)
_LLADA2_BLOCK = 32  # of all published ones, whose config.json does not say it (Bie et al., arXiv 2512.15745)


def _llada2(name: str, raw: _Keys) -> ModelConfig:
    """The network of LLaDA2's published code: sigmoid scores, a bias that helps to choose, groups, a shared MLP."""
    _require(raw, _LLADA2_FIXED)
    controls = [raw.get(key) for key in ("delete_token_id", "split_token_id")]
    if None in controls and controls != [None, None]:
        raise ValueError("delete_token_id and split_token_id go together, and one of them is missing")
    chosen, ff_dim = _whole(raw, "num_experts_per_tok"), _whole(raw, "moe_intermediate_size")
    experts = Experts(
        count=_whole(raw, "num_experts"),
        ff_dim=ff_dim,
        routing=Routing(
            chosen,
            sigmoid=True,
            normed=chosen > 1,
            scale=_number(raw, "routed_scaling_factor"),
            groups=_whole(raw, "n_group", 1),
            live_groups=_whole(raw, "topk_group", 1),
        ),
        biased=True,
        shared_ff_dim=ff_dim * _whole(raw, "num_shared_experts", 0),
        first_layer=_whole(raw, "first_k_dense_replace", 0),
    )
    return _qwen(
        name,
        raw,
        qk_norm=True,
        **_blocks(raw, _LLADA2_BLOCK),
        caveat=_LLADA2_ROUTING if controls[0] is not None else "",
        rotary_share=float(raw["partial_rotary_factor"]),
        experts=experts,
    )


def _wedlm(name: str, raw: _Keys) -> ModelConfig:
    """Qwen2.5's or Qwen3's network, causal over known tokens and then masks (Liu et al., arXiv 2512.22737)."""
    return _qwen(
        name,
        raw,
        mask_id=151665,
        qkv_bias=_flag(raw, "attention_bias", True),
        qk_norm=_flag(raw, "qk_norm", False),
        block_size=1,
        known_first=True,
    )


_GEMMA_FIXED: Mapping[str, object] = {
    "attention_bias": False,
    "hidden_activation": "gelu_pytorch_tanh",
    "tie_word_embeddings": True,
}
_GEMMA_SAMPLER = ("max_denoising_steps", "t_min", "t_max", "stability_threshold", "confidence_threshold")
_GEMMA_PERIOD = 6  # every sixth layer sees all keys, unless config.json says which


def _gemma(name: str, raw: Mapping[str, Any]) -> ModelConfig:
    """DiffusionGemma's network (transformers 5.24, models/diffusion_gemma), its text part: images are not computed."""
    _require(raw, {"tie_word_embeddings": True})
    text = raw["text_config"]
    if not isinstance(text, Mapping):
        raise ValueError(f"text_config = {_shown(text)} is no object")
    if not isinstance(raw.get("vision_config", {}), dict | None):  # images are not computed, whatever it says
        raise ValueError(f"vision_config = {_shown(raw['vision_config'])} is no object")
    _require(text, _GEMMA_FIXED)
    if text.get("use_bidirectional_attention") not in (None, "vision"):
        raise ValueError("use_bidirectional_attention = 'all' is not supported: the encoder here is causal")
    layers, dim = _whole(text, "num_hidden_layers"), _whole(text, "hidden_size")
    if not 1 <= layers <= MOST["layers"]:
        raise ValueError(f"num_hidden_layers = {layers} is not from 1 to {MOST['layers']}")
    kinds = text.get("layer_types") or [
        "sliding_attention" if (layer + 1) % _GEMMA_PERIOD else "full_attention" for layer in range(layers)
    ]
    if (
        not isinstance(kinds, list)
        or len(kinds) != layers
        or not {*map(str, kinds)} <= {"sliding_attention", "full_attention"}
    ):
        raise ValueError(f"layer_types = {_shown(kinds)} are not {layers} of sliding_attention and full_attention")
    sliding, full = _gemma_heads(text, [*kinds[:-1], "full_attention"])
    chosen = Routing(_whole(text, "top_k_experts"), normed=True)
    experts = Experts(_whole(text, "num_experts"), _whole(text, "moe_intermediate_size"), chosen)
    canvas = CanvasNetwork(
        canvas_length=_whole(raw, "canvas_length"),
        softcap=float(text.get("final_logit_softcapping") or 30.0),  # transformers does not write its own
        sliding=sliding,
        full=full,
        full_layers=tuple(at for at, kind in enumerate(kinds) if kind == "full_attention" or at == layers - 1),
        sampler=_gemma_sampler(raw.get("generation_config", {})),
    )
    return ModelConfig(
        architecture=name,
        dim=dim,
        layers=layers,
        heads=_whole(text, "num_attention_heads"),
        kv_heads=sliding.kv_heads,
        ff_dim=_whole(text, "intermediate_size"),
        vocab_size=_whole(text, "vocab_size"),
        max_model_len=_whole(text, "max_position_embeddings"),
        norm_eps=float(text["rms_norm_eps"]),
        rope_theta=sliding.rope_theta,
        tied_head=True,
        mask_id=_whole(raw, "mask_token_id", 0) or _whole(text, "pad_token_id", 0),  # nothing but room in its canvases
        head_dim=sliding.head_dim,
        qk_norm=True,
        block_size=1,
        experts=experts,
        canvas=canvas,
    )


def _gemma_heads(text: Mapping[str, Any], kinds: list[str]) -> tuple[Heads, Heads]:
    """The heads of sliding and of full layers. Newer files say those of full layers layer by layer."""
    own = text.get("per_layer_config") or {}
    given = [own.get(str(at), own.get(at)) or {} for at, kind in enumerate(kinds) if kind == "full_attention"]
    if any(one != given[0] for one in given) or not set(given[0]) <= {"head_dim", "num_key_value_heads"}:
        raise ValueError(f"per_layer_config = {_shown(own)} is not supported: full layers must be alike")
    for at, kind in enumerate(kinds):
        if kind != "full_attention" and (own.get(str(at)) or own.get(at)):
            raise ValueError(f"per_layer_config of layer {at}, which has a window, is not supported")
    if text.get("attention_k_eq_v") is False:
        raise ValueError("attention_k_eq_v = False is not supported: full layers make values of keys")
    window, kv_heads, head_dim = (_whole(text, key) for key in ("sliding_window", "num_key_value_heads", "head_dim"))
    if not 1 <= window <= MOST["max_model_len"]:
        raise ValueError(f"sliding_window = {window} is not from 1 to {MOST['max_model_len']}")
    full_dim = _whole(given[0], "head_dim", 0) or _whole(text, "global_head_dim", 512)
    full_heads = _whole(given[0], "num_key_value_heads", 0) or _whole(text, "num_global_key_value_heads", kv_heads)
    said = text.get("rope_parameters") or {}
    near: dict[str, Any] = {"rope_type": "default", "rope_theta": 10_000.0} | said.get("sliding_attention", {})
    far: dict[str, Any] = {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1e6}
    far |= said.get("full_attention", {})
    for rope, kind, keys in ((near, "default", 2), (far, "proportional", 3)):
        if rope["rope_type"] != kind or len(rope) != keys:
            raise ValueError(f"rope_parameters with {_shown(rope)} are not supported, only {kind!r}")
    rotated = int(float(far["partial_rotary_factor"]) * full_dim // 2)
    return (
        Heads(kv_heads, head_dim, float(near["rope_theta"]), head_dim // 2, window),
        Heads(full_heads, full_dim, float(far["rope_theta"]), rotated, shared=True),
    )


def _gemma_sampler(said: Mapping[str, Any]) -> tuple[tuple[str, object], ...]:
    found = {key: said[key] for key in _GEMMA_SAMPLER if said.get(key) is not None}
    sampler = said.get("sampler_config") or {}
    if not isinstance(sampler, dict):
        raise ValueError(f"generation_config.json: sampler_config = {_shown(sampler)} is no object")
    if sampler.get("_cls_name", "EntropyBoundSamplerConfig") != "EntropyBoundSamplerConfig":
        raise ValueError(f"generation_config.json: sampler {_shown(sampler['_cls_name'])} is not supported")
    if "entropy_bound" in sampler:
        found["entropy_bound"] = sampler["entropy_bound"]
    for key, value in found.items():  # whether a number suits is for the decoder to say
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise ValueError(f"generation_config.json: {key} = {_shown(value)} is no number")
    return tuple(found.items())


def _head_dim(raw: Mapping[str, Any], dim: int, heads: int) -> int:
    if raw.get("head_dim") is not None:
        return _whole(raw, "head_dim")
    if dim % max(1, heads):
        raise ValueError(f"{heads} heads do not divide {dim} evenly")
    return dim // max(1, heads)  # no head at all is refused with the other sizes


def _rope_theta(raw: Mapping[str, Any], default: float | None = None) -> float:
    """Older files say it at the top, newer ones among `rope_parameters`; positions are never scaled here."""
    top, theta = dict(raw), raw.get("rope_theta", default)  # a copy, whose keys are not looked up here
    for name in ("rope_parameters", "rope_scaling"):
        given = dict(raw.get(name) or {})
        kind = given.pop("rope_type", given.pop("type", "default"))
        if kind != "default":
            raise ValueError(f"rope type {_shown(kind)} is not supported, only 'default'")
        for key, value in given.items():
            differs = value != top[key] if key in top else (key != "rope_theta" and value not in (None, 1))
            if differs:
                raise ValueError(f"{key} = {_shown(value)} among the rope parameters is not supported")
        theta = given.get("rope_theta", theta)
    if theta is None:
        raise KeyError("rope_theta")
    return float(theta)


def _blocks(raw: _Keys, published: int, keys: tuple[str, ...] = ("block_size", "block_length")) -> dict[str, Any]:
    """How many positions see each other, and what says so: a setting, one of these `keys`, the end of the checkpoint's
    name, or the published models of the family. It is trained into a checkpoint: with another one it answers worse."""
    said = {f"config.json's {key}": raw[key] for key in keys if raw.get(key) is not None}
    sources = {"--block-size": raw.block_size} if raw.block_size is not None else said
    if not sources:
        found = (NAMED_BLOCK.search(name) for name in raw.names)
        sources = {f"the name's end {match[0]!r}": int(match[1]) for match in found if match}
    sources = sources or {"the family's published models": published}
    source, block = next(iter(sources.items()))
    if type(block) is not int or block < 1 or any(other != block for other in sources.values()):
        raise ValueError(f"block size is {' or '.join(map(repr, sources.values()))}")
    return {"block_size": block, "block_source": source}


READERS: Mapping[str, Callable[[str, _Keys], ModelConfig]] = {
    "LLaDAModelLM": _llada,
    "DreamModel": _dream,
    "Fast_dLLM_QwenForCausalLM": _fast_dllm_v2,
    "SDARForCausalLM": _sdar,
    "SDARMoeForCausalLM": _sdar_moe,
    "LLaDAMoEModelLM": _llada_moe,
    "StableDiffcoderForCausalLM": _stable_diffcoder,
    "LLaDA2MoeModelLM": _llada2,
    "WeDLMForCausalLM": _wedlm,
    "DiffusionGemmaForBlockDiffusion": _gemma,
}
SAMPLERS = ("DiffusionGemmaForBlockDiffusion",)  # whose generation_config.json says how they decode
