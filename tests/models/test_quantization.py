"""Quantized checkpoints: each layout means the numbers that its packer meant, in every form of memory and on every
rank; what cannot be read is refused with one line that names the key."""

from __future__ import annotations

import copy
import json
import math
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from asynclane.kernels.common.types import Fp8Matrix, GroupedMatrix, Matrix
from asynclane.kernels.linear import dequantize
from asynclane.models.checkpoint.config import ModelConfig, ModelError, read_config
from asynclane.models.checkpoint.families import Source, layer_sources
from asynclane.models.checkpoint.registry import Hardware, load_runner
from asynclane.models.checkpoint.split import WHOLE, Rank
from asynclane.models.checkpoint.weight_report import weight_report
from asynclane.models.checkpoint.weights import SINGLE, as_stored, check_weights, fill_randomly, load_weights
from asynclane.models.exec.memory import Memory, weights_bytes
from asynclane.models.network import INT4_GROUPS, allocate
from asynclane.models.numerics import Numerics

from ..support import quantized
from ..support.checkpoints import write_checkpoint, write_config
from ..support.families import IDS, logits
from ..support.quantized import FORMATS, edit, quantize

CPU = torch.device("cpu")
PLAIN = Numerics(torch.float32)
Q, K, V, O = (f"model.layers.1.self_attn.{name}_proj.weight" for name in "qkvo")  # noqa: E741


def checked(directory: Path) -> ModelConfig:
    config = read_config(directory)
    return as_stored(config, check_weights(directory, config))


def load(directory: Path, numerics: Numerics = PLAIN, rank: Rank = WHOLE) -> dict[str, tuple[Matrix, slice]]:
    """By the name of each tensor, the weight that it is in, and its rows there."""
    config = read_config(directory)
    stored = check_weights(directory, config)
    _, parts = allocate(as_stored(config, stored), numerics, CPU, rank)
    load_weights(stored, parts)
    return {name: (part.weight, slice(part.start, part.end)) for name, part in parts.items()}


def numbers(found: tuple[Matrix, slice]) -> Tensor:
    weight, rows = found
    return dequantize(weight)[rows]


def form_of(name: str) -> Numerics:
    """The numerics that keep a format as it is stored."""
    int4 = FORMATS[name].kept == "int4"
    return Numerics(torch.bfloat16, fp8=not int4, int4=int4)


@pytest.mark.parametrize(
    ("architecture", "name"),
    [*(("DreamModel", name) for name in FORMATS), ("SDARMoeForCausalLM", "awq"), ("LLaDA2MoeModelLM", "fp8")],
)
def test_a_layout_means_the_numbers_that_were_packed(tmp_path: Path, architecture: str, name: str) -> None:
    meant = quantize(write_checkpoint(tmp_path, architecture), name)
    found = load(tmp_path)
    assert found.keys() == meant.keys()
    for weight, tensor in meant.items():
        assert torch.equal(numbers(found[weight]), tensor), weight


@pytest.mark.parametrize(
    ("architecture", "name"),
    [
        *(("DreamModel", name) for name, form in FORMATS.items() if form.kept),
        ("SDARMoeForCausalLM", "gptq"),
        ("SDARMoeForCausalLM", "fp8 blocks"),
    ],
)
def test_a_format_keeps_its_numbers_and_scales_in_memory(tmp_path: Path, architecture: str, name: str) -> None:
    meant = quantize(write_checkpoint(tmp_path, architecture), name, leave=("1.self_attn.k_proj", "1.self_attn.o_proj"))
    found = load(tmp_path, form_of(name))
    quant = Fp8Matrix if FORMATS[name].kept == "fp8" else GroupedMatrix
    for weight, tensor in meant.items():
        inner = tensor.dim() == 2 and "layers" in weight and "mlp.gate.weight" not in weight
        left = weight in (Q, K, V, O)  # in one matrix with one that is left, or left itself
        assert isinstance(found[weight][0], quant if inner and not left else Tensor), weight
        same = tensor if isinstance(found[weight][0], quant) or "mlp.gate.weight" in weight else tensor.bfloat16()
        assert torch.equal(numbers(found[weight]), same.float()), weight
    config = checked(tmp_path)
    weights = {id(weight): weight.nbytes for weight, _ in found.values()}
    assert weights_bytes(config, form_of(name)) == sum(weights.values())


