"""ParallelBench (arXiv 2510.04767): tasks that become harder the more tokens are committed at once.

Each task has a file of its own, in which a line has `input`, `answer` and examples. Lists are read leniently, and
strictly as well. Paraphrases and summaries need a language model and a grammar checker: they are not here.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Rule = Callable[[list[str], Any], bool]

DESK = "You are managing a waiting line at a customer service desk.\n"
SUDOKU_ROWS = 4


def read_list(text: str, *, strict: bool = False) -> list[str] | None:
    """The items after the last `[`, up to the next `]`. A strict list has both, and items `"..."` between `, `."""
    _, bracket, rest = text.rpartition("[")
    inside, end, _ = rest.partition("]")
    if not strict:
        return [item.strip('" ') for item in inside.strip("[]").split(",") if item.strip()]
    items = inside.split(", ")
    quoted = all(len(item) > 1 and item[0] == item[-1] == '"' and '"' not in item[1:-1] for item in items)
    return [item[1:-1] for item in items] if bracket and end and quoted else None


def equal(names: list[str], answer: str) -> bool:
    return names == read_list(answer)


def shuffled(names: list[str], answer: Mapping[str, Any]) -> bool:
    return sorted(names) == sorted(answer["input"]) and names != [*answer["input"]]


def inserted(names: list[str], answer: Mapping[str, Any]) -> bool:
    """The word stands once more than in the line, and the others keep their order."""
    if answer["word"] not in names:
        return False
    at = names.index(answer["word"])
    return names[:at] + names[at + 1 :] == [*answer["input"]]


def removed(names: list[str], answer: Mapping[str, Any]) -> bool:
    line = answer["input"]
    return any(names == line[:at] + line[at + 1 :] for at in range(len(line)))


def replaced(names: list[str], answer: Mapping[str, Any]) -> bool:
    line, word = answer["input"], answer["word"]
    return any(names == [*line[:at], word, *line[at + 1 :]] for at in range(len(line)))


def of_list(rule: Rule) -> Callable[[Any, str], tuple[str | None, dict[str, bool]]]:
    """The grade of a task whose answer is a list: what was read, and whether it is right leniently and strictly."""

    def grade(answer: Any, text: str) -> tuple[str | None, dict[str, bool]]:
        lenient, strict = read_list(text), read_list(text, strict=True)
        right = {"lenient": rule(lenient or [], answer), "strict": strict is not None and rule(strict, answer)}
        return json.dumps(lenient, ensure_ascii=False), right

    return grade


def latin_square(answer: Mapping[str, Any], text: str) -> tuple[str | None, dict[str, bool]]:
    """The first lines of CSV that have all symbols are the rows."""
    symbols = set(answer["symbols"])
    lines = [[cell.strip() for cell in line.split(",")] for line in text.split("\n") if line.strip()]
    rows = [row for row in lines if set(row) == symbols][: len(symbols)]
    right = len(rows) == len(symbols) and all({*column} == symbols for column in zip(*rows, strict=False))
    return "\n".join(map(",".join, rows)) or None, {"valid": right}


def sudoku(answer: str, text: str) -> tuple[str | None, dict[str, bool]]:
    """The digits of all lines with four; a strict answer has nothing but four lines of them."""
    lines = [line.strip() for line in text.split("\n") if line.strip()]
    rows = ["".join(re.findall(r"[0-9]", line)) for line in lines]
    grid = [row for row in rows if len(row) == SUDOKU_ROWS]
    expected = answer.split()
    return "\n".join(grid) or None, {"lenient": grid == expected, "strict": lines == expected}


def words_used(answer: Mapping[str, Any], text: str) -> tuple[str | None, dict[str, bool]]:
    """All words must be in the text. The authors check the grammar as well, with a program in Java."""
    return text.strip() or None, {"words_used": all(word in text for word in answer["words"])}


@dataclass(frozen=True, slots=True)
class Kind:
    """A task: its `prompt`, of which the fields of `input` fill the places, the grade, and what an `answer` needs."""

    prompt: str
    grade: Callable[[Any, str], tuple[str | None, dict[str, bool]]]
    metrics: tuple[str, ...]
    needs: Mapping[str, type] = field(default_factory=dict)  # none: a text

    @property
    def places(self) -> list[str]:
        return sorted(set(re.findall(r"{(\w+)}", self.prompt)))


LINE: Mapping[str, type] = {"input": list}
LINE_AND_WORD: Mapping[str, type] = {**LINE, "word": str}


def _line(before: str, after: str, rule: Rule, needs: Mapping[str, type] = {}) -> Kind:
    return Kind(f"{DESK}{before}\n{{context}}\n{after}\n", of_list(rule), ("lenient", "strict"), needs)


KINDS: Mapping[str, Kind] = {
    "copy": _line(
        "You need to record the following people in the order they arrived:",
        "Please copy the list exactly and provide only the final list.",
        equal,
    ),
    "reverse": _line(
        "The previous staff member put the waiting line in the wrong order.\n"
        "Please reverse the order of the following people in the waiting line to correct it:",
        "Please reverse the order of the list and provide only the final list.",
        equal,
    ),
    "sort": _line(
        "The following people should be organized alphabetically by last name for efficient processing:",
        "Please sort the list in alphabetical order and provide only the final list.",
        equal,
    ),
    "insert_index": _line(
        'A new person "{word}" is inserted into the line at position {index}:',
        "Please put the new person at the specified position and provide only the final list.",
        equal,
    ),
    "remove_index": _line(
        "The person at position {index} has left the waiting line:",
        "Please remove the person at the specified position and provide only the final list.",
        equal,
    ),
    "replace_index": _line(
        'The person at position {index} must be replaced with "{word}":',
        'Please replace the person at the specified position with "{word}" and provide only the final list.',
        equal,
    ),
    "insert_random": _line(
        'A new person "{word}" is inserted into the line at a random position:',
        "Please put the new person in the random position and provide only the final list.",
        inserted,
        LINE_AND_WORD,
    ),
    "remove_random": _line(
        "One person has left the waiting line:",
        "Please remove a random person and provide only the final list.",
        removed,
        LINE,
    ),
    "replace_random": Kind(  # the only one whose prompt does not end with a line break
        f'{DESK}One person in the waiting line must be replaced with "{{word}}":\n{{context}}\n'
        'Please replace one random person with "{word}" and provide only the final list.',
        of_list(replaced),
        ("lenient", "strict"),
        LINE_AND_WORD,
    ),
    "shuffle": _line(
        "The waiting line should be randomly shuffled to ensure fair service distribution:",
        "Please randomly shuffle the list and provide only the final list.\n"
        "Ensure the sequence is different from the original.",
        shuffled,
        LINE,
    ),
    "words_to_sentence": Kind(
        "Construct a single, coherent sentence using the words {words}.", words_used, ("words_used",), {"words": list}
    ),
    "latin_square": Kind(
        "Generate a Latin square of size {size} with the symbols {symbols}. Only output the final result as CSV.",
        latin_square,
        ("valid",),
        {"symbols": list},
    ),
    "sudoku": Kind(
        "Fill the positions where the values are 0 in a 4x4 grid with digits 1-4 so that each column, each row, and"
        " each of the four 2x2 subgrids that compose the grid contains all of the digits from 1 to 4."
        "\n\nInput:\n{sudoku}\nOutput:\n",
        sudoku,
        ("lenient", "strict"),
    ),
}


def turns(kind: Kind, given: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The examples of `input` as turns of user and assistant, and the problem itself."""
    found = []
    for example in given.get("icl_examples", ()):
        answer = example["answer"]
        found += [
            ("user", filled(kind, example["input"])),
            ("assistant", answer if isinstance(answer, str) else answer["example"]),
        ]
    return [*found, ("user", filled(kind, given))]


