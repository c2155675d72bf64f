"""Checks whether an answer follows IFEval's instructions (arXiv 2311.07911), by the names of the public set.

Instructions that need a detector of languages or a trained splitter of sentences and words are not checked: a file with
them is refused.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from itertools import takewhile
from typing import Any

from .data import Line

LESS, AT_LEAST = "less than", "at least"
LANGUAGE, SPLITTER = "a detector of languages", "a trained splitter of sentences and words"
UNCHECKED = {
    "language:response_language": LANGUAGE,
    "change_case:english_capital": LANGUAGE,
    "change_case:english_lowercase": LANGUAGE,
    "length_constraints:number_sentences": SPLITTER,
    "change_case:capital_word_frequency": SPLITTER,
}
OPTIONS = ("My answer is yes.", "My answer is no.", "My answer is maybe.")
POSTSCRIPTS = {"P.P.S": r"p\.\s?p\.\s?s", "P.S.": r"p\.\s?s\."}
FENCES = ("```json", "```Json", "```JSON", "```")

Check = Callable[..., bool]


def _within(count: int, relation: str, bound: int) -> bool:
    return count < bound if relation == LESS else count >= bound


def _found(pattern: str, text: str) -> int:
    return len(re.findall(pattern, text, re.IGNORECASE))


def keywords_exist(text: str, keywords: Sequence[str]) -> bool:
    return all(_found(keyword, text) for keyword in keywords)


def keyword_frequency(text: str, keyword: str, relation: str, frequency: int) -> bool:
    return _within(_found(keyword.strip(), text), relation, frequency)


def no_forbidden_words(text: str, forbidden_words: Sequence[str]) -> bool:
    return not any(_found(rf"\b{word}\b", text) for word in forbidden_words)


def letter_frequency(text: str, letter: str, let_relation: str, let_frequency: int) -> bool:
    return _within(text.lower().count(letter.strip().lower()), let_relation, let_frequency)


def number_words(text: str, relation: str, num_words: int) -> bool:
    return _within(len(re.findall(r"\w+", text)), relation, num_words)


def number_paragraphs(text: str, num_paragraphs: int) -> bool:
    """Paragraphs between lines of `***`; only the first and the last may be empty, and then do not count."""
    first, *middle = re.split(r"\s?\*\*\*\s?", text)
    *middle, last = middle or [""]
    inner = [bool(paragraph.strip()) for paragraph in middle]
    return all(inner) and len(inner) + bool(first.strip()) + bool(last.strip()) == num_paragraphs


def first_word_of_paragraph(text: str, num_paragraphs: int, nth_paragraph: int, first_word: str) -> bool:
    """Paragraphs between empty lines."""
    paragraphs = text.split("\n\n")
    count = sum(1 for paragraph in paragraphs if paragraph.strip())
    if not (1 <= nth_paragraph <= count == num_paragraphs) or not (words := paragraphs[nth_paragraph - 1].split()):
        return False
    word = words[0].lstrip("'").lstrip('"')
    return "".join(takewhile(lambda char: char not in ".,?!'\"", word)).lower() == first_word.lower()


def placeholders(text: str, num_placeholders: int) -> bool:
    return len(re.findall(r"\[.*?\]", text)) >= num_placeholders


def postscript(text: str, postscript_marker: str) -> bool:
    marker = postscript_marker.strip()
    return re.search(POSTSCRIPTS.get(marker, marker.lower()), text.lower()) is not None


def bullets(text: str, num_bullets: int) -> bool:
    return len(re.findall(r"^\s*(?:\*[^*]|-).*$", text, re.MULTILINE)) == num_bullets


def one_of_the_options(text: str) -> bool:
    return any(option in text for option in OPTIONS)


def highlights(text: str, num_highlights: int) -> bool:
    """Texts between asterisks, on one line. One between two asterisks on each side counts as it is found by both
    patterns of the public code."""
    single = re.findall(r"\*[^\n*]*\*", text)
    double = re.findall(r"\*\*[^\n*]*\*\*", text)
    filled = [part.strip("*").strip() for part in (*single, *double)]
    return sum(map(bool, filled)) >= num_highlights


def sections(text: str, section_spliter: str, num_sections: int) -> bool:
    return len(re.findall(rf"{section_spliter.strip()}\s?\d+", text)) >= num_sections


def is_json(text: str) -> bool:
    text = text.strip()
    for fence in FENCES:
        text = text.removeprefix(fence)
    try:
        json.loads(text.removesuffix("```").strip())
    except (ValueError, RecursionError):
        return False
    return True


def titled(text: str) -> bool:
    return any(title.lstrip("<").rstrip(">").strip() for title in re.findall(r"<<[^\n]+>>", text))


def two_responses(text: str) -> bool:
    first, *middle = text.split("******")
    *middle, last = middle or [""]
    if not all(part.strip() for part in middle):
        return False
    filled = [part.strip() for part in (first, *middle, last) if part.strip()]
    return len(filled) == 2 and filled[0] != filled[1]


def repeats_prompt(text: str, prompt_to_repeat: str) -> bool:
    return text.strip().lower().startswith(prompt_to_repeat.strip().lower())


def ends_with(text: str, end_phrase: str) -> bool:
    return text.strip().strip('"').lower().endswith(end_phrase.strip().lower())


def no_comma(text: str) -> bool:
    return "," not in text


def quoted(text: str) -> bool:
    text = text.strip()
    return len(text) > 1 and text[0] == text[-1] == '"'


# Each instruction with its check and the types of the check's arguments, by the names that the public set has.
CHECKS: Mapping[str, tuple[Check, Mapping[str, type]]] = {
    "keywords:existence": (keywords_exist, {"keywords": list}),
    "keywords:frequency": (keyword_frequency, {"keyword": str, "relation": str, "frequency": int}),
    "keywords:forbidden_words": (no_forbidden_words, {"forbidden_words": list}),
    "keywords:letter_frequency": (letter_frequency, {"letter": str, "let_relation": str, "let_frequency": int}),
    "length_constraints:number_words": (number_words, {"relation": str, "num_words": int}),
    "length_constraints:number_paragraphs": (number_paragraphs, {"num_paragraphs": int}),
    "length_constraints:nth_paragraph_first_word": (
        first_word_of_paragraph,
        {"num_paragraphs": int, "nth_paragraph": int, "first_word": str},
    ),
    "detectable_content:number_placeholders": (placeholders, {"num_placeholders": int}),
    "detectable_content:postscript": (postscript, {"postscript_marker": str}),
    "detectable_format:number_bullet_lists": (bullets, {"num_bullets": int}),
    "detectable_format:constrained_response": (one_of_the_options, {}),
    "detectable_format:number_highlighted_sections": (highlights, {"num_highlights": int}),
    "detectable_format:multiple_sections": (sections, {"section_spliter": str, "num_sections": int}),
    "detectable_format:json_format": (is_json, {}),
    "detectable_format:title": (titled, {}),
    "combination:two_responses": (two_responses, {}),
    "combination:repeat_prompt": (repeats_prompt, {"prompt_to_repeat": str}),
    "startend:end_checker": (ends_with, {"end_phrase": str}),
    "punctuation:no_comma": (no_comma, {}),
    "startend:quotation": (quoted, {}),
}
WORDS = {str: "a text", int: "a whole number", list: "a list of texts"}
RELATIONS = ("relation", "let_relation")
PATTERNS = ("keyword", "keywords", "forbidden_words", "section_spliter", "postscript_marker")


def check_lines(lines: Sequence[Line]) -> None:
    """Raises `ValueError` for the first line with an instruction that cannot be checked, or without its arguments."""
    unchecked = [line for line in lines if UNCHECKED.keys() & {*line.fields["instruction_id_list"]}]
    for line in lines:
        names, given = line.fields["instruction_id_list"], line.fields["kwargs"]
        if not names or len(names) != len(given):
            raise ValueError(
                f"{line.place}: needs one object in 'kwargs' for each instruction, not {len(given)} for {len(names)}"
            )
        for name, arguments in zip(names, given, strict=True):
            if name in UNCHECKED:
                raise ValueError(
                    f"{line.place}: instruction {name!r} needs {UNCHECKED[name]}, which is not here: leave out the"
                    f" lines with such instructions ({len(unchecked)} of {len(lines)})"
                )
            if name not in CHECKS:
                raise ValueError(f"{line.place}: unknown instruction {name!r}")
            if fault := _fault(name, arguments):
                raise ValueError(f"{line.place}: instruction {name!r}: {fault}")


def _fault(name: str, arguments: Mapping[str, Any]) -> str | None:
    for argument, kind in CHECKS[name][1].items():
        value = arguments.get(argument)
        if isinstance(value, float) and value.is_integer() and kind is int:  # as pandas writes it
            continue
        if not isinstance(value, kind) or isinstance(value, bool) or value in ("", []):
            return f"needs {argument!r}, {WORDS[kind]}, not {json.dumps(value)[:40]}"
        if argument in RELATIONS and value not in (LESS, AT_LEAST):
            return f"{argument!r} must be {LESS!r} or {AT_LEAST!r}, not {value!r}"
        for pattern in (value if isinstance(value, list) else [value]) if argument in PATTERNS else ():
            if not isinstance(pattern, str):
                return f"{argument!r} must be a list of texts"
            try:
                re.compile(pattern)
            except re.error as error:
                return f"{argument!r} is no regular expression: {error}"
    return None


def follows(name: str, arguments: Mapping[str, Any], text: str) -> bool:
    """Return whether a text follows an instruction of a line that has been checked. An empty text follows none."""
    check, known = CHECKS[name]
    return bool(text.strip()) and check(text, **{argument: arguments[argument] for argument in known})


def loosened(text: str) -> list[str]:
    """The text and its variants without the first line, the last, both, and each without asterisks."""
    lines = text.split("\n")
    kept = [text, *("\n".join(part).strip() for part in (lines[1:], lines[:-1], lines[1:-1]))]
    return [*kept, *(variant.replace("*", "") for variant in kept)]
