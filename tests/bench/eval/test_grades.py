"""Graders read answers as the papers' scripts do, and outlive whatever a model writes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from asynclane.bench.eval import ifeval
from asynclane.bench.eval.data import Line
from asynclane.bench.eval.equivalence import Equivalence, available
from asynclane.bench.eval.latex import final_answer, last_boxed, normalized
from asynclane.bench.eval.parallelbench import read_list
from asynclane.bench.eval.tasks import TASKS, find, shots_of

from ...support.scale import ALL

GSM8K = {"question": "How many?", "answer": "6 + 12 = <<6+12=18>>18\n#### 1,018"}
HUMANEVAL = {
    "task_id": "Own/1",
    "prompt": 'from typing import List\n\n\ndef double(xs: List[int]) -> List[int]:\n    """Double each."""\n',
    "test": "def check(candidate):\n    assert candidate([1, 2]) == [2, 4]\n",
    "entry_point": "double",
}
MBPP = {
    "task_id": 11,
    "text": "Write a function to double a number.",
    "code": "def double(x):\n    return 2 * x",
    "test_list": ["assert double(2) == 4", "assert double(start) == 6", "assert double(0) == 0"],
    "test_setup_code": "start = double(1) + 1",
}
BODY = "    return [2 * x for x in xs]\n"
DOUBLE = "def double(xs: List[int]) -> List[int]:\n" + BODY
INSERT = {"input": ["Al B", "Cy D"], "word": "Eve F", "example": "x"}
SQUARE = {"symbols": ["A", "B"], "example": "A,B\nB,A"}


def points(task: str, fields: Any, text: str) -> dict[str, int]:
    """The points of an answer by metric; formulas are the same only as text."""
    grade = TASKS[task].grade(fields, text, lambda one, other: False)
    assert set(grade.points) == set(TASKS[task].metrics)
    return {name: right for name, (right, _) in grade.points.items()}


@pytest.mark.parametrize(
    ("task", "text", "strict", "flexible"),
    [
        ("gsm8k", "6 + 12 is it.\n#### 1018", 1, 1),
        ("gsm8k", "#### $1,018.00", 0, 1),
        ("gsm8k", "#### 1018.0 and then 7", 1, 0),
        ("gsm8k", "#### 1,018.\n#### 5", 1, 0),
        ("gsm8k", "#### 1018.00000000000000001", 0, 0),  # equal as floats
        ("gsm8k", "it is 1018", 0, 1),
        ("gsm8k", "#### 1.0.1.8", 0, 0),
        ("gsm8k", "#### " + "9" * 10_000, 0, 0),
        ("gsm8k", "", 0, 0),
        ("gsm8k_cot", "The answer is 1018.", 1, 1),
        ("gsm8k_cot_zeroshot", "Well, $1018 it is", 0, 1),
    ],
)
def test_numbers(task: str, text: str, strict: int, flexible: int) -> None:
    assert points(task, GSM8K, text) == {"strict": strict, "flexible": flexible}


@pytest.mark.parametrize(
    ("answer", "normal"),
    [
        ("x = 1,000", "1000"),
        (r"$\frac12$", r"\frac{1}{2}"),
        (r"\sqrt2", r"\sqrt{2}"),
        ("12 square feet", "12"),
        (r"\text{ 5 cm}", "5"),
        (r"the value $\boxed{3\;}$ is", "3"),
        (r"30^\circ", "30"),
        (r"[2,5)", "[2,5)"),
    ],
)
def test_formulas_are_normalized(answer: str, normal: str) -> None:
    assert normalized(answer) == normal


def test_formulas_are_found() -> None:
    assert final_answer("Final Answer: The final answer is $3$. I hope it is") is None
    assert final_answer("so\nFinal Answer: The final answer is $3$. I hope it is correct. And more") == "$3$"
    assert final_answer("Final Answer: The final answer is $3$. ") == "$3$"
    assert last_boxed(r"\boxed{1} and \boxed{\frac{1}{2}}.") == r"\frac{1}{2}"
    assert last_boxed(r"so $\boxed 7$ is") == "7"
    assert last_boxed(r"\boxed{1") is None


@pytest.mark.parametrize(
    ("text", "minerva", "boxed"),
    [
        (r"Final Answer: The final answer is $\frac12$. I hope it is correct.", 1, 1),
        (r"so $\boxed{\frac{1}{2}}$", 0, 1),
        (r"$\boxed{2}$ Final Answer: The final answer is $\frac12$. I hope it is correct.", 1, 0),
        ("one half", 0, 0),
    ],
)
def test_mathematics(text: str, minerva: int, boxed: int) -> None:
    fields = {"problem": "?", "solution": r"It is $\boxed{\frac{1}{2}}$."}
    assert points("minerva_math", fields, text) == {"minerva": minerva, "boxed": boxed}


@pytest.mark.skipif(not available(), reason="needs the extra eval")
def test_formulas_of_the_same_value_are_equal_and_none_takes_for_ever() -> None:
    with Equivalence(limit_s=60.0) as equivalence:
        assert equivalence.same(r"\frac{1}{2}", "0.5")
        assert not equivalence.same("x^2", "2x")
        assert not equivalence.same("{", "{")
        equivalence.limit_s = 0.5
        assert not equivalence.same("9^{9^{9^{9^{9}}}}", "1")
        if ALL:  # sympy is imported again
            equivalence.limit_s = 60.0
            assert equivalence.same("(x+1)^2", "x^2+2x+1")
            assert equivalence._process is not None
            equivalence._process.kill()
            equivalence._process.wait()
            assert equivalence.same("x+1", "1+x")


@pytest.mark.parametrize(
    ("text", "raw", "processed"),
    [
        (BODY, 1, 1),
        (BODY + "\n# and now\nraise ValueError", 1, 1),
        (f"Here it is:\n```python\n{DOUBLE}```\nIt doubles.", 0, 1),
        (f"First:\n```python\nprint(1)\n```\nThen:\n```python\n{DOUBLE}", 0, 1),
        (DOUBLE, 1, 1),
        (f"```python\n{BODY}```", 0, 1),
        ("    return xs\n", 0, 0),
        ("    raise SystemExit(0)\n", 0, 0),
    ],
)
def test_humaneval(text: str, raw: int, processed: int) -> None:
    assert points("humaneval", HUMANEVAL, text) == {"raw": raw, "processed": processed}


def test_code_for_chats_ends_at_its_fence() -> None:
    assert points("humaneval_instruct", HUMANEVAL, BODY + "```\nIt doubles.") == {"pass@1": 1}
    assert points("mbpp_instruct", MBPP, MBPP["code"] + "\n```\nIt doubles.") == {"pass@1": 1}


@pytest.mark.parametrize(
    ("text", "raw", "processed"),
    [
        (MBPP["code"], 1, 1),
        (f"```\n{MBPP['code']}\n```", 0, 1),
        ("import sys\nprint(1)\nsys.stdout.write('[]')\ndef double(x):\n    return x + x", 1, 1),
        ("def double(x):\n    return x * x", 0, 0),
    ],
)
def test_mbpp(text: str, raw: int, processed: int) -> None:
    assert points("mbpp", MBPP, text) == {"raw": raw, "processed": processed}


FOLLOWED: list[tuple[str, dict[str, Any], str, str]] = [  # the last text does not follow
    ("keywords:existence", {"keywords": ["Fox", "den"]}, "the fox in its den", "the fox"),
    ("keywords:frequency", {"keyword": "fox", "relation": "at least", "frequency": 2}, "fox Fox", "fox"),
    ("keywords:forbidden_words", {"forbidden_words": ["fox"]}, "foxes", "a Fox"),
    ("keywords:letter_frequency", {"letter": "a", "let_relation": "less than", "let_frequency": 2}, "A b", "a A"),
    ("length_constraints:number_words", {"relation": "less than", "num_words": 3}, "one two!", "one two 3"),
    ("length_constraints:number_paragraphs", {"num_paragraphs": 2}, "a\n***\nb\n***", "a\n***\n\n***\nb"),
    (
        "length_constraints:nth_paragraph_first_word",
        {"num_paragraphs": 2, "nth_paragraph": 2, "first_word": "Fox"},
        "a\n\n'fox, b",
        "fox\n\na",
    ),
    ("detectable_content:number_placeholders", {"num_placeholders": 2}, "[a] and [b]", "[a]"),
    ("detectable_content:postscript", {"postscript_marker": "P.S."}, "a\np. s. b", "a PS b"),
    ("detectable_content:postscript", {"postscript_marker": "P.P.S"}, "P.P.S b", "P.S. b"),
    ("detectable_format:number_bullet_lists", {"num_bullets": 2}, "* a\n- b", "* a\n** b"),
    ("detectable_format:constrained_response", {}, "Well. My answer is no.", "no"),
    ("detectable_format:number_highlighted_sections", {"num_highlights": 2}, "*a* b *c*", "*a* ** **"),
    ("detectable_format:multiple_sections", {"section_spliter": "Part", "num_sections": 2}, "Part 1 a Part 2", "Part"),
    ("detectable_format:json_format", {}, '```json\n{"a": 1}\n```', "{'a': 1}"),
    ("detectable_format:title", {}, "<<a b>>", "<< >>"),
    ("combination:two_responses", {}, "a\n******\nb", "a\n******\na"),
    ("combination:repeat_prompt", {"prompt_to_repeat": "Say A."}, "say a. A", "A"),
    ("startend:end_checker", {"end_phrase": "The end."}, 'so "the end."', "the end. or not"),
    ("punctuation:no_comma", {}, "a b", "a, b"),
    ("startend:quotation", {}, ' "a" ', '"'),
]


@pytest.mark.parametrize(("name", "arguments", "right", "wrong"), FOLLOWED)
def test_an_instruction_is_followed_or_not(name: str, arguments: dict[str, Any], right: str, wrong: str) -> None:
    assert ifeval.follows(name, arguments, right)
    assert not ifeval.follows(name, arguments, wrong)
    assert not ifeval.follows(name, arguments, " \n")


def test_every_instruction_is_tested() -> None:
    assert {name for name, *_ in FOLLOWED} == set(ifeval.CHECKS)


def test_a_loose_answer_may_lose_its_first_and_last_line_and_its_asterisks() -> None:
    fields = {
        "key": 1,
        "prompt": "?",
        "instruction_id_list": ["punctuation:no_comma", "startend:quotation"],
        "kwargs": [{}, {}],
    }
    wanted = {"prompt_strict": 0, "prompt_loose": 1, "instruction_strict": 0, "instruction_loose": 2}
    assert points("ifeval", fields, 'Sure, here it is:\n*"a b"*\nEnjoy, please') == wanted
    assert ifeval.loosened("a\n*b*\nc")[3] == "*b*"


@pytest.mark.parametrize(
    ("task", "answer", "text", "lenient", "strict"),
    [
        ("copy", '["Al B", "Cy D"]', 'It is ["Al B", "Cy D"].', 1, 1),
        ("copy", '["Al B", "Cy D"]', "[Al B,Cy D]", 1, 0),
        ("sort", '["Al B", "Cy D"]', '["Cy D", "Al B"]', 0, 0),
        ("insert_random", INSERT, '["Al B", "Eve F", "Cy D"]', 1, 1),
        ("insert_random", INSERT, '["Cy D", "Eve F", "Al B"]', 0, 0),
        ("insert_random", INSERT, '["Al B", "Cy D"]', 0, 0),
        ("remove_random", INSERT, '["Cy D"]', 1, 1),
        ("remove_random", INSERT, '["Al B", "Cy D"]', 0, 0),
        ("replace_random", INSERT, '["Al B", "Eve F"]', 1, 1),
        ("replace_random", INSERT, '["Cy D", "Eve F"]', 0, 0),
        ("shuffle", INSERT, '["Cy D", "Al B"]', 1, 1),
        ("shuffle", INSERT, '["Al B", "Cy D"]', 0, 0),
        ("sudoku", "12\n34\n12\n34".replace("\n", "0\n") + "0", "", 0, 0),
        ("sudoku", "1234\n3412\n2143\n4321", "1, 2, 3, 4\n3412\n2143\n4321", 1, 0),
        ("sudoku", "1234\n3412\n2143\n4321", "1234\n3412\n2143\n4321", 1, 1),
    ],
)
def test_lists_and_grids(task: str, answer: Any, text: str, lenient: int, strict: int) -> None:
    assert points(f"parallelbench_{task}", {"answer": answer}, text) == {"lenient": lenient, "strict": strict}


def test_squares_and_sentences() -> None:
    assert points("parallelbench_latin_square", {"answer": SQUARE}, "Here:\nB, A\nA,B\n") == {"valid": 1}
    assert points("parallelbench_latin_square", {"answer": SQUARE}, "A,B\nA,B") == {"valid": 0}
    assert points("parallelbench_latin_square", {"answer": SQUARE}, "A,B") == {"valid": 0}
    words = {"answer": {"words": ["dog", "park"]}}
    assert points("parallelbench_words_to_sentence", words, "A dog in the park.") == {"words_used": 1}
    assert points("parallelbench_words_to_sentence", words, "A dog.") == {"words_used": 0}


def test_a_list_is_read_from_the_last_bracket() -> None:
    assert read_list('["a", "b"] or ["c"] and') == ["c"]
    assert read_list("a, b") == ["a", "b"]
    assert read_list("a, b", strict=True) is None
    assert read_list('["a"b"]', strict=True) is None


def test_prompts_are_those_of_the_papers(tmp_path: Path) -> None:
    shot = {"question": "1 + 1?", "answer": "It is 2.\n#### 2"}
    cot = find("gsm8k_cot")
    shots = shots_of("gsm8k_cot", cot, None, None)
    assert len(shots) == 8
    text = cot.prompt(GSM8K, shots).text
    assert text.startswith("Q: There are 15 trees in the grove.")
    assert text.endswith("The answer is 8.\n\nQ: How many?\n\nA:")
    assert find("gsm8k").prompt(GSM8K, [shot]).messages == [
        {"role": "user", "content": "Question: 1 + 1?\nAnswer: It is 2.\n#### 2\n\nQuestion: How many?\nAnswer:"}
    ]
    math = find("minerva_math")
    text = math.prompt({"problem": "P", "solution": "S"}, shots_of("minerva_math", math, 1, None)).text
    assert text.startswith(
        "Problem:\nFind the domain of the expression  $\\frac{\\sqrt{x-2}}{\\sqrt{5-x}}$.}\n\nSolution: The"
    )
    assert text.endswith("I hope it is correct.\n\nProblem:\nP\n\nSolution:")
    begun = find("humaneval_instruct").prompt(HUMANEVAL, [])
    assert begun.messages[-1]["role"] == "assistant"
    assert begun.text.endswith(f"Here is the completed function:\n```python\n{HUMANEVAL['prompt']}\n")
    text = find("mbpp").prompt(MBPP, [MBPP]).text
    tests = "\n".join(MBPP["test_list"])
    one = f"here is your task: {MBPP['text']} Your code should pass these tests:\n\n{tests}\n[BEGIN]\n"
    assert text.count(one) == 2
    assert f"[BEGIN]\n{MBPP['code']}\n[DONE]\n\nYou are" in text
    line = {"input": {"context": "[]", "icl_examples": [{"input": {"context": '["A"]'}, "answer": '["A"]'}]}}
    turns = find("parallelbench_copy").prompt(line, []).messages
    assert [turn["role"] for turn in turns] == ["user", "assistant", "user"]
    assert turns[2]["content"].endswith(":\n[]\nPlease copy the list exactly and provide only the final list.\n")


def lines(task: str, folder: Path, *rows: Any) -> list[Line]:
    path = folder / "data.jsonl"
    path.write_text("\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows), encoding="utf-8")
    return find(task).read(path)


IFEVAL = {"key": 1, "prompt": "?", "instruction_id_list": ["startend:quotation"], "kwargs": [{}]}


@pytest.mark.parametrize(
    ("task", "rows", "message"),
    [
        ("gsm8k", [], "is empty: expected one JSON object a line, with question (a text), answer (a text)"),
        ("gsm8k", [GSM8K, "{"], "line 2 is no JSON"),
        ("gsm8k", ["[1]"], "line 1 is no JSON object: expected one with question"),
        ("gsm8k", [HUMANEVAL], "line 1 has no 'question' (a text): it has 'task_id', 'prompt', 'test', 'entry_point'"),
        ("gsm8k", [{"question": 3, "answer": ""}], "line 1: 'question' must be a text, not 3"),
        ("gsm8k", [{"question": "3", "answer": "3"}], "line 1: 'answer' must end with '#### ' and the result"),
        ("gsm8k", [GSM8K, "", GSM8K], "line 3: its text is that of"),
        ("gsm8k", ['{"question": "\\ud800", "answer": "#### 1"}'], "line 1 is no JSON: "),
        (
            "minerva_math",
            [{"problem": "?", "solution": "3"}],
            "line 1: 'solution' must have its answer in \\boxed{...}",
        ),
        ("mbpp", [{**MBPP, "test_list": "a"}], "line 1: 'test_list' must be a list of texts"),
        ("mbpp", [{**MBPP, "test_list": []}], "line 1: 'test_list' is empty, and any answer would pass"),
        ("mbpp_plain", [{**MBPP, "test_setup_code": 5}], "line 1: 'test_setup_code' must be a text, not 5"),
        ("mbpp", [MBPP, {**MBPP, "text": "!"}], "line 2: its task_id is that of"),
        ("mbpp", [{"task_id": 1, "code": "", "test_list": []}], "line 1 has no 'text' or 'prompt' (a text)"),
        (
            "ifeval",
            [IFEVAL, {**IFEVAL, "key": 2, "instruction_id_list": ["language:response_language"]}],
            "needs a detector of languages, which is not here: leave out the lines with such instructions (1 of 2)",
        ),
        ("ifeval", [{**IFEVAL, "instruction_id_list": ["a:b"]}], "line 1: unknown instruction 'a:b'"),
        ("ifeval", [{**IFEVAL, "kwargs": []}], "needs one object in 'kwargs' for each instruction, not 0 for 1"),
        (
            "ifeval",
            [{**IFEVAL, "instruction_id_list": ["startend:end_checker"]}],
            "'startend:end_checker': needs 'end_phrase', a text, not null",
        ),
        (
            "ifeval",
            [{**IFEVAL, "instruction_id_list": ["keywords:existence"], "kwargs": [{"keywords": ["("]}]}],
            "'keywords' is no regular expression",
        ),
        (
            "parallelbench_copy",
            [{"input": {"words": ""}, "answer": ""}],
            "'input' must have 'context': 'context' is missing",
        ),
        (
            "parallelbench_shuffle",
            [{"input": {"context": ""}, "answer": ""}],
            "'answer' must be an object with 'input' (a list of texts)",
        ),
        (
            "parallelbench_replace_random",
            [{"input": {"context": "", "word": ""}, "answer": {"input": [1], "word": ""}}],
            "'answer' must be an object with 'input' (a list of texts), 'word' (a text)",
        ),
        *(
            ("parallelbench_copy", [{"input": {"context": "", "icl_examples": examples}, "answer": ""}], message)
            for examples, message in (
                (5, "'icl_examples' must be a list of objects"),
                (["a"], "'icl_examples' must be a list of objects"),
                ([{"input": "a"}], "'input' must have 'context': 'context' is missing"),
                ([{"input": {"context": ""}}], "'answer' must be a text"),
            )
        ),
    ],
)
def test_a_file_of_another_form_is_refused_by_line(task: str, rows: list[Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"data\.jsonl") as refused:
        lines(task, tmp_path, *rows)
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("task", "count", "file", "message"),
    [
        ("gsm8k", None, False, "gsm8k takes 5 shots from --shots-file FILE"),
        ("gsm8k", 0, True, "gsm8k is without shots: give --shots N beside --shots-file"),
        ("gsm8k_cot_zeroshot", None, True, "gsm8k_cot_zeroshot is without shots: give --shots N beside --shots-file"),
        ("gsm8k", 2, True, "data.jsonl has 1 shots, fewer than the 2 wanted: give --shots 1"),
        ("gsm8k_cot", 9, False, "the built-in list has 8 shots, fewer than the 9 wanted: give --shots 8"),
        ("ifeval", 1, False, "ifeval has no shots: leave out --shots"),
        ("parallelbench_copy", None, True, "parallelbench_copy has no shots: leave out --shots-file"),
    ],
)
def test_shots_that_are_not_there_are_refused(
    task: str, count: int | None, file: bool, message: str, tmp_path: Path
) -> None:
    lines("gsm8k", tmp_path, GSM8K)
    with pytest.raises(ValueError, match=message.replace("(", "\\(")):
        shots_of(task, find(task), count, tmp_path / "data.jsonl" if file else None)
