"""Writes the figures of docs/performance.md from the results of `serving`, `capacity`, `steps` and `kernels`.

Usage: python -m asynclane.bench.report.tables [--results bench/results] [--write docs/performance.md]
The text is written between two comments, `BEGIN` and `END`; without --write it is printed.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..kernels.cases import Peaks
from . import RESULTS
from .capacity import capacity_section, read_capacity
from .page import markdown
from .page import number as _number
from .page import where as _where
from .serving import PLOT, read_serving, serving_section

BEGIN = "<!-- made by `python -m asynclane.bench.report.tables --write docs/performance.md` -->"
END = "<!-- end of what bench.report.tables made -->"
GIB = 2**30
FORMATS = ("", "-deterministic", "-fp8", "-fp8-cache")
MODELS = {
    "llada-8b": "LLaDA-8B",
    "dream-7b": "Dream-7B",
    "sdar-8b": "SDAR-8B",
    "llada2-mini": "LLaDA2.0-mini",
    "llada-moe-7b": "LLaDA-MoE-7B-A1B",
}
STEPS = {"mixed": "30 rows of 64 and a prefill of 1024", "one row": "the same in one row"}


def read_steps(results: Path) -> list[dict[str, Any]]:
    """Return the runs of `steps.offline` that exist, in the order of `MODELS`."""
    return [read for shape in MODELS if (read := _read(results / f"offline-{shape}.json")) is not None]


def compared(run: Mapping[str, Any]) -> bool:
    """Return whether a run of `steps.offline` has the library's times beside ours."""
    return all(step["reference_ms"] is not None for step in run["steps"])


def read_kernels(results: Path, which: str = "kernels") -> dict[str, Any] | None:
    return _read(results / f"{which}.json")


def _read(path: Path) -> dict[str, Any] | None:
    if not path.is_file():
        return None
    figures: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return figures


def steps_section(runs: Sequence[Mapping[str, Any]]) -> str:
    """Return tables of runs with the same loads, those with the library's times first."""
    sure, alone = [run for run in runs if compared(run)], [run for run in runs if not compared(run)]
    parts = []
    if sure:
        head = ["positions"]
        for run in sure:
            head += [f"{MODELS[run['shape']]} ours ms", "library ms", "ratio"]
        parts.append(f"""\
## Steps
Whole steps on one {_where(sure[0])}: random weights in bfloat16, rows of up to 64 positions
over {sure[0]["keys"]} keys (`make bench-gpu`). Ours is what the server replays, confidence and commit included; the
library's is cuBLAS and SDPA in a graph of the same process. The ratio is ours over theirs: below 1 ours is faster.

{markdown(head, _step_rows(sure, ("ours_ms", "reference_ms", "ratio")))}""")
    if alone:
        head = ["positions", *(f"{MODELS[run['shape']]} ms" for run in alone)]
        parts.append(f"""\
The same on one {_where(alone[0])} for networks whose step is not written in library calls here, with
attention within blocks or a mixture of experts, in the pages that a server has by default. Prompts are random words,
and so is every second position of a row: masks alone would choose the same experts.

{markdown(head, _step_rows(alone, ("ours_ms",)))}""")
    return "\n\n".join(parts)


def _step_rows(runs: Sequence[Mapping[str, Any]], figures: Sequence[str]) -> list[list[str]]:
    rows = []
    for steps in zip(*(run["steps"] for run in runs), strict=True):
        load, tokens = steps[0]["load"], steps[0]["tokens"]
        row = [f"{tokens}: {STEPS[load]}" if load in STEPS else load]
        rows.append(row + [f"{step[name]:.2f}" for step in steps for name in figures])
    return rows


def read_memory(results: Path) -> list[dict[str, Any]]:
    """Return the runs of `steps.memory` on a checkpoint of each shape, in the order of `MODELS`."""
    found = {shape: _read(results / f"memory-{shape}.json") for shape in MODELS}
    return [run | {"shape": shape} for shape, run in found.items() if run is not None]


