"""Times every kernel, its torch reference and the best library call, beside the limit of the card's own peaks.

Usage: python -m asynclane.bench.kernels [--quick] [--only KERNEL ...] [--json FILE]
The peaks are measured first, in the same process: a copy in bytes read and written, a sum in bytes read, and matrix
products in bf16 and in FP8. The bound of a kernel is its bytes at the faster rate of copy and sum, or its operations at
that of the product, whichever takes longer. Inputs take turns so that none is in the cache. To measure another kernel,
add a `cases.Case` to one of the lists of cases.
"""

from __future__ import annotations

import argparse
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from ..load.output import check_outputs, json_line, table
from . import attention_cases, block_cases, family_cases, product_cases, token_cases
from .cases import DTYPE, Case, Inputs, Peaks
from .timing import captured, cold_ms, gpu_facts, launched_ms, replay_ms, require_gpu, sets_of

PEAK_BYTES = (1 << 30, 1 << 31, 1 << 32)  # of what is copied and summed
MATRICES = (4096, 8192)  # rows and columns of what is multiplied
PEAK_CALLS = 10
REASON_LENGTH = 300
HEAD = (
    "kernel",
    "load",
    "ours us",
    "reference us",
    "library us",
    "library",
    "ratio",
    "GB/s",
    "TFLOP/s",
    "bound %",
    "error",
)


def measure_peaks(device: torch.device) -> Peaks:
    """Measure each rate at several sizes; the highest counts."""
    copied, summed = zip(*(_memory_ms(size, device) for size in PEAK_BYTES), strict=True)
    multiplied, in_fp8 = zip(*(_product_ms(size, device) for size in MATRICES), strict=True)
    moved, operations = [2 * size for size in PEAK_BYTES], [2 * size**3 for size in MATRICES]
    return Peaks(
        best_rate(moved, copied),
        best_rate(PEAK_BYTES, summed),
        best_rate(operations, multiplied),
        best_rate(operations, in_fp8),
    )


def best_rate(work: Sequence[int], times_ms: Sequence[float]) -> float:
    """Return the highest rate, per second, of amounts of work that took so many milliseconds."""
    return max(1e3 * amount / ms for amount, ms in zip(work, times_ms, strict=True))


