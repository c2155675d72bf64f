"""The composition root of the engine: reads a checkpoint and wires model, scheduler and engine. With `inspect`, the
only part of the server that sees `models`."""

from __future__ import annotations

import logging
import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from ...models.checkpoint.config import ModelConfig, ModelError, read_config
from ...models.checkpoint.fingerprint import fingerprint
from ...models.checkpoint.registry import Hardware, find_model, load_runner, on_gpu, with_adapter
from ...models.exec.followers import Followers
from ...models.exec.graphs import IN_FLIGHT
from ...models.exec.memory import Footprint, Memory
from ...models.exec.pair import Ids, Pair
from ...models.exec.runner import Runner
from ...models.ranks import Setup, loaded_with, start_ranks
from ...scheduler import (
    ALL_DECODERS,
    AS_LISTED,
    MOST_DRAFTED,
    AttentionPattern,
    Boundary,
    Budget,
    Drafter,
    Halving,
    Limits,
    Pacing,
    ParamError,
    RuleMaker,
    Scheduler,
    StepCost,
    Vocabulary,
    VocabularyFacts,
    plugins,
    refuse,
    resolve,
    unknown_decoder,
)
from ..metrics import DeviceCounts, Metrics
from ..presets import PRESETS, DecoderLine
from ..settings import Settings, SettingsError, split_sizes
from ..structured.grammar import Grammars
from ..text.tokenizer import BadTokenizer, Tokenizer
from ..vllm_names import CacheConfig, WithVllmNames
from .controller import check_method, read_controller
from .device import Device, DeviceThread
from .engine import Engine
from .progress import Report, progress_of

PAGE_SIZE = 64  # fast on a GPU
FINEST_PAGE = 16  # of a block-causal model: smaller pages share more of a prompt
CANVAS_DECODER = "renoise"  # the only one that a model takes whose canvases begin with random tokens
CAUSAL_DECODER = "autoregressive"  # of a model that predicts the next token
DRAFTED_DECODER = "deer"  # of one with a drafter
STEP_TOKENS = 4096  # unless a bidirectional model must compute a longer request at once
CONTEXT = 32768  # unless a setting says it: each position takes 0.6 to 2 KB besides its keys and values
STEP_TIMEOUT_S = 60.0
LONGEST_STEPS = 10  # that fit in the time of one: a large model on a CPU may be slow
MEASURED = (1, 64, 128, 256, 512, 1024, 2048)  # positions of the steps that are timed at start
LONG_CONTEXT = 16384  # positions: with more, the time of a pair is the same
LONG_STEP_S = 0.04  # a CPU's time is linear from such a step on: longer ones are not timed


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """All of a checkpoint except the weights."""

    directory: Path
    config: ModelConfig
    text: Tokenizer
    drafter: Checkpoint | None = None  # of the network that drafts for it

    @property
    def pattern(self) -> AttentionPattern:
        """The attention pattern of its network, with that of its drafter."""
        pattern = self.config.pattern
        if self.drafter is None:
            return pattern
        return replace(pattern, drafter=Drafter(self.drafter.config.logit_shift, self.drafter.config.block_size))


@dataclass(frozen=True, slots=True)
class EngineParts:
    """A loaded model with an engine that is not yet started."""

    engine: Engine
    text: Tokenizer
    grammars: Grammars
    metrics: Metrics
    limits: Limits
    footprint: Footprint
    pattern: AttentionPattern
    line: DecoderLine  # the decoder of requests that name none
    directory: Path  # of the checkpoint
    on_gpu: bool
    followers: Followers | None  # the processes of the other ranks

    def close(self) -> None:
        """End the threads and processes of an engine that has stopped."""
        self.grammars.close()
        if self.followers is not None:
            self.followers.close()


