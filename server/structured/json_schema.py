"""JSON schemas as grammars. A schema that llguidance enforces differently from JSON Schema is refused.

JSON is written on one line, with a space after commas and colons: models have read it so most, and free whitespace
would only let them ramble.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from .grammar_errors import GrammarError

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


def schema_text(schema: object) -> str:
    """Write a schema as JSON. Its properties keep their order, which is the answer's. Raises `GrammarError`."""
    if schema is True:
        return "{}"
    if not isinstance(schema, dict):
        raise GrammarError("a schema is an object")
    try:
        return json.dumps(schema, ensure_ascii=False)
    except RecursionError:
        raise GrammarError("it nests too deep") from None


def json_grammar(schema: str) -> str:
    """Return llguidance's grammar of a schema. Raises `ValueError`."""
    from llguidance import LLMatcher

    return LLMatcher.grammar_from_json_schema(schema, overrides=JSON_OPTIONS)  # type: ignore[arg-type]


def check_schema(schema: str, tokenizer: LLTokenizer) -> None:
    """Raises `GrammarError` for a keyword that llguidance enforces differently from JSON Schema."""
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
    """Yield all objects that may be schemas. Some are not: a property may have the name of a keyword."""
    stack = [node]
    while stack:
        node = stack.pop()
        if isinstance(node, dict):
            yield node
            stack += [value for key, value in node.items() if key not in VALUES]
        elif isinstance(node, list):
            stack += node


def _takes_its_bound(node: Mapping[str, Any], name: str, tokenizer: LLTokenizer) -> bool:
    """True if llguidance accepts an exclusive bound as a value: it compares decimals, and errs near whole numbers."""
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
