"""Checkpoints as they are published, in small: the files of a repository, and a cache of Hugging Face that holds them.

File names, configuration, special tokens and chat templates are those of GSAI-ML/LLaDA-8B-Instruct and of Dream-org's
Dream-v0-Instruct-7B; sizes, weights and the words of the vocabulary are not.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer

from asynclane.models.checkpoint.config import read_config
from asynclane.models.checkpoint.families import tensor_shapes

from .driver import MODEL

COMMIT = "9275bf8f5a5687507189baf4657e91c51b2be338"
SHARDS = 6

LLADA: Mapping[str, Any] = json.loads(Path(__file__).with_name("llada_config.json").read_text())
SMALL: Mapping[str, Any] = {
    "d_model": 64,
    "n_layers": 2,
    "n_heads": 2,
    "n_kv_heads": 2,
    "mlp_hidden_size": 128,
    "max_sequence_length": 512,
}
# In the order of their ids, 126080 and on; there are 256 reserved ones.
SPECIALS = (
    *("<|startoftext|>", "<|endoftext|>", "[CLS]", "[gMASK]", "<|reserved_token_0|>", "<|reserved_token_1|>"),
    *("<|mdm_mask|>", "<role>", "</role>", "<|arithmetic_start|>", "<|arithmetic_end|>", "<|number_start|>"),
    *("<|number_end|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"),
)
# It opens an answer after every conversation, whether or not that is requested.
TEMPLATE = (
    "{% set loop_messages = messages %}{% for message in loop_messages %}{% set content = '<|start_header_id|>' +"
    " message['role'] + '<|end_header_id|>\n\n'+ message['content'] | trim + '<|eot_id|>' %}{% if loop.index0 == 0 %}"
    "{% set content = bos_token + content %}{% endif %}{{ content }}{% endfor %}"
    "{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}"
)


def words() -> tuple[dict[str, int], list[str]]:
    """A byte-level vocabulary without special tokens, and its merges."""
    model = json.loads((MODEL / "tokenizer.json").read_text())["model"]
    plain = [token for token in model["vocab"] if not token.startswith("<|")]
    return {token: number for number, token in enumerate(plain)}, [" ".join(pair) for pair in model["merges"]]


def write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=2))


def write_llada(directory: Path, *, chat: bool = True, **changes: object) -> Path:
    """The files of `hf download GSAI-ML/LLaDA-8B-Instruct`, or the base model's files without a chat template."""
    directory.mkdir(parents=True)
    vocabulary, merges = words()
    ids = {token: len(vocabulary) + number for number, token in enumerate(SPECIALS)}
    size = -(-(len(vocabulary) + len(ids)) // 128) * 128
    end = ids["<|endoftext|>"]
    special = {"mask_token_id": ids["<|mdm_mask|>"], "eos_token_id": end, "pad_token_id": end}
    sizes = {**SMALL, "vocab_size": size, "embedding_size": size}
    write_json(directory / "config.json", {**LLADA, **sizes, **special, **changes})
    write_json(directory / "generation_config.json", {"_from_model_config": True, "eos_token_id": end})
    _write_fast_tokenizer(directory, vocabulary, merges, ids)
    named = {"bos_token": "<|startoftext|>", "eos_token": "<|endoftext|>", "pad_token": "<|endoftext|>"}
    write_json(directory / "special_tokens_map.json", {**named, "additional_special_tokens": list(SPECIALS[7:13])})
    write_json(
        directory / "tokenizer_config.json",
        {
            "added_tokens_decoder": {str(number): _added(token) for token, number in ids.items()},
            "additional_special_tokens": list(SPECIALS[7:13]),
            **named,
            "tokenizer_class": "PreTrainedTokenizerFast",
            "trust_remote_code": True,
            **({"chat_template": TEMPLATE} if chat else {}),
        },
    )
    for name in ("README.md", "configuration_llada.py", "modeling_llada.py"):
        (directory / name).write_text("raise RuntimeError('never run')\n")
    write_weights(directory)
    return directory


def write_weights(directory: Path) -> None:
    """Random ones in six files, with tensors of one block spread over several of them, as they were sharded."""
    random = torch.Generator().manual_seed(0)
    shapes = tensor_shapes(read_config(directory))
    names = {name: f"model-{number % SHARDS + 1:05}-of-{SHARDS:05}.safetensors" for number, name in enumerate(shapes)}
    weights = {name: torch.randn(shape, generator=random).bfloat16() * 0.05 for name, shape in shapes.items()}
    for shard in sorted(set(names.values())):
        save_file({name: weights[name] for name in shapes if names[name] == shard}, directory / shard, {"format": "pt"})
    write_json(directory / "model.safetensors.index.json", {"metadata": {"total_size": 0}, "weight_map": names})


def write_qwen_tokenizer(directory: Path) -> None:
    """Dream's files in place of tokenizer.json: vocab.json, merges.txt and added_tokens.json."""
    vocabulary, merges = words()
    specials = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|beginoftext|>", "<|mask|>")
    ids = {token: len(vocabulary) + number for number, token in enumerate(specials)}
    write_json(directory / "vocab.json", vocabulary)
    (directory / "merges.txt").write_text("#version: 0.2\n" + "".join(f"{pair}\n" for pair in merges))
    write_json(directory / "added_tokens.json", ids)
    template = (
        "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>'"
        " + '\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
    )
    write_json(
        directory / "tokenizer_config.json",
        {
            "add_prefix_space": False,
            "added_tokens_decoder": {str(number): _added(token) for token, number in ids.items()},
            "additional_special_tokens": ["<|beginoftext|>", "<|mask|>"],
            "auto_map": {"AutoTokenizer": ["tokenization_dream.DreamTokenizer", None]},
            "bos_token": "<|beginoftext|>",
            "chat_template": template,
            "eos_token": "<|endoftext|>",
            "mask_token": "<|mask|>",
            "pad_token": "<|endoftext|>",
            "tokenizer_class": "DreamTokenizer",
            "unk_token": None,
        },
    )


def cached(home: Path, repository: str, source: Path, revision: str = "main") -> Path:
    """Moves the files of `source` into the cache under `home` and returns the snapshot, whose files are links."""
    base = home / "hub" / f"models--{repository.replace('/', '--')}"
    blobs, snapshot = base / "blobs", base / "snapshots" / COMMIT
    (base / "refs").mkdir(parents=True)
    blobs.mkdir()
    snapshot.mkdir(parents=True)
    (base / "refs" / revision).write_text(COMMIT)
    for number, path in enumerate(sorted(source.iterdir())):
        blob = blobs / f"{number:064x}"
        path.rename(blob)
        (snapshot / path.name).symlink_to(os.path.relpath(blob, snapshot))
    return snapshot


def _write_fast_tokenizer(
    directory: Path, vocabulary: Mapping[str, int], merges: list[str], ids: Mapping[str, int]
) -> None:
    base = json.loads((MODEL / "tokenizer.json").read_text())
    base["model"] |= {"vocab": vocabulary, "merges": [pair.split(" ") for pair in merges]}
    base["added_tokens"] = [{"id": number, **_added(token)} for token, number in ids.items()]
    Tokenizer.from_str(json.dumps(base)).save(str(directory / "tokenizer.json"))


def _added(token: str) -> dict[str, object]:
    return {"content": token, "special": True} | dict.fromkeys(("lstrip", "normalized", "rstrip", "single_word"), False)
