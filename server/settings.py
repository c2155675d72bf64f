"""Every setting once: field, flag, environment variable, range and help are one line of a table.

A flag beats the environment, which beats the default. The environment is read only here.
"""

from __future__ import annotations

import argparse
import dataclasses
import difflib
import os
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from ipaddress import ip_network
from pathlib import Path, PurePath
from typing import Any
from urllib.parse import urlsplit

from .presets import PRESETS, DecoderLine
from .text.answer_formats import OFF
from .text.reasoning import REASONING_FORMATS
from .text.tool_calls import TOOL_FORMATS

ENVIRONMENT_PREFIX = "ASYNCLANE_"
# Kubernetes sets these for services whose names begin with "asynclane".
KUBERNETES = re.compile(r"_(SERVICE_HOST|SERVICE_PORT\w*|PORT|PORT_\d+_(TCP|UDP|SCTP)\w*)$")
ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[^/\s*]+")
MOST_BY_DEFAULT = 4  # front ends
MOST_ANYWHERE = 8  # however few cores there are
# Variables of OpenTelemetry's specification: https://opentelemetry.io/docs/specs/otel/protocol/exporter/
OTLP, OTLP_TRACES = "OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"
PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
SDK = ("opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.http")  # modules of the extra otel
URL = re.compile(r"https?://[^/\s?#]+(/[^\s?#]*)?", re.IGNORECASE)
# The groups of flags in --help, each by the field that it begins with.
GROUPS = {
    "model": "model",
    "host": "HTTP and access",
    "dtype": "device",
    "max_model_len": "memory and batches",
    "decoder": "answers",
    "max_body_bytes": "limits of requests",
    "step_timeout_s": "limits of steps, connections and formats",
    "drain_s": "end, metrics, log and traces",
}
# The settings that `generate` and `trace` take: those of the model, and of what computes one answer.
OF_ONE_ANSWER = (
    "model",
    "download",
    "block_size",
    "lora",
    "drafter",
    "dtype",
    "device",
    "tensor_parallel_size",
    "load_format",
    "quantization",
    "deterministic",
    "kv_cache_dtype",
    "cuda_graph_sizes",
    "compile_cache",
    "threads",
    "max_model_len",
    "max_num_seqs",
    "max_step_tokens",
    "chunked_prefill_size",
    "kv_cache_tokens",
    "gpu_memory_utilization",
    "page_size",
    "prefix_sharing",
    "decoder",
    "preset",
    "controller",
    "step_timeout_s",
    "max_failed_steps",
)
# Those of `eval`, whose own flags say which decoders answer and how many requests run at once.
OF_EVALUATION = tuple(name for name in OF_ONE_ANSWER if name not in ("decoder", "max_num_seqs"))
# Those of `train-controller`, whose method is the decoder.
OF_TRAINING = tuple(
    name for name in OF_ONE_ANSWER if name not in ("model", "decoder", "drafter", "preset", "controller")
)
# Those of `LLM`, which speaks no HTTP.
OF_LLM = (*OF_ONE_ANSWER, "max_queue", "default_max_tokens", "grammar_timeout_s", "grammar_memory_mb")
# Those that decide how much memory a model takes on a GPU, for `inspect`.
OF_MEMORY = (
    *("quantization", "kv_cache_dtype", "deterministic", "max_model_len", "max_step_tokens", "chunked_prefill_size"),
    *("gpu_memory_utilization", "page_size"),
)
SWITCH = {"on": True, "off": False, "true": True, "false": False, "1": True, "0": False}


class SettingsError(ValueError):
    """A setting with a bad value. The message is one line that names the flag or variable."""


def _word(default: str | None, text: str, *choices: str) -> Any:
    return dataclasses.field(default=default, metadata={"help": text, "choices": choices, "type": str})


def _number(default: int | float | None, text: str, low: float, high: float = 2**31) -> Any:
    kind = float if isinstance(default, float) else int
    return dataclasses.field(default=default, metadata={"help": text, "low": low, "high": high, "type": kind})


def _switch(text: str, default: bool | None = False) -> Any:
    return dataclasses.field(default=default, metadata={"help": text, "choices": tuple(SWITCH), "type": bool})