def open_checkpoint(
    model: str, download: bool = False, weights: bool = True, block_size: int | None = None
) -> Checkpoint:
    """Find `model`, or `download` it, and read all but its weights, which may be missing if they are not needed. A
    `block_size` is that of `read_config`. Raises `ValueError` and `OSError` with one line that says what is wrong with
    which file."""
    directory = find_model(model, download, weights)
    config = read_config(directory, block_size)
    if config.canvas is not None:
        try:
            resolve(CANVAS_DECODER, {}, config.max_model_len, config.pattern)
        except ParamError as error:
            raise ModelError(f"{directory / 'generation_config.json'}: {error}") from None
    text = _read_tokenizer(directory, config.mask_id)
    if text.vocab_size > config.vocab_size or len(text.pieces) != config.vocab_size:
        raise ModelError(
            f"{directory}: the tokenizer's {text.vocab_size} tokens and the network's {config.vocab_size} do not belong"
            " together"
        )
    if text.mask_id != config.mask_id:
        raise ModelError(f"{directory}: mask tokens {text.mask_id} and {config.mask_id} do not belong together")
    spelt = text.pieces[config.mask_id]
    if spelt and config.pattern.autoregressive:
        raise ModelError(
            f"{directory}: no id of the network is free to stand for open positions: the last is {spelt!r}"
        )
    if spelt:
        raise ModelError(
            f"{directory}: the tokenizer has no mask token, for {config.mask_id}, which config.json names, is {spelt!r}"
        )
    for token in text.end_ids:
        if not 0 <= token < config.vocab_size or token == config.mask_id:
            raise ModelError(f"{directory}: {token} cannot end an answer: it is the mask, or none of its tokens")
    return Checkpoint(directory, config, text)


def with_drafter(served: Checkpoint, settings: Settings) -> Checkpoint:
    """A checkpoint with that of the network which drafts for it, if the settings name one. Raises `SettingsError` for
    one that cannot, and what `open_checkpoint` raises."""
    name = settings.drafter
    if name is None:
        return served
    if not served.config.pattern.autoregressive:
        architecture = served.config.architecture
        raise SettingsError(f"--drafter is for models that predict the next token: {architecture} fills masks itself")
    if settings.tensor_parallel_size > 1:
        raise SettingsError("--drafter shares one device with the model: leave out --tensor-parallel-size")
    drafter = open_checkpoint(name, settings.download, settings.load_format != "dummy")
    pattern = drafter.config.pattern
    if pattern.autoregressive or pattern.known_first or pattern.canvas_length:
        raise SettingsError(f"--drafter {name}: {drafter.config.architecture} does not draft several masks at once")
    if (lacking := drafter.text.lacks(served.text)) is not None:
        token, spelt = lacking
        raise SettingsError(
            f"--drafter {name} has another tokenizer than the model: its token {token} is not {spelt!r}"
        )
    context = min(served.config.max_model_len, drafter.config.max_model_len)
    return replace(served, config=replace(served.config, max_model_len=context), drafter=drafter)


def _read_tokenizer(directory: Path, mask_id: int) -> Tokenizer:
    try:
        text = Tokenizer(directory, mask_id)
        _ = text.mask_id, text.end_ids  # these read more files, and the chat template
    except (BadTokenizer, OSError):
        raise
    except Exception as error:  # noqa: BLE001 - a broken file or template makes the libraries raise anything
        raise ModelError(f"the tokenizer in {directory} cannot be read: {str(error) or repr(error)}") from None
    return text


