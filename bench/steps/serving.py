"""Measures how busy the engine keeps a GPU, and the memory that it takes, under a load of equal requests.

Usage: python -m asynclane.bench.steps.serving --model DIRECTORY [--requests 32] [--json FILE]
The load runs twice: the first run captures every shape of step, and the second is measured. Neither uses the prefix
cache of the other.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Sequence
from pathlib import Path

import torch

from ...server.engine.messages import AnswerOptions
from ...server.engine.offline import Offline
from ...server.metrics import Metrics
from ...server.settings import Settings
from ..kernels.timing import gpu_facts, require_gpu
from ..load.output import check_outputs, finish

PROMPT = 200
FIRST_WORD, LAST_WORD = 100, 1000  # ids of ordinary words


def measure(settings: Settings, requests: int, max_tokens: int) -> dict[str, object]:
    """Return shares of wall time and bytes for `requests` answers of `max_tokens` at once."""
    rng = random.Random(0)
    prompts = [[rng.randint(FIRST_WORD, LAST_WORD) for _ in range(PROMPT)] for _ in range(requests)]
    first, second = (AnswerOptions(max_tokens, cache_salt=run) for run in ("first", "second"))
    loading = time.perf_counter()
    with Offline(settings) as offline:
        loaded_s = time.perf_counter() - loading
        loading_peak = torch.cuda.max_memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        offline.answer(prompts, first)
        before, started = step_seconds(offline.parts.metrics), time.perf_counter()
        answers = offline.answer(prompts, second)
        wall_s, after = time.perf_counter() - started, step_seconds(offline.parts.metrics)
        footprint = offline.parts.footprint
    host_s, device_s, steps = (end - begin for begin, end in zip(before, after, strict=True))
    tokens = sum(answer.usage.completion_tokens for answer in answers)
    stated = footprint.weights_bytes + footprint.pages_bytes + footprint.workspace_bytes
    return {
        "requests": requests,
        "max_tokens": max_tokens,
        "steps": round(steps),
        "step_ms": round(1e3 * device_s / steps, 3),
        "host_ms": round(1e3 * host_s / steps, 3),
        "idle_share": round(host_s / (host_s + device_s), 4),
        "tokens_per_s": round(tokens / wall_s, 1),
        "loaded_s": round(loaded_s, 1),
        "weights_bytes": footprint.weights_bytes,
        "pages_bytes": footprint.pages_bytes,
        "workspace_bytes": footprint.workspace_bytes,
        "loading_peak_bytes": loading_peak,
        "peak_allocated_bytes": torch.cuda.max_memory_allocated(),
        "peak_reserved_bytes": torch.cuda.max_memory_reserved(),
        "reserved_over_stated": round(torch.cuda.max_memory_reserved() / stated, 4),
    }


def step_seconds(metrics: Metrics) -> tuple[float, float, float]:
    """Return the seconds of host and device over all steps so far, and the number of steps."""
    host, device = ({"part": part} for part in ("host", "device"))
    wanted = (("sum", host), ("sum", device), ("count", device))
    host_s, device_s, steps = (
        metrics.registry.get_sample_value(f"asynclane_step_seconds_{kind}", labels) or 0.0 for kind, labels in wanted
    )
    return host_s, device_s, steps


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m asynclane.bench.steps.serving",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--model", required=True, help="as in serving")
    parser.add_argument("--requests", type=int, default=32, help="at once (default: %(default)s)")
    parser.add_argument("--max-tokens", type=int, default=128, help="of each answer (default: %(default)s)")
    parser.add_argument("--kv-cache-tokens", type=int, help="as in serving")
    parser.add_argument("--quantization", help="as in serving")
    parser.add_argument("--deterministic", action="store_true", help="as in serving")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the last line to a file, too")
    options = parser.parse_args(argv)
    require_gpu(parser)
    check_outputs(parser, None, options.json)
    try:
        settings = Settings(
            model=options.model,
            kv_cache_tokens=options.kv_cache_tokens,
            quantization=options.quantization,
            deterministic=options.deterministic,
        )
    except ValueError as error:
        parser.error(str(error))
    figures = measure(settings, options.requests, options.max_tokens)
    for name, value in figures.items():
        print(f"{name}: {value}")
    arguments = {
        "model": Path(options.model).name,
        "quantization": options.quantization,
        "deterministic": options.deterministic,
        "kv_cache_tokens": options.kv_cache_tokens,
    }
    finish({"benchmark": "serving", **arguments, **figures, **gpu_facts()}, options.json)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
