"""Reads config.json of a checkpoint into one shape for all families; refuses what the network here cannot compute.

A new family: a reader in `READERS` here, and the names of its tensors in `families.NAMES`.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ...kernels.common.types import Routing
from ...scheduler.decoding.attention_pattern import AttentionPattern
from .canvas import CanvasNetwork, Heads, read_canvas, text_part
from .keys import MOST, Keys, flag, listed, number, require, section, shown, whole
from .lora import Adapter
from .quantization import Quantization, read_quantization

MOST_EXPERTS = 2**10
NAMED_BLOCK = re.compile(r"-b(8|16|32|64)$")  # the end of a checkpoint's name


class ModelError(ValueError):
    """A checkpoint that cannot be served; the message says what is wrong with which file."""


@dataclass(frozen=True, slots=True)
class Experts:
    """A mixture of experts: `count` MLPs of width `ff_dim` in all layers from `first_layer` on.

    `biased`: a bias is added to scores where experts are chosen. `shared_ff_dim`: width of an MLP that every token
    passes besides; 0: there is none. `apart`: the files have a tensor for each matrix of an expert, in a family whose
    experts lie in one tensor otherwise. Raises `ValueError` for numbers that do not go together.
    """

    count: int
    ff_dim: int
    routing: Routing
    biased: bool = False
    shared_ff_dim: int = 0
    first_layer: int = 0
    apart: bool = False

    def __post_init__(self) -> None:
        chosen, groups, live = self.routing.chosen, self.routing.groups, self.routing.live_groups
        if min(self.count, self.ff_dim, chosen, groups, live) < 1 or min(self.shared_ff_dim, self.first_layer) < 0:
            raise ValueError(
                f"{self.count} experts of {self.ff_dim}, of which {chosen} are chosen in {live} of {groups} groups, and"
                f" {self.shared_ff_dim} numbers shared, from layer {self.first_layer} on, cannot be computed"
            )
        if not 0 < self.routing.scale < math.inf:
            raise ValueError(f"weights of experts cannot be scaled by {self.routing.scale}")
        size = self.count // groups
        # A group is as strong as its two best experts.
        if self.count % groups or live > groups or (groups > 1 and size < 2):
            raise ValueError(f"{live} of {groups} groups cannot be chosen of {self.count} experts")
        if chosen > size * live:
            raise ValueError(f"{chosen} experts cannot be chosen of {size * live}")


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
            selects = self.block_size > 1 and not self.logit_shift and not self.known_first and self.layers > 1
            return AttentionPattern(self.logit_shift, self.block_size, self.known_first, selects=selects)
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
    said = Keys(raw)
    said.block_size, said.names = block_size, _names(directory)
    try:
        config = _checked(READERS[name](name, said))
        _refuse_unread(said, config)
        if block_size is not None and not config.block_source:
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
            *("parallel_attn", "use_parallel_residual", "scale_embedding", "scale_logits", "use_double_wide_mlp"),
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
            *("num_kv_shared_layers", "hidden_size_per_layer_input"),
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


def _refuse_unread(raw: Keys, config: ModelConfig) -> None:
    """Raises `ValueError` for a key that changes the computation and that the family's reader has not looked up."""
    neutral = dict(NEUTRAL)
    if "use_sliding_window" in raw.keys() | raw.read:  # it decides, and must be off
        del neutral["sliding_window"]
    for key, values in neutral.items():
        if key in raw and key not in raw.read and raw[key] not in values:
            raise ValueError(f"{key} = {shown(raw[key])} is not supported by {config.architecture}")
    kinds = raw.get("layer_types")
    for kind in () if kinds is None else listed(kinds, "layer_types"):
        if kind != "full_attention" and config.canvas is None:
            raise ValueError(f"layer_types with {shown(kind)} is not supported, only 'full_attention'")
    if config.canvas is not None and isinstance(raw.get("text_config"), Keys):
        _refuse_unread(raw["text_config"], config)
    if raw.get("rotary_dim") not in (None, config.rotary_dim):
        raise ValueError(f"rotary_dim = {shown(raw['rotary_dim'])}, but {config.rotary_dim} numbers are rotated")


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
    if (experts := config.experts) is not None:
        if experts.count > MOST_EXPERTS:
            raise ValueError(f"{experts.count} experts are more than {MOST_EXPERTS}")
        if (width := max(experts.ff_dim, experts.shared_ff_dim)) > MOST["ff_dim"]:
            raise ValueError(f"experts of {width} numbers are wider than {MOST['ff_dim']}")
    for name, below in (("norm_eps", 1.0), ("rope_theta", math.inf)):
        if not 0 < getattr(config, name) < below:
            raise ValueError(
                f"{name} is {getattr(config, name)}, not a positive number{f' below {below}' * (below == 1)}"
            )
    for heads in {config.heads_of(layer) for layer in range(config.layers)}:
        sized = 2 <= heads.head_dim <= MOST["dim"] and heads.head_dim % 2 == 0
        if heads.kv_heads < 1 or config.heads % heads.kv_heads or not sized:
            raise ValueError(
                f"{config.heads} heads of {heads.head_dim} on {heads.kv_heads} key heads cannot be computed"
            )
        if heads.window < 0 or not 0 <= heads.rotated <= heads.head_dim // 2 or not 0 < heads.rope_theta < math.inf:
            raise ValueError(
                f"heads of {heads.rotated} rotated pairs, rope_theta {heads.rope_theta} and a window of {heads.window}"
                " positions cannot be computed"
            )
    if config.canvas is not None:
        if not 1 <= config.canvas.canvas_length <= config.max_model_len:
            raise ValueError(f"canvas_length = {config.canvas.canvas_length} is not from 1 to {config.max_model_len}")
        if config.canvas.softcap <= 0:
            raise ValueError(f"final_logit_softcapping = {config.canvas.softcap} is not a positive number")
    if not 0 <= config.mask_id < config.vocab_size:
        raise ValueError(f"mask token {config.mask_id} is not below the vocabulary's {config.vocab_size}")
    if not 2 <= config.rotary_dim <= config.head_dim or config.rotary_dim % 2:
        raise ValueError(f"{config.rotary_dim} of {config.head_dim} numbers of a head cannot be rotated")
    if config.block_size > config.max_model_len:
        raise ValueError(f"blocks of {config.block_size} positions do not fit a context of {config.max_model_len}")
    return config


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


