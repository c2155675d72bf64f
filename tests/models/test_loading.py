"""A checkpoint that cannot be served is refused with one line that names the file and what is wrong with it."""

from __future__ import annotations

import json
import math
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from asynclane.models.checkpoint.config import NEUTRAL, ModelError, read_config
from asynclane.models.checkpoint.families import tied_copy
from asynclane.models.checkpoint.registry import find_model
from asynclane.models.checkpoint.weights import INDEX, SINGLE, check_weights, load_weights
from asynclane.models.network import Weights, allocate
from asynclane.models.numerics import Numerics
from asynclane.server.engine.wiring import build_parts
from asynclane.server.settings import Settings
from asynclane.server.text.tokenizer import BadTokenizer, Tokenizer

from ..support.checkpoints import CONFIGS, MASKED, TOKENIZER, write_checkpoint, write_config
from ..support.driver import MODEL

SHARD = "model-00002-of-00002.safetensors"
PREFIX = "model.transformer."
NORM = f"{PREFIX}ln_f.weight"


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """A copy of the embedded model that a test may spoil."""
    return Path(shutil.copytree(MODEL, tmp_path / "model"))


def load(directory: Path) -> Weights:
    config = read_config(directory)
    stored = check_weights(directory, config)
    weights, parts = allocate(config, Numerics(torch.float32), torch.device("cpu"))
    load_weights(stored, parts)
    return weights


def edit_config(directory: Path, **changes: Any) -> None:
    path = directory / "config.json"
    kept = {key: value for key, value in (json.loads(path.read_text()) | changes).items() if value != "absent"}
    path.write_text(json.dumps(kept))


def edit_shard(directory: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    tensors = load_file(directory / SHARD)
    change(tensors)
    save_file(tensors, directory / SHARD)


def test_one_file_or_many_give_the_same_weights(checkpoint: Path) -> None:
    sharded = load(checkpoint)
    save_file(
        load_file(checkpoint / "model-00001-of-00002.safetensors") | load_file(checkpoint / SHARD), checkpoint / SINGLE
    )
    (checkpoint / INDEX).unlink()
    single = load(checkpoint)
    tensors = load_file(checkpoint / SINGLE)
    for weights in (single, sharded):
        assert torch.equal(weights.embedding, tensors[f"{PREFIX}wte.weight"])
        assert torch.equal(weights.norm, tensors[NORM])
        for index, block in enumerate(weights.blocks):
            names = [f"{PREFIX}blocks.{index}.{part}_proj.weight" for part in "qkv"]
            assert torch.equal(block.qkv, torch.cat([tensors[name] for name in names]))


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda d: edit_shard(d, lambda t: t.pop(NORM)), f"lacks {NORM}"),
        (lambda d: edit_shard(d, lambda t: t.update(extra=torch.zeros(1))), "unexpected tensor extra"),
        (lambda d: edit_shard(d, lambda t: t.update({NORM: torch.zeros(3)})), r"is \[3\], config.json says \[256\]"),
        (lambda d: (d / SHARD).unlink(), f"lacks {SHARD}"),
        (lambda d: (d / SHARD).write_bytes((d / SHARD).read_bytes()[:5000]), f"{SHARD} cannot be read"),
        (lambda d: (d / INDEX).write_text('{"weight_map": 3}'), f"{INDEX} cannot be read"),
        (lambda d: (d / INDEX).write_text('{"weight_map": {"a": 1}}'), "lacks 1, named in"),
        (lambda d: edit_shard(d, lambda t: t.update({NORM: t[NORM].to(torch.int8)})), f"{NORM} is I8, only BF16, F16"),
        (lambda d: (d / INDEX).unlink(), f"neither {SINGLE} nor {INDEX}"),
    ],
)
def test_bad_weights_are_named(checkpoint: Path, spoil: Callable[[Path], object], message: str) -> None:
    spoil(checkpoint)
    with pytest.raises(ModelError, match=message):
        load(checkpoint)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"architectures": ["GPT2LMHeadModel"]}, "'GPT2LMHeadModel' is not supported; supported: LLaDAModelLM"),
        ({"architectures": "absent"}, "None is not supported"),
        ({"n_layers": "many"}, "n_layers = 'many' is no whole number"),
        ({"mlp_hidden_size": None, "mlp_ratio": "4", "d_model": 10**12}, "mlp_ratio = '4' is no number"),
        ({"n_heads": 3}, "do not divide 256 evenly"),
        ({"mask_token_id": 5000}, "mask token 5000 is not below"),
        ({"alibi": True}, "alibi = True is not supported, only False"),
        ({"layer_norm_type": "default"}, "layer_norm_type = 'default' is not supported, only 'rms'"),
    ],
)
def test_a_config_that_the_network_cannot_compute_is_refused(
    checkpoint: Path, changes: dict[str, Any], message: str
) -> None:
    edit_config(checkpoint, **changes)
    with pytest.raises(ModelError, match=message):
        read_config(checkpoint)


