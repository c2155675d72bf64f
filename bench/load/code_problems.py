"""Requests for small Python functions, with the calls and values by which any other solution can be checked.

The order in which random numbers are drawn is part of what `problems` promises.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

LEADS = ("Here is the function:", "This function does it:", "You can write it like this:")
TAILS = (
    "It goes over the input once.",
    "It handles an empty input too.",
    "Call it with your own data to try it.",
)
TEXTS = ("level up the game", "noon", "a big red Apple")
LISTS = ((1, 2, 3, 4, 12, -6, 0), (-3, 15, 30, 7), (0, 2, 11, 9))


@dataclass(frozen=True, slots=True)
class Function:
    """A function of one argument. `does` is a sentence without its subject."""

    name: str
    argument: str
    does: str
    body: str

    @property
    def code(self) -> str:
        return f'def {self.name}({self.argument}):\n    """{self.does.capitalize()}."""\n{self.body}'


TEXT_FUNCTIONS = (
    Function("reverse_text", "text", "returns the text reversed", "    return text[::-1]"),
    Function(
        "count_vowels",
        "text",
        "counts the vowels in the text",
        body="""\
    count = 0
    for ch in text.lower():
        if ch in "aeiou":
            count += 1
    return count""",
    ),
    Function(
        "is_palindrome",
        "text",
        "tells whether the text is a palindrome",
        body="""\
    clean = text.lower()
    return clean == clean[::-1]""",
    ),
    Function(
        "first_word",
        "text",
        "returns the first word of the text",
        body="""\
    words = text.split()
    if not words:
        return ""
    return words[0]""",
    ),
    Function(
        "longest_word",
        "text",
        "returns the longest word of the text",
        body="""\
    best = ""
    for word in text.split():
        if len(word) > len(best):
            best = word
    return best""",
    ),
    Function("count_words", "text", "counts the words in the text", "    return len(text.split())"),
    Function(
        "title_case",
        "text",
        "capitalizes every word of the text",
        body="""\
    words = [word.capitalize() for word in text.split()]
    return " ".join(words)""",
    ),
    Function("remove_spaces", "text", "removes all spaces from the text", '    return text.replace(" ", "")'),
)


@dataclass(frozen=True, slots=True)
class Condition:
    """A choice of numbers: "even numbers" (an adjective before its noun), "numbers that are not zero"."""

    words: str
    test: str
    adjective: bool = False

    def numbers(self) -> str:
        return f"{self.words} numbers" if self.adjective else f"numbers that are {self.words}"


CONDITIONS = (
    Condition("even", "x % 2 == 0", adjective=True),
    Condition("odd", "x % 2 == 1", adjective=True),
    Condition("positive", "x > 0", adjective=True),
    Condition("negative", "x < 0", adjective=True),
    Condition("greater than ten", "x > 10"),
    Condition("smaller than five", "x < 5"),
    Condition("divisible by three", "x % 3 == 0"),
    Condition("not zero", "x != 0"),
)


@dataclass(frozen=True, slots=True)
class Mapped:
    """A value computed from each number."""

    word: str
    value: str


MAPPED = (
    Mapped("", "x"),
    Mapped("squares", "x * x"),
    Mapped("doubles", "2 * x"),
    Mapped("negatives", "-x"),
    Mapped("successors", "x + 1"),
)


@dataclass(frozen=True, slots=True)
class Reduction:
    """A result computed from the numbers: a phrase, a name, and a body around a `{test}` and a `{value}`."""

    phrase: str
    name: str
    body: str
    uses_value: bool = True


EXTREME = """\
    best = None
    for x in numbers:
        if {{test}}:
            value = {{value}}
            if best is None or value {beats} best:
                best = value
    return best"""

REDUCTIONS = (
    Reduction(
        "the sum of the",
        "total",
        body="""\
    total = 0
    for x in numbers:
        if {test}:
            total += {value}
    return total""",
    ),
    Reduction(
        "the number of",
        "count",
        body="""\
    count = 0
    for x in numbers:
        if {test}:
            count += 1
    return count""",
        uses_value=False,
    ),
    Reduction(
        "a list of the",
        "collect",
        body="""\
    result = []
    for x in numbers:
        if {test}:
            result.append({value})
    return result""",
    ),
    Reduction("the largest of the", "largest", EXTREME.format(beats=">")),
    Reduction("the smallest of the", "smallest", EXTREME.format(beats="<")),
)


def code_problem(r: random.Random) -> tuple[str, str, tuple[tuple[str, str], ...]]:
    """Return the prompt, the answer, and calls with the `repr` of their values."""
    if r.random() < 0.25:
        function = r.choice(TEXT_FUNCTIONS)
        arguments = [repr(text) for text in TEXTS]
    else:
        function = _list_function(r.choice(CONDITIONS), r.choice(MAPPED), r.choice(REDUCTIONS))
        arguments = [repr(list(numbers)) for numbers in LISTS]
    signature = f"`{function.name}({function.argument})`"
    prompt = r.choice(
        (
            f"Write a Python function {signature} that {function.does}.",
            f"In Python, define {signature}. It {function.does}.",
        )
    )
    answer = f"{r.choice(LEADS)}\n```python\n{function.code}\n```\n{r.choice(TAILS)}"
    scope: dict[str, object] = {}
    exec(function.code, scope)  # our own solution, which gives the right values
    calls = [f"{function.name}({argument})" for argument in arguments]
    return prompt, answer, tuple((call, repr(eval(call, scope))) for call in calls)


def _list_function(condition: Condition, mapped: Mapped, reduction: Reduction) -> Function:
    if not reduction.uses_value:
        mapped = MAPPED[0]
    parts = (reduction.name, condition.words.replace(" ", "_"), mapped.word)
    of = f"{mapped.word} of the " if mapped.word else ""
    return Function(
        name="_".join(part for part in parts if part),
        argument="numbers",
        does=f"returns {reduction.phrase} {of}{condition.numbers()} in a list",
        body=reduction.body.format(test=condition.test, value=mapped.value),
    )
