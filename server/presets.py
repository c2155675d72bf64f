"""The decoders that the authors of published weights recommend for them, as data."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import PurePath
from typing import NamedTuple

from ..scheduler import RULES

_LLADA, _DREAM, _LLADA2 = ("LLaDAModelLM",), ("DreamModel",), ("LLaDA2MoeModelLM",)
# Of these a decoder has one: a request that gives another one replaces it.
_RULES = frozenset((*RULES, "rule"))


class DecoderLine(NamedTuple):
    """A decoder, and parameters that replace its defaults on a server."""

    name: str
    params: Mapping[str, object] = {}

    def requested(self, name: str | None, params: Mapping[str, object]) -> tuple[str, dict[str, object]]:
        """The decoder and the parameters of a request that gives these, or no name."""
        if name not in (None, self.name):
            return str(name), dict(params)
        replaced = _RULES if _RULES & params.keys() else frozenset[str]()
        kept = {param: value for param, value in self.params.items() if param not in replaced}
        return self.name, kept | dict(params)

    def __str__(self) -> str:
        return " ".join((self.name, *(f"{param}={value}" for param, value in self.params.items())))


@dataclass(frozen=True, slots=True)
class Preset:
    """A `line` for checkpoints of these `architectures`, whose `names` are patterns of file names, in lower case.
    Requests should have what is in `requests`, which the server does not set."""

    architectures: tuple[str, ...]
    names: tuple[str, ...]
    line: DecoderLine
    source: str
    requests: Mapping[str, object] = field(default_factory=dict)


_ONE_BLOCK: Mapping[str, object] = {"cache": "none", "block_length": 32, "threshold": 0.5}

# The first one whose pattern fits is that of a checkpoint.
PRESETS: Mapping[str, Preset] = {
    "llada-1.5": Preset(
        _LLADA,
        ("llada-1.5*",),
        DecoderLine("llada", {"block_length": 32}),
        "ML-GSAI/LLaDA, evaluation: one token a forward; GSM8K and IFEval with blocks of 16",
        {"max_tokens": 512},
    ),
    "dparallel-llada": Preset(
        _LLADA,
        ("dparallel[-_]llada*",),
        DecoderLine("fast-dllm", _ONE_BLOCK),
        "czg1225/dParallel, README",
        {"max_tokens": 256},
    ),
    "dparallel-dream": Preset(
        _DREAM,
        ("dparallel[-_]dream*",),
        DecoderLine("fast-dllm", _ONE_BLOCK),
        "czg1225/dParallel, README",
        {"max_tokens": 256},
    ),
    "cd4lm": Preset(
        _LLADA,
        ("*cd4lm*", "*cdlm*"),
        DecoderLine("cad", {"threshold": 0.95, "most_tokens": 4, "ends_from": 0.5, "block_length": 32}),
        "arXiv 2601.02236; yihao-liang/CDLM",
    ),
    "d3llm-llada": Preset(
        _LLADA, ("d3llm[-_]llada*",), DecoderLine("d3llm", {"entropy_threshold": 0.5}), "hao-ai-lab/d3LLM"
    ),
    "d3llm-dream": Preset(
        _DREAM, ("d3llm[-_]dream*",), DecoderLine("d3llm", {"entropy_threshold": 0.4}), "hao-ai-lab/d3LLM"
    ),
    "diffucoder": Preset(
        _DREAM,
        ("diffucoder*",),
        DecoderLine("dream"),
        "apple/ml-diffucoder, README: by entropy, a step for each token or every second one; the base model at 0.2",
        {"temperature": 0.3, "top_p": 0.95},
    ),
    "dream-coder": Preset(
        _DREAM,
        ("dream-coder*",),
        DecoderLine("dream"),
        "DreamLM/Dream-Coder, README: by entropy, 768 steps",
        {"temperature": 0.1, "top_p": 0.95, "max_tokens": 768},
    ),
    "stable-diffcoder": Preset(
        ("StableDiffcoderForCausalLM",),
        ("stable-diffcoder*",),
        DecoderLine("llada"),
        "ByteDance-Seed/Stable-DiffCoder, README: one token a forward in blocks of 4",
        {"max_tokens": 512},
    ),
    "llada-moe": Preset(
        ("LLaDAMoEModelLM",),
        ("llada-moe*",),
        DecoderLine("fast-dllm", {"block_length": 32, "threshold": 0.9}),
        "inclusionAI/dInfer",
    ),
    "llada2-cap": Preset(
        _LLADA2, ("llada2*-cap*",), DecoderLine("fast-dllm", {"threshold": 0.95}), "arXiv 2512.15745: as llada2.0"
    ),
    "llada2.0": Preset(_LLADA2, ("llada2.0*",), DecoderLine("fast-dllm", {"threshold": 0.95}), "arXiv 2512.15745"),
    "llada2.1": Preset(
        _LLADA2,
        ("llada2.1*",),
        DecoderLine("llada2", {"threshold": 0.7, "edit_threshold": 0.5, "edit_steps": 16}),
        "arXiv 2602.08676, quality mode",
    ),
    "llada2.1-speed": Preset(
        _LLADA2,
        (),
        DecoderLine("llada2", {"threshold": 0.5, "edit_threshold": 0.0, "edit_steps": 16}),
        "arXiv 2602.08676, speed mode",
    ),
    "llada2.2": Preset(
        _LLADA2,
        ("llada2.2*",),
        DecoderLine("indel", {"threshold": 0.5, "edit_threshold": 0.0, "edit_steps": 16}),
        "SGLang pull request 31773",
    ),
    "sdar": Preset(
        ("SDARForCausalLM", "SDARMoeForCausalLM"),
        ("sdar*", "trado*"),
        DecoderLine("fast-dllm", {"threshold": 0.9}),
        "JetAstra/SDAR generate.py, low_confidence_dynamic",
    ),
    "fast-dllm-v2": Preset(
        ("Fast_dLLM_QwenForCausalLM",),
        ("fast_dllm_v2*",),
        DecoderLine("fast-dllm-v2", {"threshold": 0.9}),
        "NVlabs/Fast-dLLM v2, README",
    ),
    "wedlm": Preset(
        ("WeDLMForCausalLM",),
        ("wedlm*",),
        DecoderLine("wedlm"),
        "Tencent/WeDLM, the defaults of its engine",
        {"temperature": 0.2},
    ),
}


def preset_of(architecture: str, names: Iterable[str]) -> str | None:
    """The preset for a checkpoint of this architecture with one of these `names`: a repository or a directory."""
    files = [PurePath(name.partition("@")[0]).name.lower() for name in names]
    for preset, row in PRESETS.items():
        fits = any(fnmatchcase(file, pattern) for file in files for pattern in row.names)
        if fits and architecture in row.architectures:
            return preset
    return None
