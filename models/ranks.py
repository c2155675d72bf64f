"""Processes of the ranks that share a network: how they are started, and the program of all but the first."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Collection
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from .checkpoint.config import ModelConfig, ModelError
from .checkpoint.registry import Hardware, Loaded, check_ranks, load_runner
from .exec.followers import FirstRank, Followers
from .exec.memory import Memory

MODULE = "asynclane.models.ranks"
REASON_S = 5.0  # in which the first rank says better why it cannot load, since it often is the same for all


@dataclass(frozen=True, slots=True)
class Setup:
    """The arguments of `load_runner`, as a rank gets them."""

    directory: Path
    config: ModelConfig
    memory: Memory
    hardware: Hardware
    end_ids: Collection[int]


def start_ranks(setup: Setup, size: int) -> Followers:
    """Start the processes of all ranks but the first. Raises `ModelError` before that if the network cannot be split,
    or devices are missing."""
    if os.name != "posix":
        raise ModelError("--tensor-parallel-size: processes cannot share a socket on this system: give 1")
    check_ranks(setup.directory, setup.config, setup.hardware, size)
    return Followers(size, MODULE, replace(setup, directory=setup.directory.resolve()))


class RankFailed(ModelError):
    """A rank has failed, and a thread of this process waits for it for ever: it may hold up the interpreter's end."""

    hangs = True


def loaded_with(followers: Followers, loading: Future[Loaded]) -> Loaded:
    """The first rank, loaded, with the other ranks to follow it. Raises `ModelError` if one of them cannot."""
    both: list[Future[Any]] = [loading, followers.failure]
    try:
        wait(both, return_when=FIRST_COMPLETED)
        if not loading.done():
            wait([loading], REASON_S)
        if not loading.done():  # it waits for the one that has failed
            raise RankFailed(followers.failure.result())
        loaded = loading.result()
    except BaseException:
        followers.close()
        raise
    loaded.runner.followers = followers
    return loaded


def main() -> None:
    """A rank's part of the network, until the first rank's process ends."""
    first = FirstRank(int(sys.argv[1]))
    logging.disable(logging.WARNING)  # the first rank says the same
    try:
        meeting, setup = first.first_message()
        assert isinstance(setup, Setup)
        loaded = load_runner(
            setup.directory, setup.config, setup.memory, setup.hardware, setup.end_ids, meeting=meeting
        )
        first.follow(loaded.runner.place, loaded.runner.follow)
    except ModelError as error:
        first.fail(str(error))
    except Exception as error:
        logging.getLogger(__name__).exception("a rank has failed")
        first.fail(str(error) or repr(error))
