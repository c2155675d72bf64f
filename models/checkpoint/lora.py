"""Low-rank adapters (Hu et al., arXiv 2106.09685) in peft's files, which are added to the weights when they are loaded.

The formulas are those of peft: W + scale * B A, scale = lora_alpha / r, or lora_alpha / sqrt(r) with `use_rslora`.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import Tensor

from ...kernels.common.types import Matrix
from ...kernels.linear import dequantize
from .patterns import checked_pattern

PREFIX = "model."
CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
NAME = re.compile(r"base_model\.model\.(?P<module>.+)\.lora_(?P<factor>[AB])(\.default)?\.weight")
MOST_ALPHA = 1e6
DTYPES = ("BF16", "F16", "F32")
# Keys that say how the adapter was made, or that tensors say better. Any other must be empty.
HARMLESS = frozenset(
    "auto_mapping base_model_name_or_path revision task_type inference_mode peft_version lora_dropout target_modules"
    " exclude_modules layers_to_transform layers_pattern loftq_config corda_config eva_config megatron_config"
    " megatron_core qalora_group_size runtime_config"
    " peft_type bias init_lora_weights r lora_alpha use_rslora rank_pattern alpha_pattern".split()
)
# Others begin with a part of the base model's weights, which the base model then lacks.
STARTS = (True, False, "gaussian", "eva", "orthogonal")


@dataclass(frozen=True, slots=True)
class Factors:
    """The names of a matrix's factors B [N, r] and A [r, K], and what multiplies their product."""

    b: str
    a: str
    rank: int
    scale: float


@dataclass(frozen=True, slots=True)
class Adapter:
    """An adapter: its directory, and the factors for each weight that it changes."""

    directory: Path
    factors: Mapping[str, Factors]

    def merged(self, weight: str, found: Matrix) -> Matrix:
        """A weight with its factors' product, in float32; one without factors as it is. Raises `ValueError` if the
        file can no longer be read."""
        factors = self.factors.get(weight)
        if factors is None:
            return found
        plain = dequantize(found)
        try:
            with safe_open(self.directory / WEIGHTS, framework="pt") as file:
                b, a = (file.get_tensor(name).float().to(plain.device) for name in (factors.b, factors.a))
        except (OSError, SafetensorError) as error:
            raise ValueError(f"{self.directory / WEIGHTS} cannot be read: {error}") from None
        product: Tensor = b @ a
        product *= factors.scale
        if not product.isfinite().all():
            raise ValueError(f"{self.directory / WEIGHTS}: {factors.b} and {factors.a} are not finite numbers")
        return plain + product

    def __str__(self) -> str:
        ranks = sorted({each.rank for each in self.factors.values()})
        return f"{self.directory.name}, rank {', '.join(map(str, ranks))}, for {len(self.factors)} matrices"


