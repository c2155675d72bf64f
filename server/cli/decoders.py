"""`asynclane decoders`: the decoders with their parameters, from the decoders' table and from docstrings."""

from __future__ import annotations

import inspect
import sys
import textwrap
from collections.abc import Container, Iterator

from ...scheduler import (
    ALL_DECODERS,
    ALL_PARAMS,
    ALL_RULES,
    PLAIN,
    SUMMARIES,
    AttentionPattern,
    Choice,
    DecoderSpec,
    Drafter,
    ParamError,
    Values,
    defaults_of,
    in_range,
    plugins,
    resolve,
    unknown_decoder,
    words_of,
)

WIDTH = 100
DEFAULT = "asynclane"
CANVAS_LENGTH = 1 << 9  # positions of a canvas that all defaults fit
BLOCKS = AttentionPattern(block_size=16)
KNOWN_FIRST = AttentionPattern(block_size=1, known_first=True)
CANVASES = AttentionPattern(block_size=1, canvas_length=256)
CAUSAL = AttentionPattern(logit_shift=1, block_size=1, drafter=Drafter())
INTRODUCTION = """# Decoders

A decoder combines a lane policy, a commit rule and a cache policy, with default parameters. A request names a decoder
(`decoder`) and may override its parameters. The parameter `rule`, where there is one, replaces the commit rule; the new
rule brings its own parameters. The tables list every value that a decoder takes; some values need another parameter,
too. A combination that is not allowed is refused with HTTP 400, which names the parameter. This page is the output of
`asynclane decoders --markdown`.
"""


def decoders_main(name: str | None, markdown: bool) -> int:
    """Print one decoder, or all. Raises `ParamError` for an unknown name."""
    if name is not None and name not in ALL_DECODERS:
        raise ParamError("decoder", unknown_decoder(name))
    if markdown and name is None:
        print(_page())
    elif name is not None:
        print(section(name), end="\n" if markdown else "")
    else:
        width = max(map(len, ALL_DECODERS))
        print(
            "\n".join(f"{each:{width}}  {SUMMARIES.get(each) or _source(spec)}" for each, spec in ALL_DECODERS.items())
        )
        rules = ", ".join(map(str, words_of(DEFAULT, "rule")))
        print(f"\nrules for the parameter `rule` of {DEFAULT}: {rules}; `decoders NAME` has another's", file=sys.stderr)
    for problem in plugins().problems:
        print(f"asynclane: {problem}", file=sys.stderr)
    return 0


def _page() -> str:
    """All built-in decoders in Markdown: the page is the same whichever plug-ins are installed."""
    without = plugins().rules
    names = [name for name in ALL_DECODERS if name not in without]
    return "\n".join([INTRODUCTION, *(section(name, without) for name in names), _rules_section(without)])


def _source(spec: DecoderSpec) -> str:
    return f"{spec.source} (plug-in: {spec.origin})" if spec.origin else spec.source


def section(name: str, without: Container[object] = ()) -> str:
    """A decoder in Markdown: its source, its three parts, its parameters. Rules in `without` are not listed."""
    spec, pattern = ALL_DECODERS[name], pattern_for(name)
    decoder = resolve(name, {}, CANVAS_LENGTH, pattern)
    rule = decoder.rule if decoder.host_rule is None else decoder.host_rule()
    parts: dict[str, object] = {"Lanes": decoder.policy, "Rule": rule, "Cache": decoder.cache()}
    if decoder.denoiser is not None:
        parts = {"Canvas": decoder.denoiser}
    lines = [f"## {name}", f"Source: {_source(spec)}.", ""]
    if pattern.known_first:
        lines.append("Only for models that read known tokens first, where the cache `prefix` is exact.\n")
    elif pattern.canvas_length:
        lines.append(
            "Only for models whose canvases begin with random tokens, which take no other decoder. A checkpoint's"
            " generation_config.json changes the defaults.\n"
        )
    elif pattern.autoregressive:
        beside = ", on a server with `--drafter`" if spec.rule else ", whose blocks are one position"
        lines.append(f"Only for models that predict the next token, as Qwen2 and Qwen3{beside}.\n")
    elif pattern.block_size:
        which = f"Only for block-causal models. The table is for blocks of {pattern.block_size}, where"
        lines.append(f"{which} the cache `prefix` is exact: `Compact` without its refreshes.\n")
    lines += [_wrapped(f"- **{part}** (`{type(made).__name__}`): {described(made)}") for part, made in parts.items()]
    lines += ["", *_table(name, without), ""]
    if spec.chosen:
        lines += ["Its source leaves these open; the values are chosen here, by no measurement:", ""]
        lines += [*(_wrapped(f"- `{param}` {sentence}") for param, sentence in spec.chosen.items()), ""]
    return "\n".join(lines)


def pattern_for(name: str) -> AttentionPattern:
    """The attention pattern of a network that takes the decoder."""
    spec = ALL_DECODERS[name]
    if spec.denoises:
        return CANVASES
    if spec.autoregressive:
        return CAUSAL
    return BLOCKS if spec.for_blocks else KNOWN_FIRST if spec.for_known_first else PLAIN


def _rules() -> list[str]:
    """The rules that a request may name."""
    allowed = ALL_PARAMS["rule"]
    assert isinstance(allowed, Choice)
    return [str(name) for name in allowed.values]


def _rules_section(without: Container[object]) -> str:
    lines = ["## Rules by name", "Values of the parameter `rule`, with the parameters of each rule.", ""]
    for name in (name for name in _rules() if name not in without):
        rule = ALL_RULES[name]
        params = ", ".join(f"`{param}` ({_shown(value)})" for param, value in rule.DEFAULTS.items())
        lines.append(_wrapped(f"- **{name}**: {params}. Source: {rule.SOURCE}."))
    return "\n".join([*lines, ""])


def described(made: object) -> str:
    """The docstring of a part of a decoder, after that of its module if the module has no other public class."""
    kind = type(made)
    module = inspect.getmodule(kind)
    classes = [each for each in vars(module).values() if isinstance(each, type) and each.__module__ == kind.__module__]
    classes = [each for each in classes if not each.__name__.startswith("_")]
    about = [inspect.getdoc(module) or ""] if classes == [kind] else []
    own = kind.__doc__ or ""  # not inherited
    if not own.startswith(f"{kind.__name__}("):  # as `dataclass` makes it up
        about.append(own)
    return " ".join(" ".join(about).split())


def _table(name: str, without: Container[object]) -> Iterator[str]:
    yield "| parameter | default | values |"
    yield "|---|---|---|"
    for param, value in defaults_of(name, pattern_for(name)).items():
        yield f"| `{param}` | {_shown(value)} | {_values(name, param, ALL_PARAMS[param], without)} |"


def _shown(value: object) -> str:
    if value is None:
        return "-"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _values(name: str, param: str, kind: Values, without: Container[object]) -> str:
    taken = [_shown(word) for word in words_of(name, param, pattern_for(name)) if word not in without]
    if isinstance(kind, Choice):
        return ", ".join(taken)
    return ", or ".join([in_range(kind), *taken])


def _wrapped(text: str) -> str:
    return textwrap.fill(text, WIDTH, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)