@pytest.mark.parametrize("name", ["fp8", "fp8 blocks", "awq", "gptq", "ct int4", "ct channel"])
@pytest.mark.parametrize("in_memory", ["plain", "kept"])
def test_ranks_have_parts_of_numbers_and_scales(tmp_path: Path, name: str, in_memory: str) -> None:
    """Each of two ranks has half of the inputs, or of each part's outputs."""
    directory = write_checkpoint(tmp_path, "LLaDA2MoeModelLM", ff_dim=128, expert_ff_dim=64)
    meant = quantize(directory, name)
    config = read_config(directory)
    numerics = PLAIN if in_memory == "plain" else form_of(name)
    sources: list[Source] = [source for layer in range(config.layers) for source in layer_sources(config, layer)]
    for rank in (Rank(0, 2), Rank(1, 2)):
        found = load(directory, numerics, rank)
        for source in sources:
            if len(source.shape) == 2 and "mlp.gate.weight" not in source.name:
                want = rank.part(source, meant[source.name])
                assert torch.equal(numbers(found[source.name]), want), source.name


def test_ranks_that_would_cut_a_group_are_refused_by_name(tmp_path: Path) -> None:
    quantize(write_checkpoint(tmp_path, "DreamModel"), "awq")
    with pytest.raises(ValueError, match=r"the 96 inputs of model\.layers\.0\.mlp\.down_proj\.weight cannot be shared"):
        allocate(checked(tmp_path), form_of("awq"), CPU, Rank(0, 2))


def test_fused_parts_keep_their_own_scales(tmp_path: Path) -> None:
    directory = write_checkpoint(tmp_path, "DreamModel")
    tensors = load_file(directory / SINGLE)
    for factor, name in enumerate((Q, K, V), 1):
        tensors[name] *= 10.0**factor
    save_file(tensors, directory / SINGLE)
    quantize(directory, "fp8")
    weight, _ = load(directory, form_of("fp8"))[Q]
    assert isinstance(weight, Fp8Matrix)
    stored = load_file(directory / SINGLE)
    scales = [stored[f"{name}_scale"].item() for name in (Q, K, V)]
    assert weight.scales.unique_consecutive().tolist() == scales
    assert scales[0] < scales[1] / 4 < scales[2] / 16


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("awq", {"qweight": lambda words: words.contiguous().view(torch.uint8).flip(-1).view(torch.int32)}),
        ("awq", {"qweight": lambda words: words >> 4 & 0x0F0F0F0F | (words & 0x0F0F0F0F) << 4}),
        ("gptq", {"qweight": lambda words: words >> 4 & 0x0F0F0F0F | (words & 0x0F0F0F0F) << 4}),
        ("gptq", {"qzeros": lambda words: words + 0x11111111}),
        ("ct int4", {"weight_packed": lambda words: words >> 4 & 0x0F0F0F0F | (words & 0x0F0F0F0F) << 4}),
    ],
)
def test_another_order_of_nibbles_is_far_off(
    tmp_path: Path, name: str, wrong: Mapping[str, Callable[[Tensor], Tensor]]
) -> None:
    """So that the tests above would see it."""
    directory = write_checkpoint(tmp_path, "DreamModel")
    original = load_file(directory / SINGLE)
    quantize(directory, name)
    near = error(numbers(load(directory)[Q]), original[Q])
    tensors = load_file(directory / SINGLE)
    for role, change in wrong.items():
        key = Q.replace("weight", role)
        tensors[key] = change(tensors[key]).contiguous()
    save_file(tensors, directory / SINGLE)
    assert near < 0.1
    assert error(numbers(load(directory)[Q]), original[Q]) > 2.5 * near


def error(got: Tensor, want: Tensor) -> float:
    return ((got - want).norm() / want.norm()).item()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", ["fp8 blocks", "awq", "gptq act order"])
