"""The files of `asynclane train-controller`: the weights of a learnt commit rule, and the model that they belong to."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from ...scheduler import LEARNT_RULES, LearntRule, Weights
from ..settings import SettingsError

FORMAT = "asynclane-controller-1"
KEYS = ("format", "method", "model", "fingerprint")  # of the file's metadata


class Controller(NamedTuple):
    """Weights of the rule `method`, learnt from answers of the `model` with this `fingerprint`. `model` is its name for
    messages."""

    method: str
    model: str
    fingerprint: str
    weights: Weights

    @property
    def rule(self) -> type[LearntRule]:
        return LEARNT_RULES[self.method]


def write_controller(path: Path, controller: Controller, facts: Mapping[str, object]) -> None:
    """Write a file at once: a program that is ended leaves the old one or the new one. `facts` say how it was made."""
    metadata = dict(zip(KEYS, (FORMAT, *controller[:3]), strict=True))
    metadata |= {key: str(value) for key, value in facts.items()}
    new = path.with_name(path.name + ".new")
    arrays = {name: np.ascontiguousarray(array, np.float32) for name, array in controller.weights.items()}
    new.write_bytes(save(arrays, metadata))
    new.replace(path)


def read_controller(name: str, fingerprint: str) -> Controller:
    """The controller in a file, for the model with this fingerprint. Raises `SettingsError` for a file that is not of
    `asynclane train-controller`, is broken, or belongs to another model."""
    found = _read(name)
    if found.fingerprint != fingerprint:
        raise SettingsError(
            f"--controller {name} was learnt from {found.model}, whose weights are not those of this model: make one"
            " with `asynclane train-controller MODEL`"
        )
    return found


def check_method(controller: Controller, rule: object, name: str) -> None:
    """Raises `SettingsError` if the `rule` of requests that name no decoder has weights, and not those of this file."""
    if rule in LEARNT_RULES and rule != controller.method:
        raise SettingsError(
            f"--controller {name} has weights of {controller.method}, and --decoder {rule} does not use them: give"
            f" --decoder {controller.method}, or a file of {rule}"
        )


def _read(name: str) -> Controller:
    if not Path(name).is_file():
        raise SettingsError(f"--controller: there is no file {name}")
    try:
        with safe_open(name, framework="numpy") as file:
            metadata = file.metadata() or {}
            arrays = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 - not a mapping
    except (OSError, SafetensorError) as error:
        raise SettingsError(f"--controller {name} cannot be read: {error}") from None
    if metadata.get("format") != FORMAT or not {*KEYS} <= metadata.keys():
        raise SettingsError(f"--controller {name} is no file of this version's `asynclane train-controller`")
    method, model, fingerprint = (metadata[key] for key in KEYS[1:])
    if method not in LEARNT_RULES:
        raise SettingsError(f"--controller {name} is for {method!r}: there are {', '.join(LEARNT_RULES)}")
    found = Controller(method, model, fingerprint, arrays)
    shapes = {key: array.shape for key, array in arrays.items()}
    whole = all(array.dtype == np.float32 and np.isfinite(array).all() for array in arrays.values())
    if shapes != found.rule.SHAPES or not whole:
        raise SettingsError(f"--controller {name} does not have the weights of {method}: train it again")
    return found
