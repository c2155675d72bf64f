"""Finds a model by name, directory or repository and builds the runner that serves it."""

from __future__ import annotations

import gc
import importlib.util
import logging
import os
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import partial
from pathlib import Path

import torch

from ...kernels.common.compile_ahead import CompiledKernels, keep_compiled
from ..exec.group import Meeting
from ..exec.memory import (
    Footprint,
    Memory,
    gib,
    pages_that_fit,
    require_room,
    weights_bytes,
)
from ..exec.runner import Runner
from ..exec.shapes import checked_sizes, default_sizes
from ..gemma import network_of
from ..kv_cache import KvPages
from ..network import allocate
from ..numerics import Numerics
from .config import ModelConfig, ModelError, read_config
from .families import tensor_shapes, tied_copy, top_sources
from .hub import Repository, interrupted
from .lora import read_adapter
from .split import WHOLE, Rank
from .weights import absent_files, as_stored, check_weights, fill_randomly, load_weights, some

EMBEDDED = Path(__file__).parents[1] / "embedded"
ALIKE = 0.8  # of a misspelt name and the one that was meant
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def embedded_models() -> list[str]:
    """Names of the embedded models."""
    return sorted(path.parent.name for path in EMBEDDED.glob("*/config.json"))


def find_model(name: str, download: bool = False, weights: bool = True) -> Path:
    """The directory of an embedded model's name, of a path, or of a repository in Hugging Face's cache, into which
    `download` fetches what is missing. Raises `ModelError` with what to do, also for a download that was not finished.
    The `weights` may be missing if they are not needed."""
    if name in embedded_models():
        return EMBEDDED / name
    path = _directory(name)
    if path is not None:
        _require_files(path)
        again = f"run `hf download` with --local-dir {path} again" if interrupted(path) else None
        _require_complete(path, again, weights)
        return path
    repository = Repository.named(name)
    if repository is None:
        nearest = get_close_matches(name.lower(), embedded_models(), 1, ALIKE)
        meant = f"did you mean {nearest[0]!r}? " if nearest else ""
        raise ModelError(
            f"no model {name!r}: {meant}it is no directory here, not OWNER/NAME of a repository, and the embedded"
            f" models are {', '.join(embedded_models())}"
        )
    snapshot = repository.fetch(read_config) if download else repository.snapshot()
    _require_files(snapshot)
    _require_complete(snapshot, f"run `{repository.download}` again", weights)
    return snapshot


def _directory(name: str) -> Path | None:
    """The directory of that name, None if nothing has it. Raises `ModelError` for a file or an unreadable directory."""
    try:
        path = Path(name).expanduser()
    except RuntimeError as error:  # the home of nobody
        raise ModelError(f"no model {name!r}: {error}") from None
    try:
        with os.scandir(path) as entries:
            empty = next(entries, None) is None
    except (FileNotFoundError, NotADirectoryError):
        if path.is_file():
            raise ModelError(f"{path} is a file: give the directory that holds config.json and the weights") from None
        return None
    except OSError as error:
        raise ModelError(f"{path} cannot be read: {error.strerror}") from None
    if empty:
        raise ModelError(f"{path} is empty: download a checkpoint into it first")
    return path


def _require_files(directory: Path) -> None:
    """Raises `ModelError` for a FIFO, a socket or a device: reading it may never end."""
    for path in (*directory.iterdir(), *(directory / "additional_chat_templates").glob("*")):
        if path.exists() and not (path.is_file() or path.is_dir()):
            raise ModelError(f"{path} is no regular file")


def _require_complete(directory: Path, advice: str | None, weights: bool) -> None:
    """Raises `ModelError` if a download lacks a file that every model needs. Without advice nothing is checked: later
    readers name the missing file."""
    missing = absent_files(directory, weights) if advice else []
    if missing:
        raise ModelError(f"the download in {directory} is not complete, it lacks {some(missing)}: {advice}")


def with_adapter(config: ModelConfig, directory: str) -> ModelConfig:
    """The configuration of a network to which the adapter in a directory is added. Raises `ModelError`."""
    top = {source.weight: source.name for source in top_sources(config)}
    fixed = {top["embedding"]} if "head" in top else {top["embedding"], *(tied_copy(config) or ())}
    try:
        return replace(config, adapter=read_adapter(Path(directory), tensor_shapes(config), frozenset(fixed)))
    except ModelError:
        raise
    except (ValueError, RuntimeError) as error:
        raise ModelError(f"--lora: {error}") from None