def test_a_quantized_network_computes_what_its_dequantized_weights_do(tmp_path: Path, name: str, dtype: str) -> None:
    stored, plain = (write_checkpoint(tmp_path / kind, "DreamModel") for kind in ("stored", "plain"))
    save_file(quantize(stored, name), plain / SINGLE)
    want = logits(runner_of(plain, dtype=dtype), IDS)
    assert torch.equal(logits(runner_of(stored, dtype=dtype), IDS), want)
    if FORMATS[name].kept == "int4":
        kept = logits(runner_of(stored, dtype=dtype, quantization="int4"), IDS)
        near = 1e-5 if dtype == "float32" else 0.1  # the weights above were rounded, those here are not
        torch.testing.assert_close(kept, want, atol=near, rtol=0)


def runner_of(directory: Path, **hardware: Any) -> Any:
    memory = Memory(slots=4, page_size=16, step_tokens=128, cache_tokens=512)
    return load_runner(directory, read_config(directory), memory, Hardware("cpu", **hardware), [1]).runner


def test_tensors_decide_what_is_quantized_and_may_lie_in_two_files(tmp_path: Path) -> None:
    """A plain matrix that no pattern names is read as it is; scales need not be in the file of their numbers."""
    meant = quantize(write_checkpoint(tmp_path, "DreamModel"), "ct channel", leave=("mlp.down_proj",))
    edit(tmp_path, quantization_config=quantized.compressed("float-quantized", strategy="channel"))
    tensors = load_file(tmp_path / SINGLE)
    shards = {"model-1.safetensors": {}, "model-2.safetensors": {}}
    for name, tensor in tensors.items():
        shards["model-1.safetensors" if name.endswith("_scale") else "model-2.safetensors"][name] = tensor
    (tmp_path / SINGLE).unlink()
    for file, part in shards.items():
        save_file(part, tmp_path / file)
    index = {name: file for file, part in shards.items() for name in part}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    found = load(tmp_path)
    assert all(torch.equal(numbers(found[name]), tensor) for name, tensor in meant.items())
    report = weight_report(tmp_path, read_config(tmp_path))
    assert report.quantization == "compressed-tensors: fp8, a scale for each row"
    assert report.quantized == 12
    assert report.stored_bytes == sum(tensor.nbytes for tensor in tensors.values())
    assert report.stored["F8_E4M3"] == sum(t.numel() for t in tensors.values() if t.dtype is torch.float8_e4m3fn)


def test_names_may_lack_the_prefix_of_the_network(tmp_path: Path) -> None:
    meant = quantize(write_checkpoint(tmp_path, "DreamModel"), "awq")
    tensors = load_file(tmp_path / SINGLE)
    save_file({name.removeprefix("model."): tensor for name, tensor in tensors.items()}, tmp_path / SINGLE)
    found = load(tmp_path)
    assert all(torch.equal(numbers(found[name]), tensor) for name, tensor in meant.items())
    save_file(tensors | {Q.replace("weight", "scales").removeprefix("model."): torch.ones(1)}, tmp_path / SINGLE)
    with pytest.raises(ModelError, match=f"{Q} is there twice"):
        load(tmp_path)


def test_scales_of_keys_and_zero_biases_of_gptq_are_passed_by(tmp_path: Path) -> None:
    quantize(write_checkpoint(tmp_path, "DreamModel"), "gptq")
    tensors = load_file(tmp_path / SINGLE)
    bias = O.replace("weight", "bias")
    extra = {bias: torch.zeros(64), "model.layers.0.self_attn.k_scale": torch.tensor(1.0)}
    save_file(tensors | extra, tmp_path / SINGLE)
    load(tmp_path)
    save_file(tensors | {bias: torch.ones(64)}, tmp_path / SINGLE)
    with pytest.raises(ModelError, match=f"unexpected tensor {bias}"):
        load(tmp_path)


# --- Refusals -----------------------------------------------------------------------------------------------

FP8 = {"quant_method": "fp8"}
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 32}
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 32}
CHANNEL = {"strategy": "channel"}
PACKED = {"strategy": "group", "group_size": 32}