def test_a_mask_that_config_json_lacks_is_read_from_the_tokenizers_or_missed(checkpoint: Path) -> None:
    edit_config(checkpoint, mask_token_id="absent")
    assert read_config(checkpoint).mask_id == read_config(MODEL).mask_id
    (checkpoint / "tokenizer_config.json").write_text('{"mask_token": null}')
    with pytest.raises(ModelError, match="lacks 'mask_token_id'"):
        read_config(checkpoint)


@pytest.mark.parametrize(("architecture", "mask"), [("SDARForCausalLM", 151669), ("Fast_dLLM_QwenForCausalLM", 151665)])
def test_a_mask_that_no_file_names_is_the_published_one(tmp_path: Path, architecture: str, mask: int) -> None:
    """The front ends read the tokenizer by themselves, so they are sent the mask."""
    write_config(tmp_path, architecture, mask_token_id=None, vocab_size=151936)
    for name in TOKENIZER:
        shutil.copy(MODEL / name, tmp_path / name)
    named = json.loads((tmp_path / "tokenizer_config.json").read_text())
    named["mask_token"] = None
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(named))
    (tmp_path / "special_tokens_map.json").unlink()
    assert read_config(tmp_path).mask_id == mask
    assert Tokenizer(tmp_path, mask).mask_id == mask
    with pytest.raises(BadTokenizer, match="names no mask token"):
        _ = Tokenizer(tmp_path).mask_id


@pytest.mark.parametrize("architecture", ["LLaDAModelLM", "SDARForCausalLM", "LLaDA2MoeModelLM"])
def test_names_may_lack_the_prefix_of_the_network(tmp_path: Path, architecture: str) -> None:
    want = load(write_checkpoint(tmp_path, architecture))
    tensors = load_file(tmp_path / SINGLE)
    save_file({name.removeprefix("model."): tensor for name, tensor in tensors.items()}, tmp_path / SINGLE)
    got = load(tmp_path)
    assert torch.equal(got.embedding, want.embedding)
    assert torch.equal(got.blocks[1].attn_norm, want.blocks[1].attn_norm)
    save_file({**tensors, "lm_head.weigth": torch.zeros(1)}, tmp_path / SINGLE)
    with pytest.raises(ModelError, match=r"unexpected tensor lm_head\.weigth"):
        load(tmp_path)


