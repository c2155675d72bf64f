"""Canvases of random tokens (uniform-state diffusion): what a step accepts or draws anew, and when a canvas is done.

No token is a mask, and none is sticky: in each step the positions of least entropy get the tokens that the network
draws, as long as the sum of the entropies before them keeps within a bound, and all others become random again. A
canvas is done once its likeliest tokens have not changed and are certain, and these are its text.

Source: transformers 5.24, models/diffusion_gemma/generation_diffusion_gemma.py; the bound is that of Ben-Hamu et al.,
arXiv 2505.24857.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..contract import Floats, Ints
from .boundaries import Bools, Longs
from .commit.shared.noise import hashed

INITIAL, RENOISED = 0xFFFFFFFD, 0xFFFFFFFE  # what a random token is for: ids that no token has


@dataclass(frozen=True, slots=True)
class Denoiser:
    """How a canvas is denoised in at most `steps` steps; its fields are the decoding parameters of the same meaning."""

    steps: int
    entropy_bound: float
    t_min: float
    t_max: float
    stability: int
    confidence: float

    def temperature(self, step: int) -> float:
        """That of a step of a canvas, counted from 0: it falls from `t_max` towards `t_min`."""
        return self.t_min + (self.t_max - self.t_min) * ((self.steps - step) / self.steps)

    def accepted(self, entropies: Floats) -> Bools:
        """The positions [n] whose tokens are accepted: ranked by entropy, each as long as the sum of those before it is
        at most the bound. The first always is."""
        order = np.argsort(entropies, kind="stable")
        ranked = entropies[order]
        found = np.zeros(len(entropies), np.bool_)
        found[order] = np.cumsum(ranked, dtype=np.float32) - ranked <= np.float32(self.entropy_bound)
        return found

    def done(self, step: int, unchanged: int, entropies: Floats) -> bool:
        """True after a canvas's last step, counted from 0: the likeliest tokens have stayed the same for so many steps
        before it, and are certain."""
        if step + 1 >= self.steps:
            return True
        certain = entropies.mean(dtype=np.float32) < np.float32(self.confidence)
        return unchanged >= self.stability and bool(certain)


def random_tokens(seed: int, positions: Longs, step: int, purpose: int, vocabulary: int) -> Ints:
    """A token [n] for each absolute position, uniform over the vocabulary: a function of all of these numbers alone."""
    bits = hashed(seed, positions, step, np.uint64(purpose))
    return (bits * np.uint64(vocabulary) >> np.uint64(32)).astype(np.int32)
