"""What the embedded models are: sizes, what their family does, and how its checkpoints name things."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

VOCAB = 1408  # 1,405 tokens of the tokenizer, rounded up
CONTEXT = 1024
THETA = 10000.0

QWEN_NAMES: Mapping[str, str] = {
    "embedding": "model.embed_tokens.weight",
    "norm": "model.norm.weight",
    "head": "lm_head.weight",
    "blocks": "model.layers",
    "attn_norm": "input_layernorm",
    "ff_norm": "post_attention_layernorm",
    "q": "self_attn.q_proj",
    "k": "self_attn.k_proj",
    "v": "self_attn.v_proj",
    "out": "self_attn.o_proj",
    "q_norm": "self_attn.q_norm",
    "k_norm": "self_attn.k_norm",
    "gate": "mlp.gate_proj",
    "up": "mlp.up_proj",
    "down": "mlp.down_proj",
}
LLADA_NAMES: Mapping[str, str] = {
    "embedding": "model.transformer.wte.weight",
    "norm": "model.transformer.ln_f.weight",
    "head": "model.transformer.ff_out.weight",
    "blocks": "model.transformer.blocks",
    "attn_norm": "attn_norm",
    "ff_norm": "ff_norm",
    "q": "q_proj",
    "k": "k_proj",
    "v": "v_proj",
    "out": "attn_out",
    "gate": "ff_proj",
    "up": "up_proj",
    "down": "ff_out",
}


@dataclass(frozen=True, slots=True)
class Shape:
    """`shift` and `block` as in `models.config`; `said` is what config.json says besides the sizes. For the first
    `causal_first` of its training a bidirectional model is a block-causal one, which learns from every block of a text
    at once: copying and arithmetic come ten times sooner, and are kept. `decay` of weights
    holds queries and keys small where no norm does: without it a run ended in NaN after 3,000 steps."""

    names: Mapping[str, str]
    dim: int = 256
    layers: int = 8
    heads: int = 4
    kv_heads: int = 2
    ff: int = 512
    eps: float = 1e-6
    tied: bool = True
    bias: bool = False
    qk_norm: bool = False
    shift: int = 0
    block: int = 0
    causal_first: float = 0.0
    decay: float = 0.01
    said: Mapping[str, object] = field(default_factory=dict)

    @property
    def head_dim(self) -> int:
        return self.dim // self.heads

    def config(self) -> dict[str, object]:
        """config.json of a checkpoint in the form of Qwen."""
        return {
            "attention_dropout": 0.0,
            "bos_token_id": 0,
            "eos_token_id": 1,
            "head_dim": self.head_dim,
            "hidden_act": "silu",
            "hidden_size": self.dim,
            "intermediate_size": self.ff,
            "mask_token_id": 5,
            "max_position_embeddings": CONTEXT,
            "num_attention_heads": self.heads,
            "num_hidden_layers": self.layers,
            "num_key_value_heads": self.kv_heads,
            "pad_token_id": 1,
            "rms_norm_eps": self.eps,
            "rope_theta": THETA,
            "tie_word_embeddings": self.tied,
            "torch_dtype": "bfloat16",
            "use_sliding_window": False,
            "vocab_size": VOCAB,
            **self.said,
        }


SHAPES: Mapping[str, Shape] = {
    "tiny-llada": Shape(
        LLADA_NAMES,
        layers=10,
        kv_heads=4,
        ff=768,
        eps=1e-5,
        tied=False,
        decay=0.1,
        causal_first=0.3,
        said={  # its family has words of its own for sizes
            "architectures": ["LLaDAModelLM"],
            "d_model": 256,
            "embedding_size": VOCAB,
            "max_sequence_length": CONTEXT,
            "mlp_hidden_size": 768,
            "model_type": "llada",
            "n_heads": 4,
            "n_kv_heads": 4,
            "n_layers": 10,
            "weight_tying": False,
        },
    ),
    "tiny-dream": Shape(
        QWEN_NAMES,
        bias=True,
        shift=1,
        decay=0.1,
        causal_first=0.3,
        said={"architectures": ["DreamModel"], "model_type": "Dream"},
    ),
    "tiny-sdar": Shape(
        QWEN_NAMES,
        qk_norm=True,
        block=16,
        said={
            "architectures": ["SDARForCausalLM"],
            "attention_bias": False,
            "block_size": 16,
            "model_type": "sdar",
        },
    ),
}