def test_an_adapter_is_no_model(tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text("{}")
    with pytest.raises(ModelError, match="is a LoRA adapter: serve its base model with --lora"):
        read_config(tmp_path)


BLOCKS: list[tuple[str, str, dict[str, Any], int | None, int, str]] = [
    ("SDARForCausalLM", "SDAR-8B-Chat-b32", {"block_size": 16}, 8, 8, "--block-size"),
    ("SDARForCausalLM", "SDAR-8B-Chat-b32", {"block_length": 16}, None, 16, "config.json's block_length"),
    ("SDARForCausalLM", "SDAR-8B-Chat-b32", {}, None, 32, "the name's end '-b32'"),
    ("SDARForCausalLM", "models--JetLM--SDAR-1.7B-Chat-b64/snapshots/0f", {}, None, 64, "the name's end '-b64'"),
    ("SDARForCausalLM", "SDAR-8B-Chat-b5", {}, None, 4, "the family's published models"),
    ("SDARMoeForCausalLM", "SDAR-30B-A3B-Chat", {}, None, 4, "the family's published models"),
    (
        "SDARForCausalLM",
        "models--Gen-Verse--TraDo-8B-Instruct/snapshots/0f",
        {},
        None,
        4,
        "the family's published models",
    ),
    ("LLaDA2MoeModelLM", "LLaDA2.0-mini", {}, None, 32, "the family's published models"),
    ("Fast_dLLM_QwenForCausalLM", "Fast_dLLM_v2_7B", {"bd_size": 16}, None, 16, "config.json's bd_size"),
]


@pytest.mark.parametrize(("architecture", "name", "said", "given", "size", "source"), BLOCKS)
def test_a_block_size_is_that_of_the_setting_the_configuration_or_the_name(
    tmp_path: Path, architecture: str, name: str, said: dict[str, Any], given: int | None, size: int, source: str
) -> None:
    absent = dict.fromkeys(("block_size", "block_length", "bd_size"))
    write_config(tmp_path / name, architecture, **(absent | said))
    config = read_config(tmp_path / name, given)
    assert (config.block_size, config.block_source) == (size, source)


def test_a_directory_has_its_name_also_where_it_is_given_as_a_point(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_config(tmp_path / "SDAR-8B-Chat-b32" / "below", "SDARForCausalLM", block_size=None)
    write_config(tmp_path / "SDAR-8B-Chat-b32", "SDARForCausalLM", block_size=None)
    monkeypatch.chdir(tmp_path / "SDAR-8B-Chat-b32")
    assert read_config(Path()).block_size == 32
    monkeypatch.chdir("below")
    assert read_config(Path("..")).block_size == 32


@pytest.mark.parametrize("directory", ["/", "/model"])
def test_a_directory_at_the_root_is_read_as_any_other(directory: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has no directory above it whose name could be a repository's."""
    text = (MODEL / "config.json").read_text()
    monkeypatch.setattr(Path, "read_text", lambda path, **_: text)
    assert read_config(Path(directory)).architecture == "LLaDAModelLM"


def test_a_block_size_is_refused_by_networks_without_blocks(tmp_path: Path) -> None:
    write_config(tmp_path, "DreamModel")
    with pytest.raises(ModelError, match="--block-size is for block-causal models: DreamModel has no blocks"):
        read_config(tmp_path, 8)


@pytest.mark.parametrize(
    ("architecture", "changes", "message"),
    [
        ("DreamModel", {"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "rope type 'yarn' is not supported"),
        ("DreamModel", {"use_sliding_window": True}, "use_sliding_window = True is not supported, only False"),
        ("DreamModel", {"hidden_act": "gelu"}, "hidden_act = 'gelu' is not supported, only 'silu'"),
        ("DreamModel", {"num_key_value_heads": 3}, "4 heads of 16 on 3 key heads cannot be computed"),
        ("SDARForCausalLM", {"attention_bias": True}, "attention_bias = True is not supported, only False"),
        ("SDARForCausalLM", {"block_size": 4.7}, "block size is 4.7"),
        ("SDARForCausalLM", {"block_size": 4, "block_length": 8}, "block size is 4 or 8"),
        ("SDARForCausalLM", {"block_size": 4, "block_length": [8]}, r"block size is 4 or \[8\]"),
        ("SDARForCausalLM", {"block_size": 10**30}, "do not fit a context of"),
        ("SDARForCausalLM", {"rope_scaling": "x"}, "config.json: rope_scaling = 'x' is no object"),
        ("SDARForCausalLM", {"rope_scaling": ""}, "config.json: rope_scaling = '' is no object"),
        ("SDARForCausalLM", {"rope_parameters": False}, "config.json: rope_parameters = False is no object"),
        ("SDARMoeForCausalLM", {"decoder_sparse_step": 2}, "decoder_sparse_step = 2 is not supported, only 1"),
        ("SDARMoeForCausalLM", {"mlp_only_layers": [0]}, r"mlp_only_layers = \[0\] is not supported"),
        ("SDARMoeForCausalLM", {"num_experts_per_tok": 2.5}, "num_experts_per_tok = 2.5 is no whole number"),
        ("SDARMoeForCausalLM", {"num_experts_per_tok": True}, "num_experts_per_tok = True is no whole number"),
        ("SDARMoeForCausalLM", {"max_position_embeddings": math.inf}, "max_position_embeddings = inf is no whole"),
        ("SDARMoeForCausalLM", {"norm_topk_prob": "false"}, "norm_topk_prob = 'false' is neither true nor false"),
        ("LLaDA2MoeModelLM", {"routed_scaling_factor": math.nan}, "routed_scaling_factor = nan is no number"),
        ("LLaDA2MoeModelLM", {"routed_scaling_factor": 0}, "weights of experts cannot be scaled by 0"),
        ("DreamModel", {"rms_norm_eps": "1e-6"}, "rms_norm_eps = '1e-6' is no number"),
        ("DreamModel", {"rms_norm_eps": True}, "rms_norm_eps = True is no number"),
        ("DreamModel", {"rms_norm_eps": 10**30}, r"norm_eps is 1e\+30, not a positive number below 1.0"),
        ("SDARForCausalLM", {"rope_theta": "10000"}, "rope_theta = '10000' is no number"),
        ("SDARForCausalLM", {"rope_theta": math.nan}, "rope_theta = nan is no number"),
        ("LLaDA2MoeModelLM", {"partial_rotary_factor": "0.5"}, "partial_rotary_factor = '0.5' is no number"),
        ("LLaDAMoEModelLM", {"partial_rotary_factor": True}, "partial_rotary_factor = True is no number"),
        ("DreamModel", {"num_kv_shared_layers": 1}, "num_kv_shared_layers = 1 is not supported by DreamModel"),
        ("SDARMoeForCausalLM", {"num_experts_per_tok": 9}, "9 experts cannot be chosen of 8"),
        ("LLaDAMoEModelLM", {"moe_layer_freq": [0, 1]}, "layers that have no experts is not supported"),
        ("LLaDAMoEModelLM", {"norm_topk_prob": True}, "norm_topk_prob is not supported"),
        ("LLaDAMoEModelLM", {"clip_qkv": 8.0}, "clip_qkv = 8.0 is not supported, only None"),
        ("LLaDA2MoeModelLM", {"score_function": "softmax"}, "score_function = 'softmax' is not supported"),
        ("LLaDA2MoeModelLM", {"use_qkv_bias": True}, "use_qkv_bias = True is not supported, only False"),
        ("LLaDA2MoeModelLM", {"delete_token_id": 156930}, "delete_token_id and split_token_id go together"),
        ("LLaDA2MoeModelLM", {"n_group": 3}, "2 of 3 groups cannot be chosen of 8 experts"),
        ("LLaDA2MoeModelLM", {"topk_group": 1}, "3 experts cannot be chosen of 2"),
        ("LLaDA2MoeModelLM", {"partial_rotary_factor": 0.2}, "3 of 16 numbers of a head cannot be rotated"),
        ("SDARForCausalLM", {"head_dim": 15}, "4 heads of 15 on 2 key heads cannot be computed"),
        ("LLaDAModelLM", {"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "rope type 'yarn' is not supported"),
        ("LLaDAModelLM", {"clip_qkv": 8.0}, "clip_qkv = 8.0 is not supported by LLaDAModelLM"),
        ("DreamModel", {"attention_bias": False}, "attention_bias = False is not supported, only True"),
        (
            "DreamModel",
            {"layer_types": ["full_attention", "sliding_attention"]},
            "layer_types with 'sliding_attention'",
        ),
        ("DreamModel", {"layer_types": True}, "layer_types = True is no list"),
        ("LLaDAMoEModelLM", {"moe_layer_freq": None}, "moe_layer_freq = None is no list"),
        ("LLaDAMoEModelLM", {"moe_layer_freq": 1}, "moe_layer_freq = 1 is no list"),
        ("SDARMoeForCausalLM", {"moe_intermediate_size": 10**30}, "experts of 10{30} numbers are wider than 4194304"),
        ("LLaDA2MoeModelLM", {"num_shared_experts": 10**30}, "experts of .* are wider than 4194304"),
        ("LLaDA2MoeModelLM", {"head_dim": 10**30}, "4 heads of 10{30} on 2 key heads cannot be computed"),
        ("SDARForCausalLM", {"partial_rotary_factor": 0.5}, "partial_rotary_factor = 0.5 is not supported by SDAR"),
        ("SDARForCausalLM", {"use_qk_norm": False}, "use_qk_norm = False is not supported, only True"),
        ("SDARForCausalLM", {"quantization_config": {"quant_method": "x"}}, "quantization_config.quant_method = 'x'"),
        ("SDARForCausalLM", {"rope_parameters": {"rope_theta": 10000.0, "factor": 2.0}}, "factor = 2.0 among the rope"),
        ("SDARForCausalLM", {"rope_parameters": {"rope_theta": 1.0}}, "rope_theta = 1.0 among the rope parameters"),
        ("SDARForCausalLM", {"rope_parameters": {"partial_rotary_factor": 0.5}}, "partial_rotary_factor = 0.5 among"),
        ("SDARForCausalLM", {"rope_parameters": {"full_attention": {"rope_theta": 1.0}}}, "full_attention = {"),
        ("SDARForCausalLM", {"use_sliding_window": "absent", "sliding_window": 64, "rotary_dim": 8}, "rotary_dim = 8"),
        ("LLaDA2MoeModelLM", {"moe_router_enable_expert_bias": False}, "moe_router_enable_expert_bias = False is not"),
    ],
)
def test_a_variant_of_a_family_that_nothing_here_computes_is_refused(
    tmp_path: Path, architecture: str, changes: dict[str, Any], message: str
) -> None:
    write_checkpoint(tmp_path, architecture)
    edit_config(tmp_path, **changes)
    with pytest.raises(ModelError, match=message):
        read_config(tmp_path)


@pytest.mark.parametrize("empty", [False, "", [], {}], ids=repr)
@pytest.mark.parametrize(
    ("architecture", "key"),
    [
        ("LLaDAModelLM", "n_kv_heads"),
        ("LLaDAModelLM", "mlp_hidden_size"),
        ("LLaDAModelLM", "embedding_size"),
        ("LLaDAModelLM", "rms_norm_eps"),
        ("DreamModel", "num_key_value_heads"),
        ("LLaDA2MoeModelLM", "num_shared_experts"),
        ("LLaDA2MoeModelLM", "first_k_dense_replace"),
        ("LLaDA2MoeModelLM", "n_group"),
    ],
)
def test_nothing_of_another_kind_stands_for_a_missing_key(
    tmp_path: Path, architecture: str, key: str, empty: object
) -> None:
    """Python takes all of these for nothing; a file that has one is damaged."""
    write_checkpoint(tmp_path, architecture)
    edit_config(tmp_path, **{key: empty})
    with pytest.raises(ModelError, match=re.escape(f"{key} = {empty!r} is no ")):
        read_config(tmp_path)


@pytest.mark.parametrize("architecture", CONFIGS)
def test_no_key_that_changes_what_some_network_computes_is_ignored(tmp_path: Path, architecture: str) -> None:
    directory = write_checkpoint(tmp_path / "model", architecture)
    plain, raw = read_config(directory), (directory / "config.json").read_text()
    for key in NEUTRAL:
        if key != "sliding_window" and json.loads(raw).get(key) is not True:  # it follows another; 7 is true
            edit_config(directory, **{key: 7})
            with pytest.raises((ModelError, AssertionError)):
                assert read_config(directory) == plain, "it is honoured"
            (directory / "config.json").write_text(raw)


@pytest.mark.parametrize("architecture", MASKED)
def test_keys_that_change_nothing_are_accepted(tmp_path: Path, architecture: str) -> None:
    said = json.loads((write_checkpoint(tmp_path, architecture) / "config.json").read_text())
    plain = read_config(tmp_path)
    for key, values in NEUTRAL.items():
        for value in values if key not in said and not key.endswith(("qk_norm", "_bias")) else ():
            edit_config(tmp_path, **{**said, key: value})
            assert read_config(tmp_path) == plain, (key, value)
    said |= {"use_sliding_window": False, "sliding_window": 64, "layer_types": ["full_attention"] * 2}
    for rope in ("rope_scaling", "rope_parameters"):
        edit_config(tmp_path, **{**said, rope: {"rope_type": "default", "rope_theta": 10000.0}})
        assert read_config(tmp_path) == plain


@pytest.mark.parametrize("architecture", CONFIGS)
def test_derived_tensors_and_a_copy_of_the_tied_embedding_are_no_weights(tmp_path: Path, architecture: str) -> None:
    directory = write_checkpoint(tmp_path, architecture, tied=True)
    head, embedding = tied_copy(read_config(directory)) or ("", "")
    tensors, plain = load_file(directory / SINGLE), load(directory)
    rotary = {
        f"{prefix}rotary_emb.{name}": torch.ones(8)
        for prefix in ("", "model.", "model.layers.1.self_attn.")
        for name in ("inv_freq", "original_inv_freq", "cos_cached", "sin_cached")
    }
    save_file(tensors | rotary | {head: tensors[embedding].half().float()}, directory / SINGLE)
    with pytest.raises(ModelError, match=f"{head} is not equal to {embedding}, but config.json ties them"):
        load(directory)
    save_file(tensors | rotary | {head: tensors[embedding].clone()}, directory / SINGLE)
    assert torch.equal(load(directory).embedding, plain.embedding)
    save_file(tensors | {head: tensors[embedding][1:].clone()}, directory / SINGLE)
    with pytest.raises(ModelError, match=rf"{head} is \[1407, 64\], config.json says \[1408, 64\]"):
        load(directory)


def test_a_tensor_that_a_family_must_have_or_must_not_have_is_named(tmp_path: Path) -> None:
    tensors = load_file(write_checkpoint(tmp_path, "DreamModel") / SINGLE)
    bias = "model.layers.1.self_attn.k_proj.bias"
    save_file({name: tensor for name, tensor in tensors.items() if name != bias}, tmp_path / SINGLE)
    with pytest.raises(ModelError, match=f"lacks {bias}"):
        load(tmp_path)
    save_file(tensors | {bias: torch.zeros(16)}, tmp_path / SINGLE)
    with pytest.raises(ModelError, match=rf"{bias} is \[16\], config.json says \[32\]"):
        load(tmp_path)
    edit_config(tmp_path, architectures=["SDARForCausalLM"], block_size=4)
    with pytest.raises(ModelError, match=r"unexpected tensor model\.layers\.\d\.self_attn\.\w_proj\.bias"):
        load(tmp_path)


def test_a_config_that_is_no_json_or_not_there_is_refused(checkpoint: Path) -> None:
    (checkpoint / "config.json").write_text("[")
    with pytest.raises(ModelError, match=r"config\.json cannot be read"):
        read_config(checkpoint)
    (checkpoint / "config.json").unlink()
    with pytest.raises(ModelError, match=r"has no config\.json"):
        read_config(checkpoint)


def test_a_model_is_found_by_name_or_directory(checkpoint: Path) -> None:
    assert find_model("tiny-llada") == MODEL
    assert find_model(str(checkpoint)) == checkpoint
    with pytest.raises(ModelError, match="the embedded models are tiny-chat, tiny-dream, tiny-llada, tiny-sdar"):
        find_model("tiny-lama")


@pytest.mark.parametrize("content", ["{", "{}"])
def test_a_tokenizer_file_that_is_none_is_refused(checkpoint: Path, content: str) -> None:
    (checkpoint / "tokenizer.json").write_text(content)
    with pytest.raises(ModelError, match=r"tokenizer in .* cannot be read"):
        build_parts(Settings(model=str(checkpoint)))


def test_a_tokenizer_of_another_model_is_refused(checkpoint: Path) -> None:
    edit_config(checkpoint, embedding_size=1024)
    with pytest.raises(ModelError, match="do not belong together"):
        build_parts(Settings(model=str(checkpoint)))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"max_model_len": 4000}, "exceeds the model's 1024"),
        ({"max_step_tokens": 512, "max_model_len": 1024}, "a step of 512 tokens cannot hold a row of 1024"),
        ({"kv_cache_tokens": 512, "max_model_len": 1024}, "cannot hold one request of 1024 tokens"),
        pytest.param(
            {"device": "cuda"},
            "torch sees no GPU",
            marks=pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU"),
        ),
    ],
)
def test_settings_that_contradict_the_model_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build_parts(Settings(**settings))