def _memory_ms(size: int, device: torch.device) -> tuple[float, float]:
    """Measure a copy and a sum of `size` bytes of random numbers."""
    source = torch.rand(size // 4, device=device)
    target = torch.empty_like(source)
    # A kernel, not `copy_`: in a graph that is the work of another engine, which is slower.
    return _repeated_ms(lambda: torch.neg(source, out=target)), _repeated_ms(source.sum)


def _product_ms(size: int, device: torch.device) -> tuple[float, float]:
    """Measure a product of random square matrices in bf16 and in FP8."""
    left, right = (torch.randn((size, size), dtype=DTYPE, device=device) for _ in range(2))
    values, others = (matrix.to(torch.float8_e4m3fn) for matrix in (left, right))
    ones = torch.ones((size, 1), device=device)

    def in_fp8() -> Tensor:
        return torch._scaled_mm(values, others.T, ones, ones.T, out_dtype=DTYPE, use_fast_accum=True)

    return _repeated_ms(lambda: left @ right), _repeated_ms(in_fp8)


def _repeated_ms(compute: Callable[[], object]) -> float:
    def several() -> None:
        for _ in range(PEAK_CALLS):
            compute()

    return replay_ms(captured(several)) / PEAK_CALLS


def all_cases(quick: bool) -> list[Case]:
    parts = attention_cases, block_cases, product_cases, token_cases, family_cases
    return [case for part in parts for case in part.cases(quick)]


# --- One case -----------------------------------------------------------------------------------------------


def measure(case: Case, peaks: Peaks, device: torch.device) -> dict[str, Any]:
    """Return the figures of one case: null, with a reason in `failed`, for calls that do not run."""
    failed: dict[str, str] = {}
    deviation = _attempt("error", failed, lambda: compare(case, device))
    cache_bytes = torch.cuda.get_device_properties(device).L2_cache_size

    def draw() -> Inputs:
        torch.cuda.empty_cache()
        torch.manual_seed(1)
        return case.inputs(device, sets_of(case.work.moved_bytes, cache_bytes))

    inputs = _attempt("inputs", failed, draw) or []

    def timed(name: str, build: Callable[[], Callable[..., object]], graph: bool) -> float | None:
        def attempt() -> float:
            torch.compiler.reset()  # a function that is compiled too often runs uncompiled
            call = build()
            # Run it once first: a call that cannot run should not fail during a capture.
            call(*inputs[0])
            torch.cuda.synchronize()
            return cold_ms(call, inputs) if graph else launched_ms(call, inputs)

        return cast("float | None", _attempt(name, failed, attempt)) if inputs else None

    ours = timed("ours", lambda: case.ours, True)
    reference = timed("twin", lambda: case.reference, case.reference_graph)
    libraries = {library.name: timed(library.name, library.build, library.graph) for library in case.libraries}
    return figures(case, peaks, ours, reference, libraries) | {"error": None, **(deviation or {}), "failed": failed}


def _attempt(name: str, failed: dict[str, str], compute: Callable[[], Any]) -> Any:
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        try:
            return compute()
        except Exception as error:  # noqa: BLE001 - any exception of a competitor is its result
            # SDPA's backends give their reasons in warnings.
            parts = [f"{type(error).__name__}: {error}", *(str(warning.message) for warning in said)]
            failed[name] = " | ".join(part.strip().split("\n")[0] for part in parts)[:REASON_LENGTH]
            return None


def figures(
    case: Case, peaks: Peaks, ours_ms: float | None, reference_ms: float | None, libraries: dict[str, float | None]
) -> dict[str, object]:
    """Derive figures from times. `ratio` is ours over the fastest library call; `share`, the bound over ours."""
    ran = {name: ms for name, ms in libraries.items() if ms is not None}
    best = min(ran, key=lambda name: ran[name], default=None)
    bound_ms = case.work.bound_ms(peaks)
    return {
        "kernel": case.kernel,
        "load": case.load,
        "ours_ms": _rounded(ours_ms),
        "twin_ms": _rounded(reference_ms),  # the names that result files have
        "twin_in_graph": case.reference_graph,
        "library": best,
        "library_ms": _rounded(ran[best]) if best else None,
        "ratio": round(ours_ms / ran[best], 3) if best and ours_ms else None,
        "libraries_ms": {name: _rounded(ms) for name, ms in libraries.items()},
        "bytes": case.work.moved_bytes,
        "operations": case.work.operations,
        "bound_ms": _rounded(bound_ms),
        "share": round(bound_ms / ours_ms, 3) if ours_ms else None,
        "bytes_per_s": round(case.work.moved_bytes / ours_ms * 1e3) if ours_ms else None,
        "operations_per_s": round(case.work.operations / ours_ms * 1e3) if ours_ms else None,
    }


def _rounded(ms: float | None) -> float | None:
    return None if ms is None else round(ms, 5)


# --- Right or wrong -----------------------------------------------------------------------------------------


@torch.no_grad()
def compare(case: Case, device: torch.device) -> dict[str, object]:
    """Return the largest error of `ours` against the reference. Each has its own copy of the inputs, which it may
    change.

    `differing` counts whole numbers that differ; the error is over rows where none does. Raises `ValueError` for a
    result that is NaN.
    """
    results = []
    for compute in (case.ours, case.reference):
        torch.manual_seed(0)
        (given,) = case.inputs(device, 1)
        found = compute(*given)
        results.append((found,) if isinstance(found, Tensor) else tuple(found))
    pairs = list(zip(*results, strict=True))
    whole = [(got, want) for got, want in pairs if not got.is_floating_point()]
    apart = [(got != want).reshape(len(got), -1).any(-1) for got, want in whole]
    error = 0.0
    for got, want in pairs:
        if got.is_floating_point():
            alike = [~rows for rows in apart if len(rows) == len(got)]
            kept = torch.stack(alike).all(0) if alike else slice(None)
            distances = (got[kept].double() - want[kept].double()).abs()
            error = max(error, distances.max().item() if distances.numel() else 0.0, key=_nan_last)
    if error != error:
        raise ValueError("the result is NaN where the reference is a number, or the reverse")
    return {"error": float(f"{error:.3g}"), **({"differing": int(sum(rows.sum() for rows in apart))} if whole else {})}


def _nan_last(error: float) -> tuple[bool, float]:
    return error != error, error


# --- The program --------------------------------------------------------------------------------------------


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m asynclane.bench.kernels",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    names = list(dict.fromkeys(case.kernel for case in all_cases(quick=True)))
    parser.add_argument("--quick", action="store_true", help="small shapes, to see that everything runs")
    parser.add_argument("--only", choices=names, nargs="+", metavar="KERNEL", help=f"of {', '.join(names)}")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the last line to a file, too")
    options = parser.parse_args(argv)
    check_outputs(parser, None, options.json)
    require_gpu(parser)
    chosen = [case for case in all_cases(options.quick) if not options.only or case.kernel in options.only]
    return run(chosen, torch.device("cuda"), options.json)


@torch.no_grad()
def run(chosen: Sequence[Case], device: torch.device, file: Path | None) -> int:
    """Return 0, or 1 if a kernel of ours failed. The card is queried first: a kernel may leave it unusable."""
    started, gpu = time.perf_counter(), gpu_facts()
    peaks = measure_peaks(device)
    entries = []
    for case in chosen:
        entries.append(measure(case, peaks, device))
        print(f"{time.perf_counter() - started:.0f} s", entries[-1], file=sys.stderr, flush=True)
    print(show(entries))
    copy, read, product, in_fp8 = peaks
    print(f"copy {copy / 1e9:.0f} GB/s, half of it read and half written; sum {read / 1e9:.0f} GB/s", end="; ")
    print(f"matrix products {product / 1e12:.0f} TFLOP/s in bfloat16, {in_fp8 / 1e12:.0f} in FP8")
    line = json_line({"benchmark": "kernels", "peaks": peaks._asdict(), "kernels": entries, **gpu})
    if file:
        file.write_text(line + "\n", encoding="utf-8")
    print(line)
    return 1 if any({"ours", "error", "inputs"} & set(entry["failed"]) for entry in entries) else 0


def show(entries: Sequence[dict[str, Any]]) -> str:
    return table(
        HEAD,
        [
            [
                entry["kernel"],
                entry["load"],
                *(_scaled(entry[name], 1e3, 1) for name in ("ours_ms", "twin_ms", "library_ms")),
                entry["library"] or "-",
                _scaled(entry["ratio"], 1, 2),
                _scaled(entry["bytes_per_s"], 1e-9, 0),
                _scaled(entry["operations_per_s"], 1e-12, 0),
                _scaled(entry["share"], 100, 0),
                "-" if entry["error"] is None else f"{entry['error']:.1e}",
            ]
            for entry in entries
        ],
    )


def _scaled(value: float | None, factor: float, digits: int) -> str:
    return "-" if value is None else f"{value * factor:.{digits}f}"
