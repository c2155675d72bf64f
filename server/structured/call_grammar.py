"""The grammar of answers that call tools, in llguidance's notation.

Answers are calls and nothing else, or calls or JSON of a schema, or any text in which each call that begins is whole. A
marker that is a token of the model's vocabulary comes as this token.
"""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from .grammar_errors import GrammarError
from .json_schema import JSON_OPTIONS, placed, reason_against, schema_grammar

if TYPE_CHECKING:
    from llguidance import LLTokenizer

CALLS_ALONE = "// calls\n"  # begins the grammar of an answer that is JSON but for what stands between its calls
ANY_TEXT = "(?s:.*)"


@dataclass(frozen=True, slots=True)
class CallGrammar:
    """The calls that an answer may have. `open`, `close`, `gap`, `arguments` and `between` are those of `ToolFormat`,
    `tokens` has the ids of markers that are tokens. `tools` has the place of each tool in the request, its name and the
    schema of its arguments. The answer may be JSON of the schema `answer` instead of calls. With `free` it may have any
    text, in which the tokens `others` may come."""

    open: str
    close: str
    gap: str
    arguments: str
    between: str
    tools: tuple[tuple[int, str, str], ...]
    tokens: tuple[tuple[str, int], ...] = ()
    several: bool = True
    free: bool = False
    others: tuple[int, ...] = ()
    answer: str | None = None

    def job(self) -> str:
        """All of it as JSON, for `calls_text`."""
        return json.dumps(asdict(self), ensure_ascii=False)


def calls_text(job: str, tokenizer: LLTokenizer) -> str:
    """Return the grammar of a job. Raises `GrammarError`, which has the place of a tool that cannot be enforced."""
    calls = CallGrammar(**json.loads(job))
    tokens = dict(calls.tokens)
    for at, _, schema in calls.tools:
        try:
            schema_grammar(schema, tokenizer)
        except GrammarError as error:
            raise GrammarError(str(error), _place(at)) from None
    numbers = range(len(calls.tools))
    closed = _marker(calls.close, tokens) if calls.close else ""
    # In pieces as those of JSON: the lexer does not go back, and an answer of the other kind may begin alike.
    begin, end = _pieces(calls.gap, "{", '"name"', ": "), _pieces("}", calls.gap)
    lines = [f"body: {begin} ({' | '.join(f't{number}' for number in numbers)}) {end} {closed}"]
    for number, (_, name, schema) in zip(numbers, calls.tools, strict=True):
        named = _pieces(f'"{name}"', ", ", f'"{calls.arguments}"', ": ")
        lines.append(f"t{number}: {named} a{number}")
        lines.append(f"a{number}: %json {_guided(schema)}")
    lines.append(f"call: {_marker(calls.open, tokens) if calls.open else ''} body")
    alone = f"call ({_quoted(calls.between)} call)*" if calls.several and calls.between else "call"
    if calls.answer is not None:
        alone = f"({alone}) | answer"
        lines.append(f"answer: %json {_guided(calls.answer)}")
    if not calls.free:
        return f"{CALLS_ALONE}start: {alone}\n" + "\n".join(lines) + "\n"
    return "\n".join([*_free(calls, tokens, alone), *lines, ""])


def refusal_of_tool(job: str) -> tuple[str, str] | None:
    """The reason why one of the tools alone cannot be enforced, and its place; None if there is none."""
    for at, _, schema in json.loads(job)["tools"]:
        if reason := reason_against(schema):
            return placed(schema, reason), _place(at)
    return None


def _free(calls: CallGrammar, tokens: dict[str, int], alone: str) -> list[str]:
    """Rules of an answer with any text around its calls."""
    if not calls.open:  # only an answer that begins with a call is one
        return [f"start: {alone} | TEXT", f"TEXT: /{ANY_TEXT}/ & ~/[ \\t\\r\\n]*\\{{{ANY_TEXT}/"]
    text = f"TEXT: /{ANY_TEXT}/ & ~/{ANY_TEXT}{re.escape(calls.open)}{ANY_TEXT}/"
    many = "*" if calls.several else "?"
    if calls.open not in tokens:
        return [f"start: (head body){many} TEXT", f"head[suffix={_quoted(calls.open)}]: /{ANY_TEXT}/", text]
    other = "".join(f" | <[{token}]>" for token in calls.others)
    words = f"words: TEXT? (({other.removeprefix(' | ')}) TEXT?)*" if other else "words: TEXT?"
    return [f"start: (words call){many} words", words, text]


def _guided(schema: str) -> str:
    return json.dumps({**json.loads(schema), "x-guidance": JSON_OPTIONS}, ensure_ascii=False)


def _marker(text: str, tokens: dict[str, int]) -> str:
    return f"<[{tokens[text]}]>" if text in tokens else _quoted(text)


def _pieces(*texts: str) -> str:
    return " ".join(_quoted(text) for text in texts if text)


def _quoted(text: str) -> str:
    return json.dumps(text)


def _place(at: int) -> str:
    return f"{at}.function.parameters"
