"""Fixtures that load the embedded model once."""

from __future__ import annotations

import pytest

from asynclane.models.runner import Runner
from asynclane.scheduler.vocabulary import Vocabulary

from .driver import embedded_runner, embedded_vocabulary


@pytest.fixture(scope="session")
def runner() -> Runner:
    return embedded_runner()


@pytest.fixture(scope="session")
def vocabulary() -> Vocabulary:
    return embedded_vocabulary()