Report = Callable[[str, int, int], None]
OLDEST = (8, 0)  # compute capability: below it there is no bfloat16 in the matrix units
OLDEST_FP8 = (8, 9)
FP8_NOT_FIXED = "cannot be deterministic: its products follow the size of the batch"
SHARED_FOR_FIXED = 163_880  # bytes; products of fixed order, as Triton compiles them


@dataclass(frozen=True, slots=True)
class Hardware:
    """Where the network runs, and its number format.

    `threads` None: `OMP_NUM_THREADS`, or every core that the process may use. `deterministic`: an answer has the same
    bits alone and batched with others, in every dtype. On a GPU, steps of `graph_sizes` positions are captured (None: a
    ladder up to the largest step), and compiled kernels are kept in `compile_cache` (None: where Triton keeps them).
    `dummy`: weights are random, made on the device, and no file of weights is read. `kv_cache_dtype` of keys and values
    is auto, for that of the network, or fp8.
    """

    device: str = "auto"
    dtype: str = "auto"
    threads: int | None = None
    quantization: str | None = None
    deterministic: bool = False
    graph_sizes: tuple[int, ...] | None = None
    compile_cache: str | None = None
    dummy: bool = False
    kv_cache_dtype: str = "auto"


@dataclass(frozen=True, slots=True)
class Loaded:
    """A runner with the memory that it has taken; `summary` names its device and number format. `compiled` counts the
    kernels that were compiled for it, at the start or later."""

    runner: Runner
    footprint: Footprint
    summary: str
    compiled: CompiledKernels


def _device(name: str) -> torch.device:
    """A usable GPU, unless the name is `cpu`; else the CPU. Raises `ModelError`."""
    if name == "cpu":
        return torch.device("cpu")
    lacking = _lacking()
    if name == "cuda" and lacking:
        raise ModelError(f"device 'cuda' cannot be used: {lacking} (or use --device cpu)")
    if lacking and torch.cuda.is_available():
        logging.getLogger(__name__).warning("the GPU is not used: %s", lacking)
    return torch.device("cpu" if lacking else "cuda")


def on_gpu(device: str) -> bool:
    """Return whether a network for this `device`, as in the settings, will run on a GPU. Raises `ModelError`."""
    return _device(device).type == "cuda"


def _lacking() -> str | None:
    """The reason why no GPU can be used; None if one can."""
    if not torch.cuda.is_available():
        return "torch sees no GPU: install torch for CUDA"
    try:
        capability = torch.cuda.get_device_capability()
        torch.cuda.mem_get_info()
    except RuntimeError as error:  # another process may hold it alone
        return f"the GPU cannot be used: {str(error).splitlines()[0]}"
    if capability < OLDEST:
        name = torch.cuda.get_device_name()
        return f"{name} has compute capability {capability[0]}.{capability[1]}: {OLDEST[0]}.{OLDEST[1]} is needed"
    if importlib.util.find_spec("triton") is None:
        return "Triton is missing: in the checkout, pip install --constraint constraints.txt '.[gpu]'"
    return None


def _numerics(hardware: Hardware, device: torch.device, config: ModelConfig) -> Numerics:
    """Raises `ModelError` for settings that exclude each other."""
    # float32 is a CPU's default: it is the fastest there, and a row's bits do not depend on the other rows.
    automatic = "bfloat16" if device.type == "cuda" else "float32"
    dtype = DTYPES[automatic if hardware.dtype == "auto" else hardware.dtype]
    fp8_cache = hardware.kv_cache_dtype == "fp8"
    if fp8_cache and (problem := _lacks_fp8(device)):
        raise ModelError(f"--kv-cache-dtype fp8 {problem}: use auto")
    plain = Numerics(dtype, fixed=hardware.deterministic, fp8_cache=fp8_cache)
    stored = config.quantization.layout.kept if config.quantization else None
    match hardware.quantization:
        case "fp8":
            if problem := _no_fp8(hardware, device, dtype):
                raise ModelError(f"quantization fp8 {problem}")
            return replace(plain, fp8=True)
        case "int4":
            return replace(plain, int4=True)
        case None if device.type == "cuda":  # as the checkpoint has it, if the products can be had
            fp8 = stored == "fp8" and _no_fp8(hardware, device, dtype) is None
            return replace(plain, fp8=fp8, int4=stored == "int4")
        case _:
            return plain


