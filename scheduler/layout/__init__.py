"""How the lanes of one request become rows of a step."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ..decoding.lane_tree import Layout
from .drafter import DrafterLayout
from .drafts import DraftLayout, EnsembleLayout
from .isolated import IsolatedLayout
from .packed import Holding, PackedLayout, RowLayout, RowSource
from .verified import VerifiedLayout

__all__ = ["LAYOUTS", "Holding", "RowLayout", "RowSource"]

LAYOUTS: Mapping[Layout, Callable[[Holding, RowSource, int], RowLayout]] = {
    Layout.PACKED: PackedLayout,
    Layout.ISOLATED: IsolatedLayout,
    Layout.DRAFTS: DraftLayout,
    Layout.VERIFIED: VerifiedLayout,
    Layout.DRAFTER: DrafterLayout,
    Layout.ENSEMBLE: EnsembleLayout,
}
