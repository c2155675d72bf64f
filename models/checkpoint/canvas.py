"""The part of config.json that only DiffusionGemma has: two kinds of heads, canvases, and their sampler."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .keys import MOST, number, require, section, shown, whole

FIXED: Mapping[str, object] = {
    "attention_bias": False,
    "hidden_activation": "gelu_pytorch_tanh",
    "tie_word_embeddings": True,
}
SAMPLER = ("max_denoising_steps", "t_min", "t_max", "stability_threshold", "confidence_threshold")
PERIOD = 6  # every sixth layer sees all keys, unless config.json says which


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


def text_part(raw: Mapping[str, Any]) -> Mapping[str, Any]:
    """The configuration of the network of text. Raises `ValueError` for what is not computed here."""
    require(raw, {"tie_word_embeddings": True})
    text = raw["text_config"]
    if not isinstance(text, Mapping):
        raise ValueError(f"text_config = {shown(text)} is no object")
    section(raw, "vision_config")  # images are not computed, whatever it says
    require(text, FIXED)
    if text.get("use_bidirectional_attention") not in (None, "vision"):
        raise ValueError("use_bidirectional_attention = 'all' is not supported: the encoder here is causal")
    return text


def read_canvas(raw: Mapping[str, Any], text: Mapping[str, Any]) -> CanvasNetwork:
    """Raises `ValueError` and `KeyError` for a key that cannot be read."""
    layers = whole(text, "num_hidden_layers")
    if not 1 <= layers <= MOST["layers"]:
        raise ValueError(f"num_hidden_layers = {layers} is not from 1 to {MOST['layers']}")
    kinds = text.get("layer_types") or [
        "sliding_attention" if (layer + 1) % PERIOD else "full_attention" for layer in range(layers)
    ]
    if (
        not isinstance(kinds, list)
        or len(kinds) != layers
        or not {*map(str, kinds)} <= {"sliding_attention", "full_attention"}
    ):
        raise ValueError(f"layer_types = {shown(kinds)} are not {layers} of sliding_attention and full_attention")
    sliding, full = _heads(text, [*kinds[:-1], "full_attention"])
    return CanvasNetwork(
        canvas_length=whole(raw, "canvas_length"),
        # transformers does not write its own
        softcap=number(text, "final_logit_softcapping") if "final_logit_softcapping" in text else 30.0,
        sliding=sliding,
        full=full,
        full_layers=tuple(at for at, kind in enumerate(kinds) if kind == "full_attention" or at == layers - 1),
        sampler=_sampler(raw.get("generation_config", {})),
    )


def _heads(text: Mapping[str, Any], kinds: list[str]) -> tuple[Heads, Heads]:
    """The heads of sliding and of full layers. Newer files say those of full layers layer by layer."""
    own = section(text, "per_layer_config")
    given = [section(own, str(at)) for at, kind in enumerate(kinds) if kind == "full_attention"]
    if any(one != given[0] for one in given) or not set(given[0]) <= {"head_dim", "num_key_value_heads"}:
        raise ValueError(f"per_layer_config = {shown(own)} is not supported: full layers must be alike")
    for at, kind in enumerate(kinds):
        if kind != "full_attention" and own.get(str(at)):
            raise ValueError(f"per_layer_config of layer {at}, which has a window, is not supported")
    if text.get("attention_k_eq_v") is False:
        raise ValueError("attention_k_eq_v = False is not supported: full layers make values of keys")
    window, kv_heads, head_dim = (whole(text, key) for key in ("sliding_window", "num_key_value_heads", "head_dim"))
    if not 1 <= window <= MOST["max_model_len"]:
        raise ValueError(f"sliding_window = {window} is not from 1 to {MOST['max_model_len']}")
    full_dim = whole(given[0], "head_dim", 0) or whole(text, "global_head_dim", 512)
    full_heads = whole(given[0], "num_key_value_heads", 0) or whole(text, "num_global_key_value_heads", kv_heads)
    if kv_heads < 1 or full_heads < 1 or kv_heads % full_heads:
        raise ValueError(f"num_key_value_heads = {kv_heads} is no multiple of the {full_heads} of full layers")
    said = section(text, "rope_parameters")
    near = {"rope_type": "default", "rope_theta": 10_000.0, **section(said, "sliding_attention")}
    far = {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1e6}
    far |= section(said, "full_attention")
    for rope, kind, keys in ((near, "default", 2), (far, "proportional", 3)):
        if rope["rope_type"] != kind or len(rope) != keys:
            raise ValueError(f"rope_parameters with {shown(rope)} are not supported, only {kind!r}")
    rotated = int(number(far, "partial_rotary_factor") * full_dim // 2)
    return (
        Heads(kv_heads, head_dim, number(near, "rope_theta"), head_dim // 2, window),
        Heads(full_heads, full_dim, number(far, "rope_theta"), rotated, shared=True),
    )


def _sampler(said: Mapping[str, Any]) -> tuple[tuple[str, object], ...]:
    found = {key: said[key] for key in SAMPLER if said.get(key) is not None}
    sampler = said.get("sampler_config") or {}
    if not isinstance(sampler, dict):
        raise ValueError(f"generation_config.json: sampler_config = {shown(sampler)} is no object")
    if sampler.get("_cls_name", "EntropyBoundSamplerConfig") != "EntropyBoundSamplerConfig":
        raise ValueError(f"generation_config.json: sampler {shown(sampler['_cls_name'])} is not supported")
    if "entropy_bound" in sampler:
        found["entropy_bound"] = sampler["entropy_bound"]
    for key, value in found.items():  # whether a number suits is for the decoder to say
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise ValueError(f"generation_config.json: {key} = {shown(value)} is no number")
    return tuple(found.items())
