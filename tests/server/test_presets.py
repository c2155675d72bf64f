"""Presets: a checkpoint is recognized by its name, and requests get the decoder that its authors recommend."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from asynclane.models.checkpoint.config import read_config
from asynclane.models.checkpoint.registry import Hardware, load_runner
from asynclane.models.exec.memory import Memory
from asynclane.scheduler import all_words, resolve
from asynclane.scheduler.decoding.words import takes
from asynclane.server.cli import main as cli
from asynclane.server.engine.messages import AnswerOptions
from asynclane.server.engine.offline import Offline
from asynclane.server.engine.wiring import build_parts
from asynclane.server.presets import PRESETS, DecoderLine, preset_of
from asynclane.server.settings import Settings, SettingsError
from asynclane.server.text.tokenizer import Tokenizer

from ..support.cases import FAMILY_LIMITS
from ..support.checkpoints import write_checkpoint, write_config
from ..support.driver import Spec, run
from ..support.scale import part

NAMED = {
    "GSAI-ML/LLaDA-1.5": ("LLaDAModelLM", "llada-1.5"),
    "Zigeng/dParallel-LLaDA-8B-instruct": ("LLaDAModelLM", "dparallel-llada"),
    "Zigeng/dParallel_Dream_7B_Instruct": ("DreamModel", "dparallel-dream"),
    "someone/my-cd4lm-student": ("LLaDAModelLM", "cd4lm"),
    "d3LLM/d3LLM_LLaDA": ("LLaDAModelLM", "d3llm-llada"),
    "d3LLM/d3LLM_Dream_Coder@main": ("DreamModel", "d3llm-dream"),
    "apple/DiffuCoder-7B-cpGRPO": ("DreamModel", "diffucoder"),
    "Dream-org/Dream-Coder-v0-Instruct-7B": ("DreamModel", "dream-coder"),
    "ByteDance-Seed/Stable-DiffCoder-8B-Instruct": ("StableDiffcoderForCausalLM", "stable-diffcoder"),
    "inclusionAI/LLaDA-MoE-7B-A1B-Instruct": ("LLaDAMoEModelLM", "llada-moe"),
    "inclusionAI/LLaDA2.0-mini-CAP": ("LLaDA2MoeModelLM", "llada2-cap"),
    "inclusionAI/LLaDA2.0-flash": ("LLaDA2MoeModelLM", "llada2.0"),
    "inclusionAI/LLaDA2.1-mini": ("LLaDA2MoeModelLM", "llada2.1"),
    "inclusionAI/LLaDA2.2-flash": ("LLaDA2MoeModelLM", "llada2.2"),
    "JetLM/SDAR-30B-A3B-Chat-b32": ("SDARMoeForCausalLM", "sdar"),
    "Gen-Verse/TraDo-8B-Instruct": ("SDARForCausalLM", "sdar"),
    "Efficient-Large-Model/Fast_dLLM_v2_7B": ("Fast_dLLM_QwenForCausalLM", "fast-dllm-v2"),
    "tencent/WeDLM-8B-Instruct": ("WeDLMForCausalLM", "wedlm"),
}
WITHOUT_NAME = {"llada2.1-speed"}
RULE_VALUES = {"steps": 64}, {"threshold": 0.5}, {"factor": 1.0}, {"entropy_bound": 0.1}


def test_published_checkpoints_are_recognized_and_no_others() -> None:
    found = {name: preset_of(architecture, [name]) for name, (architecture, _) in NAMED.items()}
    assert found == {name: preset for name, (_, preset) in NAMED.items()}
    assert {*found.values()} | WITHOUT_NAME == {*PRESETS}
    assert preset_of("LLaDAModelLM", ["GSAI-ML/LLaDA-8B-Instruct"]) is None
    assert preset_of("LLaDAModelLM", ["d3LLM/d3LLM_Dream"]) is None  # of another architecture


@pytest.mark.parametrize(("name", "architecture", "preset"), part([(name, *row) for name, row in NAMED.items()], 4))
def test_a_checkpoint_in_its_own_format_answers_with_its_preset(
    tmp_path: Path, name: str, architecture: str, preset: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """`torch_dtype` or `dtype`, `rope_scaling` null or of type default, buffers of positions: as they are published."""
    number = list(NAMED).index(name)
    words: dict[str, Any] = {"rope_scaling": {"rope_type": "default"}} if number % 2 else {"rope_scaling": None}
    if preset == "llada2.2":
        words |= {"delete_token_id": 300, "split_token_id": 301}
    words["torch_dtype" if number % 3 else "dtype"] = "bfloat16"
    directory = write_checkpoint(tmp_path / Path(name).name.partition("@")[0], architecture, **words)
    assert cli.main(["inspect", str(directory), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["preset"] == preset
    config, limits, line = read_config(directory), FAMILY_LIMITS, PRESETS[preset].line
    memory = Memory(limits.slots, limits.page_size, limits.step_tokens, limits.pages * limits.page_size)
    runner = load_runner(directory, config, memory, Hardware("cpu", "float32"), [1]).runner
    vocabulary = Tokenizer(directory, config.mask_id).vocabulary
    specs = [Spec([7, 300, 21, 999, 12], 24, line.name, {**line.params, "early_stop": False})]
    (answer,) = run(runner, vocabulary, specs, limits, pattern=config.pattern)
    assert len(answer.text) == 24


def test_a_request_may_replace_what_a_preset_says() -> None:
    line = DecoderLine("fast-dllm", {"cache": "none", "threshold": 0.5})
    assert line.requested(None, {}) == ("fast-dllm", {"cache": "none", "threshold": 0.5})
    assert line.requested("fast-dllm", {"threshold": 0.8}) == ("fast-dllm", {"cache": "none", "threshold": 0.8})
    assert line.requested(None, {"factor": 1.0}) == ("fast-dllm", {"cache": "none", "factor": 1.0})
    assert line.requested(None, {"entropy_bound": 0.1}) == ("fast-dllm", {"cache": "none", "entropy_bound": 0.1})
    assert line.requested("llada", {"steps": 8}) == ("llada", {"steps": 8})


@pytest.mark.parametrize("preset", PRESETS)
def test_a_preset_goes_with_the_networks_that_it_is_for(tmp_path: Path, preset: str) -> None:
    for architecture in PRESETS[preset].architectures:
        write_config(tmp_path, architecture)
        line, pattern = PRESETS[preset].line, read_config(tmp_path).pattern
        assert resolve(line.name, line.params, 64, pattern).name == line.name
        words = all_words(line.name, pattern)
        for given in (*RULE_VALUES, *({param: value} for param, values in words.items() for value in values)):
            assert takes(*line.requested(None, given), pattern) >= takes(line.name, given, pattern), given


def test_the_server_answers_with_the_preset_unless_a_request_names_another_decoder(tmp_path: Path) -> None:
    small: dict[str, Any] = {"max_num_seqs": 2, "max_step_tokens": 128, "max_model_len": 96}
    prompt, model = [7, 300, 21, 999, 12], str(write_checkpoint(tmp_path / "student", "LLaDAModelLM"))
    line = (("early_stop", False),)
    with Offline(Settings(model=model, preset="cd4lm", **small)) as offline:
        default, other = offline.answer_each(
            [
                (prompt, AnswerOptions(32, params=line)),
                (prompt, AnswerOptions(32, decoder="llada", params=line)),
            ]
        )
    with Offline(Settings(model=model, **small)) as offline:
        params = PRESETS["cd4lm"].line.params | dict(line)
        (named,) = offline.answer([prompt], AnswerOptions(32, decoder="cad", params=tuple(params.items())))
    assert (default.token_ids, default.usage.stats.forwards) == (named.token_ids, named.usage.stats.forwards)
    assert other.usage.stats.forwards == 32


def test_a_preset_of_another_architecture_is_refused() -> None:
    with pytest.raises(
        SettingsError, match=r"--preset sdar is for SDARForCausalLM or SDARMoe.*, and this is LLaDAModel"
    ):
        build_parts(Settings(model="tiny-llada", preset="sdar"))
    with pytest.raises(SettingsError, match=r"--preset sdar has decoder 'fast-dllm': leave out --decoder llada"):
        Settings(model="tiny-sdar", preset="sdar", decoder="llada")
    with pytest.raises(SettingsError, match=r"preset must be one of llada-1\.5, dparallel-llada"):
        Settings(preset="nothing")


@pytest.mark.parametrize("preset", PRESETS)
def test_the_table_of_presets_is_that_of_the_page(preset: str) -> None:
    page = (Path(__file__).parents[2] / "docs" / "models.md").read_text()
    (row,) = [line for line in page.splitlines() if line.startswith(f"| `{preset}` |")]
    assert f"| `{PRESETS[preset].line}` | {PRESETS[preset].source}" in row
    assert all(f"`{architecture}`" in row for architecture in PRESETS[preset].architectures)
    assert all(f"`{option}` {value}" in row for option, value in PRESETS[preset].requests.items())
