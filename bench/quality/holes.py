"""Cuts holes into functions of the kind that the embedded model knows, for models to fill in again."""

from __future__ import annotations

from dataclasses import dataclass

from ..load.problems import Problem, problems
from .checks import right

HOLES = ("body", "line", "name")
FENCE = "```python"
ANY_FUNCTION = "Write a Python function."  # where what lies behind the hole must say which


@dataclass(frozen=True, slots=True)
class Hole:
    """`middle` is missing between `before` and `behind`, in an answer to `question`. All three begin and end at the end
    of a line, so that each is made of the tokens that the whole would be made of."""

    kind: str
    question: str
    before: str
    middle: str
    behind: str
    problem: Problem

    def filled(self, text: str) -> bool:
        """Whether the function does what it should with `text` in the hole."""
        return right(self.problem, self.before + text + self.behind)

    def cut(self, text: str) -> str:
        """What a client keeps who does not tell what lies behind the hole: the answer up to the end of the function, or
        of its line."""
        return text[:1] + text[1:].partition("\n```" if self.kind == "body" else "\n")[0]


def holes(seed: int, count: int, kind: str) -> list[Hole]:
    """A hole in each of the first `count` functions that `seed` gives: the whole `body`, one `line` of it, or the line
    with the `name`, of which neither question nor prefix say anything. Raises `ValueError` as `problems` does.
    """
    asked = problems(seed, count, ("code",))
    return [_hole(kind, problem, number) for number, problem in enumerate(asked)]


def _hole(kind: str, problem: Problem, number: int) -> Hole:
    """The answer's lines: a sentence, the fence, the name, a docstring, the body, the fence."""
    lines = problem.answer.split("\n")
    name, end = lines.index(FENCE) + 1, lines.index("```")
    body = name + 2
    line = body + number % (end - body)
    start, stop = {"body": (body, end), "line": (line, line + 1), "name": (name, name + 1)}[kind]
    before, middle, behind = (lines[:start], lines[start:stop], lines[stop:])
    question = ANY_FUNCTION if kind == "name" else problem.prompt
    return Hole(kind, question, "\n".join(before), _lines(middle), _lines(behind), problem)


def _lines(lines: list[str]) -> str:
    return "".join("\n" + line for line in lines)
