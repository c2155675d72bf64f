"""Ranks that share a network compute what one device computes."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from asynclane.models.checkpoint.config import ModelError
from asynclane.models.checkpoint.registry import Hardware
from asynclane.models.checkpoint.weights import SINGLE
from asynclane.server.engine.wiring import build_parts
from asynclane.server.settings import Settings

from ..support.checkpoints import MASKED, write_checkpoint
from ..support.ranks import ROWS, logits_by_rank, logits_of, runner_of
from ..support.scale import ALL

SIZES: dict[str, Any] = {"kv_heads": 4, "vocab_size": 1409}  # no number of ranks divides this vocabulary


FLOAT32 = Hardware("cpu", threads=1)
BFLOAT16 = Hardware("cpu", "bfloat16", threads=1, deterministic=True)
DUMMY = Hardware("cpu", threads=1, dummy=True)
FP8_CACHE = Hardware("cpu", threads=1, kv_cache_dtype="fp8")


class Networks(NamedTuple):
    """Checkpoints with their hardware, and the logits of each rank for each of them."""

    found: list[tuple[Path, Hardware, list[list[Tensor]]]]

    def of(self, *wanted: Hardware) -> list[tuple[Path, Hardware, list[list[Tensor]]]]:
        return [each for each in self.found if each[1] in wanted]


@pytest.fixture(scope="module", params=[2, *([4] if ALL else [])], ids="{} ranks".format)
def networks(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Networks:
    """Checkpoints of every family in both precisions, and one without weights. The processes start once for all."""
    folder = tmp_path_factory.mktemp("networks")
    tied = write_checkpoint(folder / "tied", "DreamModel", tied=True, **SIZES)
    families = [*(write_checkpoint(folder / name, name, **SIZES) for name in MASKED), tied]
    random = write_checkpoint(folder / "random", "LLaDA2MoeModelLM", **SIZES)
    (random / SINGLE).unlink()
    wanted = [*itertools.product(families, (FLOAT32, BFLOAT16)), (random, DUMMY), (tied, FP8_CACHE)]
    by_rank = logits_by_rank(wanted, request.param, folder)
    return Networks([(*each, list(found)) for each, *found in zip(wanted, *by_rank, strict=True)])


@pytest.mark.parametrize("hardware", [FLOAT32, BFLOAT16], ids=["float32", "bfloat16, deterministic"])
def test_the_logits_of_every_family_are_those_of_one_device_and_do_not_depend_on_the_batch(
    networks: Networks, hardware: Hardware
) -> None:
    computed = networks.of(hardware)
    assert len(computed) == len(MASKED) + 1
    for directory, _, found in computed:
        *alone, together = found[0]
        assert all(torch.equal(got, want) for rank in found for got, want in zip(rank, found[0], strict=True))
        assert torch.equal(torch.cat(alone), together)
        want = logits_of(runner_of(directory, hardware))[-1]
        assert together.shape == want.shape == (sum(map(len, ROWS)), 1409)
        if hardware.dtype == "auto":
            torch.testing.assert_close(together, want, atol=1e-4, rtol=0)
        # Rounded to bfloat16, some tokens change an expert.
        assert torch.cosine_similarity(together.float(), want.float(), dim=-1).mean() > 0.98


def test_keys_in_fp8_have_the_scales_of_their_heads_on_any_number_of_ranks(networks: Networks) -> None:
    ((directory, hardware, found),) = networks.of(FP8_CACHE)
    *alone, together = found[0]
    assert all(torch.equal(got, want) for rank in found for got, want in zip(rank, found[0], strict=True))
    assert torch.equal(torch.cat(alone), together)
    want, exact = (logits_of(runner_of(directory, kind))[-1] for kind in (hardware, FLOAT32))
    # Sums in another order round a few numbers to the next one in FP8: far less than all are rounded.
    assert (together - want).norm() < (together - exact).norm() / 4


def test_random_weights_are_the_same_on_any_number_of_ranks_and_need_no_file_of_weights(networks: Networks) -> None:
    ((directory, hardware, found),) = networks.of(DUMMY)
    want = logits_of(runner_of(directory, hardware))
    for one, *got in zip(want, *found, strict=True):
        assert all(torch.equal(rank, got[0]) for rank in got)
        torch.testing.assert_close(got[0], one, atol=1e-4, rtol=0)
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
