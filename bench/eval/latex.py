"""Answers in LaTeX as MATH has them: found in a text, and normalised as in appendix D of Minerva (arXiv 2206.14858)."""

from __future__ import annotations

import re

FINAL = re.compile(r"Final Answer: The final answer is(.*?). I hope it is correct.")
END = "I hope it is correct."

REPLACED = (
    ("an ", ""),
    ("a ", ""),
    (".$", "$"),
    (r"\$", ""),
    (r"\ ", ""),
    (" ", ""),
    ("mbox", "text"),
    (r",\text{and}", ","),
    (r"\text{and}", ","),
    (r"\text{m}", r"\text{}"),
)
WORDS = (
    "square ways integers dollars mph inches ft hours km units \\ldots sue points feet minutes digits cents degrees"
    " cm gm pounds meters meals edges students childrentickets multiples"
).split()
REMOVED = (
    *WORDS,
    *(r"\text{s}", r"\text{.}", "\\text{\ns}", r"\text{}^2", r"\text{}^3", "\\text{\n}", r"\text{}", r"\mathrm{th}"),
    *(r"^\circ", r"^{\circ}", r"\;", r",\!", "{,}", '"', r"\dots"),
)
# Of each of these only the inside is kept, in this order.
UNWRAPPED = (
    (re.compile(r".*?\$(.*?)\$.*"), r"$\1$"),
    (re.compile(r"\\text\{(.*?)\}"), r"\1"),
    (re.compile(r"\\textbf\{(.*?)\}"), r"\1"),
    (re.compile(r"\\overline\{(.*?)\}"), r"\1"),
    (re.compile(r"\\boxed\{(.*)\}"), r"\1"),
    (re.compile(r"frac([^{])(.)"), r"frac{\1}{\2}"),
    (re.compile(r"sqrt([^{])"), r"sqrt{\1}"),
)


def final_answer(text: str) -> str | None:
    """The answer in Minerva's sentence, which need not be complete at its end."""
    found = FINAL.search(text + END)
    return found[1].strip() if found else None


def last_boxed(text: str) -> str | None:
    r"""The inside of the last `\boxed{...}` or `\fbox{...}`, or what follows `\boxed ` up to a dollar sign. An open
    brace has no inside."""
    if r"\boxed " in text:
        return text.rpartition(r"\boxed ")[2].partition("$")[0]
    start = max(text.rfind(r"\boxed{"), text.rfind(r"\fbox{"))
    if start < 0:
        return None
    inside = text[text.index("{", start) + 1 :]
    depth = 1
    for at, char in enumerate(inside):
        depth += {"{": 1, "}": -1}.get(char, 0)
        if not depth:
            return inside[:at]
    return None


def normalized(answer: str) -> str:
    answer = answer.rpartition("=")[2]
    for before, after in REPLACED:
        answer = answer.replace(before, after)
    for word in REMOVED:
        answer = answer.replace(word, "")
    for pattern, kept in UNWRAPPED:
        answer = pattern.sub(kept, answer)
    answer = answer.replace("$", "")
    digits = answer.replace(",", "")
    return digits if digits.isdigit() else answer
