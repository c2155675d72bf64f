"""Prints what there is to know of a model before it is served: for `asynclane inspect`. Takes no memory for it."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TextIO

from ...models.checkpoint.config import ModelConfig
from ...models.checkpoint.registry import embedded_models
from ...models.checkpoint.weight_report import POSITIONS, weight_report
from ...scheduler import DECODERS, Boundary, ParamError, Vocabulary, resolve
from ..engine.wiring import Checkpoint, open_checkpoint

MIB = 2**20


@dataclass(frozen=True, slots=True)
class Token:
    """`spelling` as in the tokenizer's own vocabulary."""

    id: int
    spelling: str


@dataclass(frozen=True, slots=True)
class Report:
    """What `--json` prints. `experts` is None without a mixture. `block` is 0 where every position sees every
    other; `decoders` has a reason for each that the model does not allow, and None for the others."""

    model: str
    directory: str
    architecture: str
    sizes: Mapping[str, int]
    experts: Mapping[str, int] | None
    parameters: int
    stored: Mapping[str, int]
    weights_bytes: Mapping[str, int | None]
    cache_bytes_per_1000: Mapping[str, int]
    max_model_len: int
    attention: str
    block: int
    shift: int
    mask: Token
    ends: Sequence[Token]
    chat_template: bool
    boundaries: Mapping[str, bool]
    decoders: Mapping[str, str | None]


def inspect_main(model: str | None, as_json: bool, out: TextIO | None = None) -> int:
    """Prints a report of `model`, or lists the embedded ones; `out` None is standard output. Raises `ValueError` and
    `OSError` with the line that a server would refuse the model with."""
    reports = [_report(name) for name in ([model] if model else embedded_models())]
    if as_json:
        whole = [dataclasses.asdict(report) for report in reports]
        print(json.dumps(whole[0] if model else whole, indent=2), file=out)
    elif model:
        print(_table(reports[0]), file=out)
    else:
        for report in reports:
            print(f"{report.model}: {_summary(report)}", file=out)
    return 0


SIZES = ("layers", "dim", "heads", "kv_heads", "head_dim", "ff_dim", "vocab_size")


def _report(model: str) -> Report:
    checkpoint = open_checkpoint(model)
    config, text = checkpoint.config, checkpoint.text
    weights = weight_report(checkpoint.directory, config)
    return Report(
        model=model,
        directory=str(checkpoint.directory),
        architecture=config.architecture,
        sizes={name: getattr(config, name) for name in SIZES},
        experts=_experts(config),
        parameters=weights.parameters,
        stored=weights.stored,
        weights_bytes=weights.weights_bytes,
        cache_bytes_per_1000=weights.cache_bytes,
        max_model_len=config.max_model_len,
        attention="block-causal" if config.block_size else "bidirectional",
        block=config.block_size,
        shift=config.logit_shift,
        mask=_tokens(checkpoint, [config.mask_id])[0],
        ends=_tokens(checkpoint, sorted(text.end_ids)),
        chat_template=text.has_template,
        boundaries={boundary.name.lower(): boundary.known_to(text.vocabulary) for boundary in Boundary},
        decoders={name: _refusal(name, config, text.vocabulary) for name in DECODERS},
    )


def _experts(config: ModelConfig) -> dict[str, int] | None:
    experts = config.experts
    if experts is None:
        return None
    return {"count": experts.count, "chosen": experts.routing.chosen, "ff_dim": experts.ff_dim}


def _tokens(checkpoint: Checkpoint, ids: Sequence[int]) -> list[Token]:
    return [Token(*pair) for pair in zip(ids, checkpoint.text.token_strings(ids), strict=True)]


def _refusal(decoder: str, config: ModelConfig, vocabulary: Vocabulary) -> str | None:
    try:
        made = resolve(decoder, {}, config.max_model_len, config.pattern)
        made.policy.require(vocabulary)
    except ParamError as error:
        return str(error)
    return None


def _summary(report: Report) -> str:
    return (
        f"{report.architecture}, {_count(report.parameters)} parameters, {report.max_model_len} positions,"
        f" {_attention(report)}"
    )


def _attention(report: Report) -> str:
    return report.attention + (f" {report.block}" if report.block else "")


def _table(report: Report) -> str:
    sizes = report.sizes
    stored = ", ".join(f"{_count(number)} {dtype}" for dtype, number in sorted(report.stored.items()))
    refused = {name: reason for name, reason in report.decoders.items() if reason}
    rows = {
        "model": report.model,
        "directory": report.directory,
        "architecture": report.architecture,
        "sizes": f"{sizes['layers']} layers of {sizes['dim']}, {sizes['heads']} heads of {sizes['head_dim']} on"
        f" {sizes['kv_heads']} for keys and values, feed-forward {sizes['ff_dim']}, vocabulary {sizes['vocab_size']}",
        "experts": _chosen(report.experts),
        "parameters": f"{_count(report.parameters)}; on disk {stored}",
        "weights": _memory(report.weights_bytes),
        f"K/V of {POSITIONS:,}": _memory(report.cache_bytes_per_1000),
        "context": f"{report.max_model_len} positions",
        "attention": _attention(report) + ("; predicts the token behind" if report.shift else ""),
        "mask": _spelt([report.mask]),
        "ends": _spelt(report.ends),
        "chat template": "yes" if report.chat_template else "no: /v1/completions only",
        "forks at": ", ".join(name for name, known in report.boundaries.items() if known),
        "no tokens for": ", ".join(name for name, known in report.boundaries.items() if not known),
        "decoders": ", ".join(name for name in report.decoders if name not in refused),
        **{f"not {name}": reason for name, reason in refused.items()},
    }
    return "\n".join(f"{name:<14} {value}" for name, value in rows.items() if value)


def _chosen(experts: Mapping[str, int] | None) -> str:
    return "{chosen} of {count} for each token, of width {ff_dim}".format(**experts) if experts else ""


def _spelt(tokens: Sequence[Token]) -> str:
    """Their spelling comes from a file, and is quoted: it could move a terminal's cursor."""
    return ", ".join(f"{token.id} {token.spelling!r}" for token in tokens)


def _memory(sizes: Mapping[str, int | None]) -> str:
    return ", ".join(f"{name} {_bytes(size)}" for name, size in sizes.items() if size is not None)


def _bytes(size: int) -> str:
    return f"{size / MIB / 1024:.2f} GiB" if size >= 1024 * MIB / 10 else f"{size / MIB:.1f} MiB"


def _count(number: int) -> str:
    return f"{number / 1e9:.2f} B" if number >= 1e9 else f"{number / 1e6:.2f} M"
