"""CAD: its answers are those of the sampler that CD4LM's authors publish, written out here."""

from __future__ import annotations

import numpy as np
import torch

from asynclane.models.exec.runner import Runner
from asynclane.scheduler.decoding.vocabulary import Vocabulary

from ..support.cases import CHATS
from ..support.driver import Spec, full_logits, run
from ..support.scale import part

LENGTH, BLOCK, MOST = 32, 16, 4


def published(runner: Runner, vocabulary: Vocabulary, prompt: list[int], threshold: float) -> tuple[list[int], int]:
    """Tokens and forwards of `generate_block`: blocks in order, no cache."""
    tokens, forwards = np.array([*prompt, *[vocabulary.mask_id] * LENGTH], np.int32), 0
    for start in range(len(prompt), len(tokens), BLOCK):
        while len(masks := start + np.flatnonzero(tokens[start : start + BLOCK] == vocabulary.mask_id)):
            chance, best = full_logits(runner, tokens, vocabulary.mask_id).softmax(-1).max(-1)
            filled = np.count_nonzero(tokens[len(prompt) :] != vocabulary.mask_id) / LENGTH
            allowed = [at for at in masks.tolist() if filled >= 0.5 or not vocabulary.is_end[best[at].item()]]
            certain = sum(chance[at].item() >= threshold for at in allowed)
            ranked = sorted(allowed or masks[:1].tolist(), key=lambda at: -chance[at].item())
            for at in ranked[: min(max(certain, 1), MOST)]:
                tokens[at] = best[at].item()
            forwards += 1
    return tokens[len(prompt) :].tolist(), forwards


def test_tokens_and_forwards_are_those_of_the_published_sampler(runner: Runner, vocabulary: Vocabulary) -> None:
    with torch.inference_mode():
        for prompt, threshold in part([(CHATS[4], 0.8), (CHATS[0], 0.95)], 2):
            params = {"block_length": BLOCK, "threshold": threshold, "early_stop": False}
            (ours,) = run(runner, vocabulary, [Spec(prompt, LENGTH, "cad", params)])
            assert (ours.canvas.tolist(), ours.steps) == published(runner, vocabulary, prompt, threshold)