def read_adapter(directory: Path, shapes: Mapping[str, tuple[int, ...]], fixed: frozenset[str]) -> Adapter:
    """The adapter in a directory, for weights of these names and shapes, of which it may not change the `fixed` ones.
    Raises `ValueError` with one line for what cannot be merged."""
    directory = directory.expanduser().resolve()
    path = directory / WEIGHTS
    for file in (directory / CONFIG, path):
        if file.exists() and not file.is_file():  # reading a FIFO may never end
            raise ValueError(f"{file} is no regular file")
    said = _configuration(directory / CONFIG)
    found = dict[str, dict[str, tuple[str, tuple[int, ...]]]]()
    try:
        with safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118 - not a mapping
                match, tensor = NAME.fullmatch(name), file.get_slice(name)
                if match is None:
                    raise ValueError(f"{path}: {name} is not supported, only lora_A and lora_B of matrices")
                if tensor.get_dtype() not in DTYPES:
                    raise ValueError(f"{path}: {name} is {tensor.get_dtype()}, only {', '.join(DTYPES)} can be read")
                pair = found.setdefault(match["module"], {})
                if match["factor"] in pair:
                    raise ValueError(f"{path}: lora_{match['factor']} of {match['module']} is there twice")
                pair[match["factor"]] = name, tuple(tensor.get_shape())
    except FileNotFoundError:
        raise ValueError(f"{directory} has no {WEIGHTS}: other files of weights are not read") from None
    except (OSError, SafetensorError) as error:
        raise ValueError(f"{path} cannot be read: {error}") from None
    if not found:
        raise ValueError(f"{path} has no lora_A and lora_B")
    factors = dict[str, Factors]()
    for module, pair in found.items():
        # The class without a head has no prefix.
        weight = f"{module}.weight" if f"{module}.weight" in shapes else f"{PREFIX}{module}.weight"
        shape = shapes.get(weight, ())
        if weight in factors:
            raise ValueError(f"{path}: {weight} has factors twice, under names with and without {PREFIX!r}")
        if len(shape) != 2 or weight in fixed:
            raise ValueError(f"{path}: {module} is no matrix of this model that can be changed")
        if pair.keys() != {"A", "B"}:
            raise ValueError(f"{path}: {module} lacks lora_{'A' if 'B' in pair else 'B'}")
        rank, scale = _rank_and_scale(said, module, path.with_name(CONFIG))
        for factor, wanted in (("A", (rank, shape[1])), ("B", (shape[0], rank))):
            name, given = pair[factor]
            if given != wanted:
                raise ValueError(f"{path}: {name} is {list(given)}, model and {CONFIG} say {list(wanted)}")
        factors[weight] = Factors(pair["B"][0], pair["A"][0], rank, scale)
    return Adapter(directory, factors)


def _configuration(path: Path) -> dict[str, Any]:
    try:
        said = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ValueError(f"{path.parent} has no {CONFIG}: not the directory of an adapter") from None
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(f"{path} cannot be read: {error}") from None
    if not isinstance(said, dict):
        raise ValueError(f"{path} is no object but {type(said).__name__}")
    for key, value in said.items():
        if key not in HARMLESS and value:
            raise ValueError(f"{path}: {key} = {str(value)[:60]!r} is not supported")
    for key, default, allowed in (
        ("peft_type", None, ("LORA",)),
        ("bias", "none", ("none",)),
        ("init_lora_weights", True, STARTS),
        ("use_rslora", False, (True, False)),
    ):
        if said.get(key, default) not in allowed:
            raise ValueError(
                f"{path}: {key} = {said.get(key)!r} is not supported, only {' or '.join(map(repr, allowed))}"
            )
    return said


def _rank_and_scale(said: Mapping[str, Any], module: str, path: Path) -> tuple[int, float]:
    """The rank of a module's factors, and what multiplies their product; patterns of names may set both."""
    rank, alpha = (
        _of_module(said, *keys, module, path) for keys in (("r", "rank_pattern"), ("lora_alpha", "alpha_pattern"))
    )
    if type(rank) is not int or rank < 1:
        raise ValueError(f"{path}: r = {rank!r} is no positive number")
    # Of a whole number that no float has, `math.isfinite` raises.
    if isinstance(alpha, bool) or not isinstance(alpha, int | float) or not abs(alpha) <= MOST_ALPHA:
        raise ValueError(f"{path}: lora_alpha = {alpha!r} is no number up to {MOST_ALPHA}")
    return rank, alpha / (math.sqrt(rank) if said.get("use_rslora") else rank)


def _of_module(said: Mapping[str, Any], key: str, patterns_key: str, module: str, path: Path) -> Any:
    """The first pattern that the end of a module's name matches decides, as in peft."""
    patterns = said.get(patterns_key) or {}
    if not isinstance(patterns, dict):
        raise ValueError(f"{path}: {patterns_key} = {str(patterns)[:60]!r} has no patterns of names")
    for pattern, value in patterns.items():
        try:
            if re.match(rf"(.*\.)?({checked_pattern(pattern)})$", module):
                return value
        except ValueError as error:
            raise ValueError(f"{path}: {patterns_key} has {pattern[:60]!r}, {error}") from None
    return said.get(key)
