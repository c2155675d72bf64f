"""Fixtures that load the embedded model and certificates once. A decoder that raises fails its test, since it ends only
its request; no variable of the machine may change what a test finds.

The process that hands out the tests to others reads this file as well: nothing here imports torch."""

from __future__ import annotations

import functools
import gc
import logging
import os
import resource
import ssl
import sys
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

from asynclane.scheduler.decoding.vocabulary import Vocabulary
from asynclane.scheduler.scheduler import FAULT
from asynclane.server.collector import make_collections_rare

from .support.processes import environment
from .support.scale import EXPLORING

if TYPE_CHECKING:
    from asynclane.models.exec.runner import Runner

make_collections_rare()  # thousands of modules are imported, whose objects stay

for name in os.environ.keys() - environment().keys():
    del os.environ[name]

# Without a profile of its own Hypothesis takes another one where CI is set, and fails what is slow where it is not.
SAME_EVERYWHERE = settings(
    settings.get_profile("default"),
    deadline=None,
    derandomize=not EXPLORING,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("same-everywhere", SAME_EVERYWHERE)
settings.load_profile("same-everywhere")


@pytest.fixture(scope="session")
def runner() -> Runner:
    from .support.driver import embedded_runner

    return embedded_runner()


@pytest.fixture(scope="session")
def vocabulary() -> Vocabulary:
    from .support.driver import embedded_vocabulary

    return embedded_vocabulary()


@pytest.fixture(scope="session", autouse=True)
def certificates() -> Iterator[None]:
    """Each client of httpx, so each `httpx.get`, would read all of them, in 30 ms."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ssl, "create_default_context", functools.cache(ssl.create_default_context))
        yield


def resident_bytes() -> int:
    """The memory of this process, or 0 where the system does not say it."""
    pages = Path("/proc/self/statm")
    return int(pages.read_text().split()[1]) * resource.getpagesize() if pages.exists() else 0


class Leftovers:
    """Lets go, after each gigabyte, of engines and networks that tests have left: FastAPI remembers all functions of
    all applications, and collections are rare."""

    def __init__(self) -> None:
        self._kept_bytes = 0

    def pytest_runtest_logfinish(self) -> None:
        if resident_bytes() > self._kept_bytes + (1 << 30):
            remembering = sys.modules.get("fastapi.dependencies.models")
            for found in vars(remembering).values() if remembering else ():
                if hasattr(found, "cache_clear"):
                    found.cache_clear()
            gc.collect()
            self._kept_bytes = resident_bytes()


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Leftovers())


def pytest_collection_finish() -> None:
    """Leave modules and tests, which live as long as the process, out of all collections."""
    gc.collect()
    gc.freeze()


class Faults(logging.Handler):
    """Keeps the scheduler's messages about decoders that raised."""

    def __init__(self) -> None:
        super().__init__()
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.msg == FAULT:
            self.messages.append(record.getMessage())


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    logger, faults = logging.getLogger("asynclane.scheduler"), Faults()
    logger.addHandler(faults)
    try:
        result = yield
    finally:
        logger.removeHandler(faults)
    if faults.messages and item.get_closest_marker("faults") is None:
        pytest.fail(f"a decoder raised: {faults.messages}")
    return result
