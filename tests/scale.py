"""Says how much of the same the tests do: `make test` a part, so that it takes minutes; `make test-golden`, which sets
GOLDEN, all."""

from __future__ import annotations

import os

ALL = os.environ.get("GOLDEN") == "all"
