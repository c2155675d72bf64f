"""The composition root: the one place that sees models, scheduler and HTTP at once, and wires them."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

from fastapi import FastAPI

from ...models.checkpoint.config import ModelConfig
from ...models.checkpoint.registry import Hardware, load_runner
from ...models.exec.graphs import IN_FLIGHT
from ...models.exec.memory import Footprint, Memory
from ...scheduler.decoding.attention_pattern import AttentionPattern
from ...scheduler.decoding.boundaries import Boundary
from ...scheduler.decoding.compatibility import VocabularyFacts, refuse
from ...scheduler.decoding.params import ParamError
from ...scheduler.decoding.registry import DECODERS
from ...scheduler.decoding.resolve import defaults_of, resolve, suits
from ...scheduler.decoding.vocabulary import Vocabulary
from ...scheduler.memory.pages import Limits
from ...scheduler.scheduler import Scheduler
from ...scheduler.step_cost import Budget, Halving, StepCost
from ..app import ModelCard, create_app
from ..metrics import Metrics
from ..settings import Settings
from ..text.tokenizer import Tokenizer
from .checkpoint import open_checkpoint
from .device import Device
from .engine import Engine

PAGE_SIZE = 64  # fast on a GPU
FINEST_PAGE = 16  # of a block-causal model: smaller pages share more of a prompt
MEASURED = (1, 64, 128, 256, 512, 1024)  # positions of the steps that are timed at start


@dataclass(frozen=True, slots=True)
class EngineParts:
    """A loaded model with an engine that is not yet started."""

    engine: Engine
    text: Tokenizer
    metrics: Metrics
    limits: Limits
    footprint: Footprint
    pattern: AttentionPattern


@dataclass(frozen=True, slots=True)
class Service:
    """`drain` lets running answers finish, for so many seconds at most."""

    app: FastAPI
    drain: Callable[[float], Coroutine[Any, Any, None]]


def build_parts(settings: Settings) -> EngineParts:
    """Reads the checkpoint, checks it against the settings, then takes memory. Raises `ValueError` and `OSError`
    with one line that says what is wrong."""
    if settings.decoder not in DECODERS:
        raise ValueError(f"unknown decoder {settings.decoder!r}; known: {', '.join(DECODERS)}")
    checkpoint = open_checkpoint(settings.model)
    config, text = checkpoint.config, checkpoint.text
    pattern = config.pattern
    limits = _limits(settings, config, pattern)
    length = min(settings.default_max_tokens, limits.max_model_len)
    try:
        decoder = resolve(settings.decoder, {}, length, pattern)
        refuse(VocabularyFacts(decoder, text.vocabulary))  # now, not at every request
    except ParamError as error:
        raise ValueError(
            f"requests without a decoder cannot have {settings.decoder!r}, whose defaults fail: {error}"
        ) from None
    config = replace(config, max_model_len=limits.max_model_len)  # canvases are no longer than anyone may ask for
    memory = Memory(
        slots=settings.max_num_seqs,
        page_size=limits.page_size,
        step_tokens=settings.max_step_tokens,
        cache_tokens=settings.kv_cache_tokens,
        share=settings.gpu_memory_utilization,
        keeps_pages=limits.prefix_sharing,
    )
    hardware = Hardware(
        settings.device, settings.dtype, settings.threads, settings.quantization, settings.deterministic
    )
    # The thread that will run the model also loads it: OpenMP keeps a team for every thread that has computed, and
    # stops spinning between operations once all teams together outnumber the cores (a step took twice as long).
    worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="device")
    loaded = worker.submit(load_runner, checkpoint.directory, config, memory, hardware, text.end_ids).result()
    runner = loaded.runner
    logging.getLogger(__name__).info("%s; %s", loaded.summary, loaded.footprint)
    limits = replace(limits, pages=loaded.footprint.pages)
    sizes = sorted({min(size, limits.step_tokens) for size in MEASURED})
    seconds = list(worker.map(runner.step_seconds, sizes))
    warn_of_missing_boundaries(text.vocabulary)
    cost = StepCost(sizes, seconds)
    scheduler = Scheduler(limits, text.vocabulary, Budget(cost), Halving(cost) if runner.on_gpu else None, pattern)
    metrics = Metrics(pages_total=limits.pages)
    device = Device(worker, runner.launch, IN_FLIGHT if runner.on_gpu else 1)
    engine = Engine(scheduler, device, text, metrics, settings.decoder)
    return EngineParts(engine, text, metrics, limits, loaded.footprint, pattern)


def build_service(settings: Settings) -> Service:
    parts = build_parts(settings)
    card = ModelCard(
        id=settings.model_name,
        max_model_len=parts.limits.max_model_len,
        decoders={name: defaults_of(name, parts.pattern) for name in DECODERS if suits(name, parts.pattern)},
        default_decoder=settings.decoder,
    )

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        await parts.engine.start()
        try:
            yield
        finally:
            await parts.engine.stop()

    app = create_app(parts.engine, parts.text, settings, parts.metrics, card, lifespan)
    return Service(app, parts.engine.drain)


def warn_of_missing_boundaries(vocabulary: Vocabulary) -> None:
    """A lane cannot fork at what the tokenizer has no token for."""
    missing = [boundary.name.lower() for boundary in Boundary if not boundary.known_to(vocabulary)]
    if missing:
        logging.getLogger(__name__).warning(
            "the tokenizer has no token for the boundaries %s: there, lanes fork where proposals have settled",
            ", ".join(missing),
        )


def _limits(settings: Settings, config: ModelConfig, pattern: AttentionPattern) -> Limits:
    """With as many pages as were asked for, or as one request needs: how many there are is known once the weights are
    loaded, and what does not go together before. Raises `ValueError`."""
    length = settings.max_model_len
    if length is None:
        length = pattern.floor(min(config.max_model_len, settings.max_step_tokens))
        if length < 2:
            raise ValueError(f"--max-step-tokens {settings.max_step_tokens} leaves no context: raise it")
        if length < config.max_model_len:
            logging.getLogger(__name__).info(
                "the context is %d of the model's %d positions, which is what --max-step-tokens computes at once, in"
                " whole blocks",
                length,
                config.max_model_len,
            )
    if length > config.max_model_len:
        raise ValueError(f"--max-model-len {length} exceeds the model's {config.max_model_len}")
    page_size = settings.page_size or _page_size(pattern)
    sharing = bool(pattern.block_size) if settings.prefix_sharing is None else settings.prefix_sharing
    return Limits(
        slots=settings.max_num_seqs,
        pages=-(-(settings.kv_cache_tokens or length) // page_size),
        page_size=page_size,
        step_tokens=settings.max_step_tokens,
        max_model_len=length,
        max_queue=settings.max_queue,
        prefix_sharing=sharing,
    ).checked(pattern)


def _page_size(pattern: AttentionPattern) -> int:
    return pattern.block_size * -(-FINEST_PAGE // pattern.block_size) if pattern.block_size else PAGE_SIZE