def _llada(name: str, raw: Keys) -> ModelConfig:
    require(raw, _LLADA_FIXED)
    dim, heads = whole(raw, "d_model"), whole(raw, "n_heads")
    return ModelConfig(
        architecture=name,
        dim=dim,
        layers=whole(raw, "n_layers"),
        heads=heads,
        kv_heads=whole(raw, "n_kv_heads", heads),
        ff_dim=whole(raw, "mlp_hidden_size", 0) or int(number(raw, "mlp_ratio") * dim),
        vocab_size=whole(raw, "embedding_size", 0) or whole(raw, "vocab_size"),
        max_model_len=whole(raw, "max_sequence_length"),
        norm_eps=number(raw, "rms_norm_eps", 1e-5),
        rope_theta=_rope_theta(raw, 10000.0),
        tied_head=flag(raw, "weight_tying", False),
        mask_id=whole(raw, "mask_token_id"),
        head_dim=_head_dim(raw, dim, heads),
    )


def _qwen(name: str, raw: Keys, *, ff_dim: int | None = None, mask_id: int | None = None, **more: Any) -> ModelConfig:
    """The shape of a family whose configuration has Qwen's names. `ff_dim`: where that is no dense layer's; `mask_id`:
    that of the published code, if no file names it."""
    require(raw, _QWEN_FIXED)
    dim, heads = whole(raw, "hidden_size"), whole(raw, "num_attention_heads")
    return ModelConfig(
        architecture=name,
        dim=dim,
        layers=whole(raw, "num_hidden_layers"),
        heads=heads,
        kv_heads=whole(raw, "num_key_value_heads", heads),
        ff_dim=whole(raw, "intermediate_size") if ff_dim is None else ff_dim,
        vocab_size=whole(raw, "vocab_size"),
        max_model_len=whole(raw, "max_position_embeddings"),
        norm_eps=number(raw, "rms_norm_eps"),
        rope_theta=_rope_theta(raw),
        tied_head=flag(raw, "tie_word_embeddings", False),
        mask_id=whole(raw, "mask_token_id") if mask_id is None or raw.get("mask_token_id") is not None else mask_id,
        head_dim=_head_dim(raw, dim, heads),
        **more,
    )


def _dream(name: str, raw: Keys) -> ModelConfig:
    """Qwen2's network (Ye et al., arXiv 2508.15487), which predicts the token after each position."""
    require(raw, {"attention_bias": True})
    return _qwen(name, raw, qkv_bias=True, logit_shift=1)


def _fast_dllm_v2(name: str, raw: Keys) -> ModelConfig:
    """Qwen2.5's network with attention within blocks, which predicts the next token (Wu et al., arXiv 2509.26328). The
    mask is an argument of the published code."""
    require(raw, {"attention_bias": True})
    return _qwen(name, raw, mask_id=151665, qkv_bias=True, logit_shift=1, **_blocks(raw, 32, ("bd_size",)))


