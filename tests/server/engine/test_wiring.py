"""The composition root: `serve` and `inspect` refuse a broken checkpoint with the same line, before memory is taken."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import shutil
import socket
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from asynclane.models.checkpoint.registry import find_model
from asynclane.models.exec.runner import Runner
from asynclane.scheduler.decoding.vocabulary import Vocabulary
from asynclane.server.cli import main as cli
from asynclane.server.engine.wiring import build_parts, warn_of_missing_boundaries
from asynclane.server.settings import Settings

from ...support.causal import write_causal
from ...support.checkpoints import write_checkpoint
from ...support.published import write_json, write_llada, write_qwen_tokenizer
from ...support.scale import part

Spoil = Callable[[Path], object]
SHARD = "model-00002-of-00006.safetensors"
INDEX = "model.safetensors.index.json"
NOBODY = 65534
READ = (
    *("config.json", "generation_config.json", INDEX, SHARD, "tokenizer.json", "tokenizer_config.json"),
    *("special_tokens_map.json", "added_tokens.json", "vocab.json", "merges.txt", "chat_template.jinja"),
)


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_llada(tmp_path_factory.mktemp("published") / "llada")


@pytest.fixture
def checkpoint(published: Path, tmp_path: Path) -> Path:
    """A small LLaDA that a test may spoil."""
    return Path(shutil.copytree(published, tmp_path / "llada"))


def refused(argv: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    assert cli.main(argv) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1, captured.err
    return captured.err


@pytest.fixture
def refusal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """The one line that a model is refused with."""

    def taken(*size: object, **options: object) -> None:
        pytest.fail(f"memory of {size} was taken")

    def refusal(model: object) -> str:
        for name in ("empty", "zeros", "full"):
            monkeypatch.setattr(torch, name, taken)
        line = refused(["inspect", str(model)], capsys)
        assert refused(["serve", "--port", "0", "--model", str(model)], capsys) == line
        return line

    return refusal


def edit(path: Path, **changes: Any) -> None:
    """Changes keys of a JSON file; "absent" takes one away."""
    kept = {key: value for key, value in (json.loads(path.read_text()) | changes).items() if value != "absent"}
    write_json(path, kept)


def config(**changes: Any) -> Spoil:
    return lambda directory: edit(directory / "config.json", **changes)


def tokenizer_config(**changes: Any) -> Spoil:
    return lambda directory: edit(directory / "tokenizer_config.json", **changes)


def written(name: str, content: str | bytes) -> Spoil:
    raw = content if isinstance(content, bytes) else content.encode()
    return lambda directory: (directory / name).write_bytes(raw)


def gone(*names: str) -> Spoil:
    return lambda directory: [(directory / name).unlink() for name in names]


def loop(name: str) -> Spoil:
    def spoil(directory: Path) -> None:
        (directory / name).unlink()
        (directory / name).symlink_to(name)

    return spoil


def special(name: str, make: Callable[[Path], object]) -> Spoil:
    """Something else in place of a file."""

    def spoil(directory: Path) -> None:
        (directory / name).unlink(missing_ok=True)
        make(directory / name)

    return spoil


def listening(path: Path) -> None:
    """A socket; its path has a limit, so it is bound to a relative one."""
    with contextlib.chdir(path.parent), socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path.name)


def device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def decoder(**described: Any) -> Spoil:
    return lambda directory: edit(directory / "tokenizer.json", decoder=described)


def shard(change: Callable[[dict[str, torch.Tensor]], object]) -> Spoil:
    def spoil(directory: Path) -> None:
        tensors = load_file(directory / SHARD)
        change(tensors)
        save_file(tensors, directory / SHARD)

    return spoil


def first(tensors: dict[str, torch.Tensor]) -> str:
    return min(tensors)


def truncated(directory: Path) -> None:
    os.truncate(directory / SHARD, (directory / SHARD).stat().st_size - 100)


def twice(directory: Path) -> None:
    extra = "model-00003-of-00006.safetensors"
    tensors = load_file(directory / SHARD)
    save_file(load_file(directory / extra) | {first(tensors): tensors[first(tensors)]}, directory / extra)


def moved(name: str) -> Spoil:
    """The index says that a tensor is in a file elsewhere, which is there."""

    def spoil(directory: Path) -> None:
        shutil.copy(directory / SHARD, directory.parent / SHARD)
        weight_map = json.loads((directory / INDEX).read_text())["weight_map"]
        there = name.format(directory.parent)
        edit(directory / INDEX, weight_map={k: there if v == SHARD else v for k, v in weight_map.items()})

    return spoil


def ordinary_mask(directory: Path) -> None:
    """The mask's id is a word's."""
    edit(directory / "config.json", mask_token_id=70)


KINDS: dict[str, tuple[Spoil, str]] = {
    "another architecture": (config(architectures=["GPT2LMHeadModel"]), "'GPT2LMHeadModel' is not supported; support"),
    "no architecture": (config(architectures="absent"), "None is not supported; supported: LLaDAModelLM"),
    "an architecture that is none": (config(architectures=[["LLaDAModelLM"]]), "is not supported; supported: LLaDA"),
    "no config": (gone("config.json"), "has no config.json"),
    "a config that is no JSON": (written("config.json", "{"), "config.json cannot be read"),
    "a config that is no text": (written("config.json", b"\xff\xfe\x00"), "config.json cannot be read"),
    "a config that is nested without end": (written("config.json", "[" * 100_000), "config.json cannot be read"),
    "a config that is a list": (written("config.json", "[]"), "config.json is no object but list"),
    "a config that links to itself": (loop("config.json"), "config.json cannot be read"),
    "a config without a size": (config(n_layers="absent"), "config.json lacks 'n_layers'"),
    "a size that is no number": (config(d_model="wide"), "d_model = 'wide' is no whole number"),
    "a size without end": (
        written("config.json", '{"architectures": ["LLaDAModelLM"], "d_model": Infinity}'),
        "d_model = inf is no whole number",
    ),
    "a billion layers": (config(n_layers=10**9), "layers is 1000000000, not from 1 to 1024"),
    "no rotation": (config(rope_theta=float("nan")), "rope_theta = nan is no number"),
    "a variant that is not computed": (config(alibi=True), "alibi = True is not supported, only False"),
    "no weights": (gone(INDEX), f"has neither model.safetensors nor {INDEX}"),
    "no shard": (gone(SHARD), f"lacks {SHARD}, named in {INDEX}"),
    "a shard that links to itself": (loop(SHARD), f"lacks {SHARD}, named in {INDEX}"),
    "an index that is no JSON": (written(INDEX, "{"), f"{INDEX} cannot be read"),
    "an index without a map": (written(INDEX, "[]"), f"{INDEX} cannot be read"),
    "a shard above": (moved("../" + SHARD), f"{INDEX} names ../{SHARD}, which is no file beside it"),
    "a shard elsewhere": (moved("{}/" + SHARD), f"{SHARD}, which is no file beside it"),
    "a shard cut short": (truncated, f"{SHARD} cannot be read"),
    "a shard of garbage": (written(SHARD, b"\x89PNG\r\n\x1a\n" + bytes(range(256))), f"{SHARD} cannot be read"),
    "a header of garbage": (written(SHARD, struct.pack("<Q", 8) + b"not JSON"), f"{SHARD} cannot be read"),
    "an empty shard": (written(SHARD, b""), f"{SHARD} cannot be read"),
    "a missing tensor": (shard(lambda t: t.pop(first(t))), "lacks model.transformer.blocks.0."),
    "an unexpected tensor": (shard(lambda t: t.update(extra=torch.zeros(1))), "has an unexpected tensor extra"),
    "a wrong shape": (shard(lambda t: t.update({first(t): torch.zeros(3)})), "is [3], config.json says ["),
    "a tensor in two files": (twice, "is in another file too"),
    "an unsupported type": (
        shard(lambda t: t.update({first(t): t[first(t)].char()})),
        "is I8, only BF16, F16, F32 can",
    ),
    "no tokenizer": (gone("tokenizer.json"), "has no tokenizer.json, and no vocab.json with merges.txt: download"),
    "a tokenizer that is no JSON": (written("tokenizer.json", "{"), "cannot be read"),
    "a tokenizer of nothing": (written("tokenizer.json", "{}"), "cannot be read"),
    "a tokenizer's configuration that is none": (written("tokenizer_config.json", "{"), "cannot be read"),
    "no mask": (config(mask_token_id="absent"), "config.json lacks 'mask_token_id'"),
    "a mask that is no number": (config(mask_token_id="<|mdm_mask|>"), "is no whole number"),
    "a mask beyond the vocabulary": (config(mask_token_id=5000), "mask token 5000 is not below"),
    "a mask that is a word": (ordinary_mask, "has no mask token, for 70, which config.json names, is 'g'"),
    "two masks": (tokenizer_config(mask_token="<|eot_id|>"), "config.json and tokenizer_config.json name different"),
    "a tokenizer larger than the embedding": (config(embedding_size=1408, vocab_size=1408), "do not belong together"),
    "no end": (
        lambda d: [
            edit(d / "config.json", eos_token_id="absent"),
            edit(d / "tokenizer_config.json", eos_token="absent", chat_template="absent"),
            *gone("generation_config.json", "special_tokens_map.json")(d),  # type: ignore[misc]
        ],
        "names no token that ends an answer",
    ),
    "an end beyond the vocabulary": (config(eos_token_id=126081), "126081 cannot end an answer"),
    "an end below zero": (config(eos_token_id=-1), "-1 cannot end an answer"),
    "an end that is a list": (config(eos_token_id=[[1]]), "eos_token_id is no id, or a list with"),
    "an end that is no number": (config(eos_token_id=["<|eot_id|>"]), "eos_token_id is no id, or a list with"),
    "a chat template that fails": (tokenizer_config(chat_template="{{ 1 / 0 }}"), "division by zero"),
    "a chat template of a wrong type": (
        tokenizer_config(chat_template="{{ messages + 1 }}"),
        "template fails: TypeErr",
    ),
    "a chat template without syntax": (
        tokenizer_config(chat_template="{% if %}"),
        "template does not compile: Templat",
    ),
    "a chat template that loops": (
        tokenizer_config(chat_template="{% for a in range(9999) %}{% for b in range(9999) %}{% endfor %}{% endfor %}"),
        "the chat template fails: TooMuchWork",
    ),
    "a chat template without the message": (
        tokenizer_config(chat_template="{{ bos_token }}{% for m in messages %}{{ m.role }}{% endfor %}"),
        "the chat template does not show the text of a user's message",
    ),
    "a chat template that fails with an answer": (
        tokenizer_config(chat_template="{{ messages[0].content }}{% if messages[1] %}{{ messages + 1 }}{% endif %}"),
        "the chat template fails: TypeError",
    ),
    "a chat template that is a number": (tokenizer_config(chat_template=5), "the chat template does not compile"),
    "a tokenizer whose tokens depend on others": (
        decoder(type="WordPiece", prefix="##", cleanup=True),
        "the tokenizer's decoder is WordPiece, only ByteLevel, ",
    ),
    "a tied head of its own": (config(weight_tying=True), "ff_out.weight is not equal to model.transformer.wte.weight"),
    "scaled positions": (config(rope_scaling={"type": "linear", "factor": 2.0}), "rope type 'linear' is not supported"),
    "clipped values": (config(clip_qkv=8.0), "clip_qkv = 8.0 is not supported by LLaDAModelLM"),
    "a partial rotation": (config(partial_rotary_factor=0.5), "partial_rotary_factor = 0.5 is not supported by LLaDA"),
    "sliding layers": (config(layer_types=["sliding_attention"]), "layer_types with 'sliding_attention' is not supp"),
    "quantized weights": (
        config(quantization_config={"quant_method": "gptq", "bits": 3}),
        "quantization_config.bits = 3 is not supported, only 4",
    ),
    **{f"{name} is a FIFO": (special(name, os.mkfifo), f"{name} is no regular file") for name in READ},
    "a config that is a device": (special("config.json", device), "config.json is no regular file"),
    "an index that is a socket": (special(INDEX, listening), f"{INDEX} is no regular file"),
    "a config that is a directory": (special("config.json", Path.mkdir), "config.json cannot be read"),
    "an index that is a directory": (special(INDEX, Path.mkdir), f"{INDEX} cannot be read"),
    "a shard that is a directory": (special(SHARD, Path.mkdir), f"{SHARD} cannot be read"),
    "a tokenizer that is a directory": (special("tokenizer.json", Path.mkdir), "has no tokenizer.json, and no vocab"),
}


@pytest.mark.parametrize("kind", part(KINDS, 2))
def test_a_broken_checkpoint_is_one_line(checkpoint: Path, refusal: Callable[..., str], kind: str) -> None:
    spoil, message = KINDS[kind]
    spoil(checkpoint)
    line = refusal(checkpoint)
    assert message in line
    assert len(line) < 500


def test_a_file_an_empty_directory_and_nothing_have_lines_of_their_own(
    tmp_path: Path, refusal: Callable[..., str]
) -> None:
    weights, empty, around = tmp_path / "model.safetensors", tmp_path / "empty", tmp_path / "around"
    weights.write_bytes(b"")
    empty.mkdir()
    around.symlink_to(around)
    assert "is a file: give the directory that holds config.json and the weights" in refusal(weights)
    assert "is empty: download a checkpoint into it first" in refusal(empty)
    assert "cannot be read: Too many levels of symbolic links" in refusal(around)
    assert "no directory here, not OWNER/NAME of a repository, and the embedded models are" in refusal("tiny-lama")
    assert "Could not determine home directory" in refusal("~nobody-of-this-name/model")


def test_a_directory_that_may_not_be_read_is_one_line(
    checkpoint: Path, refusal: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    refusal(checkpoint / "nothing")  # loads what a user without rights may not load
    monkeypatch.setattr("asynclane.models.checkpoint.registry.EMBEDDED", Path(os.sep))  # a umask may hide the package
    mode, user = checkpoint.stat().st_mode, os.geteuid()
    checkpoint.chmod(0)
    try:
        if user == 0:  # who may read everything
            os.seteuid(NOBODY)
        assert "cannot be read: Permission denied" in refusal(checkpoint)
    finally:
        os.seteuid(user)
        checkpoint.chmod(mode)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--max-model-len", "513"], "--max-model-len 513 exceeds the model's 512"),
        (["--max-model-len", "512", "--max-step-tokens", "256"], "raise --max-step-tokens or lower --max-model-len"),
        (["--kv-cache-tokens", "100", "--max-model-len", "512"], "raise --kv-cache-tokens or lower --max-model-len"),
        (["--decoder", "beam"], "unknown decoder 'beam'"),
    ],
)
def test_settings_that_do_not_fit_the_model_are_refused_before_it_is_loaded(
    checkpoint: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    flags: list[str],
    message: str,
) -> None:
    monkeypatch.setattr("asynclane.server.engine.wiring.load_runner", lambda *arguments: pytest.fail("it was loaded"))
    assert message in refused(["serve", "--port", "0", "--model", str(checkpoint), *flags], capsys)


def test_a_tokenizer_without_tokenizer_json_is_read_if_it_is_qwens(
    checkpoint: Path, refusal: Callable[..., str]
) -> None:
    (checkpoint / "tokenizer.json").unlink()
    write_qwen_tokenizer(checkpoint)
    edit(checkpoint / "tokenizer_config.json", tokenizer_class="BertTokenizer")
    assert "its tokenizer is 'BertTokenizer': without it, only Qwen2Tokenizer, Q" in refusal(checkpoint)


def test_a_model_whose_templates_have_no_default_starts_with_a_warning(
    checkpoint: Path, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    templates = [{"name": name, "template": "{{ messages }}"} for name in ("tool_use", "rag")]
    edit(checkpoint / "tokenizer_config.json", chat_template=templates)
    assert cli.main(["inspect", str(checkpoint)]) == 0
    assert re.search(r"^templates +rag, tool_use: none is called default$", capsys.readouterr().out, re.M)
    build_parts(Settings(model=str(checkpoint), threads=1))
    (warning,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert warning.startswith(
        "chats are refused: none of this model's chat templates (rag, tool_use) is called default"
    )


def test_a_tokenizer_without_boundaries_alone_is_warned_of_at_start(caplog: pytest.LogCaptureFixture) -> None:
    warn_of_missing_boundaries(Vocabulary([".", "\n", ""], mask_id=2, end_ids=[]))
    assert not caplog.records
    warn_of_missing_boundaries(Vocabulary(["a", "b", ""], mask_id=2, end_ids=[]))
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert "auto, prose, code, comma" in record.getMessage()
    assert "where proposals have settled" in record.getMessage()


def test_the_size_of_blocks_and_its_source_are_logged_at_start(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        parts = build_parts(Settings(model="tiny-sdar", max_num_seqs=2, max_step_tokens=128, block_size=8))
    assert "blocks of 8 positions, by --block-size" in caplog.messages
    assert parts.pattern.block_size == 8
    parts.close()


@pytest.mark.parametrize("architecture", ["WeDLMForCausalLM", "DiffusionGemmaForBlockDiffusion"])
def test_no_blocks_are_logged_of_a_causal_network(
    architecture: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    directory = write_checkpoint(tmp_path / "model", architecture)
    with caplog.at_level(logging.INFO):
        build_parts(Settings(model=str(directory), max_num_seqs=2, max_step_tokens=128)).close()
    assert not [message for message in caplog.messages if message.startswith("blocks of")]


def test_the_context_is_what_one_step_computes_unless_more_is_asked_for(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        assert build_parts(Settings(max_step_tokens=512, threads=1)).limits.max_model_len == 512
    assert "the context is 512 of the model's 1024 positions: --max-step-tokens computes no more" in caplog.text


def _dummy(tmp_path: Path, model: str, **config: int) -> Path:
    """A copy of an embedded model without weights, whose config.json says other things."""
    directory = tmp_path / model
    shutil.copytree(find_model(model), directory, ignore=shutil.ignore_patterns("*.safetensors"))
    path = directory / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | config))
    return directory


@pytest.mark.parametrize(
    ("settings", "wanted", "log"),
    [
        ({}, (16384, 4096, 2048), "the context is 16384 of the model's 40960 positions: the device keeps keys and"),
        ({"max_model_len": 40960, "max_step_tokens": 256}, (40960, 256, 128), ""),
        ({"chunked_prefill_size": 0}, (4096, 4096, 0), "--max-step-tokens computes no more at once"),
    ],
)
def test_a_block_causal_model_has_contexts_longer_than_a_step(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, settings: dict[str, int], wanted: tuple[int, ...], log: str
) -> None:
    model = _dummy(tmp_path, "tiny-sdar", max_position_embeddings=40960)
    with caplog.at_level(logging.INFO):
        parts = build_parts(Settings(model=str(model), load_format="dummy", max_num_seqs=2, threads=1, **settings))
    limits = parts.limits
    assert (limits.max_model_len, limits.step_tokens, limits.prefill_tokens) == wanted
    assert limits.pages * limits.page_size >= limits.max_model_len
    assert log in caplog.text
    parts.close()


def test_a_bidirectional_model_has_steps_as_long_as_the_context_that_is_wanted(tmp_path: Path) -> None:
    model = str(_dummy(tmp_path, "tiny-dream", max_position_embeddings=8192))
    parts = build_parts(Settings(model=model, load_format="dummy", max_num_seqs=2, threads=1, max_model_len=8192))
    assert (parts.limits.max_model_len, parts.limits.step_tokens) == (8192, 8192)
    parts.close()
    with pytest.raises(ValueError, match=r"a step of 4096 tokens .* a bidirectional model computes a whole request at"):
        build_parts(Settings(model=model, load_format="dummy", max_model_len=8192, max_step_tokens=4096))


@pytest.mark.parametrize(
    ("model", "given", "message"),
    [
        ("tiny-llada", {"decoder": "tccf"}, "--decoder tccf: .*is for block-causal models"),
        ("tiny-llada", {"decoder": "deer"}, "--decoder deer: decoder 'deer' is for models that predict the next token"),
        ("tiny-sdar", {"decoder": "tccf"}, "--decoder tccf: turn 'think' needs a token"),
        ("tiny-sdar", {"decoder": "dream"}, "--decoder dream: .*fills the whole canvas in any order"),
        ("tiny-sdar", {"decoder": "wino"}, "--decoder wino: decoder 'wino' needs replicas"),
    ],
)
def test_a_default_decoder_that_no_request_could_use_is_refused_at_start(
    model: str, given: dict[str, str], message: str
) -> None:
    with pytest.raises(ValueError, match=f"^{message}"):
        build_parts(Settings(model=model, threads=1, **given))


@pytest.mark.parametrize(
    ("token_s", "settings", "limits"),
    [
        (1e-6, {}, (60.0, 3)),
        (0.01, {"max_step_tokens": 2048}, (204.8, 3)),  # where steps take long they may take longer
        (0.01, {"step_timeout_s": 7, "max_failed_steps": 2}, (7.0, 2)),
    ],
    ids=["default", "slow", "set"],
)
def test_the_limits_of_failing_steps_reach_the_device(
    monkeypatch: pytest.MonkeyPatch, token_s: float, settings: dict[str, int], limits: tuple[float, int]
) -> None:
    monkeypatch.setattr(Runner, "step_seconds", lambda runner, tokens: tokens * token_s)
    device = build_parts(Settings(**settings)).engine._device
    device.worker.shutdown()
    assert (device.step_timeout_s, device.max_failed_steps) == pytest.approx(limits)


@pytest.mark.parametrize(("token_s", "most"), [(1e-6, 2048), (5e-4, 128), (1.0, 64)])
def test_a_cpu_times_no_step_after_a_long_one(monkeypatch: pytest.MonkeyPatch, token_s: float, most: int) -> None:
    timed: list[int] = []

    def step_seconds(runner: Runner, tokens: int) -> float:
        timed.append(tokens)
        return tokens * token_s

    monkeypatch.setattr(Runner, "step_seconds", step_seconds)
    build_parts(Settings(device="cpu")).close()
    assert timed == [tokens for tokens in (1, 64, 128, 256, 512, 1024, 2048) if tokens <= most]


def test_prompts_of_a_block_causal_model_are_paced_by_the_time_of_positions_and_keys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Runner, "step_seconds", lambda runner, tokens, keys=0: tokens * (1e-6 + keys * 1e-10))
    model = str(_dummy(tmp_path, "tiny-sdar", max_position_embeddings=16384))
    settings = {"model": model, "load_format": "dummy", "max_num_seqs": 2, "threads": 1}
    parts = [build_parts(Settings(**settings, **more)) for more in ({}, {"chunked_prefill_size": 512})]
    paced, fixed = (each.engine._scheduler for each in parts)
    for each in parts:
        each.close()
    assert paced.pacing is not None
    assert paced.budget is not None
    assert paced.budget.cost.pair_s == pytest.approx(1e-10)
    assert (fixed.pacing, fixed.limits.prefill_tokens) == (None, 512)


def test_a_drafter_is_timed_as_well_and_counts_in_the_time_that_a_step_may_take(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step of the served network takes 1 ms a position, one of the drafter 50."""

    def step_seconds(runner: Runner, tokens: int, keys: int = 0) -> float:
        return tokens * (0.05 if runner._network.config.block_size == 16 else 0.001)

    monkeypatch.setattr(Runner, "step_seconds", step_seconds)
    write_causal(tmp_path / "served")
    parts = build_parts(Settings(model=str(tmp_path / "served"), drafter="tiny-sdar", max_step_tokens=1000, threads=1))
    parts.close()
    device, budget = parts.engine._device, parts.engine._scheduler.budget
    device.worker.shutdown()
    assert budget is not None
    assert [budget.cost(100), budget.cost(100, 100), budget.cost(100, 60)] == pytest.approx([0.1, 5.0, 3.04])
    assert device.step_timeout_s == pytest.approx(10 * (999 * 0.05 + 0.001))