def filled(kind: Kind, given: Mapping[str, Any]) -> str:
    return re.sub(r"{(\w+)}", lambda place: str(given[place[1]]), kind.prompt)


def fault(kind: Kind, given: Mapping[str, Any], answer: Any) -> str | None:
    """The part that a problem lacks, or has in another form; None if it is complete."""
    examples = given.get("icl_examples", [])
    if not isinstance(examples, list) or not all(isinstance(each, dict) for each in examples):
        return "'icl_examples' must be a list of objects"
    needs = {**kind.needs, "example": str} if kind.needs else {}
    found = [_fault(kind.places, kind.needs, given, answer)]
    found += [_fault(kind.places, needs, each.get("input"), each.get("answer")) for each in examples]
    return next(filter(None, found), None)


def _fault(places: Sequence[str], needs: Mapping[str, type], given: Any, answer: Any) -> str | None:
    """The same for one `input` and its answer."""
    missing = [place for place in places if not isinstance(given, dict) or place not in given]
    if missing:
        return f"'input' must have {', '.join(map(repr, places))}: {missing[0]!r} is missing"
    if not needs:
        return None if isinstance(answer, str) else "'answer' must be a text"
    known = answer if isinstance(answer, dict) else {}
    if all(isinstance(known.get(name), kind) and _texts(known[name]) for name, kind in needs.items()):
        return None
    wanted = ", ".join(f"{name!r} ({'a text' if kind is str else 'a list of texts'})" for name, kind in needs.items())
    return f"'answer' must be an object with {wanted}"


def _texts(value: str | list[Any]) -> bool:
    return all(isinstance(each, str) for each in value)
