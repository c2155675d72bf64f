"""Measures the memory of a GPU that a model takes, and the time to load it, while it answers equal requests.

Usage: python -m asynclane.bench.steps.memory --model DIRECTORY [--requests 32] [--json FILE]
The load runs twice: the peak is that of the second time, when every shape of step is captured. Neither uses the prefix
cache of the other.
"""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from pathlib import Path

import torch

from ...server.engine.messages import AnswerOptions
from ...server.engine.offline import Offline
from ...server.settings import Settings
from ..kernels.timing import gpu_facts, require_gpu
from ..load.output import check_outputs, finish, positive, program

PROMPT = 200
FIRST_WORD, LAST_WORD = 100, 1000  # ids of ordinary words


def measure(settings: Settings, requests: int, max_tokens: int) -> dict[str, object]:
    """Return the bytes that `requests` answers of `max_tokens` at once take."""
    rng = random.Random(0)
    prompts = [[rng.randint(FIRST_WORD, LAST_WORD) for _ in range(PROMPT)] for _ in range(requests)]
    first, second = (AnswerOptions(max_tokens, cache_salt=run) for run in ("first", "second"))
    loading = time.perf_counter()
    with Offline(settings) as offline:
        loaded_s = time.perf_counter() - loading
        loading_peak = torch.cuda.max_memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        offline.answer(prompts, first)
        offline.answer(prompts, second)
        footprint = offline.parts.footprint
    stated = footprint.weights_bytes + footprint.pages_bytes + footprint.workspace_bytes
    return {
        "requests": requests,
        "max_tokens": max_tokens,
        "loaded_s": round(loaded_s, 1),
        "weights_bytes": footprint.weights_bytes,
        "pages_bytes": footprint.pages_bytes,
        "workspace_bytes": footprint.workspace_bytes,
        "computed_bytes": footprint.computed_bytes,
        "loading_peak_bytes": loading_peak,
        "peak_allocated_bytes": torch.cuda.max_memory_allocated(),
        "peak_reserved_bytes": torch.cuda.max_memory_reserved(),
        "reserved_over_stated": round(torch.cuda.max_memory_reserved() / stated, 4),
    }


def main(argv: Sequence[str] | None = None) -> int:
    parser = program("steps.memory", __doc__)
    parser.add_argument("--model", required=True, help="as in serving")
    parser.add_argument("--requests", type=positive, default=32, help="at once (default: %(default)s)")
    parser.add_argument("--max-tokens", type=positive, default=128, help="of each answer (default: %(default)s)")
    parser.add_argument("--kv-cache-tokens", type=positive, help="as in serving")
    parser.add_argument("--quantization", help="as in serving")
    parser.add_argument("--load-format", default="auto", help="as in serving (default: %(default)s)")
    parser.add_argument("--deterministic", action="store_true", help="as in serving")
    parser.add_argument("--kv-cache-dtype", default="auto", help="as in serving (default: %(default)s)")
    options = parser.parse_args(argv)
    require_gpu(parser)
    check_outputs(parser, None, options.json)
    try:
        settings = Settings(
            model=options.model,
            kv_cache_tokens=options.kv_cache_tokens,
            quantization=options.quantization,
            deterministic=options.deterministic,
            load_format=options.load_format,
            kv_cache_dtype=options.kv_cache_dtype,
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
        "kv_cache_dtype": options.kv_cache_dtype,
        "kv_cache_tokens": options.kv_cache_tokens,
    }
    finish({"benchmark": "memory", **arguments, **figures, **gpu_facts()}, options.json)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