@dataclass(frozen=True, slots=True)
class Settings:
    """Raises `SettingsError` for a value out of range."""

    model: str = _word(
        "tiny-chat",
        "directory of a checkpoint, OWNER/NAME or OWNER/NAME@REVISION of a repository in Hugging Face's cache, or name"
        " of an embedded model",
    )
    download: bool = _switch(
        "fetch a repository that is not in the cache of Hugging Face, once its architecture is known to be supported"
    )
    block_size: int | None = _number(
        None,
        "positions of a block-causal model's block; default: that of its config.json, or of its name's end (-b16), or"
        " the published one",
        1,
        4096,
    )
    lora: str | None = _word(None, "directory of a LoRA adapter in peft's form, which is added to the weights at start")
    drafter: str | None = _word(
        None,
        "a model that fills masks and drafts for --model, which predicts the next token and has the same tokenizer"
        " (decoder deer); named as --model; default: none",
    )
    served_model_name: str | None = _word(
        None,
        "names of the model for clients, with commas between them; a request without a name is answered with the first;"
        " default: a repository's OWNER/NAME, or a directory's last part",
    )
    host: str = _word("127.0.0.1", "address to listen on")
    port: int = _number(8000, "port to listen on; 0 takes a free one", 0, 65535)
    frontends: int | None = _number(
        None,
        "processes that speak HTTP; with 0 the engine's process does; default: 0 on a CPU, with a GPU one for 4 cores,"
        " at most 4",
        0,
        128,
    )
    api_key: str | None = _word(None, "if given, requests must carry it, as a bearer token or in x-api-key")
    allowed_origins: str | None = _word(
        None,
        "origins whose pages may call the server from a browser, with commas between them, or *; default: none but its"
        " own page",
    )
    api_key_file: str | None = _word(
        None, "file of keys with names, NAME:KEY on each line; read again on SIGHUP (docs/operations.md)"
    )
    trusted_proxies: str | None = _word(
        None,
        "addresses and networks of proxies, with commas between them, or * alone: only from these X-Forwarded-For is"
        " the client's address; default: FORWARDED_ALLOW_IPS, or 127.0.0.1",
    )
    dtype: str = _word("auto", "of weights and caches", "auto", "float32", "bfloat16", "float16")
    device: str = _word("auto", "where the model runs", "auto", "cpu", "cuda")
    tensor_parallel_size: int = _number(
        1, "devices of this machine that share the network: GPUs, or processes on a CPU", 1, 128
    )
    load_format: str = _word(
        "auto",
        "auto: the checkpoint's weights; dummy: random ones, made on the device from config.json alone, to measure",
        "auto",
        "dummy",
    )
    quantization: str | None = _word(
        None,
        "of the matrices in memory: int4 rounds plain ones to nearest, none dequantizes those of a checkpoint; default:"
        " on a GPU as the checkpoint has them",
        "fp8",
        "int4",
        "none",
    )
    deterministic: bool = _switch(
        "answers that are the same to the bit whatever they are batched with, in every dtype, at some cost in speed"
    )
    kv_cache_dtype: str = _word(
        "auto",
        "of keys and values: auto is --dtype; fp8 takes about half the memory of bfloat16, on a GPU of compute"
        " capability 8.9 or newer, or a CPU",
        "auto",
        "fp8",
    )
    cuda_graph_sizes: str | None = _word(
        None,
        "positions of the steps whose CUDA graphs are captured at start, with commas between them; others are padded to"
        " these, or run without a graph; default: sizes up to --max-step-tokens, which are 48 for 4096",
    )
    compile_cache: str | None = _word(
        None, "directory in which a GPU's compiled kernels are kept for the next start; default: Triton's own"
    )
    threads: int | None = _number(None, "CPU threads of the model; default: OMP_NUM_THREADS, or every core", 1, 4096)
    max_model_len: int | None = _number(
        None,
        "context in tokens; default: the checkpoint's, at most 32768 with a block-causal model, --max-step-tokens with"
        " others, which compute a whole request in one step",
        2,
    )
    max_num_seqs: int = _number(64, "requests that run at once", 1, 65536)
    max_queue: int = _number(
        256, "requests that may wait; beyond them each client has an equal part, and more are refused with 429", 1
    )
    max_step_tokens: int | None = _number(
        None,
        "positions that one forward may compute; default: 4096, or --max-model-len where a model computes a whole"
        " request in one step and that is more",
        1,
    )
    chunked_prefill_size: int | None = _number(
        None,
        "prompt positions that one step may compute, over all requests: long prompts go in chunks, and streams go on"
        " beside them; 0: whole prompts at once; default: with a block-causal model 512, and while a prompt of more"
        " than 2048 tokens is open so many that tokens of others come about twice as late; other models take only 0",
        0,
    )
    kv_cache_tokens: int | None = _number(
        None,
        "positions whose keys and values fit, over all requests; default: 16384, or what a GPU has left",
        1,
    )
    gpu_memory_utilization: float = _number(0.9, "share of a GPU's memory that may be in use", 0.01, 1)
    page_size: int | None = _number(
        None,
        "positions in a page of keys and values; on a GPU a power of two from 16; default: 64, or the fewest whole"
        " blocks of a block-causal model that make 16",
        1,
        1024,
    )
    prefix_sharing: bool | None = _switch(
        "keep keys and values of finished blocks for prompts that begin alike; default: with a block-causal model",
        None,
    )
    decoder: str | None = _word(
        None,
        "decoding method of requests that name none; default: that of --preset, or asynclane, or the only one that the"
        " model takes",
    )
    preset: str | None = _word(
        None,
        "decoder and parameters that the authors of published weights recommend (docs/models.md), for requests that"
        " name none, or this one; default: none",
        *PRESETS,
    )
    controller: str | None = _word(
        None,
        "file of `asynclane train-controller`, weights of the commit rule tspd or learn2pd for this model; default: the"
        " built-in ones, for any model",
    )
    tool_parser: str | None = _word(
        None,
        "how the model writes calls of tools; with none, tools are refused; default: as its chat template shows",
        *TOOL_FORMATS,
        OFF,
    )
    reasoning_parser: str | None = _word(
        None,
        "how the model marks its reasoning, which is sent apart from the answer; with none, it stays in the text;"
        " default: as its chat template shows",
        *REASONING_FORMATS,
        OFF,
    )
    default_max_tokens: int = _number(512, "longest answer to requests that set no limit", 1)
    max_body_bytes: int | None = _number(
        None, "largest request body; default: 1 MiB and 32 bytes for each token of the context", 1
    )
    max_unread_bytes: int = _number(64 * 2**20, "bytes of large request bodies that come or wait at once", 1)
    max_request_tokens: int = _number(
        131072, "answer tokens that one HTTP request may want: max_tokens times its choices and prompts", 1
    )
    request_timeout_s: float = _number(
        3600.0, "seconds in which an answer must be complete, those in the queue included", 0.01, 86400
    )
    body_timeout_s: float = _number(60.0, "seconds in which a request body must have come", 0.01, 86400)
    min_body_bytes_per_s: int = _number(1024, "least rate of a request body, after 10 seconds", 1)
    step_timeout_s: int | None = _number(
        None,
        "seconds after which a step hangs, and the process ends; default: 60, or ten times the longest step",
        1,
        86400,
    )
    max_failed_steps: int = _number(3, "steps that fail one after another, after which the process ends", 1)
    max_connections: int | None = _number(
        None,
        "connections that may be open; more are refused with 503; default: three quarters of the open descriptors that"
        " the system allows, at most 4096",
        1,
    )
    header_timeout_s: float = _number(20.0, "seconds in which a connection must bring a request's headers", 0.01, 86400)
    keep_alive_s: int = _number(75, "seconds that a connection may wait for its next request", 1, 86400)
    write_timeout_s: float = _number(
        60.0, "seconds without progress after which a connection whose client does not read is closed", 0.01, 86400
    )
    grammar_timeout_s: float = _number(2.0, "seconds of a processor that compiling one format may take", 0.01, 3600)
    grammar_memory_mb: int = _number(
        512, "memory that compiling one format may take, and the compiled ones together", 16
    )
    drain_s: int = _number(30, "seconds that running requests have to finish after SIGTERM", 0, 86400)
    metrics_compat: str = _word(
        "vllm", "names that /metrics has beside the server's own: those of vLLM, or none", "vllm", "none"
    )
    log_level: str = _word("info", "how much is logged", "debug", "info", "warning", "error")
    log_format: str = _word("text", "a line of the log: words, or a JSON object", "text", "json")
    otlp_endpoint: str | None = _word(
        None,
        "URL of an OpenTelemetry collector to which spans of requests are sent, such as http://localhost:4318; needs"
        " the extra otel; default: OTEL_EXPORTER_OTLP_ENDPOINT, or no traces",
    )

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            _check(field, getattr(self, field.name), field.name)
        if not all(self.model_names):
            raise SettingsError(f"--served-model-name: a name is empty in {self.served_model_name!r}")
        if self.decoder not in (None, self.decoder_line.name):
            raise SettingsError(
                f"--preset {self.preset} has decoder {self.decoder_line.name!r}: leave out --decoder {self.decoder}"
            )

    def __repr__(self) -> str:
        """Leave out the API key, which must not reach a log."""
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        values["api_key"] = values["api_key"] and "***"
        return f"Settings({', '.join(f'{name}={value!r}' for name, value in values.items())})"

    @property
    def model_names(self) -> tuple[str, ...]:
        """The names that clients may use, each once."""
        if self.served_model_name is None:
            return (self._default_name,)
        return tuple(dict.fromkeys(name.strip() for name in self.served_model_name.split(",")))

    @property
    def model_name(self) -> str:
        return self.model_names[0]

    @property
    def decoder_line(self) -> DecoderLine:
        """The decoder of requests that name none, with its parameters."""
        return DecoderLine(self.decoder or "asynclane") if self.preset is None else PRESETS[self.preset].line

    @property
    def _default_name(self) -> str:
        repository = self.model.partition("@")[0]
        owned = repository.count("/") == 1 and not repository.startswith(("/", ".", "~")) and repository[-1] != "/"
        if owned and not Path(self.model).is_dir():
            return repository
        return PurePath(self.model).name or self.model

    def front_ends(self, on_gpu: bool) -> int:
        """The number of front-end processes. On a CPU the model uses the cores that they would need. Raises
        `SettingsError` for more than can be of use."""
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        if self.frontends is None:
            return max(1, min(MOST_BY_DEFAULT, cores // 4)) if on_gpu else 0
        most = max(MOST_ANYWHERE, 2 * cores)
        if self.frontends > most:
            raise SettingsError(f"--frontends must be at most {most} on {cores} cores, not {self.frontends}")
        return self.frontends


def add_flags(parser: argparse.ArgumentParser, names: Collection[str] | None = None) -> None:
    """Add one flag for each field, or for those of these `names`. Its default is None; `read_settings` fills it in."""
    group: argparse._ActionsContainer = parser
    for field in dataclasses.fields(Settings):
        if field.name in GROUPS:
            group = parser.add_argument_group(GROUPS[field.name])
        if names is not None and field.name not in names:
            continue
        text = field.metadata["help"]
        if field.metadata["type"] is bool:
            group.add_argument(_flag(field.name), action=argparse.BooleanOptionalAction, help=text, default=None)
            continue
        if field.default is not None:
            text += f" (default: {field.default})"
        group.add_argument(
            _flag(field.name),
            metavar="|".join(field.metadata.get("choices", ())) or field.metadata["type"].__name__.upper(),
            help=text.replace("%", "%%"),
        )


def split_origins(text: str) -> list[str]:
    """The origins of `--allowed-origins`. Raises `SettingsError` for what no browser sends as an origin."""
    origins = [origin.strip().lower() for origin in text.split(",")]
    for origin in origins:
        if origin != "*" and not ORIGIN.fullmatch(origin):
            raise SettingsError(f"--allowed-origins: {origin!r} is no origin: give https://HOST or https://HOST:PORT")
    return origins


def check_proxies(text: str) -> None:
    """Raises `SettingsError` for `--trusted-proxies` that are neither `*` nor all addresses and networks."""
    for proxy in map(str.strip, text.split(",") if text != "*" else ()):
        try:
            ip_network(proxy)
        except ValueError:
            raise SettingsError(
                f"--trusted-proxies: {proxy!r} is no address and no network: give 10.0.0.7, 10.0.0.0/8, or * alone"
            ) from None


def traces_url(settings: Settings, environ: Mapping[str, str]) -> str | None:
    """The URL that takes spans, by `--otlp-endpoint` or else by the variables that OpenTelemetry specifies; None: no
    traces. Raises `SettingsError` if there cannot be any."""
    if environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return None
    sources = [("--otlp-endpoint", settings.otlp_endpoint)]
    if environ.get("OTEL_TRACES_EXPORTER", "").strip() != "none":
        sources += [(name, environ.get(name, "").strip()) for name in (OTLP_TRACES, OTLP)]
    source, url = next(((source, url) for source, url in sources if url), ("", ""))
    if not url:
        return None
    if not URL.fullmatch(url) or not _has_host(url):
        raise SettingsError(f"{source} must be http://HOST:PORT or https://HOST:PORT, not {url!r}")
    for variable in PROTOCOLS:
        protocol = environ.get(variable, "").strip()
        if protocol not in ("", "http/protobuf"):
            raise SettingsError(f"{variable} must be http/protobuf, not {protocol!r}: spans are sent in no other way")
    if not all(map(_installed, SDK)):
        raise SettingsError(
            f"{source} needs OpenTelemetry's SDK: in the checkout, pip install --constraint constraints.txt '.[otel]'"
        )
    return url if source == OTLP_TRACES or url.endswith("/v1/traces") else f"{url.rstrip('/')}/v1/traces"


def _has_host(url: str) -> bool:
    """True if a URL names a host, and no impossible port."""
    try:
        parts = urlsplit(url)
        return bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


def _installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # nor is its parent
        return False


def split_sizes(text: str) -> tuple[int, ...]:
    """The numbers of `--cuda-graph-sizes`. Raises `SettingsError`."""
    try:
        return tuple(int(size) for size in text.split(","))
    except ValueError:
        raise SettingsError(
            f"--cuda-graph-sizes must be whole numbers with commas between them, not {text!r}"
        ) from None


def read_settings(flags: argparse.Namespace, environ: Mapping[str, str]) -> Settings:
    """Merge flags, environment and defaults. Raises `SettingsError`."""
    _check_names(environ)
    values: dict[str, Any] = {}
    for field in dataclasses.fields(Settings):
        variable = ENVIRONMENT_PREFIX + field.name.upper()
        given = getattr(flags, field.name, None)
        source = _flag(field.name)
        if given is None and variable in environ:
            given, source = environ[variable], variable
        if given is not None:
            values[field.name] = _check(field, _convert(field, given, source), source)
    return Settings(**values)


def _check_names(environ: Mapping[str, str]) -> None:
    """Raises `SettingsError` for a misspelt variable, which would otherwise be ignored."""
    known = [ENVIRONMENT_PREFIX + field.name.upper() for field in dataclasses.fields(Settings)]
    for name in sorted(environ):
        if name.startswith(ENVIRONMENT_PREFIX) and name not in known and not KUBERNETES.search(name):
            nearest = difflib.get_close_matches(name.upper(), known, 1, cutoff=0)
            raise SettingsError(f"{name} is no setting: did you mean {nearest[0]}? 'asynclane serve --help' lists all")


def api_key_from(environ: Mapping[str, str]) -> str | None:
    """The API key for the commands that are clients."""
    return environ.get(ENVIRONMENT_PREFIX + "API_KEY", "").strip() or None


def color_allowed(environ: Mapping[str, str]) -> bool:
    """False if NO_COLOR is set to anything (no-color.org)."""
    return not environ.get("NO_COLOR")


def cursor_moves(environ: Mapping[str, str]) -> bool:
    """True if the terminal's cursor can be moved."""
    return environ.get("TERM", "dumb") != "dumb"


def installed_version() -> str:
    try:
        return version("asynclane")
    except PackageNotFoundError:  # run from a source tree
        return "0+unknown"


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _convert(field: dataclasses.Field[Any], text: str, source: str) -> Any:
    if field.metadata["type"] is bool:
        return SWITCH.get(str(text).lower(), text)
    try:
        return field.metadata["type"](text)
    except ValueError:
        kind = "whole number" if field.metadata["type"] is int else "number"
        # Kubernetes sets NAME_PORT=tcp://... for a service of that name.
        hint = "; set enableServiceLinks: false" if text.startswith("tcp://") else ""
        raise SettingsError(f"{source} must be a {kind}, not {text!r}{hint}") from None


# By the type of a setting, but for bool: the types of its values, and what they are called.
KINDS: Mapping[type, tuple[Any, str]] = {
    str: (str, "a text"),
    int: (int, "a whole number"),
    float: (int | float, "a number"),
}


def _check(field: dataclasses.Field[Any], value: Any, source: str) -> Any:
    wanted: Mapping[str, Any] = field.metadata
    if value is None and field.default is None:
        return value
    if wanted["type"] is bool:
        if not isinstance(value, bool):
            raise SettingsError(f"{source} must be one of {', '.join(wanted['choices'])}, not {value!r}")
        return value
    kind, name = KINDS[wanted["type"]]
    if isinstance(value, bool) or not isinstance(value, kind):
        raise SettingsError(f"{source} must be {name}, not {value!r}")
    if wanted["type"] is str:
        if wanted["choices"] and value not in wanted["choices"]:
            raise SettingsError(f"{source} must be one of {', '.join(wanted['choices'])}, not {value!r}")
        if not value.strip():
            raise SettingsError(f"{source} must not be empty")
    elif not wanted["low"] <= value <= wanted["high"]:
        raise SettingsError(f"{source} must be from {wanted['low']} to {wanted['high']}, not {value}")
    return value