def build_parts(settings: Settings, makers: Mapping[str, RuleMaker] = AS_LISTED) -> EngineParts:
    """Read the checkpoint, check it against the settings, then take memory. `makers` make some of the commit rules, as
    in `resolve`, besides that of `--controller`. Raises `ValueError` and `OSError` with one
    line that says what is wrong."""
    for problem in plugins().problems:
        logging.getLogger(__name__).warning(problem)  # each is a message of its own, as all are shown
    if settings.decoder_line.name not in ALL_DECODERS:
        raise SettingsError(unknown_decoder(settings.decoder_line.name))
    dummy = settings.load_format == "dummy"
    checkpoint = open_checkpoint(settings.model, settings.download, not dummy, settings.block_size)
    checkpoint = with_drafter(checkpoint, settings)
    config, text = checkpoint.config, checkpoint.text
    if config.caveat:
        logging.getLogger(__name__).warning(config.caveat)
    check_preset(settings.preset, config.architecture)
    if config.block_source:  # not for a causal network, whose blocks are one position
        logging.getLogger(__name__).info("blocks of %d positions, by %s", config.block_size, config.block_source)
    if settings.lora is not None:
        if dummy:
            raise SettingsError("--lora adds to a checkpoint's weights: leave out --load-format dummy")
        config = with_adapter(config, settings.lora)
    if text.other_templates:
        logging.getLogger(__name__).warning("chats are refused: %s", text.no_chat)
    pattern, drafter = checkpoint.pattern, checkpoint.drafter
    if settings.tensor_parallel_size > 1:
        pattern = replace(pattern, selects=False)  # each device has the attention of some heads alone
    limits = limits_of(settings, config, pattern)
    length = min(settings.default_max_tokens, limits.max_model_len)
    line = default_line(settings, pattern)
    try:
        decoder = resolve(line.name, line.params, length, pattern, makers)
        refuse(VocabularyFacts(decoder, text.vocabulary))  # now, not at every request
    except ParamError as error:
        raise SettingsError(f"{_named(settings, line)}: {error}") from None
    if settings.controller is not None:
        makers = {**makers, **_learnt_maker(settings, settings.controller, checkpoint.directory, line)}
    config = replace(config, max_model_len=limits.max_model_len)  # canvases are no longer than a request may be
    memory = Memory(
        slots=settings.max_num_seqs,
        page_size=limits.page_size,
        step_tokens=limits.step_tokens,
        cache_tokens=settings.kv_cache_tokens,
        share=settings.gpu_memory_utilization,
        keeps_pages=limits.prefix_sharing,
        context=settings.max_model_len,
    )
    hardware = Hardware(
        settings.device,
        settings.dtype,
        settings.threads,
        settings.quantization,
        settings.deterministic,
        None if settings.cuda_graph_sizes is None else split_sizes(settings.cuda_graph_sizes),
        settings.compile_cache,
        dummy,
        settings.kv_cache_dtype,
    )
    if drafter is not None and settings.kv_cache_tokens is None and on_gpu(settings.device):
        raise SettingsError("--drafter on a GPU needs --kv-cache-tokens: of so many positions both networks keep keys")
    arguments = checkpoint.directory, config, memory, hardware, text.end_ids
    size = settings.tensor_parallel_size
    followers = start_ranks(Setup(*arguments), size) if size > 1 else None
    meeting = None if followers is None else followers.meeting()
    # The thread that will run the model also loads it: OpenMP keeps a team for every thread that has computed, and
    # stops spinning between operations once all teams together outnumber the cores (a step took twice as long).
    worker = DeviceThread()
    with progress_of(sys.stderr) as report:
        loading = worker.submit(load_runner, *arguments, report, meeting)
        loaded = loading.result() if followers is None else loaded_with(followers, loading)
        runner, launch = loaded.runner, loaded.runner.launch
        paced = limits.prefill_tokens > 0 and settings.chunked_prefill_size is None
        timing = worker, limits.step_tokens, report, paced
        drafter_cost = None
        if drafter is not None:
            drafts = _drafter_runner(drafter, config, worker, (memory, hardware, report))
            ids = Ids(config.mask_id, drafter.config.mask_id, drafter.config.vocab_size)
            launch = Pair(runner, drafts, ids, runner.on_gpu).launch
            drafter_cost = _step_cost(drafts, *timing)
        cost = _step_cost(runner, *timing, drafter_cost)
    logging.getLogger(__name__).info("%s; %s", loaded.summary, loaded.footprint)
    limits = _with_pages(limits, loaded.footprint.pages, settings, checkpoint.config)
    warn_of_missing_boundaries(text.vocabulary)
    halving = Halving(cost) if runner.on_gpu else None
    pacing = Pacing(cost, halving, pattern.block_size) if paced else None
    scheduler = Scheduler(limits, text.vocabulary, Budget(cost), halving, pattern, pacing)
    text.prepare()
    metrics = Metrics(limits.pages, DeviceCounts(lambda: runner.graph_counts, lambda: loaded.compiled.count))
    if settings.metrics_compat == "vllm":
        cache = CacheConfig(limits.pages, limits.page_size, limits.prefix_sharing, settings.kv_cache_dtype)
        metrics.exposed = WithVllmNames(metrics.registry, settings.model_name, cache)
    grammars = Grammars(text, settings.grammar_timeout_s, settings.grammar_memory_mb)
    device = Device(
        worker,
        launch,
        IN_FLIGHT if runner.on_gpu else 1,
        settings.step_timeout_s or max(STEP_TIMEOUT_S, LONGEST_STEPS * cost.longest_s(limits.step_tokens)),
        settings.max_failed_steps,
    )
    engine = Engine(scheduler, device, text, grammars, metrics, line, makers)
    if followers is not None:
        followers.failure.add_done_callback(lambda failure: engine.fail(failure.result()))
    return EngineParts(
        engine,
        text,
        grammars,
        metrics,
        limits,
        loaded.footprint,
        pattern,
        line,
        checkpoint.directory,
        runner.on_gpu,
        followers,
    )


