"""JSON schemas as grammars. A schema that llguidance enforces differently from JSON Schema is refused.

JSON is written on one line, with a space after commas and colons: models have read it so most, and free whitespace
would only let them ramble. Each string has one spelling: only control characters in declared names are written as `\\u`
and four digits.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from .grammar_errors import NAME_COUNTS, GrammarError, plain

if TYPE_CHECKING:
    from llguidance import LLTokenizer

JSON_OPTIONS: dict[str, Any] = {
    "whitespace_flexible": False,
    "item_separator": ", ",
    "key_separator": ": ",
    "lenient": False,
    "coerce_one_of": False,
    "json_allowed_escapes": 'nrbtf\\"',
}
BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
VALUES = ("const", "enum", "default", "examples")  # keywords whose values are no schemas
DEFINITIONS = ("$defs", "definitions")
# Keywords whose value is a schema, a list of schemas, or schemas by name.
SCHEMAS = (
    *DEFINITIONS,
    "properties",
    "patternProperties",
    "additionalProperties",
    "items",
    "prefixItems",
    "additionalItems",
    "allOf",
    "anyOf",
    "oneOf",
)
NAMED = (*DEFINITIONS, "properties", "patternProperties")
# Control characters that have no spelling in strings here. llguidance leaves them out of values and expressions.
UNWRITTEN = re.compile(r"[\x00-\x07\x0b\x0e-\x1f\x7f]")
_CODE = r"(?:0[0-7bBeEfF]|1[0-9a-fA-F]|7[fF])"
_SHORT = r"(?:0*[0-7bBeEfF]|0*1[0-9a-fA-F]|0*7[fF])"
UNWRITTEN_IN_PATTERN = re.compile(
    rf"\\\\|({UNWRITTEN.pattern}|\\(?:[av]|(?:x|u00|U000000){_CODE}|[xuU]\{{{_SHORT}\}}))"
)
CLASS = re.compile(r"\\.|(\[(?:\\.|[^\[\]\\])*+\])", re.DOTALL)
PLACING_S = 0.3  # of a processor, to find the place of a reason
SHOWN_NAME = 64  # characters of a name in a place


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


def schema_grammar(schema: str, tokenizer: LLTokenizer) -> str:
    """Return llguidance's grammar of a schema. Raises `GrammarError` for what llguidance would enforce differently from
    JSON Schema."""
    try:
        root = json.loads(schema)
    except RecursionError:
        raise GrammarError("it nests too deep") from None
    if isinstance(root, dict) and "x-guidance" in root:
        raise GrammarError("/x-guidance is not a keyword here")
    for pointer, node in _objects(root):
        if _is_number(node.get("minProperties")) and node["minProperties"] > 1 and node.get("patternProperties"):
            raise GrammarError(f"{pointer}/minProperties above 1 is not supported beside patternProperties")
        if keyword := _unwritten(node):
            raise GrammarError(f"{pointer}/{keyword} has a control character that cannot be written in an answer")
        for name in BOUNDS[2:]:
            if _is_number(node.get(name)) and _takes_its_bound(node, name, tokenizer):
                raise GrammarError(
                    f"{pointer}/{name} {node[name]} cannot be enforced with bounds so close: give minimum or maximum"
                )
    return _grammar(schema)


def _unwritten(node: Mapping[str, Any]) -> str:
    """The keyword of a schema that has a control character which cannot be written; empty if none has."""
    for keyword in ("const", "enum"):
        if any(map(UNWRITTEN.search, _strings(node.get(keyword)))):
            return keyword
    if _matches_unwritten(node.get("pattern")):
        return "pattern"
    names = node.get("patternProperties")
    return "patternProperties" if isinstance(names, dict) and any(map(_matches_unwritten, names)) else ""


def _matches_unwritten(pattern: object) -> bool:
    """True for an expression with such a character. Ranges and negated classes are enforced."""
    if not isinstance(pattern, str):
        return False
    rest = CLASS.sub(lambda found: "" if _has_range(found[1] or "") else found[0], pattern)
    return any(found[1] for found in UNWRITTEN_IN_PATTERN.finditer(rest))


def _has_range(characters: str) -> bool:
    return characters.startswith("[^") or "-" in characters[2:-2]


def _strings(value: object) -> Iterator[str]:
    """Yield all strings within a value, names too."""
    stack = [value]
    while stack:
        inner = stack.pop()
        if isinstance(inner, str):
            yield inner
        elif isinstance(inner, dict):
            stack += [*inner, *inner.values()]
        elif isinstance(inner, list):
            stack += inner


def placed(schema: str, reason: str) -> str:
    """Return the reason why llguidance refuses a schema, after the JSON pointer to the innermost schema that it refuses
    for that reason by itself."""
    root = json.loads(schema)
    shared = {key: root[key] for key in DEFINITIONS if key in root}
    pointer, node, until = "", root, time.thread_time() + PLACING_S
    inner = _children(node)
    while (child := next(inner, None)) is not None and time.thread_time() < until:
        found = reason_against(json.dumps({**shared, **child[1]}, ensure_ascii=False))
        if found.partition(":")[0] == reason.partition(":")[0]:
            pointer, node, reason = pointer + child[0], child[1], found
            inner = _children(node)
    for key in ("minProperties", "maxProperties"):
        if key in node:
            reason = reason.replace(NAME_COUNTS, f"{key} is")
    keyword = next((key for key in node if reason.startswith((f"{key} is ", f"{key} must "))), None)
    return f"{pointer}/{reason}" if keyword else f"{pointer}: {reason}" if pointer else reason


def _grammar(schema: str) -> str:
    from llguidance import LLMatcher

    try:
        return LLMatcher.grammar_from_json_schema(schema, overrides=JSON_OPTIONS)  # type: ignore[arg-type]
    except ValueError as error:
        raise GrammarError(plain(str(error))) from None


def reason_against(schema: str) -> str:
    """Return why llguidance refuses a schema; empty if it does not."""
    from llguidance import LLMatcher

    problem = LLMatcher.validate_grammar(_grammar(schema))
    return "" if not problem or problem.startswith("WARNING") else plain(problem)


def _children(node: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the schemas in a schema, each with its place in it."""
    for key in SCHEMAS:
        value = node.get(key)
        if key in NAMED and isinstance(value, dict):
            inner = {f"/{key}/{pointer_part(name)}": child for name, child in value.items()}
        elif isinstance(value, list):
            inner = {f"/{key}/{at}": child for at, child in enumerate(value)}
        else:
            inner = {f"/{key}": value}
        yield from ((place, child) for place, child in inner.items() if isinstance(child, dict))