def _stable_diffcoder(name: str, raw: Keys) -> ModelConfig:
    """Llama's network with attention within blocks (arXiv 2601.15892). Block and mask are arguments of the published
    code."""
    return _qwen(name, raw, mask_id=5, **_blocks(raw, 4))


_SDAR_MASK = 151669  # of the published tokenizers
_SDAR_BLOCK = 4  # of the published ones whose names say no other


def _sdar(name: str, raw: Keys) -> ModelConfig:
    """Qwen3's network with attention within blocks (Cheng et al., arXiv 2510.06303)."""
    require(raw, _SDAR_FIXED)
    return _qwen(name, raw, mask_id=_SDAR_MASK, qk_norm=True, **_blocks(raw, _SDAR_BLOCK))


def _sdar_moe(name: str, raw: Keys) -> ModelConfig:
    """Qwen3-MoE's network with attention within blocks."""
    require(raw, _SDAR_FIXED)
    experts = _qwen_experts(raw)
    return _qwen(name, raw, mask_id=_SDAR_MASK, qk_norm=True, **_blocks(raw, _SDAR_BLOCK), experts=experts)


def _qwen_experts(raw: Keys) -> Experts:
    """Qwen3-MoE's experts, in all layers."""
    require(raw, {"decoder_sparse_step": 1, "mlp_only_layers": []})
    routing = Routing(whole(raw, "num_experts_per_tok"), normed=flag(raw, "norm_topk_prob", False))
    count = "num_experts" if "num_experts" in raw else "num_local_experts"  # as transformers 5 writes it
    return Experts(whole(raw, count), whole(raw, "moe_intermediate_size"), routing)


_LLADA_MOE_FIXED: Mapping[str, object] = {
    "attention_bias": False,
    "clip_qkv": None,
    "moe_router_enable_expert_bias": False,
    "moe_router_score_function": "softmax",
    "shared_expert_intermediate_size": None,
}


