"""Functions of the kind that the embedded model knows, with holes for a model to fill."""

from __future__ import annotations

from dataclasses import dataclass

from ..load.problems import Problem, problems
from .checks import right

HOLES = ("body", "line", "name")
FENCE = "```python"
ANY_FUNCTION = "Write a Python function."  # the text after the hole must show which


@dataclass(frozen=True, slots=True)
class Hole:
    """`middle` is missing between `before` and `after`, in an answer to `question`. All three begin and end at the end
    of a line, so that each has the tokens that it has in the whole."""

    kind: str
    question: str
    before: str
    middle: str
    after: str
    problem: Problem

    def filled(self, text: str) -> bool:
        """Return whether the function passes its tests with `text` in the hole."""
        return right(self.problem, self.before + text + self.after)

    def cut(self, text: str) -> str:
        """Return the part of an answer that a client keeps that does not send the suffix: up to the end of the
        function, or of its line."""
        return text[:1] + text[1:].partition("\n```" if self.kind == "body" else "\n")[0]


def holes(seed: int, count: int, kind: str) -> list[Hole]:
    """Return a hole in each of the first `count` functions that `seed` gives: the whole `body`, one `line` of it, or
    the line with the `name`, which neither question nor prefix show. Raises `ValueError` as `problems` does.
    """
    return [_hole(kind, problem, number) for number, problem in enumerate(problems(seed, count, ("code",)))]


def _hole(kind: str, problem: Problem, number: int) -> Hole:
    """The lines of an answer are a sentence, the fence, the name, a docstring, the body, the fence."""
    lines = problem.answer.split("\n")
    name, end = lines.index(FENCE) + 1, lines.index("```")
    body = name + 2
    line = body + number % (end - body)
    start, stop = {"body": (body, end), "line": (line, line + 1), "name": (name, name + 1)}[kind]
    before, middle, after = (lines[:start], lines[start:stop], lines[stop:])
    question = ANY_FUNCTION if kind == "name" else problem.prompt
    return Hole(kind, question, "\n".join(before), _lines(middle), _lines(after), problem)


def _lines(lines: list[str]) -> str:
    return "".join("\n" + line for line in lines)
