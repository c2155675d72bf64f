"""Tools of tests: checkpoints whose chat template shows them, and random ones with schemas of every kind."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

from .checkout import ROOT
from .driver import MODEL

TEMPLATE = (ROOT / "training" / "chat" / "template.jinja").read_text().rstrip("\n")
CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
CITY |= {"additionalProperties": False}
WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {"name": "get_weather", "description": "Get the weather in a city", "parameters": CITY},
}
NOW: dict[str, Any] = {"type": "function", "function": {"name": "now"}}
LETTERS = "abcdefghijklmnopqrstuvwxyz"


def write_checkpoint_with(directory: Path, template: str = TEMPLATE) -> Path:
    """The embedded model with another chat template."""
    directory.mkdir()
    for path in MODEL.iterdir():
        (directory / path.name).symlink_to(path)
    config = directory / "tokenizer_config.json"
    changed = json.loads(config.read_text()) | {"chat_template": template}
    config.unlink()
    config.write_text(json.dumps(changed))
    return directory


def add_tokens(directory: Path, texts: list[str], *, special: bool) -> None:
    """Add tokens to a checkpoint's tokenizer, in ids that its network has to spare."""
    path = directory / "tokenizer.json"
    content = json.loads(path.read_text())
    first = 1 + max(content["model"]["vocab"].values())
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    for token, text in enumerate(texts, first):
        content["added_tokens"].append({"id": token, "content": text, "special": special, **flags})
    path.unlink()
    path.write_text(json.dumps(content))


def random_tools(r: random.Random) -> list[dict[str, Any]]:
    """One to three tools, the first one with five properties or more, objects in objects, choices and lists."""
    names = r.sample(["find", "find_all", "set_alarm", "send-mail", "A1", "x"], r.randint(1, 3))
    return [{"type": "function", "function": _function(r, name, first=not number)} for number, name in enumerate(names)]


def _function(r: random.Random, name: str, first: bool) -> dict[str, Any]:
    if not first and r.random() < 0.2:
        return {"name": name}
    kinds = [_choice, _list, _object] if first else []
    kinds += [r.choice(KINDS) for _ in range(r.randint(2, 5))]
    r.shuffle(kinds)
    schema = _object(r, 0, kinds)
    if r.random() < 0.3:  # one of its schemas by reference
        named = r.choice(list(schema["properties"]))
        schema["$defs"] = {"shared": schema["properties"][named]}
        schema["properties"][named] = {"$ref": "#/$defs/shared"}
    return {"name": name, "description": "-", "parameters": schema}


def _string(r: random.Random, depth: int) -> dict[str, Any]:
    return r.choice(
        [
            {"type": "string", "maxLength": r.randint(1, 12)},
            {"type": "string", "pattern": "^[a-z]{1,4}-[0-9]{2}$"},
            {"type": "string", "format": "uuid"},
        ]
    )


def _number(r: random.Random, depth: int) -> dict[str, Any]:
    low = r.randint(-50, 50)
    return {"type": r.choice(["integer", "number"]), "minimum": low, "maximum": low + r.randint(1, 500)}


def _plain(r: random.Random, depth: int) -> dict[str, Any]:
    return {"type": r.choice(["boolean", "null", ["boolean", "null"]])}


def _choice(r: random.Random, depth: int) -> dict[str, Any]:
    return {"enum": r.sample(["red", "a b", "</tool_call>", 5, 2.5, True, None, 'q"', "\n", ["x"]], r.randint(2, 5))}


def _list(r: random.Random, depth: int) -> dict[str, Any]:
    least = r.randint(0, 2)
    return {"type": "array", "items": _any(r, depth + 1), "minItems": least, "maxItems": least + r.randint(0, 2)}


def _either(r: random.Random, depth: int) -> dict[str, Any]:
    return {"anyOf": [_string(r, depth), _number(r, depth)]}


def _object(r: random.Random, depth: int, kinds: list[Any] | None = None) -> dict[str, Any]:
    kinds = kinds or [_any] * r.randint(1, 3)
    names = r.sample([*LETTERS, "first name", "größe", "a-b", "name", "arguments"], len(kinds))
    properties = {name: kind(r, depth + 1) for name, kind in zip(names, kinds, strict=True)}
    needed = [name for name in names if r.random() < 0.8]
    return {"type": "object", "properties": properties, "required": needed, "additionalProperties": False}


def _any(r: random.Random, depth: int) -> dict[str, Any]:
    kind = r.choice(KINDS if depth < 3 else KINDS[:3])
    return kind(r, depth)


KINDS: list[Any] = [_string, _number, _plain, _choice, _list, _object, _either]