def _drafter_runner(
    drafter: Checkpoint, served: ModelConfig, worker: DeviceThread, how: tuple[Memory, Hardware, Report]
) -> Runner:
    """Load the drafter beside the network that is served."""
    memory, hardware, report = how
    config = replace(drafter.config, max_model_len=served.max_model_len)
    arguments = drafter.directory, config, memory, hardware, drafter.text.end_ids, report
    # The served network cannot read ids beyond its own, and its mask stands for positions that nothing was drafted for.
    never = [token for token in range(config.vocab_size) if token >= served.vocab_size or token == served.mask_id]
    second = worker.submit(partial(load_runner, *arguments, never=never)).result()
    logging.getLogger(__name__).info("drafter: %s; %s", second.summary, second.footprint)
    return second.runner


def fingerprint_of(settings: Settings, directory: Path) -> str:
    """The fingerprint of the weights in `directory`, with the adapter of `--lora`."""
    return fingerprint(directory, None if settings.lora is None else Path(settings.lora))


def _learnt_maker(settings: Settings, name: str, directory: Path, line: DecoderLine) -> Mapping[str, RuleMaker]:
    """The maker of the commit rule whose weights are in `--controller`, the file `name`. Raises `SettingsError` for one
    that does not belong to the model, and `ModelError`."""
    if settings.load_format == "dummy":
        raise SettingsError("--controller belongs to a checkpoint's weights: leave out --load-format dummy")
    controller = read_controller(name, fingerprint_of(settings, directory))
    check_method(controller, line.params.get("rule", ALL_DECODERS[line.name].rule), name)
    logging.getLogger(__name__).info("the commit rule %s has the weights of %s", controller.method, name)
    return {controller.method: partial(controller.rule, learnt=controller.weights)}


def check_preset(preset: str | None, architecture: str) -> None:
    """Raises `SettingsError` for the preset of another architecture."""
    if preset is None or architecture in PRESETS[preset].architectures:
        return
    fitting = [name for name, row in PRESETS.items() if architecture in row.architectures]
    use = f"use {' or '.join(fitting)}" if fitting else "leave it out"
    raise SettingsError(
        f"--preset {preset} is for {' or '.join(PRESETS[preset].architectures)}, and this is {architecture}: {use}"
    )


def default_line(settings: Settings, pattern: AttentionPattern) -> DecoderLine:
    """The decoder of requests that name none, on a network of this pattern."""
    if settings.decoder is None and settings.preset is None:
        if pattern.canvas_length:
            return DecoderLine(CANVAS_DECODER)
        if pattern.autoregressive:
            return DecoderLine(CAUSAL_DECODER if pattern.drafter is None else DRAFTED_DECODER)
    return settings.decoder_line


def _named(settings: Settings, line: DecoderLine) -> str:
    """The decoder of requests that name none, as the command gave it."""
    if settings.preset is not None:
        return f"--preset {settings.preset}"
    return f"the default decoder, {line.name!r}" if settings.decoder is None else f"--decoder {settings.decoder}"


def _step_cost(
    runner: Runner, worker: DeviceThread, most: int, report: Report, pairs: bool, drafter: StepCost | None = None
) -> StepCost:
    """The curve of steps of at most so many positions, timed in the thread of the device. `pairs`: with the time that
    keys take. `drafter` is the curve of the network that drafts."""
    sizes, seconds = sorted({min(size, most) for size in MEASURED}), list[float]()
    for size in sizes:
        seconds.append(worker.submit(runner.step_seconds, size).result())
        is_long = not runner.on_gpu and len(seconds) > 1 and seconds[-1] > LONG_STEP_S
        last = is_long or size == sizes[-1]
        report("timing steps", len(seconds), len(seconds) if last else len(sizes))
        if last:
            break
    timed = sizes[: len(seconds)]
    pairs &= runner.on_gpu or seconds[-1] < LONG_STEP_S
    return StepCost(timed, seconds, _pair_s(runner, worker, timed[-1]) if pairs else 0.0, drafter)


