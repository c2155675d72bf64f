"""`asynclane inspect` reports a model and its memory, and allocates none of it."""

from __future__ import annotations

import json
import os
import re
import struct
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from asynclane.models.checkpoint.config import read_config
from asynclane.models.checkpoint.families import tensor_shapes
from asynclane.models.checkpoint.registry import embedded_models, find_model
from asynclane.models.checkpoint.weight_report import weight_report
from asynclane.models.exec.memory import step_bytes, weights_bytes
from asynclane.models.kv_cache import KvPages
from asynclane.models.numerics import Numerics
from asynclane.scheduler.decoding.registry import DECODERS
from asynclane.server.cli import main as cli

from ...support.checkpoints import CONFIGS, write_checkpoint
from ...support.driver import MODEL
from ...support.published import LLADA, write_json, write_llada
from ...support.scale import LONG
from ...support.tools import TEMPLATE, write_checkpoint_with

ROOT = Path(__file__).parents[3]


@pytest.fixture
def inspected(capsys: pytest.CaptureFixture[str]) -> Callable[..., Any]:
    def inspected(*argv: str) -> Any:
        assert cli.main(["inspect", *argv, "--json"]) == 0
        return json.loads(capsys.readouterr().out)

    return inspected


def test_the_embedded_model_is_what_its_files_say(inspected: Callable[..., Any]) -> None:
    report = inspected("tiny-llada")
    assert report["architecture"] == "LLaDAModelLM"
    assert list(report["sizes"]) == "layers dim heads kv_heads head_dim ff_dim vocab_size".split()
    assert list(report["sizes"].values()) == [10, 256, 4, 4, 64, 768, 1408]
    assert report["parameters"] == 9_245_952
    assert report["stored"] == {"BF16": 9_245_952}
    assert report["max_model_len"] == 1024
    assert report["mask"] == {"id": 5, "spelling": "<|mdm_mask|>"}
    assert report["ends"] == [{"id": 1, "spelling": "<|endoftext|>"}, {"id": 4, "spelling": "<|eot_id|>"}]
    assert (report["attention"], report["block"], report["shift"]) == ("bidirectional", 0, 0)
    assert report["chat_template"] is True
    assert all(report["boundaries"].values())
    refused = {name: why for name, why in report["decoders"].items() if why is not None}
    assert list(report["decoders"]) == list(DECODERS)
    assert list(refused) == ["autoregressive", "fast-dllm-v2", "deer", "renoise", "s2d2", "tccf", "wedlm"]
    assert "canvases begin with masks" in refused["renoise"]
    for name in ("autoregressive", "deer"):
        assert "is for models that predict the next token: this one fills masks" in refused[name]
    assert all("is for block-causal models" in refused[name] for name in ("fast-dllm-v2", "s2d2", "tccf"))
    assert "is for models that read known tokens first" in refused["wedlm"]


def test_the_reported_bytes_are_those_of_the_tensors() -> None:
    weights = weight_report(MODEL, read_config(MODEL))
    tensors = [tensor for shard in MODEL.glob("*.safetensors") for tensor in load_file(shard).values()]
    assert weights.weights_bytes["bfloat16"] == sum(tensor.nbytes for tensor in tensors)
    pages = KvPages(read_config(MODEL), 10, 100, 1, Numerics(torch.float32), torch.device("cpu"))
    assert weights.cache_bytes["float32"] == sum(tensor.nbytes for tensor in (*pages.keys, *pages.values))
    assert weights.cache_bytes["bfloat16"] == weights.cache_bytes["float32"] / 2
    assert weights.cache_bytes["fp8"] == 2 * 10 * 1000 * 4 * (64 + 4)  # layers, positions, heads; numbers and a scale