def _llada_moe(name: str, raw: Keys) -> ModelConfig:
    """The network of LLaDA-MoE's published code (Zhu et al., arXiv 2509.24389): softmax over experts, not normed."""
    require(raw, _LLADA_MOE_FIXED)
    if raw.get("norm_topk_prob"):
        raise ValueError("norm_topk_prob is not supported: the published code norms in no case")
    if not all(listed(raw["moe_layer_freq"], "moe_layer_freq")):
        raise ValueError("moe_layer_freq with layers that have no experts is not supported")
    experts = Experts(
        whole(raw, "num_experts"), whole(raw, "expert_intermediate_size"), Routing(whole(raw, "num_experts_per_tok"))
    )
    return _qwen(
        name,
        raw,
        ff_dim=experts.ff_dim,
        qk_norm=flag(raw, "qk_layernorm"),
        rotary_share=number(raw, "partial_rotary_factor", 1.0),
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


def _llada2(name: str, raw: Keys) -> ModelConfig:
    """The network of LLaDA2's published code: sigmoid scores, a bias that helps to choose, groups, a shared MLP."""
    require(raw, _LLADA2_FIXED)
    controls = [raw.get(key) for key in ("delete_token_id", "split_token_id")]
    if None in controls and controls != [None, None]:
        raise ValueError("delete_token_id and split_token_id go together, and one of them is missing")
    chosen, ff_dim = whole(raw, "num_experts_per_tok"), whole(raw, "moe_intermediate_size")
    experts = Experts(
        count=whole(raw, "num_experts"),
        ff_dim=ff_dim,
        routing=Routing(
            chosen,
            sigmoid=True,
            normed=chosen > 1,
            scale=number(raw, "routed_scaling_factor"),
            groups=whole(raw, "n_group", 1),
            live_groups=whole(raw, "topk_group", 1),
        ),
        biased=True,
        shared_ff_dim=ff_dim * whole(raw, "num_shared_experts", 0),
        first_layer=whole(raw, "first_k_dense_replace", 0),
    )
    return _qwen(
        name,
        raw,
        qk_norm=True,
        **_blocks(raw, _LLADA2_BLOCK),
        caveat=_LLADA2_ROUTING if controls[0] is not None else "",
        rotary_share=number(raw, "partial_rotary_factor"),
        experts=experts,
    )


def _wedlm(name: str, raw: Keys) -> ModelConfig:
    """Qwen2.5's or Qwen3's network, causal over known tokens and then masks (Liu et al., arXiv 2512.22737)."""
    return _qwen(
        name,
        raw,
        mask_id=151665,
        qkv_bias=flag(raw, "attention_bias", True),
        qk_norm=flag(raw, "qk_norm", False),
        block_size=1,
        known_first=True,
    )


def _causal(name: str, raw: Keys, **more: Any) -> ModelConfig:
    """Qwen2's or Qwen3's own network, which predicts the next token. It has no mask: the last id, which no token of the
    published tokenizers has, stands for an open position, and is never computed."""
    biased = name == "Qwen2ForCausalLM"
    require(raw, {"attention_bias": biased})
    pattern = {"logit_shift": 1, "block_size": 1}
    return _qwen(
        name, raw, mask_id=whole(raw, "vocab_size") - 1, qkv_bias=biased, qk_norm=not biased, **pattern, **more
    )


def _causal_moe(name: str, raw: Keys) -> ModelConfig:
    """Qwen3-MoE's own network."""
    return _causal(name, raw, experts=_qwen_experts(raw))


def _gemma(name: str, raw: Keys) -> ModelConfig:
    """DiffusionGemma's network (transformers 5.24, models/diffusion_gemma), its text part: images are not computed."""
    text = text_part(raw)
    canvas = read_canvas(raw, text)
    chosen = Routing(whole(text, "top_k_experts"), normed=True)
    return ModelConfig(
        architecture=name,
        dim=whole(text, "hidden_size"),
        layers=whole(text, "num_hidden_layers"),
        heads=whole(text, "num_attention_heads"),
        kv_heads=canvas.sliding.kv_heads,
        ff_dim=whole(text, "intermediate_size"),
        vocab_size=whole(text, "vocab_size"),
        max_model_len=whole(text, "max_position_embeddings"),
        norm_eps=number(text, "rms_norm_eps"),
        rope_theta=canvas.sliding.rope_theta,
        tied_head=True,
        mask_id=whole(raw, "mask_token_id", 0) or whole(text, "pad_token_id", 0),  # nothing but room in its canvases
        head_dim=canvas.sliding.head_dim,
        qk_norm=True,
        block_size=1,
        experts=Experts(whole(text, "num_experts"), whole(text, "moe_intermediate_size"), chosen),
        canvas=canvas,
    )


def _head_dim(raw: Mapping[str, Any], dim: int, heads: int) -> int:
    if raw.get("head_dim") is not None:
        return whole(raw, "head_dim")
    if dim % max(1, heads):
        raise ValueError(f"{heads} heads do not divide {dim} evenly")
    return dim // max(1, heads)  # no head at all is refused with the other sizes


def _rope_theta(raw: Mapping[str, Any], default: float | None = None) -> float:
    """Older files say it at the top, newer ones among `rope_parameters`; positions are never scaled here."""
    top, theta = dict(raw), raw.get("rope_theta", default)  # a copy, whose keys are not looked up here
    for name in ("rope_parameters", "rope_scaling"):
        given = dict(section(raw, name))
        kind = given.pop("rope_type", given.pop("type", "default"))
        if kind != "default":
            raise ValueError(f"rope type {shown(kind)} is not supported, only 'default'")
        for key, value in given.items():
            differs = value != top[key] if key in top else (key != "rope_theta" and value not in (None, 1))
            if differs:
                raise ValueError(f"{key} = {shown(value)} among the rope parameters is not supported")
        theta = given.get("rope_theta", theta)
    if theta is None:
        raise KeyError("rope_theta")
    return number({"rope_theta": theta}, "rope_theta")


def _blocks(raw: Keys, published: int, keys: tuple[str, ...] = ("block_size", "block_length")) -> dict[str, Any]:
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


READERS: Mapping[str, Callable[[str, Keys], ModelConfig]] = {
    "LLaDAModelLM": _llada,
    "DreamModel": _dream,
    "Fast_dLLM_QwenForCausalLM": _fast_dllm_v2,
    "SDARForCausalLM": _sdar,
    "SDARMoeForCausalLM": _sdar_moe,
    "LLaDAMoEModelLM": _llada_moe,
    "StableDiffcoderForCausalLM": _stable_diffcoder,
    "LLaDA2MoeModelLM": _llada2,
    "WeDLMForCausalLM": _wedlm,
    "Qwen2ForCausalLM": _causal,
    "Qwen3ForCausalLM": _causal,
    "Qwen3MoeForCausalLM": _causal_moe,
    "DiffusionGemmaForBlockDiffusion": _gemma,
}
SAMPLERS = ("DiffusionGemmaForBlockDiffusion",)  # whose generation_config.json says how they decode