@pytest.mark.parametrize(
    ("said", "message"),
    [
        (
            {"quant_method": "bitsandbytes"},
            "quantization_config.quant_method = 'bitsandbytes' is not supported, only fp8",
        ),
        ({}, None),
        (7, "quantization_config is 7, not an object"),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, "quantization_config.quant_algo = 'NVFP4' is not supp"),
        (quantized.compressed("nvfp4-pack-quantized"), "quantization_config.format = 'nvfp4-pack-quantized' is not"),
        ({**FP8, "activation_scheme": "none"}, "activation_scheme = 'none'"),
        ({**FP8, "fmt": "e5m2"}, "fmt = 'e5m2' is not supported, only 'e4m3'"),
        ({**FP8, "weight_block_size": [128]}, r"weight_block_size = \[128\]"),
        ({**FP8, "weight_block_size": [128, 2**40]}, "weight_block_size = .* only two numbers from 1 to 4096"),
        ({**FP8, "weight_block_size": [9, 9], "activation_scheme": "static"}, "activation_scheme = 'static'"),
        ({**FP8, "ignored_layers": "lm_head"}, "ignored_layers = 'lm_head'"),
        ({**FP8, "ignored_layers": ["re:("]}, r"ignored_layers = 're:\(' is not supported, only regular expressions"),
        ({**FP8, "ignored_layers": [f"re:{'(' * 5000}"]}, "only regular expressions after re:"),
        ({**FP8, "ignored_layers": ["re:a{99999999999}"]}, "only regular expressions after re:"),
        (quantized.compressed("float-quantized", strategy="token"), r"group_0.weights.strategy = 'token'"),
        (quantized.compressed("float-quantized", **CHANNEL, num_bits=4), "group_0.weights.num_bits = 4"),
        (quantized.compressed("pack-quantized", **PACKED, num_bits=8), "group_0.weights.num_bits = 8"),
        (quantized.compressed("pack-quantized", **PACKED, actorder="x"), "group_0.weights.actorder = 'x'"),
        (quantized.compressed("pack-quantized", strategy="group"), "group_0.weights.group_size = None"),
        ({**quantized.compressed("pack-quantized", **PACKED), "transform_config": {"a": 1}}, "transform_config = {"),
        ({**AWQ, "bits": 8}, "quantization_config.bits = 8 is not supported, only 4"),
        ({**AWQ, "bits": True}, "quantization_config.bits = True"),
        ({**AWQ, "group_size": 0}, "group_size = 0 is not supported, only a positive whole number, or -1"),
        ({**AWQ, "version": "gemv"}, "version = 'gemv' is not supported, only 'gemm'"),
        ({**AWQ, "zero_point": False}, "zero_point = False"),
        ({**GPTQ, "checkpoint_format": "marlin"}, "checkpoint_format = 'marlin'"),
        ({**GPTQ, "sym": "yes"}, "sym = 'yes' is not supported, only True or False"),
        ({**GPTQ, "sym": 1}, "sym = 1 is not supported, only True or False"),
        ({**GPTQ, "dynamic": {"+:.*": {"bits": 8}}}, "dynamic = {"),
    ],
)
def test_a_method_that_cannot_be_read_is_refused_with_its_key(tmp_path: Path, said: Any, message: str | None) -> None:
    edit(write_checkpoint(tmp_path, "DreamModel"), quantization_config=said)
    if message is None:
        assert read_config(tmp_path).quantization is None
        return
    with pytest.raises(ModelError, match=message) as raised:
        read_config(tmp_path)
    assert "\n" not in str(raised.value)


