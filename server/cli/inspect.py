"""`asynclane inspect`: a report of a model, without loading it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TextIO

from ...models.checkpoint.config import ModelConfig, ModelError
from ...models.checkpoint.registry import embedded_models, gpu_numerics, with_adapter
from ...models.checkpoint.weight_report import POSITIONS, weight_report
from ...models.checkpoint.weights import as_stored, check_weights
from ...models.exec.memory import GIB, step_bytes, weights_bytes
from ...models.kv_cache import KvPages
from ...scheduler import (
    ALL_DECODERS,
    AttentionPattern,
    Boundary,
    ParamError,
    Vocabulary,
    VocabularyFacts,
    defaults_of,
    refuse,
    resolve,
)
from ..engine.wiring import Checkpoint, limits_of, open_checkpoint
from ..presets import PRESETS, preset_of
from ..settings import Settings
from ..text.answer_formats import AnswerFormats, answer_formats

MIB = 2**20
SIZES = ("layers", "dim", "heads", "kv_heads", "head_dim", "ff_dim", "vocab_size")

Report = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Load:
    """The settings of a server whose memory is wanted, and the memory of its GPU, if that is known."""

    settings: Settings
    gpu_gib: float | None


def inspect_main(
    model: str | None,
    as_json: bool,
    out: TextIO | None = None,
    *,
    lora: str | None = None,
    tool_parser: str | None = None,
    reasoning_parser: str | None = None,
    block_size: int | None = None,
    check_weights: bool = False,
    load: Load | None = None,
) -> int:
    """Print a report of `model`, with an adapter, or list the embedded models; `out` None is standard output. The
    parsers are those of `answer_formats`, and a `block_size` is the setting of that name. With `check_weights` all
    numbers are read, with a `load` the report has the memory that it takes. Raises `ValueError` and
    `OSError` with the line that `serve` would print."""
    if block_size is not None and model is None:
        raise ValueError("--block-size needs a model: give its name or directory")
    if load is not None and model is None:
        raise ValueError("--requests, --max-model-len and the like need a model: give its name or directory")
    if lora is not None and model is None:
        raise ModelError("--lora needs a model: give its name or directory")
    names = [model] if model else embedded_models()
    checkpoints = {name: open_checkpoint(name, block_size=block_size) for name in names}
    reports = [
        _report(
            name,
            checkpoint,
            lora,
            answer_formats(checkpoint.text.template, tool_parser, reasoning_parser),
            check_weights,
        )
        for name, checkpoint in checkpoints.items()
    ]
    if load is not None and model is not None:
        reports[0]["memory"] = memory_report(checkpoints[model], load, lora)
    if as_json:
        print(json.dumps(reports[0] if model else reports, indent=2), file=out)
    elif model:
        print(_table(reports[0]), file=out)
    else:
        for report in reports:
            print(f"{report['model']}: {_summary(report)}", file=out)
    return 0


def _report(
    model: str, checkpoint: Checkpoint, lora: str | None, formats: AnswerFormats, check_weights: bool
) -> Report:
    """The output of `--json`. `finite` is None for numbers that were not checked, `quantization` for plain weights.
    `tools` is the format of calls; if it is None, `no_tools` has the reason. `experts` is None without a mixture.
    `block` is 0 where attention is not within blocks, and the length of a canvas where it begins with random tokens;
    `block_source` says where it is from. Of such a model `sampler` has the parameters of its decoder, and `full_layers`
    describes the layers without a window. `preset` is the one for its name. `decoders` has the reason why the model
    does not allow a decoder, None for an allowed one."""
    config, text, experts = checkpoint.config, checkpoint.text, checkpoint.config.experts
    if lora is not None:
        config = with_adapter(config, lora)
    weights = weight_report(checkpoint.directory, config, check=check_weights)
    special = [config.mask_id, *sorted(text.end_ids)]
    mask, *ends = [
        {"id": token, "spelling": name} for token, name in zip(special, text.token_strings(special), strict=True)
    ]
    return {
        "model": model,
        "directory": str(checkpoint.directory),
        "architecture": config.architecture,
        "sizes": {name: getattr(config, name) for name in SIZES},
        "experts": experts and {"count": experts.count, "chosen": experts.routing.chosen, "ff_dim": experts.ff_dim},
        "parameters": weights.parameters,
        "stored": weights.stored,
        "stored_bytes": weights.stored_bytes,
        "finite": True if check_weights else None,
        "quantization": weights.quantization and {"format": weights.quantization, "matrices": weights.quantized},
        "adapter": config.adapter and str(config.adapter),
        "weights_bytes": weights.weights_bytes,
        "cache_bytes_per_1000": weights.cache_bytes,
        "max_model_len": config.max_model_len,
        "attention": _attention_of(config),
        "block": config.canvas.canvas_length if config.canvas else config.block_size if config.block_source else 0,
        "block_source": config.block_source,
        "caveat": config.caveat,
        "full_layers": _full_layers(config),
        "sampler": config.canvas and dict(defaults_of("renoise", config.pattern)),
        "shift": config.logit_shift,
        "mask": mask,
        "ends": ends,
        "chat_template": text.has_template,
        "other_templates": text.other_templates,
        "tools": formats.tools and formats.tools.name,
        "no_tools": formats.no_tools,
        "reasoning": formats.reasoning and formats.reasoning.name,
        "boundaries": {boundary.name.lower(): boundary.known_to(text.vocabulary) for boundary in Boundary},
        "preset": preset_of(config.architecture, (model, checkpoint.directory.name)),
        "decoders": {name: _refusal(name, config, text.vocabulary) for name in ALL_DECODERS},
    }


def memory_report(checkpoint: Checkpoint, load: Load, lora: str | None) -> dict[str, Any]:
    """The memory that a server with these settings takes on a GPU. `left` is negative if it does not suffice, and
    `most_requests` is the number of requests of that length for which it does. Raises `ValueError` for settings that do
    not suit the model."""
    settings, config = load.settings, checkpoint.config
    if lora is not None:
        config = with_adapter(config, lora)
    config = as_stored(config, check_weights(checkpoint.directory, config))
    numerics = gpu_numerics(config, settings.quantization, settings.deterministic, settings.kv_cache_dtype)
    limits = limits_of(settings, config, config.pattern)
    config = replace(config, max_model_len=limits.max_model_len)
    page_bytes = KvPages.page_bytes(config, limits.page_size, numerics)
    each = limits.pages_for(limits.max_model_len) * page_bytes
    weights = weights_bytes(config, numerics)
    workspace = step_bytes(config, numerics, limits.slots, limits.step_tokens, limits.page_size).workspace
    taken = weights + workspace
    room = None if load.gpu_gib is None else int(settings.gpu_memory_utilization * load.gpu_gib * GIB)
    return {
        "requests": limits.slots,
        "context": limits.max_model_len,
        "step_tokens": limits.step_tokens,
        "weights_bytes": weights,
        "cache_bytes": limits.slots * each,
        "workspace_bytes": workspace,
        "total_bytes": taken + limits.slots * each,
        "left_bytes": None if room is None else room - taken - limits.slots * each,
        "most_requests": None if room is None else max(0, (room - taken) // each),
    }


def _kind(pattern: AttentionPattern) -> str:
    if pattern.known_first:
        return "causal, known tokens first"
    if pattern.autoregressive:
        return "causal"
    return "block-causal" if pattern.block_size else "bidirectional"


def _attention_of(config: ModelConfig) -> str:
    if config.canvas is not None:
        return "causal, canvases of"
    return _kind(config.pattern)


def _full_layers(config: ModelConfig) -> dict[str, int] | None:
    """The layers that see all keys, where the others have a window."""
    canvas = config.canvas
    if canvas is None:
        return None
    full = canvas.full
    return {
        "count": len(canvas.full_layers),
        "heads_of": full.head_dim,
        "kv_heads": full.kv_heads,
        "window_of_others": canvas.sliding.window,
    }


def _refusal(decoder: str, config: ModelConfig, vocabulary: Vocabulary) -> str | None:
    try:
        made = resolve(decoder, {}, config.max_model_len, config.pattern)
        refuse(VocabularyFacts(made, vocabulary))
    except ParamError as error:
        return str(error)
    return None


def _summary(report: Report) -> str:
    parameters = _count(report["parameters"])
    length = report["max_model_len"]
    return f"{report['architecture']}, {parameters} parameters, {length} positions, {_attention(report)}"


def _attention(report: Report) -> str:
    return f"{report['attention']} {report['block'] or ''}".rstrip()


def _attention_in_full(report: Report) -> str:
    block = f", blocks by {report['block_source']}" if report["block_source"] else ""
    return _attention(report) + block + ("; predicts the next token" if report["shift"] else "")


def _table(report: Report) -> str:
    stored = ", ".join(f"{_count(number)} {dtype}" for dtype, number in sorted(report["stored"].items()))
    refused = {name: reason for name, reason in report["decoders"].items() if reason}
    boundaries, templates = report["boundaries"].items(), ", ".join(report["other_templates"])
    rows = {
        "model": report["model"],
        "directory": report["directory"],
        "architecture": report["architecture"],
        "sizes": "{layers} layers of {dim}, {heads} heads of {head_dim} on {kv_heads} for keys and values, feed-forward"
        " {ff_dim}, vocabulary {vocab_size}".format(**report["sizes"]),
        "experts": "{chosen} of {count} for each token, of width {ff_dim}".format(**report["experts"])
        if report["experts"]
        else "",
        "full layers": "{count} of {layers} layers see all keys, with heads of {heads_of} on {kv_heads}; the others the"
        " last {window_of_others}".format(layers=report["sizes"]["layers"], **report["full_layers"])
        if report["full_layers"]
        else "",
        "parameters": f"{_count(report['parameters'])}; on disk {stored}, {_bytes(report['stored_bytes'])}",
        "quantized": "{matrices} matrices, {format}".format(**report["quantization"]) if report["quantization"] else "",
        "numbers": "all are finite" if report["finite"] else "",
        "adapter": report["adapter"] or "",
        "weights": _memory(report["weights_bytes"]),
        f"K/V of {POSITIONS:,}": _memory(report["cache_bytes_per_1000"]),
        "context": f"{report['max_model_len']} positions",
        "memory": _memory_of_load(report["memory"]) if "memory" in report else "",
        "left": _left(report["memory"]) if "memory" in report else "",
        "attention": _attention_in_full(report),
        "caveat": report["caveat"],
        "mask": _spelt([report["mask"]]),
        "ends": _spelt(report["ends"]),
        "chat template": "yes" if report["chat_template"] else "no: /v1/completions only",
        "tools": report["tools"] or f"no: {report['no_tools']}",
        "reasoning": report["reasoning"] or "",
        "templates": templates and f"{templates}: none is called default",
        "forks at": ", ".join(name for name, known in boundaries if known),
        "no tokens for": ", ".join(name for name, known in boundaries if not known),
        "preset": _preset(report["preset"]),
        "sampler": "renoise: " + ", ".join(f"{name} {value}" for name, value in report["sampler"].items())
        if report["sampler"]
        else "",
        "decoders": ", ".join(name for name in report["decoders"] if name not in refused),
        **{f"not {name}": reason for name, reason in refused.items()},
    }
    width = max(map(len, rows))
    return "\n".join(f"{name:<{width}} {value}" for name, value in rows.items() if value)


def _memory_of_load(memory: Mapping[str, int]) -> str:
    parts = {name: memory[f"{name}_bytes"] for name in ("weights", "cache", "workspace", "total")}
    weights, cache, workspace, total = map(_bytes, parts.values())
    return (
        f"{memory['requests']} requests of {memory['context']} positions: weights {weights} + K/V {cache} + workspace"
        f" {workspace} = {total} of a GPU, and CUDA's own; steps of {memory['step_tokens']} positions"
    )


def _left(memory: Mapping[str, int | None]) -> str:
    left, most = memory["left_bytes"], memory["most_requests"]
    if left is None:
        return ""
    return (_bytes(left) if left >= 0 else f"{_bytes(-left)} are missing") + f"; there is room for {most} such requests"


def _preset(name: str | None) -> str:
    """The flag, the decoder with its parameters, and what requests should have."""
    if name is None:
        return ""
    preset = PRESETS[name]
    requests = ", ".join(f"{option} {value}" for option, value in preset.requests.items())
    return f"--preset {name}: {preset.line}" + (f"; in requests {requests}" if requests else "")


def _spelt(tokens: Sequence[Mapping[str, Any]]) -> str:
    """The spelling comes from a file and is quoted, since it could move a terminal's cursor."""
    return ", ".join(f"{token['id']} {token['spelling']!r}" for token in tokens)


def _memory(sizes: Mapping[str, int | None]) -> str:
    return ", ".join(f"{name} {_bytes(size)}" for name, size in sizes.items() if size is not None)


def _bytes(size: int) -> str:
    return f"{size / MIB / 1024:.2f} GiB" if size >= 1024 * MIB / 10 else f"{size / MIB:.1f} MiB"


def _count(number: int) -> str:
    return f"{number / 1e9:.2f} B" if number >= 1e9 else f"{number / 1e6:.2f} M"
