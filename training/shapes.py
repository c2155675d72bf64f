"""The shapes of the embedded models: sizes, and what their family does."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

VOCAB = 1408  # 1,405 tokens of tiny-llada's tokenizer, rounded up
CONTEXT = 1024
THETA = 10000.0
LLADA = "LLaDAModelLM"


@dataclass(frozen=True, slots=True)
class Shape:
    """`architecture`, `shift` and `block` as in `models.config`; `said` is what config.json says besides the sizes.

    For the first `causal_first` of its training a bidirectional model is a block-causal one, which learns from every
    block of a text at once: copying and arithmetic come ten times sooner, and are kept. `decay` of weights holds
    queries and keys small where no norm does: at 0.01 a run ended in NaN after 3,000 steps. `short_first` is the power
    by which short answers weigh more (`noise.canvas`).
    """

    architecture: str
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
    short_first: float = 0.0
    decay: float = 0.01
    vocab: int = VOCAB
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
            "vocab_size": self.vocab,
            "architectures": [self.architecture],
            **(self._llada_sizes() if self.architecture == LLADA else {}),
            **self.said,
        }

    def _llada_sizes(self) -> dict[str, object]:
        """The sizes in the words of LLaDA's family."""
        return {
            "d_model": self.dim,
            "embedding_size": self.vocab,
            "max_sequence_length": CONTEXT,
            "mlp_hidden_size": self.ff,
            "n_heads": self.heads,
            "n_kv_heads": self.kv_heads,
            "n_layers": self.layers,
            "weight_tying": self.tied,
        }


SHAPES: Mapping[str, Shape] = {
    "tiny-llada": Shape(
        LLADA,
        layers=10,
        kv_heads=4,
        ff=768,
        eps=1e-5,
        tied=False,
        decay=0.1,
        causal_first=0.3,
        said={"model_type": "llada"},
    ),
    "tiny-chat": Shape(  # below 10 MB
        LLADA,
        ff=480,
        eps=1e-5,
        decay=0.1,
        causal_first=0.35,
        short_first=0.7,
        said={"model_type": "llada"},
    ),
    "tiny-prose": Shape(  # with its tokenizer below 4.2 MB
        LLADA,
        dim=192,
        layers=5,
        heads=6,
        ff=448,
        eps=1e-5,
        decay=0.1,
        causal_first=0.45,
        vocab=1024,
        said={"model_type": "llada"},
    ),
    "tiny-dream": Shape(
        "DreamModel",
        bias=True,
        shift=1,
        decay=0.1,
        causal_first=0.3,
        said={"model_type": "Dream"},
    ),
    "tiny-sdar": Shape(
        "SDARForCausalLM",
        qk_norm=True,
        block=16,
        said={
            "attention_bias": False,
            "block_size": 16,
            "model_type": "sdar",
        },
    ),
}