FLOAT, INT4 = quantized.compressed("float-quantized", **CHANNEL), quantized.compressed("pack-quantized", **PACKED)
BLOCKS = quantized.compressed("float-quantized", strategy="block", block_structure=[128, 128])
WEIGHTS, INPUTS = (("config_groups", "group_0", part) for part in ("weights", "input_activations"))
NUMBERS = [
    *((AWQ, (key,)) for key in ("bits", "group_size")),
    *(({"quant_method": "awq", "w_bit": 4, "q_group_size": 32}, (key,)) for key in ("w_bit", "q_group_size")),
    *((GPTQ, (key,)) for key in ("bits", "group_size")),
    *((FLOAT, (*part, "num_bits")) for part in (WEIGHTS, INPUTS)),
    *((INT4, (*WEIGHTS, key)) for key in ("num_bits", "group_size")),
]
FLAGS = [
    (AWQ, ("zero_point",)),
    *((GPTQ, (key,)) for key in ("sym", "desc_act")),
    *((FLOAT, (*WEIGHTS, key)) for key in ("symmetric", "dynamic")),
    *((INT4, (*WEIGHTS, key)) for key in ("symmetric", "dynamic")),
]
SIZES = [({**FP8, "weight_block_size": [128, 128]}, ("weight_block_size",)), (BLOCKS, (*WEIGHTS, "block_structure"))]
WORDS = [
    *((FP8, (key,)) for key in ("activation_scheme", "fmt")),
    (AWQ, ("version",)),
    *((GPTQ, (key,)) for key in ("checkpoint_format", "pack_dtype")),
    *((FLOAT, path) for path in (("format",), ("quantization_status",), (*WEIGHTS, "strategy"), (*INPUTS, "type"))),
]
NOTHING = [
    *((FLOAT, (key,)) for key in ("transform_config", "sparsity_config")),
    *((FLOAT, ("config_groups", "group_0", key)) for key in ("output_activations", "input_activations")),
    (INT4, INPUTS),
]
NAMES = [
    *((FP8, (key,)) for key in ("ignored_layers", "modules_to_not_convert")),
    *(({"quant_method": "modelopt", "quant_algo": "FP8"}, (key,)) for key in ("ignore", "exclude_modules")),
    (AWQ, ("modules_to_not_convert",)),
    (FLOAT, ("ignore",)),
]
OF_ANOTHER_KIND = [
    *((*key, [None, True, 4.0, 8.0, 32.0, "4", [4]]) for key in NUMBERS),
    *((*key, [None, 0, 1, 0.0, 1.0, "true", []]) for key in FLAGS),
    *((*key, [128, [128.0, 128], [True, 128], [None, 128], ["128", 128]]) for key in SIZES),
    *((*key, [None, True, 0, 1.0, []]) for key in WORDS),
    *((*key, [False, 0, "", True]) for key in NOTHING),
    *((*key, [False, 0, "", "lm_head", {}, [0]]) for key in NAMES),
]


