"""What is asked of and answered for projected positions, in the types that both versions of `predict` share."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class Draws(NamedTuple):
    """How each of N positions is sampled. Rows with temperature 0 are not: they take the best token.

    The sets nest as in vLLM: `min_p`, then `top_k` of what it leaves, then `top_p` of the mass that these leave.
    Tokens as likely as the least likely kept one stay too.
    """

    temperature: Tensor  # [N] float32, 0: greedy
    top_p: Tensor  # [N] float32, 1: off
    top_k: Tensor  # [N] int32, 0: off
    min_p: Tensor  # [N] float32, share of the best token's probability; 0: off
    seeds: Tensor  # [N] int64
    positions: Tensor  # [N] int64
    steps: Tensor  # [N] int64


class Prediction(NamedTuple):
    """N positions; probabilities are at temperature 1 over all tokens that are not banned."""

    proposals: Tensor  # [N] int64: the best or the drawn token
    confidence: Tensor  # [N] float64: its probability
    tokens: Tensor  # [N] int64: the proposal, or the best token that ends nothing where that is asked
    commit_probability: Tensor  # [N] float64: the probability of `tokens`
    margin: Tensor  # [N] float64: the best token's probability less the second best's, 0 on a tie
    entropy: Tensor  # [N] float32, nats
