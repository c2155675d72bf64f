"""How a token chooses its experts, as numbers: read from a checkpoint's configuration, obeyed by `ops.route`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Routing:
    """`chosen` experts for each token. Scores are a softmax over all experts, or with `sigmoid` each by itself.

    With `groups`, only experts of the `live_groups` groups whose two best have the highest sum can be chosen.
    `normed`: the weights of the chosen are divided by their sum; then they are multiplied by `scale`.
    """

    chosen: int
    sigmoid: bool = False
    normed: bool = False
    scale: float = 1.0
    groups: int = 1
    live_groups: int = 1