@pytest.mark.parametrize(
    ("said", "path", "values"),
    OF_ANOTHER_KIND,
    ids=[f"{said['quant_method']}-{'.'.join(path)}" for said, path, _ in OF_ANOTHER_KIND],
)
def test_a_value_of_another_kind_is_refused_in_one_line_with_its_key(
    tmp_path: Path, said: dict[str, Any], path: tuple[str, ...], values: list[object]
) -> None:
    """Nothing is taken for a number or a flag that is none: not 4.0 for 4, not null for false."""
    write_config(tmp_path, "DreamModel", quantization_config=said)
    assert read_config(tmp_path).quantization is not None
    named = re.escape(f"quantization_config.{'.'.join(path)}")
    part = changed = copy.deepcopy(said)
    for key in path[:-1]:
        part = part[key]
    for value in values:
        part[path[-1]] = value
        edit(tmp_path, quantization_config=changed)
        with pytest.raises(ModelError) as raised:
            read_config(tmp_path)
        (line,) = str(raised.value).splitlines()
        expected = f"{named} (= {re.escape(repr(value))} is not supported, only |is .*, not an object)"
        assert re.search(expected, line), (value, line)


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("awq", {"group_size": 40}, "down_proj.weight: group_size 40 does not divide 96 inputs"),
        ("awq", {"group_size": 16}, r"down_proj.qzeros is \[3, 8\], config.json says \[6, 8\]"),
        ("awq", {"quant_method": "gptq"}, r"down_proj.qweight is \[96, 8\], config.json says \[12, 64\]"),
        ("fp8", {"weight_block_size": [32, 32]}, "down_proj.weight_scale does not go with fp8, a scale for each block"),
        ("fp8", {"modules_to_not_convert": ["model.layers.1.self_attn"]}, "is quantized, but the configuration leaves"),
        ("gptq act order", {"quant_method": "gptq", "bits": 4, "group_size": 32}, "g_idx is not in order"),
    ],
)
def test_tensors_that_contradict_the_configuration_are_named(
    tmp_path: Path, name: str, change: dict[str, Any], message: str
) -> None:
    quantize(write_checkpoint(tmp_path, "DreamModel"), name)
    said = json.loads((tmp_path / "config.json").read_text()).get("quantization_config", {})
    edit(tmp_path, quantization_config=said | change)
    (tmp_path / "quantize_config.json").unlink(missing_ok=True)  # it would contradict this
    with pytest.raises(ModelError, match=message):
        load(tmp_path)


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("fp8", lambda tensors: tensors.pop(f"{Q}_scale"), f"lacks {Q}_scale"),
        ("awq", lambda tensors: tensors.pop(Q.replace("weight", "qzeros")), "lacks model.layers.1.self_attn.q_proj.qz"),
        ("awq", lambda tensors: tensors.update({Q: torch.zeros(64, 64)}), f"{Q} does not go with int4, groups of 32"),
        ("fp8", lambda tensors: tensors.update({Q: torch.zeros(64, 64)}), f"{Q} is F32, only F8_E4M3 can be read"),
        (
            "ct int4",
            lambda tensors: tensors.update({Q.replace("weight", "weight_shape"): torch.tensor([1, 2])}),
            r"weight_shape is \[1, 2\], not \[64, 64\]",
        ),
    ],
)
def test_a_missing_or_wrong_tensor_is_named(
    tmp_path: Path, name: str, change: Callable[[dict[str, Tensor]], object], message: str
) -> None:
    quantize(write_checkpoint(tmp_path, "DreamModel"), name)
    tensors = load_file(tmp_path / SINGLE)
    change(tensors)
    save_file(tensors, tmp_path / SINGLE)
    with pytest.raises(ModelError, match=message):
        load(tmp_path)


def test_two_configurations_that_differ_are_refused(tmp_path: Path) -> None:
    edit(write_checkpoint(tmp_path, "DreamModel"), quantization_config=GPTQ, compression_config=GPTQ)
    assert read_config(tmp_path).quantization is not None
    edit(tmp_path, compression_config={**GPTQ, "checkpoint_format": "gptq_v2"})
    with pytest.raises(ModelError, match="quantization_config and compression_config differ"):
        read_config(tmp_path)


def test_a_tools_file_that_contradicts_the_configuration_is_refused(tmp_path: Path) -> None:
    edit(write_checkpoint(tmp_path, "DreamModel"), quantization_config=GPTQ)
    file = tmp_path / "quantize_config.json"
    file.write_text(json.dumps({"bits": 4, "group_size": 32, "desc_act": False, "sym": True}))
    assert read_config(tmp_path).quantization is not None
    for said, message in (
        (
            {"bits": 4, "group_size": 64},
            r"quantization_config \(gptq: .* 32\) and quantize_config.json \(gptq: .* 64\) differ",
        ),
        ({"bits": 8, "group_size": 32}, "quantize_config.json.bits = 8 is not supported"),
    ):
        file.write_text(json.dumps(said))
        with pytest.raises(ModelError, match=message):
            read_config(tmp_path)


def test_a_configuration_may_stand_in_that_of_the_text(tmp_path: Path) -> None:
    edit(write_checkpoint(tmp_path, "DreamModel"), text_config={"quantization_config": GPTQ})
    assert str(read_config(tmp_path).quantization) == "gptq: int4, groups of 32"
    edit(tmp_path, quantization_config=AWQ)
    with pytest.raises(ModelError, match=r"quantization_config and text_config\.quantization_config differ"):
        read_config(tmp_path)


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("name", ["fp8", "fp8 blocks", "ct channel", "awq", "gptq", "gptq act order", "ct int4"])
def test_a_scale_that_is_no_finite_number_is_named(tmp_path: Path, name: str, value: float) -> None:
    """It would make every answer NaN."""
    quantize(write_checkpoint(tmp_path, "DreamModel"), name)
    tensors = load_file(tmp_path / SINGLE)
    scales = next(key for key in tensors if key.startswith(Q.removesuffix("weight")) and "scale" in key)
    tensors[scales].view(-1)[-1] = value
    save_file(tensors, tmp_path / SINGLE)
    with pytest.raises(ModelError, match=f"{scales} has numbers that are not finite"):
        checked(tmp_path)  # before memory is taken