@pytest.mark.parametrize("compat", ["vllm", "none"])
def test_names_of_vllm_come_with_the_setting(checkpoint: Path, compat: str) -> None:
    parts = build_parts(Settings(model=str(checkpoint), metrics_compat=compat, max_num_seqs=1))
    parts.close()
    text = parts.metrics.exposition().decode()
    assert "asynclane_queue_depth 0.0" in text
    assert ("vllm:" in text) is (compat == "vllm")


def test_keys_and_values_in_fp8_come_with_the_setting(checkpoint: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    sizes = dict[str, int]()
    for cache in ("auto", "fp8"):
        settings = Settings(model=str(checkpoint), device="cpu", dtype="bfloat16", kv_cache_dtype=cache, max_num_seqs=1)
        parts = build_parts(settings)
        parts.close()
        sizes[cache] = parts.footprint.page_bytes
        assert f'cache_dtype="{cache}"' in parts.metrics.exposition().decode()
    assert sizes["auto"] / 2 < sizes["fp8"] < sizes["auto"]
    assert sum(", fp8 keys and values; weights " in message for message in caplog.messages) == 1


def test_sizes_of_graphs_that_make_no_sense_are_refused_in_one_line(
    checkpoint: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    serve = ["serve", "--port", "0", "--model", str(checkpoint), "--cuda-graph-sizes"]
    assert "no step has 9000 positions: --max-step-tokens is 4096" in refused([*serve, "16,9000"], capsys)
    assert "must be whole numbers with commas between them, not 'many'" in refused([*serve, "many"], capsys)


def test_a_compile_cache_that_cannot_be_written_is_a_warning(
    checkpoint: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    parts = build_parts(Settings(model=str(checkpoint), compile_cache=str(tmp_path / "file"), max_num_seqs=1))
    parts.engine._device.worker.shutdown()
    parts.grammars.close()
    here = "change nothing on a CPU"
    assert [message for message in caplog.messages if "compile-cache" in message and here not in message] == [
        f"--compile-cache {tmp_path / 'file'} cannot be written: File exists; kernels are kept where Triton keeps them"
    ]


def test_a_setting_of_graphs_that_a_cpu_does_not_use_is_a_warning(
    checkpoint: Path, caplog: pytest.LogCaptureFixture
) -> None:
    parts = build_parts(Settings(model=str(checkpoint), device="cpu", cuda_graph_sizes="16,32", max_num_seqs=1))
    parts.engine._device.worker.shutdown()
    parts.grammars.close()
    assert "--cuda-graph-sizes and --compile-cache change nothing on a CPU" in caplog.messages
