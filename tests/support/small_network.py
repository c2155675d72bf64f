"""A small network of random weights over the vocabulary of `tests.support.fakes`: noise, but the same noise."""

from __future__ import annotations

from dataclasses import asdict, replace

import torch
from torch import Tensor

from asynclane.models.checkpoint.config import ModelConfig
from asynclane.models.exec.pack import Batch
from asynclane.models.exec.pair import Ids, Pair
from asynclane.models.exec.runner import Runner
from asynclane.models.kv_cache import KvPages
from asynclane.models.network import Transformer, Unfinished, allocate
from asynclane.models.numerics import Numerics
from asynclane.scheduler.decoding.attention_pattern import PLAIN, AttentionPattern, Drafter

from .driver import LIMITS
from .fakes import END, MASK, PIECES

CPU = torch.device("cpu")
CONFIG = ModelConfig(
    "LLaDAModelLM", 32, 2, 4, 2, 48, len(PIECES), 256, 1e-5, 10000.0, tied_head=False, mask_id=MASK, head_dim=8
)


class Ahead(Transformer):
    """Its state at a position is what the same network without shift has at the next one."""

    def conclude(self, unfinished: Unfinished, batch: Batch, pages: KvPages) -> Tensor:
        ahead = replace(batch, projected=batch.projected + 1, targets=batch.targets + 1)
        return super().conclude(unfinished, ahead, pages)


def small_runner(
    pattern: AttentionPattern = PLAIN,
    kind: type[Transformer] = Transformer,
    seed: int = 0,
    page_size: int = LIMITS.page_size,
    fp8_cache: bool = False,
    layers: int = CONFIG.layers,
) -> Runner:
    """The same weights for the same seed."""
    own = {
        name: value
        for name, value in asdict(pattern).items()
        if name not in ("canvas_length", "sampler", "selects", "drafter")
    }
    config, numerics = replace(CONFIG, layers=layers, **own), Numerics(torch.float32, fp8_cache=fp8_cache)
    weights, parts = allocate(config, numerics, CPU)
    generator = torch.Generator().manual_seed(seed)
    for weight in {id(part.weight): part.weight for part in parts.values()}.values():
        assert isinstance(weight, Tensor)
        weight.normal_(0, 0.5, generator=generator)
    pages = KvPages(config, LIMITS.pages, page_size, LIMITS.slots, numerics, CPU)
    return Runner(kind(config, numerics, weights), pages, LIMITS.slots, [MASK], [END])


def small_pair(pattern: AttentionPattern, seed: int = 1) -> Pair:
    """The network of the pattern, and a drafter of other weights."""
    drafter = pattern.drafter or Drafter()
    second = small_runner(AttentionPattern(drafter.logit_shift, drafter.block_size), seed=seed)
    return Pair(small_runner(pattern), second, Ids(MASK, MASK, len(PIECES)))
