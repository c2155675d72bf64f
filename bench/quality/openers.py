"""Puts first questions to a model: 30 openers, 10 second turns, 10 small JSON schemas, 10 requests for tools.

Usage: python -m asynclane.bench.quality.openers [--model tiny-chat] [--decoder asynclane]
The questions and their checks are those of openers.json, which was written before the training data of tiny-chat. Each
line shows an answer and whether its check passes. The answers are at temperature 0. Schemas are enforced by grammar and
are not shown to the model; tools are shown by the checkpoint's chat template, and calls are free text.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...server.engine.messages import AnswerOptions, Finish
from ...server.engine.wiring import open_checkpoint
from ...server.settings import Settings
from ...server.structured.grammar import Wanted
from ..load.output import check_outputs, finish, positive, require, table

if TYPE_CHECKING:
    from ...server.engine.offline import Offline, OfflineAnswer

QUESTIONS = Path(__file__).with_name("openers.json")
CALL = re.compile(r"<tool_call>\s*(\{.*\})\s*</tool_call>", re.DOTALL)
LONGEST = 800  # characters of a sensible answer


@dataclass(frozen=True, slots=True)
class Opener:
    """A question, patterns of which one is in a sensible answer, and what such an answer says."""

    ask: str
    any: tuple[str, ...]
    sensible: str


@dataclass(frozen=True, slots=True)
class SecondTurn:
    first: str
    then: str
    any: tuple[str, ...]
    sensible: str


@dataclass(frozen=True, slots=True)
class Extraction:
    """A question whose answer follows a schema; `expect` are values that it must have."""

    ask: str
    schema: Mapping[str, Any]
    expect: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Request:
    """A question with tools; `call` is the right one, None where none is needed."""

    ask: str
    tools: tuple[Mapping[str, Any], ...]
    call: Mapping[str, Any] | None


@dataclass(frozen=True, slots=True)
class Questions:
    openers: tuple[Opener, ...]
    second_turns: tuple[SecondTurn, ...]
    schemas: tuple[Extraction, ...]
    tools: tuple[Request, ...]


def questions() -> Questions:
    found = json.loads(QUESTIONS.read_text(encoding="utf-8"))
    return Questions(
        tuple(Opener(row["ask"], tuple(row["any"]), row["sensible"]) for row in found["openers"]),
        tuple(
            SecondTurn(row["first"], row["then"], tuple(row["any"]), row["sensible"]) for row in found["second_turns"]
        ),
        tuple(Extraction(row["ask"], row["schema"], row["expect"]) for row in found["schemas"]),
        tuple(Request(row["ask"], tuple(row["tools"]), row["call"]) for row in found["tools"]),
    )


def good_text(patterns: Sequence[str], text: str) -> bool:
    """True for a text of sensible length in which one of the patterns is found."""
    return 0 < len(text) <= LONGEST and any(re.search(p, text, re.IGNORECASE | re.DOTALL) for p in patterns)


def good_json(row: Extraction, text: str) -> bool:
    """True for JSON that validates. Whether its values are right is another question: `right_values`."""
    from jsonschema import Draft202012Validator

    try:
        value = json.loads(text)
    except ValueError:
        return False
    return bool(Draft202012Validator(row.schema).is_valid(value))


def right_values(row: Extraction, text: str) -> bool:
    """True for a JSON object with the names of the schema and the values that it must have."""
    try:
        value = json.loads(text)
    except ValueError:
        return False
    return isinstance(value, dict) and set(value) == set(row.schema["properties"]) and {**value, **row.expect} == value


def good_call(row: Request, text: str) -> bool:
    """True for the one right call and no other; for a text without a call where none is needed."""
    calls = CALL.findall(text)
    if row.call is None:
        return not calls and "tool_call" not in text and 0 < len(text) <= LONGEST
    try:
        return len(calls) == 1 and json.loads(calls[0]) == row.call
    except ValueError:
        return False


@dataclass(frozen=True, slots=True)
class Outcome:
    """The answer to a question, and whether it passes."""

    part: str
    question: str
    text: str
    passed: bool
    sensible: str


class Session:
    """A model that answers whole lists of conversations, through its own chat template."""

    def __init__(self, engine: Offline, model: str, options: AnswerOptions) -> None:
        from transformers import PreTrainedTokenizerFast

        self._engine, self._options = engine, options
        directory = open_checkpoint(model).directory
        self._tokenizer = PreTrainedTokenizerFast.from_pretrained(directory, local_files_only=True)

    def answers(self, conversations: Sequence[Sequence[Mapping[str, str]]]) -> list[OfflineAnswer]:
        prompts = [self._engine.parts.text.encode_chat(messages) for messages in conversations]
        return self._engine.answer(prompts, self._options)

    def with_tools(self, rows: Sequence[Request]) -> list[OfflineAnswer]:
        """Answers where the template shows tools; what it does not know, it does not show."""
        texts = [
            self._tokenizer.apply_chat_template(
                [user(row.ask)], tools=list(row.tools), add_generation_prompt=True, tokenize=False
            )
            for row in rows
        ]
        backend = self._engine.parts.text.backend
        return self._engine.answer(
            [backend.encode(text, add_special_tokens=False).ids for text in texts], self._options
        )

    def with_schemas(self, rows: Sequence[Extraction]) -> list[OfflineAnswer]:
        requests = []
        for number, row in enumerate(rows):
            grammar = self._engine.grammar(Wanted(f"schema {number}", schema=json.dumps(row.schema)))
            prompt = self._engine.encode_chat(row.ask)
            requests.append((prompt, replace(self._options, grammar=grammar)))
        return self._engine.answer_each(requests)


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def measure(session: Session, asked: Questions) -> list[Outcome]:
    """The outcomes of all questions, in their order."""
    found: list[Outcome] = []

    def add(part: str, question: str, answer: OfflineAnswer, check: Callable[[str], bool], sensible: str) -> None:
        passed = answer.finish is Finish.STOP and check(answer.text)
        found.append(Outcome(part, question, answer.text, passed, sensible))

    for opener, answer in zip(asked.openers, session.answers([[user(row.ask)] for row in asked.openers]), strict=True):
        add("openers", opener.ask, answer, partial(good_text, opener.any), opener.sensible)
    first = session.answers([[user(row.first)] for row in asked.second_turns])
    conversations = [
        [user(row.first), {"role": "assistant", "content": said.text}, user(row.then)]
        for row, said in zip(asked.second_turns, first, strict=True)
    ]
    for turn, said, answer in zip(asked.second_turns, first, session.answers(conversations), strict=True):
        question = f"{turn.first} / {said.text} / {turn.then}"
        add("second turns", question, answer, partial(good_text, turn.any), turn.sensible)
    for row, answer in zip(asked.schemas, session.with_schemas(asked.schemas), strict=True):
        sensible = f"JSON that validates, best with {json.dumps(row.expect, ensure_ascii=False)}"
        add("schemas", row.ask, answer, partial(good_json, row), sensible)
        add("values", row.ask, answer, partial(right_values, row), sensible)
    for request, answer in zip(asked.tools, session.with_tools(asked.tools), strict=True):
        sensible = f"calls {json.dumps(request.call)}" if request.call else "no call"
        add("tools", request.ask, answer, partial(good_call, request), sensible)
    return found


def main(argv: Sequence[str] | None = None) -> int:
    from ...server.engine.offline import Offline  # here, because it brings torch, which --help does not need

    parser = argparse.ArgumentParser(
        prog="python -m asynclane.bench.quality.openers",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--model", default="tiny-chat", help="as in serving (default: %(default)s)")
    parser.add_argument("--decoder", default="asynclane", help="default: %(default)s")
    parser.add_argument("--max-tokens", type=positive, default=256, help="default: %(default)s")
    parser.add_argument("--dtype", default="float32", help="as in serving (default: %(default)s)")
    parser.add_argument("--failed", action="store_true", help="show only answers that do not pass")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the last line to a file, too")
    given = parser.parse_args(argv)
    try:
        settings = Settings(model=given.model, dtype=given.dtype)
    except ValueError as error:
        parser.error(str(error))
    check_outputs(parser, None, given.json)
    require(parser, "jsonschema")
    with Offline(settings) as engine:
        options = AnswerOptions(given.max_tokens, decoder=given.decoder)
        outcomes = measure(Session(engine, given.model, options), questions())
    for one in outcomes:
        if not (one.passed and given.failed):
            print(f"{'passed' if one.passed else 'FAILED'}  {one.part}: {one.question}\n        -> {one.text!r}")
            if not one.passed:
                print(f"        wanted: {one.sensible}")
    parts = list(dict.fromkeys(one.part for one in outcomes))
    passed = {part: [one.passed for one in outcomes if one.part == part] for part in parts}
    print(table(["part", "passed", "of"], [[part, str(sum(found)), str(len(found))] for part, found in passed.items()]))
    finish(
        {
            "benchmark": "openers",
            "model": settings.model_name,
            "decoder": given.decoder,
            "dtype": settings.dtype,
            "passed": {part: sum(found) for part, found in passed.items()},
            "of": {part: len(found) for part, found in passed.items()},
        },
        given.json,
    )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
