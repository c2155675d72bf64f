"""The outputs of the authors' own code on the embedded model, and the comparison with them.

tests/golden/decoders.json.gz names repository, revision and arguments of every entry. `make test` takes one of its
twelve prompts, and of every decoder the shorter entries, one of them up to the end of its first block; `make
test-golden` takes all.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from asynclane.models.exec.runner import Runner
from asynclane.scheduler.decoding.vocabulary import Vocabulary
from asynclane.server.text.tokenizer import Tokenizer

from .driver import MODEL, Answer, Spec, run
from .scale import ALL, part

GOLDEN = json.loads(gzip.decompress((Path(__file__).parents[1] / "golden" / "decoders.json.gz").read_bytes()))
PROMPTS: list[list[int]] = [prompt["prompt_ids"] for prompt in GOLDEN["prompts"]]
SOME = part(GOLDEN["prompts"], 12)
END_ID = 1
WHOLE = {"early_stop": False}  # the authors' code goes on after the end token

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "llada_one_per_step": ("llada", {}),
    "llada_two_per_step": ("llada", {"steps": 64}),
    "adablock_newline": ("adablock", {"cache": "none"}),
    "adablock_newline_period_comma": ("adablock", {"cache": "none", "delimiters": "newline_period_comma"}),
    "d3llm_multi_block": ("d3llm", {"cache": "none"}),
    "d3llm_multi_block_early_stop": ("d3llm", {"cache": "none", "early_stop": True}),
    "fast_dllm_none_threshold": ("fast-dllm", {"cache": "none", "threshold": 0.9}),
    "fast_dllm_none_factor": ("fast-dllm", {"cache": "none", "factor": 1.0}),
    "fast_dllm_prefix_threshold": ("fast-dllm", {"cache": "prefix", "threshold": 0.9}),
    "fast_dllm_prefix_factor": ("fast-dllm", {"cache": "prefix", "factor": 1.0}),
    "fast_dllm_prefix_quota": ("fast-dllm", {"cache": "prefix", "steps": 128}),
    "fast_dllm_dual_threshold": ("fast-dllm", {"cache": "dual", "threshold": 0.9}),
    "fast_dllm_dual_factor": ("fast-dllm", {"cache": "dual", "factor": 1.0}),
    "blockbatch_8_16_32_64": ("blockbatch", {"branches": 4, "smallest_block": 8}),
    "fast_dllm_dual_quota": ("fast-dllm", {"cache": "dual", "steps": 128}),
    "credit": ("credit", {"early_stop": "block"}),
    "klass": ("klass", {}),
    "wino_block32": ("wino", {"block_length": 32}),
    "wino_block128": ("wino", {}),
}
LONG = {"llada_one_per_step", "fast_dllm_prefix_quota", "fast_dllm_dual_quota"}  # a forward for each token
LIKE_OTHERS = {
    "adablock_newline_period_comma",
    "d3llm_multi_block_early_stop",
    "fast_dllm_none_factor",
    "wino_block128",
}
SOME_CASES = [case for case in CASES if ALL or case not in LONG | LIKE_OTHERS]
FORWARDS = {} if ALL else {"llada_two_per_step": 16}  # after which the answer is compared as far as it has come
ONE_END = {"blockbatch_8_16_32_64"}  # the authors' code knows only the end token of the model's configuration


def filled(spec: Spec, answer: Answer, vocabulary: Vocabulary) -> list[int]:
    """The canvas as the authors write it: end tokens after an answer that stops there, or with the end of its block."""
    canvas, early_stop = answer.canvas.copy(), spec.params.get("early_stop")
    if early_stop == "block":
        canvas[canvas == vocabulary.mask_id] = END_ID
    elif early_stop:
        canvas[answer.end_at + 1 :] = END_ID
    return [int(token) for token in canvas]


def assert_published(case: str, runner: Runner, vocabulary: Vocabulary) -> None:
    decoder, params = CASES[case]
    if case in ONE_END:
        vocabulary = Vocabulary(Tokenizer(MODEL).pieces, vocabulary.mask_id, [1])
    specs = [Spec(prompt["prompt_ids"], GOLDEN["gen_length"], decoder, WHOLE | params) for prompt in SOME]
    most = FORWARDS.get(case)
    leave_after = {} if most is None else dict.fromkeys(range(len(specs)), most)
    for prompt, spec, answer in zip(SOME, specs, run(runner, vocabulary, specs, leave_after=leave_after), strict=True):
        entry = prompt["decoders"][case]
        if most is None:
            assert_equal(prompt["id"], entry, filled(spec, answer, vocabulary), answer)
        else:
            begun = most * GOLDEN["gen_length"] // entry["nfe"]
            assert answer.canvas.tolist() == entry["ids"][-GOLDEN["gen_length"] :][:begun] + [vocabulary.mask_id] * (
                GOLDEN["gen_length"] - begun
            ), prompt["id"]


def assert_equal(name: str, entry: Mapping[str, Any], tokens: list[int], answer: Answer) -> None:
    assert tokens == entry["ids"][-GOLDEN["gen_length"] :], name
    assert answer.steps == entry.get("model_calls", entry["nfe"]), name