def test_blocks_may_be_longer_than_the_matrix(tmp_path: Path) -> None:
    quantize(write_checkpoint(tmp_path, "DreamModel"), "fp8 blocks")
    edit(tmp_path, quantization_config={**FP8, "weight_block_size": [4096, 4096]})
    tensors = load_file(tmp_path / SINGLE)
    whole = {name: torch.full((1, 1), 0.5) for name in tensors if name.endswith("_scale_inv")}
    save_file(tensors | whole, tmp_path / SINGLE)
    assert torch.equal(numbers(load(tmp_path)[Q]), tensors[Q].float() / 2)


def test_fp8_that_no_configuration_explains_is_refused(tmp_path: Path) -> None:
    quantize(write_checkpoint(tmp_path, "DreamModel"), "fp8")
    tensors = {name: tensor for name, tensor in load_file(tmp_path / SINGLE).items() if not name.endswith("_scale")}
    save_file(tensors, tmp_path / SINGLE)
    edit(tmp_path, quantization_config=None)
    with pytest.raises(ModelError, match="F8_E4M3, only BF16, F16, F32 can be read; no configuration says how"):
        load(tmp_path)


def test_int4_that_cannot_be_kept_is_refused_where_it_is_requested(tmp_path: Path) -> None:
    quantize(write_checkpoint(tmp_path, "DreamModel"), "gptq act order")
    with pytest.raises(ModelError, match=r"int4 cannot keep gptq: int4, .* activations; give --quantization none"):
        runner_of(tmp_path, quantization="int4")
    assert weight_report(tmp_path, read_config(tmp_path)).weights_bytes["int4"] is None


@pytest.mark.parametrize("group", INT4_GROUPS)
def test_weights_can_be_rounded_in_each_group(group: int) -> None:
    assert GroupedMatrix.empty(16, group, group, int4=True, device=CPU).shape == (16, group)


@pytest.mark.parametrize("name", ["awq", "fp8 blocks", "ct channel"])
def test_random_weights_have_the_form_of_the_checkpoint(tmp_path: Path, name: str) -> None:
    quantize(write_checkpoint(tmp_path, "DreamModel"), name)
    kept, plain = form_of(name), Numerics(torch.float32)
    config = read_config(tmp_path)
    found = []
    for numerics in (kept, plain):
        _, parts = allocate(config, numerics, CPU)
        fill_randomly(config, parts, CPU)
        found.append(numbers((parts[Q].weight, slice(parts[Q].start, parts[Q].end))))
    assert error(found[0], found[1]) < 0.12


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("architecture", ["DreamModel", "SDARMoeForCausalLM"])
@pytest.mark.parametrize("name", ["awq", "gptq act order", "ct int4", "fp8", "fp8 blocks"])
def test_a_gpu_computes_what_the_dequantized_weights_do(tmp_path: Path, name: str, architecture: str) -> None:
    quantize(write_checkpoint(tmp_path, architecture), name)
    want = logits(runner_of(tmp_path), IDS)
    memory = Memory(slots=4, page_size=16, step_tokens=128, cache_tokens=512)
    loaded = load_runner(tmp_path, read_config(tmp_path), memory, Hardware("cuda", "bfloat16"), [1])
    kept = FORMATS[name].kept
    assert ("dequantized from" if kept is None else f"{kept.split()[0]} matrices") in loaded.summary
    assert torch.cosine_similarity(logits(loaded.runner, IDS).cpu().float(), want, dim=-1).mean() > 0.98
