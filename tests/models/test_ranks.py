"""Ranks that share a network compute what one device computes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from asynclane.models.checkpoint.config import ModelError
from asynclane.models.checkpoint.registry import Hardware
from asynclane.models.checkpoint.weights import SINGLE
from asynclane.server.engine.wiring import build_parts
from asynclane.server.settings import Settings

from ..support.checkpoints import CONFIGS, write_checkpoint
from ..support.ranks import ROWS, logits_by_rank, logits_of, runner_of

SIZES: dict[str, Any] = {"kv_heads": 4, "vocab_size": 1409}  # no number of ranks divides this vocabulary


def write_all(folder: Path) -> list[Path]:
    tied = write_checkpoint(folder / "tied", "DreamModel", tied=True, **SIZES)
    return [*(write_checkpoint(folder / name, name, **SIZES) for name in CONFIGS), tied]


@pytest.mark.parametrize(
    ("size", "hardware"),
    [(2, Hardware("cpu", threads=1)), (4, Hardware("cpu", "bfloat16", threads=1, deterministic=True))],
    ids=["2 in float32", "4 in bfloat16, deterministic"],
)
def test_the_logits_of_every_family_are_those_of_one_device_and_do_not_depend_on_the_batch(
    tmp_path: Path, size: int, hardware: Hardware
) -> None:
    directories = write_all(tmp_path)
    first, *others = logits_by_rank(directories, hardware, size, tmp_path)
    for directory, *found in zip(directories, first, *others, strict=True):
        *alone, together = found[0]
        assert all(torch.equal(got, want) for rank in found for got, want in zip(rank, found[0], strict=True))
        assert torch.equal(torch.cat(alone), together)
        want = logits_of(runner_of(directory, hardware))[-1]
        assert together.shape == want.shape == (sum(map(len, ROWS)), 1409)
        if hardware.dtype == "auto":
            torch.testing.assert_close(together, want, atol=1e-4, rtol=0)
        # Rounded to bfloat16, some tokens change an expert.
        assert torch.cosine_similarity(together.float(), want.float(), dim=-1).mean() > 0.98


def test_random_weights_are_the_same_on_any_number_of_ranks_and_need_no_file_of_weights(tmp_path: Path) -> None:
    directory = write_checkpoint(tmp_path / "model", "LLaDA2MoeModelLM", **SIZES)
    (directory / SINGLE).unlink()
    hardware = Hardware("cpu", threads=1, dummy=True)
    (first,), (second,) = logits_by_rank([directory], hardware, 2, tmp_path)
    want = logits_of(runner_of(directory, hardware))
    for got, other, one in zip(first, second, want, strict=True):
        assert torch.equal(got, other)
        torch.testing.assert_close(got, one, atol=1e-4, rtol=0)
    assert 0.5 < want[-1].std() < 2, "of a plausible scale"


def test_a_server_starts_without_weights_if_they_are_random(tmp_path: Path) -> None:
    directory = write_checkpoint(tmp_path, "SDARMoeForCausalLM")
    (directory / SINGLE).unlink()
    settings = {"model": str(directory), "max_num_seqs": 2, "max_step_tokens": 64, "max_model_len": 64, "threads": 1}
    with pytest.raises(ModelError, match="has neither model"):
        build_parts(Settings(**settings))
    parts = build_parts(Settings(**settings, load_format="dummy"))
    parts.close()
    assert parts.limits.max_model_len == 64
