"""Second axis of a decoder: the commit rules. `HOST_RULES` is the table of those that the host applies, `LEARNT_RULES`
of those among them that have weights."""

from __future__ import annotations

from collections.abc import Mapping

from .base import HostCommitRule
from .host.ahd import Ahd
from .host.bacd import Bacd
from .host.blockbatch import BlockBatch
from .host.blockbatch_dream import BlockBatchDream
from .host.cad import Cad
from .host.ccd import Ccd
from .host.ce import Extrapolated
from .host.credit import Credit
from .host.daedal import Daedal
from .host.deer import Deer
from .host.editing import Editing
from .host.entropy import Entropy
from .host.eoser import Ass, Eoser
from .host.ete import ExploreThenExploit
from .host.freedave import FreeDave
from .host.indel import InDel
from .host.klass import Klass
from .host.leap import Leap
from .host.learn2pd import Learn2PD
from .host.localleap import LocalLeap
from .host.lopa import LoPA
from .host.nap import MacroParallel
from .host.pc_sampler import PcSampler
from .host.prophet import Prophet
from .host.psd import PSD
from .host.s2d2 import S2D2
from .host.saber import Saber
from .host.t2m import TokenToMask
from .host.tspd import TSPD
from .host.wino import Wino
from .shared.weights import LearntRule

_RULES: tuple[type[HostCommitRule], ...] = (
    Ahd,
    Ass,
    Bacd,
    BlockBatch,
    BlockBatchDream,
    Cad,
    Ccd,
    Credit,
    Daedal,
    Deer,
    Editing,
    Entropy,
    Eoser,
    ExploreThenExploit,
    Extrapolated,
    FreeDave,
    InDel,
    Klass,
    Leap,
    Learn2PD,
    LoPA,
    LocalLeap,
    MacroParallel,
    PSD,
    PcSampler,
    Prophet,
    S2D2,
    Saber,
    TSPD,
    TokenToMask,
    Wino,
)
HOST_RULES: Mapping[str, type[HostCommitRule]] = {rule.NAME: rule for rule in _RULES}
LEARNT_RULES: Mapping[str, type[LearntRule]] = {rule.NAME: rule for rule in _RULES if issubclass(rule, LearntRule)}