def _pair_s(runner: Runner, worker: DeviceThread, tokens: int) -> float:
    """Seconds of each pair of a position and a key before its row: by two steps of `tokens` positions, one after as
    many keys as the context has. 0 where it has few."""
    near, far = tokens, min(runner.context, LONG_CONTEXT) - tokens
    if far <= near:
        return 0.0
    times = [worker.submit(runner.step_seconds, tokens, keys).result() for keys in (near, far)]
    return max(0.0, times[1] - times[0]) / (tokens * (far - near))


def warn_of_missing_boundaries(vocabulary: Vocabulary) -> None:
    """A lane cannot fork at a boundary that the tokenizer has no token for."""
    missing = [boundary.name.lower() for boundary in Boundary if not boundary.known_to(vocabulary)]
    if missing:
        logging.getLogger(__name__).warning(
            "the tokenizer has no token for the boundaries %s: there, lanes fork where proposals have settled",
            ", ".join(missing),
        )


def limits_of(settings: Settings, config: ModelConfig, pattern: AttentionPattern) -> Limits:
    """The limits that can be checked before the weights are loaded. `pages` is the number that the settings name, or
    what one request needs; memory decides the final number. Raises `ValueError`."""
    steps, length, chunk = settings.max_step_tokens, settings.max_model_len, settings.chunked_prefill_size
    if steps is None:
        steps = STEP_TOKENS if pattern.block_size else max(STEP_TOKENS, length or 0)
    if chunk is None:
        chunk = max(steps // 2, pattern.block_size) if pattern.block_size else 0  # at most: `Pacing` decides
        if pattern.drafter is not None:  # which computes as much, and drafts after it
            chunk = max(1, steps // 2 - MOST_DRAFTED - pattern.drafter.block_size)
    if length is None:
        length = _default_length(config, pattern, steps, chunk, settings.kv_cache_tokens)
    if length > config.max_model_len:
        raise SettingsError(f"--max-model-len {length} exceeds the model's {config.max_model_len}")
    page_size = settings.page_size or _page_size(pattern)
    sharing = bool(pattern.block_size) if settings.prefix_sharing is None else settings.prefix_sharing
    return Limits(
        slots=settings.max_num_seqs,
        pages=-(-(settings.kv_cache_tokens or length) // page_size),
        page_size=page_size,
        step_tokens=steps,
        max_model_len=length,
        max_queue=settings.max_queue,
        prefix_sharing=sharing,
        prefill_tokens=chunk,
    ).checked(pattern)


def _with_pages(limits: Limits, pages: int, settings: Settings, config: ModelConfig) -> Limits:
    """The limits with as many pages as there is memory for. A context that no setting names becomes shorter, if keys
    and values of it do not fit. Raises `ValueError` for one that is named."""
    length = config.pattern.floor(pages * limits.page_size)
    if settings.max_model_len is not None or length >= limits.max_model_len:
        return replace(limits, pages=pages)
    _log_context(length, config, "the device keeps keys and values of no more")
    return replace(limits, pages=pages, max_model_len=length)


def _default_length(
    config: ModelConfig, pattern: AttentionPattern, steps: int, chunk: int, cache_tokens: int | None
) -> int:
    """The context where no setting says it: the model's, as far as steps of so many positions and a cache of so many
    allow, and no more than `CONTEXT`, which `--max-model-len` may exceed."""
    bounds = [(CONTEXT, "--max-model-len", "sets a longer one")]
    if not pattern.cuts_rows(steps, chunk):
        bounds.append((steps, "--max-step-tokens", "computes no more at once, in whole blocks"))
    if cache_tokens is not None:
        bounds.append((cache_tokens, "--kv-cache-tokens", "keeps no more"))
    most, setting, reason = min(bounds)
    length = pattern.floor(min(config.max_model_len, most))
    if length < 2:
        raise SettingsError(f"{setting} {most} leaves no context: raise it")
    if length < config.max_model_len:
        _log_context(length, config, f"{setting} {reason}")
    return length


def _log_context(length: int, config: ModelConfig, why: str) -> None:
    text = "the context is %d of the model's %d positions: %s"
    logging.getLogger(__name__).info(text, length, config.max_model_len, why)


def _page_size(pattern: AttentionPattern) -> int:
    if not pattern.block_size:
        return PAGE_SIZE
    drafted = 1 if pattern.drafter is None else pattern.drafter.block_size or 1
    block = math.lcm(pattern.block_size, drafted)
    return block * -(-FINEST_PAGE // block)
