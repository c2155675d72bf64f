"""What a network with a mixture of experts has besides the shape of its other layers."""

from __future__ import annotations

from dataclasses import dataclass

from ...kernels.common.types import Routing


@dataclass(frozen=True, slots=True)
class Experts:
    """MLPs of width `ff_dim` in all layers from `first_layer` on, of which each token chooses some. `biased`: a bias
    helps to choose. `shared_ff_dim`: width of an MLP that every token passes besides; 0: there is none.

    Raises `ValueError` for numbers that do not go together.
    """

    count: int
    ff_dim: int
    routing: Routing
    biased: bool = False
    shared_ff_dim: int = 0
    first_layer: int = 0

    def __post_init__(self) -> None:
        chosen, groups, live = self.routing.chosen, self.routing.groups, self.routing.live_groups
        if min(self.count, self.ff_dim, chosen, groups, live) < 1 or min(self.shared_ff_dim, self.first_layer) < 0:
            raise ValueError(f"experts cannot be computed: {self}")
        size = self.count // groups
        # A group is as strong as its two best experts.
        if self.count % groups or live > groups or (groups > 1 and size < 2):
            raise ValueError(f"{live} of {groups} groups cannot be chosen of {self.count} experts")
        if chosen > size * live:
            raise ValueError(f"{chosen} experts cannot be chosen of {size * live}")
