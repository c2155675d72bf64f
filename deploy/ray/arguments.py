"""The arguments of `serve run`: how many replicas there are, and the settings of the server in each."""

from __future__ import annotations

import argparse
import dataclasses
import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import click

from ...server.settings import Settings, SettingsError, read_settings

# Clients connect to Ray's proxies, not to the server.
CONNECTIONS = frozenset(("host", "port", "frontends", "max_connections"))
CONNECTIONS |= {"header_timeout_s", "keep_alive_s", "write_timeout_s"}
SERVER = frozenset(field.name for field in dataclasses.fields(Settings)) - CONNECTIONS
POSITIONS, RAY = "positions", "ray"
MOST = 2**20


class BadArgument(click.ClickException):
    """An argument that cannot be used. The message is one line, with which `serve run` ends."""

    exit_code = 2

    def __reduce__(self) -> tuple[type[BadArgument], tuple[str]]:
        """`serve deploy` builds the application in another process."""
        return BadArgument, (self.message,)


def _argument(default: Any, kind: type, low: float = 0.0, choices: tuple[str, ...] = ()) -> Any:
    return dataclasses.field(default=default, metadata={"type": kind, "low": low, "choices": choices})


@dataclass(frozen=True, slots=True)
class Replicas:
    """With `max_replicas`, there are `num_replicas` at least, and so many more that each has `target_requests`, waiting
    ones included. `num_cpus` and `num_gpus` are those of a replica. Requests go where the fewest positions are in
    flight, or as Ray's own router decides."""

    num_replicas: int = _argument(1, int, low=1)
    max_replicas: int | None = _argument(None, int, low=1)
    target_requests: float | None = _argument(None, float, low=0.01)
    num_cpus: float = _argument(1.0, float, low=0.01)
    num_gpus: float = _argument(0.0, float)
    routing: str = _argument(POSITIONS, str, choices=(POSITIONS, RAY))


REPLICAS = {field.name: field for field in dataclasses.fields(Replicas)}


@dataclass(frozen=True, slots=True)
class Arguments:
    """`given` are the settings of the server that are not left to its defaults and environment."""

    replicas: Replicas
    given: dict[str, str]
    settings: Settings


def read_arguments(arguments: Mapping[str, Any]) -> Arguments:
    """Raises `BadArgument`."""
    values: dict[str, Any] = {}
    given: dict[str, str] = {}
    for name, value in arguments.items():
        if name in REPLICAS:
            values[name] = _convert(name, value)
        elif name in SERVER:
            given[name] = str(value)
        elif name in CONNECTIONS:
            raise BadArgument(f"{name} is for servers without Ray, whose proxies have http_options instead")
        else:
            (nearest,) = difflib.get_close_matches(name.lower(), [*REPLICAS, *sorted(SERVER)], 1, cutoff=0)
            raise BadArgument(f"{name} is no argument: did you mean {nearest}?")
    replicas = Replicas(**values)
    if replicas.max_replicas is None and replicas.target_requests is not None:
        raise BadArgument("target_requests needs max_replicas")
    if replicas.max_replicas is not None and replicas.max_replicas < replicas.num_replicas:
        raise BadArgument(f"max_replicas must be at least num_replicas, {replicas.num_replicas}")
    device = "cuda" if replicas.num_gpus else "cpu"
    if given.get("device", "auto") not in ("auto", device):
        raise BadArgument(f"device={given['device']} does not fit num_gpus={replicas.num_gpus:g}")
    given["device"] = device  # a replica that does not get its GPU must not load the model on a CPU
    try:
        return Arguments(replicas, given, read_settings(argparse.Namespace(**given), {}))
    except SettingsError as error:
        raise BadArgument(str(error)) from None


def _convert(name: str, value: Any) -> Any:
    wanted = REPLICAS[name].metadata
    if wanted["choices"]:
        if value not in wanted["choices"]:
            raise BadArgument(f"{name} must be one of {', '.join(wanted['choices'])}, not {value!r}")
        return value
    try:
        found = wanted["type"](str(value))
    except ValueError:
        found = None
    if found is None or not wanted["low"] <= found <= MOST:
        kind = "whole number" if wanted["type"] is int else "number"
        raise BadArgument(f"{name} must be a {kind} from {wanted['low']:g} to {MOST}, not {value!r}")
    return found