def memory_section(runs: Sequence[Mapping[str, Any]]) -> str:
    head = ["checkpoint", "weights GiB", "K/V GiB", "workspace GiB", "peak GiB", "loaded s"]
    sizes = ("weights_bytes", "pages_bytes", "workspace_bytes", "peak_reserved_bytes")
    rows = [
        [MODELS[run["shape"]], *(f"{run[size] / GIB:.2f}" for size in sizes), _number(run["loaded_s"], 1, 0)]
        for run in runs
    ]
    first = runs[0]
    return f"""\
## Memory
Checkpoints of full size with random weights (`python -m asynclane.bench.steps.checkpoint`), loaded as by the server,
and {first["requests"]} requests of {first["max_tokens"]} tokens at once (`python -m asynclane.bench.steps.memory
--kv-cache-tokens {first["kv_cache_tokens"]}`), on one {_where(first)}. The peak is what torch has taken of the GPU.

{markdown(head, rows)}"""


def read_formats(results: Path) -> list[dict[str, Any]]:
    """Return the runs of `steps.memory`, each with the accuracy by `quality` in the same number format."""
    path = results / "quality-numerics.jsonl"
    lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    qualities = [json.loads(line) for line in lines]
    runs = [read for name in FORMATS if (read := _read(results / f"memory{name}.json")) is not None]
    for run in runs:
        found = [q["decoders"][0] for q in qualities if _format(q) == _format(run)]
        run["accuracy"] = next((figures["accuracy"] for figures in found[-1:]), None)
    return runs


def formats_section(runs: Sequence[Mapping[str, Any]]) -> str:
    head = ["`asynclane serve`", "accuracy", "weights GiB", "peak GiB", "peak over stated"]
    rows = [
        [
            _flag(run),
            _number(run["accuracy"], 1, 3),
            *(f"{run[size] / GIB:.2f}" for size in ("weights_bytes", "peak_reserved_bytes")),
            f"{100 * (run['reserved_over_stated'] - 1):.1f} %",
        ]
        for run in runs
    ]
    return f"""\
Number formats on one {_where(runs[0])}: {runs[0]["requests"]} requests of {runs[0]["max_tokens"]} tokens at once on
LLaDA-8B's shape with random weights (`python -m asynclane.bench.steps.memory`), and the accuracy of the embedded model
on 400 problems (`python -m asynclane.bench.quality asynclane:stop_threshold=off --problems 400 --batch 64
--dtype bfloat16`, with the same flag). Stated are weights, keys and values, and workspace, as the server plans them.

{markdown(head, rows)}"""


def _format(run: Mapping[str, Any]) -> tuple[Any, ...]:
    """The settings of a number format; older runs know none of keys and values."""
    return run["quantization"], run["deterministic"], run.get("kv_cache_dtype", "auto")


def _flag(run: Mapping[str, Any]) -> str:
    quantization, deterministic, cache = _format(run)
    flags = {
        "--deterministic": deterministic,
        f"--quantization {quantization}": quantization,
        f"--kv-cache-dtype {cache}": cache != "auto",
    }
    return " ".join(f"`{flag}`" for flag, given in flags.items() if given) or "(default)"


def kernels_section(run: Mapping[str, Any]) -> str:
    """Return the peaks, then a row for each case; a case that did not run shows as `-`."""
    return f"""\
## Kernels
Kernels alone on one {_where(run)}, inputs not in the cache (`make bench-gpu`).
{_peaks(run)}
The last column is a kernel's share of the card's peak: the time for its bytes, each read or written once, at the
faster rate of copy and sum, or for its operations at that of the product, whichever is longer, over the kernel's
own. `torch` is the same kernel written in torch.

<details><summary>All kernels</summary>

{_kernel_table(run)}

</details>

![time of a step over its positions, beside the memory's rate and a product's](../bench/results/roofline.png)"""