def gpu_numerics(config: ModelConfig, quantization: str | None, fixed: bool, kv_cache_dtype: str) -> Numerics:
    """The number format of a network on a GPU that can compute in all of them. Raises `ModelError` for settings that
    exclude each other."""
    kept = config.quantization.layout.kept if config.quantization else None
    form = quantization or (None if kept == "fp8" and fixed else kept)
    if form == "fp8" and fixed:
        raise ModelError(f"quantization fp8 {FP8_NOT_FIXED}")
    return Numerics(torch.bfloat16, form == "fp8", fixed, form == "int4", fp8_cache=kv_cache_dtype == "fp8")


def _no_fp8(hardware: Hardware, device: torch.device, dtype: torch.dtype) -> str | None:
    """The reason why there are no products in FP8; None: there are."""
    if hardware.deterministic:
        return FP8_NOT_FIXED
    if device.type == "cuda" and dtype is not torch.bfloat16:
        return f"goes with dtype bfloat16 on a GPU, not {hardware.dtype}"
    return _lacks_fp8(device)


def _lacks_fp8(device: torch.device) -> str | None:
    """The reason why a device has no numbers in FP8; None: it has."""
    if device.type == "cuda" and torch.cuda.get_device_capability() < OLDEST_FP8:
        return f"needs compute capability {OLDEST_FP8[0]}.{OLDEST_FP8[1]}"
    return None


def _instead(config: ModelConfig) -> str:
    return "; give --quantization none" if config.quantization is not None else ""


def _cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def check_ranks(directory: Path, config: ModelConfig, hardware: Hardware, size: int) -> None:
    """Raises `ModelError` unless the network can be split among `size` devices, and there are so many. Takes no
    memory."""
    device = _device(hardware.device)
    if device.type == "cuda" and torch.cuda.device_count() < size:
        raise ModelError(f"--tensor-parallel-size {size} needs {size} GPUs, torch sees {torch.cuda.device_count()}")
    try:
        rank = Rank(0, size)
        rank.config(config)
        if config.quantization is not None and not hardware.dummy:
            config = as_stored(config, check_weights(directory, config))
        weights_bytes(config, _numerics(hardware, device, config), rank)
    except ModelError:
        raise
    except ValueError as error:  # sizes that products in FP8 or int4 cannot take
        raise ModelError(f"--tensor-parallel-size {size}: {error}{_instead(config)}") from None