def test_without_a_model_the_embedded_ones_are_listed_a_line_each(
    inspected: Callable[..., Any], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["inspect"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(":")[0] for line in lines] == embedded_models()
    assert "tiny-llada: LLaDAModelLM, 9.25 M parameters, 1024 positions, bidirectional" in lines
    assert [report["model"] for report in inspected()] == embedded_models()


@pytest.mark.parametrize("model", embedded_models())
def test_every_embedded_model_can_be_inspected(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["inspect", model]) == 0
    out = capsys.readouterr().out
    assert re.search(r"^weights +float32 \S+ MiB, bfloat16 \S+ MiB", out, re.M)
    assert re.search(r"^decoders +.*asynclane", out, re.M)


def test_a_block_size_is_reported_with_its_source(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["inspect", "tiny-sdar"]) == 0
    assert cli.main(["inspect", "tiny-sdar", "--block-size", "8"]) == 0
    attention = re.findall(r"^attention +(.*)$", capsys.readouterr().out, re.M)
    assert attention == [
        "block-causal 16, blocks by config.json's block_size",
        "block-causal 8, blocks by --block-size",
    ]
    assert cli.main(["inspect", "tiny-llada", "--block-size", "8"]) == 2
    assert "LLaDAModelLM has no blocks" in capsys.readouterr().err


FAMILIES = {
    "LLaDAModelLM": ("bidirectional", 0, 0, False),
    "DreamModel": ("bidirectional", 0, 1, False),
    "Fast_dLLM_QwenForCausalLM": ("block-causal", 4, 1, False),
    "SDARForCausalLM": ("block-causal", 4, 0, False),
    "SDARMoeForCausalLM": ("block-causal", 4, 0, True),
    "StableDiffcoderForCausalLM": ("block-causal", 4, 0, False),
    "LLaDAMoEModelLM": ("bidirectional", 0, 0, True),
    "LLaDA2MoeModelLM": ("block-causal", 4, 0, True),
    "WeDLMForCausalLM": ("causal, known tokens first", 0, 0, False),
    "Qwen2ForCausalLM": ("causal", 0, 1, False),
    "Qwen3ForCausalLM": ("causal", 0, 1, False),
    "Qwen3MoeForCausalLM": ("causal", 0, 1, True),
    "DiffusionGemmaForBlockDiffusion": ("causal, canvases of", 16, 0, True),
}


@pytest.mark.parametrize("architecture", CONFIGS)
def test_each_family_is_reported_with_its_attention(
    architecture: str, tmp_path: Path, inspected: Callable[..., Any]
) -> None:
    report = inspected(str(write_checkpoint(tmp_path / "model", architecture)))
    found = (report["attention"], report["block"], report["shift"], report["experts"] is not None)
    assert found == FAMILIES[architecture]
    assert report["parameters"] == sum(report["stored"].values())


def test_a_model_with_canvases_is_reported_with_its_sampler(
    tmp_path: Path, inspected: Callable[..., Any], capsys: pytest.CaptureFixture[str]
) -> None:
    directory = write_checkpoint(tmp_path / "model", "DiffusionGemmaForBlockDiffusion")
    (directory / "generation_config.json").write_text('{"t_min": 0.3, "eos_token_id": [1, 7]}')
    report = inspected(str(directory))
    assert [name for name, reason in report["decoders"].items() if reason is None] == ["renoise"]
    assert report["full_layers"] == {"count": 1, "heads_of": 32, "kv_heads": 1, "window_of_others": 8}
    assert report["sampler"]["t_min"] == 0.3
    assert report["sampler"]["t_max"] == 0.8
    assert report["cache_bytes_per_1000"]["bfloat16"] == 1000 * 2 * 2 * (2 * 16 + 1 * 32)  # of all layers alike
    assert {1, 7} <= {end["id"] for end in report["ends"]}
    assert cli.main(["inspect", str(directory)]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "attention causal, canvases of 16 mask" in shown
    assert "1 of 2 layers see all keys, with heads of 32 on 1; the others the last 8" in shown
    assert "sampler renoise: max_denoising_steps 48, entropy_bound 0.1, t_min 0.3, t_max 0.8" in shown


def test_a_sampler_that_serve_refuses_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory = write_checkpoint(tmp_path / "model", "DiffusionGemmaForBlockDiffusion")
    (directory / "generation_config.json").write_text('{"t_min": 0.9, "t_max": 0.5}')
    for command in (["inspect", str(directory)], ["serve", "--model", str(directory), "--device", "cpu"]):
        assert cli.main(command) == 2
        assert "generation_config.json: t_min 0.9 must not exceed t_max 0.5" in capsys.readouterr().err


def test_a_base_model_is_said_to_have_no_chat_template(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["inspect", str(write_llada(tmp_path / "base", chat=False))]) == 0
    assert re.search(r"^chat template +no: /v1/completions only$", capsys.readouterr().out, re.M)


@pytest.mark.parametrize(
    ("template", "flags", "tools", "reason", "reasoning"),
    [
        (TEMPLATE, [], "hermes", "", None),
        (TEMPLATE + "{# <think> #}", [], "hermes", "", "think"),
        (TEMPLATE + "{# <think> #}", ["--reasoning-parser", "none"], "hermes", "", None),
        (TEMPLATE, ["--tool-parser", "none"], None, "switched off", None),
        (TEMPLATE, ["--tool-parser", "gemma"], None, "writes calls as hermes, but --tool-parser is gemma", None),
        (TEMPLATE.replace("tool_call>", ">"), [], None, "name it with --tool-parser", None),
        (TEMPLATE.replace("tool_call>", ">"), ["--tool-parser", "json"], "json", "", None),
        ("{{ messages[0].content }}", [], None, "shows no tools", None),
    ],
)
def test_the_formats_of_calls_and_of_reasoning_are_reported(
    template: str,
    flags: list[str],
    tools: Any,
    reason: str,
    reasoning: Any,
    tmp_path: Path,
    inspected: Any,
    capsys: Any,
) -> None:
    model = str(write_checkpoint_with(tmp_path / "model", template))
    report = inspected(model, *flags)
    assert (report["tools"], report["reasoning"]) == (tools, reasoning)
    assert reason in report["no_tools"]
    assert cli.main(["inspect", model, *flags]) == 0
    shown = capsys.readouterr().out
    assert re.search(rf"^tools +{tools or 'no: .*' + re.escape(reason)}", shown, re.M)
    assert bool(re.search(r"^reasoning ", shown, re.M)) == bool(reasoning)


def test_a_spelling_moves_no_cursor(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory = write_llada(tmp_path / "llada")
    for name in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"):
        path = directory / name
        path.write_text(path.read_text().replace("<|endoftext|>", r"\u001b[2J"))
    assert cli.main(["inspect", str(directory)]) == 0
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert r"'\x1b[2J'" in out


def write_in_full_size(directory: Path) -> Path:
    """LLaDA-8B with all of its 16 GB, which are holes in the file: nothing has written them."""
    write_llada(directory)
    for shard in directory.glob("model*"):
        shard.unlink()
    small = json.loads((directory / "config.json").read_text())
    ends = {"eos_token_id": small["eos_token_id"], "mask_token_id": small["mask_token_id"]}
    write_json(directory / "config.json", {**LLADA, **ends})
    header, offset = {}, 0
    for name, shape in tensor_shapes(read_config(directory)).items():
        size = 2 * prod(shape)
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [offset, offset + size]}
        offset += size
    raw = json.dumps(header).encode()
    with (directory / "model.safetensors").open("wb") as file:
        file.write(struct.pack("<Q", len(raw)) + raw)
        file.truncate(8 + len(raw) + offset)
    return directory


# Not getrusage: a child's peak there begins with its parent's memory at the fork.
PEAK = """
import re, sys
from pathlib import Path
from asynclane.server.cli.main import main
code = main(sys.argv[1:])
print(re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1], file=sys.stderr)
sys.exit(code)
"""


@LONG
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_model_of_16_gb_is_inspected_in_little_memory(tmp_path: Path) -> None:
    directory = write_in_full_size(tmp_path / "llada")
    done = subprocess.run(
        [sys.executable, "-P", "-c", PEAK, "inspect", str(directory), "--json"],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    report = json.loads(done.stdout)
    assert report["parameters"] == 8_015_581_184
    assert report["weights_bytes"]["bfloat16"] == 16_031_162_368  # `total_size` of the index that was published
    assert report["weights_bytes"]["fp8"] < 0.6 * report["weights_bytes"]["bfloat16"]
    assert report["cache_bytes_per_1000"]["bfloat16"] == 2 * 1000 * 32 * 4096 * 2
    weights, cache = (report[name] for name in ("weights_bytes", "cache_bytes_per_1000"))
    gib = [f"{size / 2**30:.2f} GiB" for size in (weights["bfloat16"], weights["fp8"], cache["bfloat16"])]
    assert f"| `LLaDAModelLM` | {' | '.join(gib)} |" in (ROOT / "docs" / "models.md").read_text()
    assert int(done.stderr) < 1_500_000  # KiB: Python, torch and a tokenizer


def test_the_memory_of_requests_is_that_of_weights_pages_and_steps(inspected: Callable[..., Any]) -> None:
    memory = inspected("tiny-sdar", "--requests", "10", "--max-model-len", "512", "--gpu-gib", "1")["memory"]
    config = replace(read_config(find_model("tiny-sdar")), max_model_len=512)
    numerics = Numerics(torch.bfloat16)
    assert (memory["requests"], memory["context"], memory["step_tokens"]) == (10, 512, 4096)
    assert memory["weights_bytes"] == weights_bytes(config, numerics)
    one = KvPages.page_bytes(config, 512, numerics)
    assert memory["cache_bytes"] == 10 * one
    assert memory["workspace_bytes"] == step_bytes(config, numerics, 10, 4096, 16).workspace
    assert memory["total_bytes"] == sum(memory[f"{part}_bytes"] for part in ("weights", "cache", "workspace"))
    assert memory["left_bytes"] == int(0.9 * 2**30) - memory["total_bytes"]
    assert memory["most_requests"] == 10 + memory["left_bytes"] // one
    less = inspected("tiny-sdar", "--max-model-len", "512", "--max-step-tokens", "1024", "--quantization", "fp8")[
        "memory"
    ]
    assert (less["requests"], less["left_bytes"]) == (64, None)
    assert less["workspace_bytes"] < memory["workspace_bytes"]
    assert less["weights_bytes"] < memory["weights_bytes"]
    short = inspected("tiny-sdar", "--requests", "10", "--max-model-len", "512", "--kv-cache-dtype", "fp8")["memory"]
    assert short["cache_bytes"] < 0.6 * memory["cache_bytes"]


def test_memory_that_is_missing_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["inspect", "tiny-llada", "--requests", "64", "--gpu-gib", "0.5"]) == 0
    out = capsys.readouterr().out
    assert "64 requests of 1024 positions: weights 17.6 MiB + K/V 0.62 GiB + workspace" in out
    assert re.search(r"left +0\.\d\d GiB are missing; there is room for \d\d such requests", out)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--requests", "2"], "need a model: give its name or directory"),
        (["tiny-llada", "--max-model-len", "2000"], "--max-model-len 2000 exceeds the model's 1024"),
        (["tiny-llada", "--requests", "70000"], "--max-num-seqs must be from 1 to 65536"),
        (["tiny-llada", "--chunked-prefill-size", "64"], "--chunked-prefill-size is for block-causal models"),
        (["tiny-llada", "--quantization", "fp8", "--deterministic"], "quantization fp8 cannot be deterministic"),
    ],
)
def test_memory_of_what_serve_refuses_is_refused(
    flags: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["inspect", *flags]) == 2
    assert message in capsys.readouterr().err