def schemas_in(root: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield a schema and those within it, each with its place."""
    stack = [("", root)]
    while stack:
        pointer, node = stack.pop()
        yield pointer, node
        stack += [(pointer + place, child) for place, child in _children(node)]


def _objects(root: object) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield every object in a schema with its place: a reference may lead to any of them."""
    stack = [("", root)]
    while stack:
        pointer, node = stack.pop()
        if isinstance(node, dict):
            yield pointer, node
            stack += [(f"{pointer}/{pointer_part(key)}", value) for key, value in node.items() if key not in VALUES]
        elif isinstance(node, list):
            stack += [(f"{pointer}/{at}", value) for at, value in enumerate(node)]


def pointer_part(name: object) -> str:
    """Write one part of a JSON pointer (RFC 6901), shortened."""
    text = str(name).replace("~", "~0").replace("/", "~1")
    return text if len(text) <= SHOWN_NAME else text[:SHOWN_NAME] + "..."


def _takes_its_bound(node: Mapping[str, Any], name: str, tokenizer: LLTokenizer) -> bool:
    """True if llguidance accepts an exclusive bound as a value: it compares decimals, and errs near whole numbers."""
    from llguidance import LLMatcher

    bounds = {key: node[key] for key in BOUNDS if _is_number(node.get(key))}
    kind = "integer" if node.get("type") == "integer" else "number"
    matcher = LLMatcher(tokenizer, _grammar(json.dumps({"type": kind, **bounds})), log_level=0)
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
