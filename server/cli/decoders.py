"""Tells what decoders there are: `asynclane decoders`, from the tables and from what the parts of a decoder say of
themselves."""

from __future__ import annotations

import inspect
import sys
import textwrap
from collections.abc import Iterator, Mapping

from ...scheduler import (
    ALL_PARAMS,
    DECODERS,
    HOST_RULES,
    PLAIN,
    AttentionPattern,
    Choice,
    ParamError,
    Values,
    defaults_of,
    plain,
    resolve,
)

WIDTH = 100
LENGTH = 1 << 9  # of a canvas that all defaults fit, and all words
BLOCKS = AttentionPattern(block_size=16)
# What some values need beside them.
NEEDS: Mapping[tuple[str, object], Mapping[str, object]] = {
    ("cache", "dual"): {"lookahead": "canvas"},
    ("boundary", "stable"): {"stable_steps": 1},
}
INTRODUCTION = """# Decoders

Each decoder is a row of a table: a lane policy, a commit rule and a cache, with defaults. A request names one
(`decoder`) and may override its knobs; the knob `rule`, where there is one, puts another commit rule in its place, with
that rule's knobs. Values are all that a decoder takes; some need another knob to be set as well, and what does not go
together is a 400 that names it. This page is `asynclane decoders --markdown`.
"""


def decoders_main(name: str | None, markdown: bool) -> int:
    """Raises `ParamError` for an unknown name."""
    if name is not None and name not in DECODERS:
        raise ParamError("decoder", _unknown(name))
    names = [name] if name else list(DECODERS)
    if markdown:
        sections = [] if name else [INTRODUCTION]
        print("\n".join([*sections, *(section(each) for each in names), *([] if name else [rules_section()])]))
    elif name:
        print(section(name), end="")
    else:
        wide = max(map(len, names))
        print("\n".join(f"{each:{wide}}  {DECODERS[each].source}" for each in names))
        print(f"\nrules for the knob `rule`: {', '.join(_given())}", file=sys.stderr)
    return 0


def _unknown(name: str) -> str:
    if name not in HOST_RULES:
        return f"unknown decoder {name!r}; known: {', '.join(DECODERS)}"
    owners = [each for each, method in DECODERS.items() if method.rule == name]
    takers = [each for each in DECODERS if _takes(each, {"rule": name})]
    found = {"have it": owners, "take it by `rule`": takers}
    told = [f"{verb}: {', '.join(those)}" for verb, those in found.items() if those]
    return f"{name!r} is a commit rule, not a decoder; decoders that {'; that '.join(told)}"


def section(name: str) -> str:
    """A decoder in Markdown: where it comes from, its three parts, its knobs."""
    decoder, method = resolve(name, {}, LENGTH, told_for(name)), DECODERS[name]
    rule = decoder.rule if decoder.host_rule is None else decoder.host_rule()
    parts = {"Lanes": decoder.policy, "Rule": rule, "Cache": decoder.cache()}
    lines = [f"## {name}", f"Source: {method.source}.", ""]
    if told_for(name).block_size:
        which = f"For block-causal models alone; what follows is of one with blocks of {BLOCKS.block_size}, where"
        lines.append(f"{which} the cache `prefix` is exact: `Compact` without its refreshes.\n")
    lines += [_wrapped(f"- **{part}** (`{type(made).__name__}`): {told(made)}") for part, made in parts.items()]
    return "\n".join([*lines, "", *_knob_table(name), ""])


def told_for(name: str) -> AttentionPattern:
    """A network that takes the decoder."""
    return BLOCKS if DECODERS[name].for_blocks else PLAIN


def _given() -> list[str]:
    """Rules that a request may give by name."""
    return [name for name, rule in HOST_RULES.items() if rule.beside is None]


def rules_section() -> str:
    """The rules that a request may give by name."""
    lines = ["## Rules by name", "Values of the knob `rule`, with the knobs that each brings along.", ""]
    for name in _given():
        rule = HOST_RULES[name]
        knobs = ", ".join(f"`{knob}` ({_shown(value)})" for knob, value in rule.defaults.items())
        lines.append(_wrapped(f"- **{name}**: {knobs}. Source: {rule.source}."))
    return "\n".join([*lines, ""])


def told(made: object) -> str:
    """What a part of a decoder says of itself: its module, if that is of it alone, and its class."""
    module = inspect.getmodule(type(made))
    classes = [
        value
        for value in vars(module).values()
        if isinstance(value, type) and value.__module__ == type(made).__module__
    ]
    about = [inspect.getdoc(module) or ""] if classes == [type(made)] else []
    own = type(made).__doc__ or ""  # not one that it inherits, nor one that `dataclass` makes up
    if own.startswith(f"{type(made).__name__}("):
        own = ""
    return " ".join(" ".join([*about, own]).split())


def _knob_table(name: str) -> Iterator[str]:
    yield "| knob | default | values |"
    yield "|---|---|---|"
    for knob, value in defaults_of(name, told_for(name)).items():
        yield f"| `{knob}` | {_shown(value)} | {_values(name, knob, ALL_PARAMS[knob])} |"


def _shown(value: object) -> str:
    match value:
        case None:
            return "-"
        case bool():
            return str(value).lower()
        case _:
            return str(value)


def _values(name: str, knob: str, kind: Values) -> str:
    """What a decoder takes, all else being its defaults, or with what a value needs beside it."""
    words = kind.values if isinstance(kind, Choice) else kind.words

    def fits(word: object) -> bool:
        return any(_takes(name, {**more, knob: word}) for more in ({}, NEEDS.get((knob, word), {})))

    taken = [_shown(word) for word in words if fits(word)]
    if isinstance(kind, Choice):
        return ", ".join(taken)
    return ", ".join([f"{plain(kind.low)} to {plain(kind.high)}", *(["whole"] if kind.whole else []), *taken])


def _takes(name: str, knobs: Mapping[str, object]) -> bool:
    try:
        resolve(name, knobs, LENGTH, told_for(name))
    except ParamError:
        return False
    return True


def _wrapped(text: str) -> str:
    return textwrap.fill(text, WIDTH, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)
