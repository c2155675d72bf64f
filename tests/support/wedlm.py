"""The outputs of WeDLM's published code on small random checkpoints, which are made again here, and the checkpoints.

tests/golden/wedlm.json.gz has the revision, the arguments and, of each prompt, the tokens and the commits of each
forward: of the engine's decoder (`WeDLMDecoder` and `Sampler` as they stand, around the published model class, without
a cache) and of `generate_wedlm`. An entry is there if noise of 1e-4 on all logits does not change it.
"""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file

from asynclane.models.checkpoint.weights import SINGLE

from .checkpoints import Sizes, write_checkpoint

GOLDEN: dict[str, Any] = json.loads(
    gzip.decompress((Path(__file__).parents[1] / "golden" / "wedlm.json.gz").read_bytes())
)
FORMS: dict[str, dict[str, Any]] = {
    "qk_norm": {},
    "bias": {"attention_bias": True, "qk_norm": False, "kv_heads": 1},
}
GAIN = 8.0  # of the head: then some positions are certain, and others not


def write_golden_checkpoint(directory: Path, form: str) -> Path:
    """A checkpoint of one of the `FORMS`, whose mask is never the likeliest token."""
    write_checkpoint(directory, "WeDLMForCausalLM", **FORMS[form])
    tensors = load_file(directory / SINGLE)
    tensors["lm_head.weight"] *= GAIN
    tensors["lm_head.weight"][Sizes().mask_id] = 0
    save_file(tensors, directory / SINGLE)
    return directory
