"""JSON schemas that a text can be held to: those that llguidance enforces, and what it enforces differently, refused.

JSON is written on one line, with a space behind commas and colons, as models have read it most; free whitespace would
only be a way to ramble.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from llguidance import LLTokenizer

JSON_OPTIONS: dict[str, Any] = {
    "whitespace_flexible": False,
    "item_separator": ", ",
    "key_separator": ": ",
    "lenient": False,
    "coerce_one_of": False,
}
BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
VALUES = ("const", "enum", "default", "examples")  # keywords whose values are no schemas


class GrammarError(ValueError):
    """A schema or an expression that cannot be held to, with a message for the client."""


def schema_text(schema: object) -> str:
    """A schema as JSON; the order of its properties is that of the answer's. Raises `GrammarError`."""
    if schema is True:
        return "{}"
    if not isinstance(schema, dict):
        raise GrammarError("a schema is an object")
    try:
        return json.dumps(schema, ensure_ascii=False)
    except RecursionError:
        raise GrammarError("it nests too deep") from None


def json_grammar(schema: str) -> str:
    """llguidance's grammar of a schema. Raises `ValueError`."""
    from llguidance import LLMatcher

    return LLMatcher.grammar_from_json_schema(schema, overrides=JSON_OPTIONS)  # type: ignore[arg-type]


def check_schema(schema: str, tokenizer: LLTokenizer) -> None:
    """Raises `GrammarError` for what llguidance would hold a text to in another way than JSON Schema means it."""
    try:
        root = json.loads(schema)
    except RecursionError:
        raise GrammarError("it nests too deep") from None
    if isinstance(root, dict) and "x-guidance" in root:
        raise GrammarError("x-guidance is not a keyword here")
    for node in _schemas(root):
        if _is_number(node.get("minProperties")) and node["minProperties"] > 1:
            raise GrammarError("minProperties above 1 cannot be enforced: a name that is given twice would count twice")
        for name in BOUNDS[2:]:
            if _is_number(node.get(name)) and _takes_its_bound(node, name, tokenizer):
                raise GrammarError(
                    f"{name} {node[name]} cannot be enforced with bounds so close: give minimum or maximum"
                )


def _schemas(node: object) -> Iterator[Mapping[str, Any]]:
    """All objects that may be schemas, not only those that are: names of properties look alike."""
    stack = [node]
    while stack:
        node = stack.pop()
        if isinstance(node, dict):
            yield node
            stack += [value for key, value in node.items() if key not in VALUES]
        elif isinstance(node, list):
            stack += node


def _takes_its_bound(node: Mapping[str, Any], name: str, tokenizer: LLTokenizer) -> bool:
    """Whether llguidance takes an exclusive bound as a value. It compares decimals, and errs near whole numbers."""
    from llguidance import LLMatcher

    bounds = {key: node[key] for key in BOUNDS if _is_number(node.get(key))}
    kind = "integer" if node.get("type") == "integer" else "number"
    matcher = LLMatcher(tokenizer, json_grammar(json.dumps({"type": kind, **bounds})), log_level=0)
    bound = node[name]
    spelt = {json.dumps(bound), *([str(int(bound))] if bound == int(bound) else [])}
    for text in spelt:
        trial = matcher.deep_copy()
        tokens = tokenizer.tokenize_str(text)
        if trial.try_consume_tokens(tokens) == len(tokens) and trial.is_accepting():
            return True
    return False


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
