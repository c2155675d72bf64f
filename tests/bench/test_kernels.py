"""The kernel benchmark compares like with like, counts work as one does on paper, and goes on where a library fails."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils import _pytree as trees

from asynclane.bench.kernels import attention_cases, block_cases, product_cases, token_cases
from asynclane.bench.kernels import run as kernels
from asynclane.bench.kernels.cases import DREAM, LLADA, Case, Library, Peaks, Workload
from asynclane.bench.kernels.run import all_cases, best_rate, compare, figures, show
from asynclane.bench.kernels.timing import sets_of
from asynclane.bench.steps import memory, offline

ROOT = Path(__file__).parents[2]
CPU = torch.device("cpu")
PEAKS = Peaks(1.9e12, read_bytes_per_s=2e12, matrix_operations_per_s=5e14, fp8_operations_per_s=1e15)
QUICK = all_cases(quick=True)
CUDA_ALONE = ("cudnn", "efficient", "varlen")


def name_of(case: Case) -> str:
    return f"{case.kernel}: {case.load}"


def tensors(found: Any) -> list[Tensor]:
    return [leaf for leaf in trees.tree_leaves(found) if isinstance(leaf, Tensor)]


# --- Cases --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", QUICK, ids=name_of)
@pytest.mark.filterwarnings("ignore:.*torch.jit.script_method. is deprecated", "ignore:flex_attention called without")
def test_inputs_take_turns_and_library_calls_compute_what_the_kernel_does(case: Case) -> None:
    first, second = map(tensors, case.inputs(CPU, 2))
    assert any(not torch.equal(a, b) for a, b in zip(first, second, strict=True))
    for library in case.libraries:
        if any(word in library.name for word in CUDA_ALONE) or library.name == "SDPA flash, padded":
            continue
        got, want = (results(case, library.build), results(case, lambda: case.reference))
        if case.kernel == "predict":  # of which draws have noise of their own
            assert "temperature" in case.load or torch.equal(got[1], want[0])
            continue
        if case.kernel == "paged_attention":
            got = [packed_rows(case, library, got[0])]
        if case.kernel in ("fp8_linear", "fp8_blocks_linear"):  # the library's product is in bf16
            assert ((got[0] - want[0]).float().norm() / got[0].float().norm()).item() < 0.05
            continue
        if case.kernel == "fp8_rope_write_kv":  # keys and values of the other call are no numbers in FP8
            got, want = got[:1], want[:1]
        for a, b in zip(got, want, strict=True):
            torch.testing.assert_close(a.float(), b.float(), atol=4e-2, rtol=2e-2, msg=library.name)


def results(case: Case, build: Callable[[], Callable[..., object]]) -> list[Tensor]:
    torch.manual_seed(0)
    (given,) = case.inputs(CPU, 1)
    with torch.no_grad(), torch.compiler.set_stance("force_eager"):
        return tensors(build()(*given))


def packed_rows(case: Case, library: Library, got: Tensor) -> Tensor:
    """[T, H * D] of [rows, heads, longest, D], or of [1, heads, T, D]."""
    paged = case.inputs(CPU, 1)[0][1]
    sizes = [len(paged.queries)] if "packed" in library.name else paged.row_starts.diff().tolist()
    return torch.cat([row.transpose(0, 1)[:size].flatten(1) for row, size in zip(got, sizes, strict=True)])


# --- Arithmetic ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("work", "moved_bytes", "operations"),
    [
        (block_cases.rms_norm(LLADA, 256).work, 2 * (256 * 4096 * 2) + 4096 * 2, 0),
        (block_cases.add_rms_norm(LLADA, 256).work, 4 * (256 * 4096 * 2) + 4096 * 2, 0),
        (block_cases.add_attention(LLADA, 256).work, 5 * (256 * 4096 * 2) + 256 * 4096 * 4 + 4 * 4096 * 2, 0),
        (block_cases.add_feed_forward(LLADA, 256).work, 12 * (256 * 4096 * 2) + 4 * 4096 * 2 + 2 * 2 + 9 * 256 * 4, 0),
        (token_cases.temper(LLADA, 16).work, 16 * (126464 * (4 + 4 + 2) + 4 + 8), 0),
        (block_cases.swiglu(LLADA, 32).work, 32 * (24576 + 12288) * 2, 0),
        (block_cases.rope_write_kv(DREAM, 1).work, 2 * (28 + 4 + 4) * 128 * 2 + 2 * 128 * 4 + 8, 0),
        (
            block_cases.fp8_rope_write_kv(DREAM, 1).work,
            2 * (28 + 8) * 128 + 2 * 28 * 128 + 2 * 4 * 132 + 2 * 128 * 4 + 8,
            0,
        ),
        (token_cases.predict(LLADA, 2048).work, 2048 * 126464 * 2 + 2048 * 44, 0),
        (product_cases.fp8_linear(LLADA, 2).work, 2 * (4096 + 24576) * 2 + 4100 * 24576, 2 * 2 * 4096 * 24576),
        (
            product_cases.int4_linear(LLADA, 2).work,
            2 * (4096 + 24576) * 2 + 4096 * 24576 // 2 + 24576 * 32 * 8,
            2 * 2 * 4096 * 24576,
        ),
        (product_cases.linear_swiglu(LLADA, 2).work, 2 * (2 * (4096 + 12288) + 4096 * 24576), 2 * 2 * 4096 * 24576),
        (
            product_cases.linear_add_rms_norm(LLADA, 2).work,
            2 * (2 * (12288 + 3 * 4096) + 4096 + 4096 * 12288),
            2 * 2 * 4096 * 12288,
        ),
        (
            product_cases.linear_rope_write_kv(DREAM, 1).work,
            2 * (3584 + 4608 + 3584 * 4608) + 2 * 128 * 4 + 8,
            2 * 3584 * 4608,
        ),
        # Queries and result, keys and values; two products of 64 x 512 x 128 for each head of each row.
        (attention_cases.work(LLADA, [(64, 512)] * 9), 2 * 9 * (64 + 512) * 4096 * 2, 9 * 32 * 2 * 2 * 64 * 512 * 128),
        (attention_cases.in_fp8(DREAM, 1, 2, 10).work, 2 * (2 * 28 * 256 + 10 * 4 * 132), 28 * 2 * 2 * 2 * 10 * 128),
        (attention_cases.work(DREAM, [(2, 10)]), 2 * (2 * 28 + 10 * 4) * 128 * 2, 28 * 2 * 2 * 2 * 10 * 128),
    ],
)  # fmt: skip
def test_work_is_counted_as_on_paper(work: Workload, moved_bytes: int, operations: int) -> None:
    assert work[:2] == (moved_bytes, operations)


def test_the_bound_is_the_slower_of_bytes_and_operations_and_inputs_outgrow_the_cache() -> None:
    assert Workload(2_000_000_000, 1).bound_ms(PEAKS) == pytest.approx(1.0)
    assert Workload(1, 1_000_000_000_000).bound_ms(PEAKS) == pytest.approx(2.0)
    assert Workload(1, 1_000_000_000_000, fp8=True).bound_ms(PEAKS) == pytest.approx(1.0)
    assert sets_of(1 << 20, 50 << 20) == 150
    assert sets_of(1 << 30, 50 << 20) == 2
    assert sets_of(10, 50 << 20) == 256


def test_a_peak_is_the_best_rate_of_several_sizes_and_the_faster_of_copy_and_sum_counts() -> None:
    gib = 1 << 30
    assert best_rate([2 * gib, 4 * gib], [0.5, 1.25]) == pytest.approx(2 * gib / 0.5e-3)
    assert Peaks(3.0, 2.0, 1.0, 1.0).bytes_per_s == 3.0
    assert Peaks(2.0, 3.0, 1.0, 1.0).bytes_per_s == 3.0


@pytest.mark.parametrize("name", ["kernels", "kernels-families"])
def test_no_result_is_above_the_peak(name: str) -> None:
    run = json.loads((ROOT / "bench" / "results" / f"{name}.json").read_text(encoding="utf-8"))
    peaks = Peaks(**run["peaks"])
    for entry in run["kernels"]:
        bound_ms = Workload(entry["bytes"], entry["operations"], entry["kernel"] == "fp8_linear").bound_ms(peaks)
        # Times are rounded to 10 ns.
        assert entry["share"] == pytest.approx(bound_ms / entry["ours_ms"], abs=0.01), entry["load"]
        assert entry["share"] <= 1.0, f"{entry['kernel']}, {entry['load']}"


def test_a_failed_competitor_is_null_and_the_best_of_the_others_counts() -> None:
    case = block_cases.rms_norm(LLADA, 2048)
    entry = figures(case, PEAKS, 0.02, 0.3, {"a": 0.04, "b": None, "c": 0.025})
    assert (entry["library"], entry["library_ms"], entry["ratio"]) == ("c", 0.025, 0.8)
    assert entry["libraries_ms"] == {"a": 0.04, "b": None, "c": 0.025}
    assert entry["share"] == pytest.approx(case.work.moved_bytes / 2e12 / 0.02e-3, abs=1e-3)
    nothing = figures(token_cases.commit(32, 8), PEAKS, None, None, {}) | {"error": None}
    assert nothing["ratio"] is None
    assert show([nothing]).split("\n")[-1].split()[-3:] == ["-", "-", "-"]


# --- Right or wrong -----------------------------------------------------------------------------------------


def small_case(ours: Callable[..., object], reference: Callable[..., object]) -> Case:
    return Case(
        "k", "l", Workload(1), lambda device, sets: [(torch.rand(4, device=device),)] * sets, ours, reference, []
    )


def test_an_error_is_over_rows_that_decide_alike() -> None:
    whole = torch.tensor([1, 2, 3, 4])
    case = small_case(
        lambda x: (whole, x + torch.tensor([0.0, 0.0, 0.25, 9.0])),
        lambda x: (torch.tensor([1, 2, 3, 5]), x),
    )
    assert compare(case, CPU) == {"error": pytest.approx(0.25), "differing": 1}


def test_a_kernel_that_writes_its_inputs_changes_no_reference_and_nan_is_an_error_of_its_own() -> None:
    assert compare(small_case(lambda x: x.add_(1), lambda x: x.add_(1)), CPU)["error"] == 0.0
    with pytest.raises(ValueError, match="NaN"):
        compare(small_case(lambda x: x * math.nan, lambda x: x), CPU)


# --- Arguments ----------------------------------------------------------------------------------------------


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize(
    ("main", "arguments"), [(kernels.main, []), (offline.main, []), (memory.main, ["--model", "tiny-llada"])]
)
def test_without_a_gpu_it_says_so_in_one_line(
    main: Callable[..., int], arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(arguments)
    said = capsys.readouterr().err
    assert said.endswith("this needs a GPU that torch sees\n")
    assert said.count("\n") == 1


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_small_kernel_is_timed_on_the_gpu() -> None:
    (case,) = (case for case in QUICK if case.kernel == "swiglu")
    entry = kernels.measure(case, PEAKS, torch.device("cuda"))
    assert entry["ours_ms"] > 0
    assert "ours" not in entry["failed"]
