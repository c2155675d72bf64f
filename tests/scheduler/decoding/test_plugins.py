"""A plug-in that cannot be used is left out, with one line that names it and says why."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib.metadata import EntryPoint
from types import ModuleType
from typing import Any, ClassVar

import pytest

from asynclane.scheduler import ALL_DECODERS, ALL_RULES, ParamError, Params, Range, resolve
from asynclane.scheduler.decoding.commit.host.entropy import Entropy
from asynclane.scheduler.decoding.lane_tree import Layout
from asynclane.scheduler.decoding.plugins import GROUP, Plugins, plugin_spec, read


class Good(Entropy):
    NAME = "good"
    SOURCE = "a test"
    DEFAULTS: ClassVar = {**Entropy.DEFAULTS, "good.gain": 2.0, "block_length": 16}
    PARAMS: ClassVar = {"good.gain": Range(0.0, 8.0)}


def raising(error: BaseException) -> Any:
    def make(self: Any, params: Params, length: int) -> None:
        raise error

    return make


@pytest.fixture
def module() -> Iterator[ModuleType]:
    made = sys.modules["some_plugin"] = ModuleType("some_plugin")
    yield made
    del sys.modules["some_plugin"]


def loaded(name: str = "good", value: str = "some_plugin:Rule") -> Plugins:
    return read([EntryPoint(name, value, GROUP)])


def test_a_rule_is_taken_with_its_defaults(module: ModuleType) -> None:
    module.Rule = Good  # type: ignore[attr-defined]
    found = loaded()
    assert (found.rules, found.problems) == ({"good": Good}, [])
    spec = plugin_spec(Good, "a package 1.0")
    assert (spec.rule, spec.origin, spec.defaults["cache"], spec.defaults["block_length"]) == (
        *("good", "a package 1.0", "none", 16),
    )


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"NAME": "other"}, "its class has the NAME 'other'"),
        ({"DEFAULTS": {"gain": 1.0}, "PARAMS": {"gain": Range(0, 2)}}, "'gain' must be called 'good.gain'"),
        ({"DEFAULTS": {"temperature": 1.0}}, "PARAMS does not have the parameter 'temperature'"),
        ({"DEFAULTS": {"good.gain": 9.0}}, "good.gain must be a number from 0 to 8, not 9.0"),
        ({"PARAMS": {"good.gain": (0, 1)}}, "the values of its parameter 'good.gain' are no Range or Choice"),
        ({"layout": Layout.ENSEMBLE}, "only built-in rules have further rows"),
        ({"replica_count": 1}, "only built-in rules have further rows"),
        ({"__init__": raising(ZeroDivisionError("a line\nand another"))}, "ZeroDivisionError: a line and another"),
        ({"__init__": raising(SystemExit(3))}, "SystemExit: 3"),
    ],
    ids="name param range value kind layout replicas raises exits".split(),
)
def test_a_rule_that_does_not_fit_is_left_out(module: ModuleType, changed: dict[str, Any], reason: str) -> None:
    module.Rule = type("Rule", (Good,), changed)  # type: ignore[attr-defined]
    found = loaded()
    (problem,) = found.problems
    assert problem.startswith("the decoder 'good' of some_plugin:Rule is left out: ")
    assert reason in problem
    assert "\n" not in problem
    assert not found.rules


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("wino", "some_plugin:Rule", "a built-in decoder or rule has this name"),
        ("entropy", "some_plugin:Rule", "a built-in decoder or rule has this name"),
        ("Good", "some_plugin:Rule", "a name has up to 64 small letters"),
        ("good", "some_plugin:Absent", "AttributeError"),
        ("good", "no_such_plugin:Rule", "ModuleNotFoundError"),
        ("good", "json:dumps", "json:dumps is no HostCommitRule"),
        ("good", "asynclane.scheduler:HostCommitRule", "with a method `choose`"),
    ],
)
def test_an_entry_point_that_names_no_rule_is_left_out(module: ModuleType, name: str, value: str, reason: str) -> None:
    module.Rule = Good  # type: ignore[attr-defined]
    found = loaded(name, value)
    (problem,) = found.problems
    assert problem.startswith(f"the decoder {name!r} of {value} is left out: ")
    assert reason in problem


def test_the_first_of_two_packages_has_the_name(module: ModuleType) -> None:
    module.Rule, module.Second = Good, Good  # type: ignore[attr-defined]
    found = read([EntryPoint("good", f"some_plugin:{kind}", GROUP) for kind in ("Second", "Rule")])
    assert found.origins == {"good": "some_plugin:Rule"}
    assert found.problems == [
        "the decoder 'good' of some_plugin:Second is left out: some_plugin:Rule has a decoder of this name"
    ]


def test_an_interrupt_is_no_fault_of_a_plug_in(module: ModuleType) -> None:
    module.Rule = type("Rule", (Good,), {"__init__": raising(KeyboardInterrupt())})  # type: ignore[attr-defined]
    with pytest.raises(KeyboardInterrupt):
        loaded()


def test_a_plug_in_that_fails_for_one_request_is_refused_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Good, "__init__", raising(ZeroDivisionError("no such length")))
    tables = "asynclane.scheduler.decoding.resolve"
    monkeypatch.setattr(f"{tables}.ALL_RULES", {**ALL_RULES, "good": Good})
    monkeypatch.setattr(f"{tables}.ALL_DECODERS", {**ALL_DECODERS, "good": plugin_spec(Good, "a package 1.0")})
    with pytest.raises(ParamError, match="rule 'good' fails with these parameters: ZeroDivisionError") as refused:
        resolve("good", {}, 64)
    assert refused.value.param == "decoder"


def test_a_built_in_rule_that_fails_is_no_fault_of_the_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Entropy, "__init__", raising(ZeroDivisionError("no such length")))
    with pytest.raises(ZeroDivisionError):
        resolve("d3llm", {}, 64)


def test_tables_without_plug_ins_are_the_projects_own() -> None:
    assert "entropy" in ALL_RULES
    assert "entropy" not in ALL_DECODERS
    assert len(ALL_DECODERS) == len(list(ALL_DECODERS)) > 30