def families_section(run: Mapping[str, Any]) -> str:
    """Return the same as `kernels_section` for `family_cases`, if they were measured apart from the others."""
    return f"""\
Kernels that only some families need, in the same terms, on one {_where(run)}.
{_peaks(run)}

<details><summary>Kernels of some families</summary>

{_kernel_table(run)}

</details>"""


def _peaks(run: Mapping[str, Any]) -> str:
    copy, read, product, in_fp8 = Peaks(**run["peaks"])
    return f"""\
On this card a copy moves {copy / 1e9:.0f} GB/s, half of it read and half written, and a sum reads {read / 1e9:.0f}
GB/s; matrix products do {product / 1e12:.0f} TFLOP/s in bfloat16 and {in_fp8 / 1e12:.0f} in FP8."""


def _kernel_table(run: Mapping[str, Any]) -> str:
    head = [
        "kernel",
        "load",
        "ours us",
        "torch us",
        "best library call us",
        "ratio",
        "GB/s",
        "TFLOP/s",
        "of the peak",
    ]
    rows = [
        [
            entry["kernel"],
            entry["load"],
            _number(entry["ours_ms"], 1e3, 1),
            _number(entry["twin_ms"], 1e3, 1),
            f"{_number(entry['library_ms'], 1e3, 1)} ({entry['library']})" if entry["library"] else "-",
            _number(entry["ratio"], 1, 2),
            _number(entry["bytes_per_s"], 1e-9, 0),
            _number(entry["operations_per_s"] or None, 1e-12, 0),
            f"{100 * entry['share']:.0f} %" if entry["share"] is not None else "-",
        ]
        for entry in run["kernels"]
    ]
    return markdown(head, rows)


def http_section(runs: Sequence[Mapping[str, Any]], drawn: bool) -> str:
    """Return the tables of `serving`, and its picture if there is one."""
    picture = f"![tokens a second and gaps over streams](../bench/results/{PLOT})" if drawn else ""
    return "\n\n".join(part for part in ("## Over HTTP", serving_section(runs), picture) if part)


def section(results: Path) -> str:
    """Return the sections of the results that exist."""
    runs, kernels = read_steps(results), read_kernels(results)
    parts = []
    if serving := read_serving(results):
        parts.append(http_section(serving, (results / PLOT).is_file()))
    if capacity := read_capacity(results):
        parts.append(capacity_section(capacity, serving, _read(results / "proxy.json")))
    if runs:
        parts.append(steps_section(runs))
    if memory := read_memory(results):
        parts.append(memory_section(memory))
    if formats := read_formats(results):
        parts.append(formats_section(formats))
    if kernels is not None:
        parts.append(kernels_section(kernels))
    of_families = read_kernels(results, "kernels-families")
    if of_families is not None and not _names(of_families) & _names(kernels):
        parts.append(families_section(of_families))
    return "\n\n".join(parts)


def _names(run: Mapping[str, Any] | None) -> set[str]:
    return {entry["kernel"] for entry in run["kernels"]} if run else set()


def rewritten(text: str, made: str) -> str:
    """Return `text` with `made` between its two comments. Raises `ValueError` unless it has each once, in order."""
    before, begin, rest = text.partition(f"{BEGIN}\n")
    _, end, after = rest.partition(END)
    if not begin or not end or BEGIN in rest or END in before + after:
        raise ValueError(f"there must be one line '{BEGIN}' and after it one '{END}'")
    return f"{before}{begin}{made}\n{end}{after}"


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m asynclane.bench.report.tables",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--results", type=Path, default=RESULTS, metavar="DIR", help="folder of the JSON files (default: %(default)s)"
    )
    parser.add_argument("--write", type=Path, metavar="FILE", help="rewrite the part of this file")
    options = parser.parse_args(argv)
    made = section(options.results)
    if not made:
        parser.error(f"{options.results} has neither offline-*.json nor kernels.json")
    if options.write is None:
        print(made)
        return 0
    try:
        options.write.write_text(rewritten(options.write.read_text(encoding="utf-8"), made), encoding="utf-8")
    except (OSError, ValueError) as error:
        parser.error(f"{options.write}: {error}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