def load_runner(
    directory: Path,
    config: ModelConfig,
    memory: Memory,
    hardware: Hardware,
    end_ids: Collection[int],
    report: Report = lambda what, done, total: None,
    meeting: Meeting | None = None,
    never: Collection[int] = (),
) -> Loaded:
    """Checks everything, then loads the weights, takes the memory and captures the graphs; `end_ids` end an answer.
    `report` hears what is done, how much of it, of how much. With a `meeting` this process is one rank of those that
    share the network. Ids in `never` are not proposed, nor is the mask. Raises `ModelError`."""
    rank = WHOLE if meeting is None else meeting.rank
    device = _device(hardware.device)
    if device.type == "cuda" and rank.size > 1:
        device = torch.device("cuda", rank.number)
        torch.cuda.set_device(device)  # of this thread
    numerics = _numerics(hardware, device, config)
    whole, config = config, rank.config(config)
    sizes = _graph_sizes(hardware, memory)
    compiled = CompiledKernels()
    if device.type == "cuda":
        compiled.watch()
        _check_for_gpu(config, memory, numerics)
    elif hardware.graph_sizes is not None or hardware.compile_cache is not None:
        logging.getLogger(__name__).warning("--cuda-graph-sizes and --compile-cache change nothing on a CPU")
    if hardware.threads or "OMP_NUM_THREADS" not in os.environ:  # OpenMP's own setting is for several processes
        torch.set_num_threads(hardware.threads or max(1, _cores() // rank.size))
    if hardware.compile_cache is not None:
        try:
            keep_compiled(Path(hardware.compile_cache))
        except OSError as error:
            logging.getLogger(__name__).warning(
                "--compile-cache %s cannot be written: %s; kernels are kept where Triton keeps them",
                hardware.compile_cache,
                error.strerror or error,
            )
    stored = None if hardware.dummy else check_weights(directory, whole)
    if stored is not None:
        whole = as_stored(whole, stored)
    group = None if meeting is None else meeting.join(device, ordered=numerics.fixed or device.type == "cpu")
    if group is not None and device.type == "cuda":
        group.use_mailbox(sizes[-1], config.dim, numerics.dtype)
    try:
        if device.type == "cuda":
            require_room(whole, numerics, memory.share, device, rank)
        weights, parts = allocate(whole, numerics, device, rank)
        if stored is None:
            fill_randomly(whole, parts, device)
        else:
            load_weights(stored, parts, partial(report, "loading tensors"))
    except ModelError:
        raise
    except ValueError as error:  # sizes that products in FP8 or int4 cannot take
        raise ModelError(f"{directory}: {error}{_instead(config)}") from None
    except (RuntimeError, MemoryError):
        needed = gib(weights_bytes(whole, numerics, rank))
        raise ModelError(f"no memory for the weights, which need {needed}") from None
    network = network_of(config, numerics, weights, group)
    if meeting is not None:
        meeting.passed("loaded", None)

    def runner(pages: int) -> Runner:
        cache = KvPages(config, pages, memory.page_size, memory.slots, numerics, device)
        masks = {config.mask_id} if config.canvas is None else set[int]()  # a canvas of random tokens has none
        return Runner(network, cache, memory.slots, sorted(masks.union(never)), sorted(end_ids))

    def workspace() -> int:
        """Memory that a runner takes besides its pages: of the largest step, with graphs and without, and the graphs
        themselves. It is measured with a runner of one page that is then freed."""
        probe = runner(pages=1)
        probe.compile_kernels(sizes, partial(report, "compiling kernels"))
        probe.run_all(sizes, partial(report, "loading kernels"))
        probe.capture(sizes, partial(report, "measuring graphs"))
        left, _ = torch.cuda.mem_get_info(device)
        del probe
        gc.collect()
        torch.cuda.empty_cache()
        freed, _ = torch.cuda.mem_get_info(device)
        return freed - left

    try:
        footprint = pages_that_fit(network, weights_bytes(whole, numerics, rank), memory, device, workspace)
    except torch.OutOfMemoryError:
        raise ModelError(
            f"no memory for a step of {memory.step_tokens} positions besides the weights: lower --max-step-tokens"
        ) from None
    try:
        final = runner(footprint.pages)
    except (RuntimeError, MemoryError):
        tokens = footprint.pages * memory.page_size
        raise ModelError(f"no memory for keys and values of {tokens} positions: lower --kv-cache-tokens") from None
    if device.type == "cuda":
        try:
            final.capture(sizes, partial(report, "capturing graphs"))
        except torch.OutOfMemoryError:
            raise ModelError("no memory for graphs: lower --gpu-memory-utilization or --cuda-graph-sizes") from None
    where = device.type if rank.size == 1 else f"{rank.size} ranks on {device.type}"
    summary = f"{where}, {str(numerics.dtype).removeprefix('torch.')}{_extras(numerics, whole)}"
    return Loaded(final, footprint, summary, compiled)


def _graph_sizes(hardware: Hardware, memory: Memory) -> tuple[int, ...]:
    """Raises `ModelError` for sizes that no step has."""
    if hardware.graph_sizes is None:
        return default_sizes(memory.step_tokens)
    try:
        return checked_sizes(hardware.graph_sizes, memory.step_tokens)
    except ValueError as error:
        raise ModelError(f"--cuda-graph-sizes: {error}") from None


def _extras(numerics: Numerics, config: ModelConfig) -> str:
    plain = config.quantization is not None and not (numerics.fp8 or numerics.int4)
    return (
        ", fp8 matrices" * numerics.fp8
        + ", int4 matrices" * numerics.int4
        + ", fp8 keys and values" * numerics.fp8_cache
        + f", dequantized from {config.quantization}" * plain
        + f", with the adapter {config.adapter}" * (config.adapter is not None)
        + ", deterministic" * numerics.fixed
    )


def _check_for_gpu(config: ModelConfig, memory: Memory, numerics: Numerics) -> None:
    """Raises `ModelError` for sizes that the kernels cannot read, or a GPU with too little shared memory for them."""
    dims = sorted({config.heads_of(layer).head_dim for layer in range(config.layers)})
    for name, size in (("--page-size", memory.page_size), *(("the model's head dim", dim) for dim in dims)):
        if size < 16 or size & (size - 1):
            raise ModelError(f"on a GPU {name} must be a power of two from 16, not {size}")
    if not numerics.fixed:
        return
    # Not every torch knows it; then Triton says so when it compiles.
    shared = getattr(torch.cuda.get_device_properties(), "shared_memory_per_block_optin", SHARED_FOR_FIXED)
    if shared < SHARED_FOR_FIXED:
        raise ModelError(
            f"--deterministic needs {SHARED_FOR_FIXED} bytes of shared memory in a block, this GPU has {shared}"
        )
