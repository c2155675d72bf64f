"""Commit rules of other packages, and the tables that have them beside the project's own.

An entry point of the group `asynclane.decoders` names a `HostCommitRule` class. Its name, which is the class's `NAME`,
becomes a value of the parameter `rule` and a decoder: serial blocks with that rule. The tables here are complete at the
first look, not when they are imported, so that a plug-in may import the project, and a program may import a plug-in
first. A plug-in that cannot be used is left out, and `problems` says why. Its own parameters are called `NAME.PARAM`:
the body of a request is flat, and no field of an API has a dot.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any, TypeVar

from .cache import CACHES
from .commit import HOST_RULES
from .commit.base import HostCommitRule
from .lane_tree import Layout
from .params import PARAMS, SHOWN_CHARS, Choice, Params, Values, check
from .registry import DECODERS, DecoderSpec, serial

GROUP = "asynclane.decoders"
NAME = re.compile("[a-z0-9][a-z0-9_-]{0,63}")
PARAM = re.compile("[a-z][a-z0-9_]{0,63}")
LENGTH = 256  # of the canvas for which a rule is made on trial

Row = TypeVar("Row")


class PluginError(Exception):
    """A plug-in that the project cannot use."""


@dataclass(frozen=True, slots=True)
class Plugins:
    """The rules of plug-ins, the package and version of each, and a line for each that is left out."""

    rules: dict[str, type[HostCommitRule]] = field(default_factory=dict)
    origins: dict[str, str] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)


class Table(Mapping[str, Row]):
    """A table whose rows are read at the first look."""

    def __init__(self, read: Callable[[], Mapping[str, Row]]) -> None:
        self._rows = cache(read)

    def __getitem__(self, name: str) -> Row:
        return self._rows()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._rows())

    def __len__(self) -> int:
        return len(self._rows())


@cache
def plugins() -> Plugins:
    """The plug-ins that are installed."""
    return read(entry_points(group=GROUP))


def read(entries: Iterable[EntryPoint]) -> Plugins:
    """Load the plug-ins that `entries` name. Nothing that one of them raises goes further."""
    found = Plugins()
    for entry in sorted(entries, key=lambda each: (_origin(each), each.name)):
        try:
            rule = _loaded(entry, found)
        except (KeyboardInterrupt, GeneratorExit):
            raise
        except BaseException as error:  # noqa: BLE001 - a package may raise anything, or exit
            reason = str(error) if isinstance(error, PluginError) else f"{type(error).__name__}: {error}"
            line = " ".join(f"the decoder {entry.name!r} of {_origin(entry)} is left out: {reason}".split())
            found.problems.append(line if len(line) <= SHOWN_CHARS else line[:SHOWN_CHARS] + "...")
        else:
            found.rules[entry.name], found.origins[entry.name] = rule, _origin(entry)
    return found


def _origin(entry: EntryPoint) -> str:
    return entry.value if entry.dist is None else f"{entry.dist.name} {entry.dist.version}"


def _loaded(entry: EntryPoint, others: Plugins) -> type[HostCommitRule]:
    """The class of an entry point, checked as the tests check the project's own."""
    name = entry.name
    if name in DECODERS or name in HOST_RULES:
        raise PluginError("a built-in decoder or rule has this name")
    if name in others.rules:
        raise PluginError(f"{others.origins[name]} has a decoder of this name")
    if not NAME.fullmatch(name):
        raise PluginError("a name has up to 64 small letters, digits, '-' and '_'")
    rule: Any = entry.load()
    if not isinstance(rule, type) or not issubclass(rule, HostCommitRule) or inspect.isabstract(rule):
        raise PluginError(f"{entry.value} is no HostCommitRule with a method `choose`")
    if name != rule.NAME:
        raise PluginError(f"its class has the NAME {rule.NAME!r}")
    if rule.layout is not Layout.PACKED or rule.rows_param or rule.replica_count:
        raise PluginError("only built-in rules have further rows in a step")
    for param, allowed in rule.PARAMS.items():
        if not PARAM.fullmatch(param.removeprefix(f"{name}.")) or not param.startswith(f"{name}."):
            raise PluginError(f"its parameter {param!r} must be called '{name}.{param.rpartition('.')[2]}'")
        if not isinstance(allowed, Values):
            raise PluginError(f"the values of its parameter {param!r} are no Range or Choice")
    known = {**_params(HOST_RULES), **rule.PARAMS}
    for param, default in rule.DEFAULTS.items():
        if param not in known:
            raise PluginError(f"PARAMS does not have the parameter {param!r} of DEFAULTS")
        if default is not None:
            check(param, default, known[param])
    made = plugin_spec(rule, "")
    rule(Params({**rule.DEFAULTS, **made.defaults, **CACHES[str(made.defaults["cache"])].DEFAULTS}), LENGTH)
    return rule


def plugin_spec(rule: type[HostCommitRule], origin: str) -> DecoderSpec:
    """The decoder of a plug-in. The rule's `DEFAULTS` may name the length of a block and the cache, too."""
    return serial(rule, {"cache": "none", **rule.DEFAULTS}, origin)


def _params(rules: Mapping[str, type[HostCommitRule]]) -> Mapping[str, Values]:
    apart = Layout.DRAFTER  # of a decoder with networks of its own
    by_name = tuple(name for name, rule in rules.items() if not rule.rows_param and rule.layout is not apart)
    return {
        **PARAMS,
        "cache": Choice(tuple(CACHES)),
        "rule": Choice(by_name),
        **{name: values for spec in DECODERS.values() for name, values in spec.policy.PARAMS.items()},
        **{name: values for rule in rules.values() for name, values in rule.PARAMS.items()},
        **{name: values for cache in CACHES.values() for name, values in cache.PARAMS.items()},
    }


ALL_RULES: Mapping[str, type[HostCommitRule]] = Table(lambda: {**HOST_RULES, **plugins().rules})
ALL_PARAMS: Mapping[str, Values] = Table(lambda: _params(ALL_RULES))
ALL_DECODERS: Mapping[str, DecoderSpec] = Table(
    lambda: {
        **DECODERS,
        **{name: plugin_spec(rule, plugins().origins[name]) for name, rule in plugins().rules.items()},
    }
)
