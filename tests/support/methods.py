"""The outputs of further methods' own code on the embedded models, and the comparison with them.

tests/golden/methods.json has, by method and network, each prompt of decoders.json by its id: the distinct texts,
without the end tokens after them, and for each entry the number of its text and of its forwards.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from .cases import network
from .driver import Answer, Spec
from .golden import END_ID, GOLDEN, WHOLE
from .scale import ALL, part

RECORDED = json.loads((Path(__file__).parents[1] / "golden" / "methods.json").read_text())
PROMPTS: Mapping[str, list[int]] = {prompt["id"]: prompt["prompt_ids"] for prompt in GOLDEN["prompts"]}
LENGTH: int = GOLDEN["gen_length"]

BOUNDS = ("0.05", "0.1", "0.5")
RANKED = {"transformers": "others", "jetengine": "all"}

CASES: Mapping[str, tuple[str, Mapping[str, Mapping[str, object]]]] = {  # by method and network: decoder, parameters
    "entropy-bound on tiny-llada": (
        "entropy-bound",
        {
            f"{code}_gamma{bound}": {"entropy_bound": float(bound), "bound_on": counted, "cache": "none"}
            for code, counted in RANKED.items()
            for bound in BOUNDS
        },
    ),
    "entropy-bound on tiny-sdar": (
        "entropy-bound",
        {
            f"{code}_gamma{bound}": {"entropy_bound": float(bound), "bound_on": counted}
            for code, counted in RANKED.items()
            for bound in BOUNDS
        },
    ),
    "dsb on tiny-llada": (
        "dsb",
        {
            "dsb_greedy": {"cache": "none"},
            "dsb_constant": {"cache": "none", "max_block_length": 32},
            "dsb_cache_greedy": {},
            "dsb_cache_constant": {"max_block_length": 32},
            "dsb_cache_greedy_prefix0": {"prefix_window": 0},
            "dsb_greedy_block8": {"cache": "none", "block_length": 8},
            "dsb_constant_block8": {"cache": "none", "block_length": 8, "max_block_length": 8},
            "dsb_cache_greedy_block8": {"block_length": 8},
            "dsb_cache_constant_block8": {"block_length": 8, "max_block_length": 8},
        },
    ),
}
# The ends of the entries that `make test` takes.
SOME = "gamma0.1", "dsb_constant", "dsb_cache_greedy", "dsb_cache_constant_block8"


def entries() -> Iterator[tuple[str, str]]:
    """Method and entry of each comparison."""
    return ((method, entry) for method, (_, found) in CASES.items() for entry in found if ALL or entry.endswith(SOME))


def length_of(prompt: list[int], block: int) -> int:
    """The canvas of the authors' code, which ends where a block does."""
    return LENGTH + -(len(prompt) + LENGTH) % (block or 1)


def assert_published(method: str, entry: str) -> None:
    (decoder, found), net = CASES[method], network(method.split()[-1])
    ids = part(RECORDED[method]["prompts"], 12, seed=entry)
    specs = [
        Spec(PROMPTS[id_], length_of(PROMPTS[id_], net.pattern.block_size), decoder, WHOLE | found[entry])
        for id_ in ids
    ]
    for id_, spec, answer in zip(ids, specs, net.run(specs), strict=True):
        assert_equal(f"{entry} {id_}", RECORDED[method]["prompts"][id_], entry, spec, answer)


def assert_equal(name: str, prompt: Mapping[str, Any], entry: str, spec: Spec, answer: Answer) -> None:
    wanted = prompt["entries"][entry]
    text = prompt["texts"][wanted["text"]]
    assert answer.canvas.tolist() == text + [END_ID] * (spec.max_tokens - len(text)), name
    assert answer.steps == wanted["calls"], name
