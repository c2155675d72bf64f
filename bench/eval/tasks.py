"""The tasks of `asynclane eval`: the prompt, stop strings, answer and grade of each, as lm-evaluation-harness has them.

The papers' figures come from these prompts: https://github.com/EleutherAI/lm-evaluation-harness, `lm_eval/tasks`.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from pathlib import Path

from . import ifeval, parallelbench
from .answers import HASHES, THE_ANSWER, expected, first, last_number, same_number
from .data import Fields, Form, Line, read_lines
from .latex import final_answer, last_boxed, normalized
from .programs import FENCE, asserted, completed, cut, extracted, fenced, until_fence
from .sandbox import passes

CODE_S = 3  # of a processor for the tests of one answer, as in the harness
SameFormula = Callable[[str, str], bool]


@dataclass(frozen=True, slots=True)
class Grade:
    """The part of an answer that was graded, and by metric the points that it got and could get: 0 or 1 of 1, or the
    instructions that were followed."""

    extracted: str | None
    points: Mapping[str, tuple[int, int]]

    @classmethod
    def of(cls, extracted: str | None, right: Mapping[str, bool]) -> Grade:
        return cls(extracted, {name: (int(value), 1) for name, value in right.items()})


@dataclass(frozen=True, slots=True)
class Prompt:
    """Turns of user and assistant, and the beginning of the answer, if it is given."""

    turns: tuple[tuple[str, str], ...]
    prefill: str = ""

    @property
    def messages(self) -> list[dict[str, str]]:
        turns = [*self.turns, ("assistant", self.prefill)] if self.prefill else self.turns
        return [{"role": role, "content": text} for role, text in turns]

    @property
    def text(self) -> str:
        """The prompt without a chat template."""
        return "\n\n".join(text for _, text in self.turns) + self.prefill


@dataclass(frozen=True, slots=True)
class Task:
    """A task. `question` is the text of a problem, `answer` that of a shot, which `between` separates.

    `shots` is their usual number: if there are any and none are built in, they come from a file. The first of
    the `metrics` is drawn. `max_tokens` is the canvas of the papers on diffusion models. A task for `chat` needs a chat
    template. `stops_in_chat` says that a text from a chat ends at the stop strings as well.
    """

    form: Form
    question: Callable[[Fields], str]
    grade: Callable[[Fields, str, SameFormula], Grade]
    metrics: tuple[str, ...]
    answer: Callable[[Fields], str] | None = None
    between: str = " "
    shots: int = 0
    built_in: str | None = None
    stops: tuple[str, ...] = ()
    stops_in_chat: bool = True
    max_tokens: int = 256
    chat: bool = False
    prefill: Callable[[Fields], str] = lambda fields: ""
    turns: Callable[[Fields], list[tuple[str, str]]] | None = None
    check: Callable[[Sequence[Line]], None] = lambda lines: None

    def prompt(self, fields: Fields, shots: Sequence[Fields]) -> Prompt:
        """All shots are in one turn of the user, as in the papers' scripts; those of ParallelBench are turns."""
        if self.turns is not None:
            return Prompt(tuple(self.turns(fields)))
        parts = [self._shot(shot) for shot in shots]
        return Prompt((("user", "\n\n".join([*parts, self.question(fields)])),), self.prefill(fields))

    def _shot(self, fields: Fields) -> str:
        assert self.answer is not None
        return f"{self.question(fields)}{self.between}{self.answer(fields)}"

    def stops_of(self, chat: bool) -> tuple[str, ...]:
        """The stop strings that are sent."""
        return self.stops if self.stops_in_chat or not chat else ()

    def read(self, path: Path) -> list[Line]:
        """The problems of a file. Raises `ValueError` and `OSError` with one line that says what is wrong."""
        lines = read_lines(path, self.form)
        self.check(lines)
        return lines


def find(name: str) -> Task:
    """Raises `ValueError` for an unknown name, with the nearest known."""
    if name in TASKS:
        return TASKS[name]
    nearest = difflib.get_close_matches(name.lower(), TASKS, 1, cutoff=0)[0]
    raise ValueError(f"no task {name!r}: did you mean {nearest!r}? the tasks are {', '.join(TASKS)}")


def shots_of(name: str, task: Task, count: int | None, path: Path | None) -> list[Fields]:
    """The first `count` shots of a file, or of those that are built in. Raises `ValueError`."""
    if task.answer is None:
        if count or path:
            raise ValueError(f"{name} has no shots: leave out {'--shots' if count else '--shots-file'}")
        return []
    count = task.shots if count is None else count
    if path is not None and not count:
        raise ValueError(f"{name} is without shots: give --shots N beside --shots-file, or leave both out")
    if path is not None:
        found = [line.fields for line in read_lines(path, task.form)]
        where = str(path)
    elif task.built_in is not None:
        text = files(__package__).joinpath("shots.json").read_text(encoding="utf-8")
        found, where = json.loads(text)[task.built_in]["shots"], "the built-in list"
    elif count:
        raise ValueError(
            f"{name} takes {count} shots from --shots-file FILE, lines of the form of --data that are not in it; "
            "or give --shots 0"
        )
    else:
        return []
    if len(found) < count:
        raise ValueError(f"{where} has {len(found)} shots, fewer than the {count} wanted: give --shots {len(found)}")
    return found[:count]


# --- GSM8K --------------------------------------------------------------------------------------------------


def _gsm8k_grade(pattern: re.Pattern[str]) -> Callable[[Fields, str, SameFormula], Grade]:
    def grade(fields: Fields, text: str, same: SameFormula) -> Grade:
        target, flexible = expected(fields["answer"]), last_number(text)
        right = {"strict": same_number(first(pattern, text), target), "flexible": same_number(flexible, target)}
        return Grade.of(flexible, right)

    return grade


def _check_gsm8k(lines: Sequence[Line]) -> None:
    for line in lines:
        if not expected(line.fields["answer"]) or "#### " not in line.fields["answer"]:
            raise ValueError(f"{line.place}: 'answer' must end with '#### ' and the result")


GSM8K = Form({"question": "text", "answer": "text"})
IM_END = ("</s>", "<|im_end|>")

# --- MATH ---------------------------------------------------------------------------------------------------


def _math_grade(fields: Fields, text: str, same: SameFormula) -> Grade:
    """`minerva` is the answer in Minerva's sentence; `boxed` the last box, or else that sentence."""
    target = normalized(last_boxed(fields["solution"]) or "")
    sentence, box = final_answer(text), last_boxed(text)
    either = sentence if box is None else box

    def right(found: str | None) -> bool:
        return found is not None and ((answer := normalized(found)) == target or same(answer, target))

    minerva = right(sentence)
    return Grade.of(either, {"minerva": minerva, "boxed": minerva if either == sentence else right(either)})


def _check_math(lines: Sequence[Line]) -> None:
    for line in lines:
        if last_boxed(line.fields["solution"]) is None:
            raise ValueError(f"{line.place}: 'solution' must have its answer in \\boxed{{...}}")


# --- Code ---------------------------------------------------------------------------------------------------

HUMANEVAL_STOPS = ("\nclass", "\ndef", "\n#", "\nif", "\nprint")
HUMANEVAL = Form({"task_id": "text", "prompt": "text", "test": "text", "entry_point": "text"}, key="task_id")
MBPP = Form({"task_id": "any", "text|prompt": "text", "code": "text", "test_list": "texts"}, key="task_id")


def _humaneval_grade(fields: Fields, text: str, same: SameFormula) -> Grade:
    """`raw` is the prompt with the text up to a stop string, `processed` has the function that the text may define."""
    raw, processed = completed(fields, cut(text, HUMANEVAL_STOPS)), extracted(fields, text, HUMANEVAL_STOPS)
    passed = passes(raw, CODE_S)
    return Grade.of(text, {"raw": passed, "processed": passed if raw == processed else passes(processed, CODE_S)})


def _instructed_grade(fields: Fields, text: str, same: SameFormula) -> Grade:
    code = until_fence(text)
    return Grade.of(code, {"pass@1": passes(completed(fields, code), CODE_S)})


def _instructed_question(fields: Fields) -> str:
    instruction = "Write a solution to the following problem and make sure that it passes the tests:"
    return f"{instruction}\n{FENCE}python\n{fields['prompt']}\n{FENCE}\n"


def _check_mbpp(lines: Sequence[Line]) -> None:
    for line in lines:
        if not line.fields["test_list"]:
            raise ValueError(f"{line.place}: 'test_list' is empty, and any answer would pass")
        if not isinstance(setup := line.fields.get("test_setup_code"), str | None):
            raise ValueError(f"{line.place}: 'test_setup_code' must be a text, not {json.dumps(setup)[:60]}")


def _mbpp_question(fields: Fields) -> str:
    tests = "\n".join(fields["test_list"][:3])
    return (
        f"You are an expert Python programmer, and here is your task: {fields['text']} "
        f"Your code should pass these tests:\n\n{tests}\n[BEGIN]\n"
    )


def _mbpp_instructed(fields: Fields) -> str:
    tests = "\n".join(fields["test_list"][:3])
    return (
        f"You are an expert Python programmer, and here is your task:\n{fields['text']}\n"
        f"Your code should pass these tests:\n{tests}"
    )


def _mbpp_grade(fields: Fields, text: str, same: SameFormula) -> Grade:
    """`raw` is the text as it is, `processed` the first fenced block, if there is one."""
    code = fenced(text)
    passed = passes(asserted(fields, text), CODE_S)
    return Grade.of(
        text if code is None else code,
        {"raw": passed, "processed": passed if code is None else passes(asserted(fields, code), CODE_S)},
    )


def _mbpp_instructed_grade(fields: Fields, text: str, same: SameFormula) -> Grade:
    code = until_fence(text)
    return Grade.of(code, {"pass@1": passes(asserted(fields, code), CODE_S)})


# --- IFEval and ParallelBench -------------------------------------------------------------------------------

IFEVAL = Form(
    {"key": "any", "prompt": "text", "instruction_id_list": "texts", "kwargs": "objects"},
    key="key",
)


def _ifeval_grade(fields: Fields, text: str, same: SameFormula) -> Grade:
    pairs = [*zip(fields["instruction_id_list"], fields["kwargs"], strict=True)]
    variants = ifeval.loosened(text)
    strict = [ifeval.follows(name, arguments, text) for name, arguments in pairs]
    loose = [any(ifeval.follows(name, arguments, each) for each in variants) for name, arguments in pairs]
    return Grade(
        ", ".join(name for (name, _), followed in zip(pairs, strict, strict=True) if followed) or None,
        {
            "prompt_strict": (int(all(strict)), 1),
            "prompt_loose": (int(all(loose)), 1),
            "instruction_strict": (sum(strict), len(pairs)),
            "instruction_loose": (sum(loose), len(pairs)),
        },
    )


def _parallel(kind: parallelbench.Kind) -> Task:
    def grade(fields: Fields, text: str, same: SameFormula) -> Grade:
        return Grade.of(*kind.grade(fields["answer"], text))

    def check(lines: Sequence[Line]) -> None:
        for line in lines:
            if fault := parallelbench.fault(kind, line.fields["input"], line.fields["answer"]):
                raise ValueError(f"{line.place}: {fault}")

    return Task(
        Form({"input": "object", "answer": "any"}),
        question=lambda fields: parallelbench.filled(kind, fields["input"]),
        turns=lambda fields: parallelbench.turns(kind, fields["input"]),
        grade=grade,
        metrics=kind.metrics,
        max_tokens=32,  # as the authors give
        check=check,
    )


_gsm8k = Task(
    GSM8K,
    question=lambda fields: f"Question: {fields['question']}\nAnswer:",
    answer=lambda fields: str(fields["answer"]),
    grade=_gsm8k_grade(HASHES),
    metrics=("strict", "flexible"),
    shots=5,
    stops=("Question:", *IM_END),
    check=_check_gsm8k,
)
_gsm8k_cot = replace(
    _gsm8k,
    question=lambda fields: f"Q: {fields['question']}\n\nA:",
    grade=_gsm8k_grade(THE_ANSWER),
    metrics=("flexible", "strict"),
    shots=8,
    built_in="gsm8k_cot",
    stops=("Q:", *IM_END),
)
_humaneval = Task(
    HUMANEVAL,
    question=lambda fields: str(fields["prompt"]),
    grade=_humaneval_grade,
    metrics=("raw", "processed"),
    stops=HUMANEVAL_STOPS,
    stops_in_chat=False,
)
_mbpp = Task(
    MBPP,
    question=_mbpp_question,
    answer=lambda fields: f"{fields['code']}\n[DONE]",
    between="",
    grade=_mbpp_grade,
    metrics=("raw", "processed"),
    shots=3,
    stops=("[DONE]",),
    check=_check_mbpp,
)

TASKS: Mapping[str, Task] = {
    "gsm8k": _gsm8k,
    "gsm8k_cot": _gsm8k_cot,
    "gsm8k_cot_zeroshot": replace(
        _gsm8k_cot,
        question=lambda fields: f"Q: {fields['question']}\nA: Let's think step by step.",
        shots=0,
        built_in=None,
    ),
    "minerva_math": Task(
        Form({"problem": "text", "solution": "text"}),
        question=lambda fields: f"Problem:\n{fields['problem']}\n\nSolution:",
        answer=lambda fields: str(fields["solution"]),
        grade=_math_grade,
        metrics=("minerva", "boxed"),
        shots=4,
        built_in="minerva_math",
        stops=("Problem:",),
        check=_check_math,
    ),
    "humaneval": _humaneval,
    "humaneval_instruct": replace(
        _humaneval,
        question=_instructed_question,
        prefill=lambda fields: f"Here is the completed function:\n{FENCE}python\n{fields['prompt']}\n",
        grade=_instructed_grade,
        metrics=("pass@1",),
        stops_in_chat=True,
        chat=True,
    ),
    "mbpp": _mbpp,
    "mbpp_instruct": replace(
        _mbpp,
        question=_mbpp_instructed,
        answer=lambda fields: f"{fields['code']}\n{FENCE}",
        between=f"\n{FENCE}python\n",
        prefill=lambda fields: f"\n{FENCE}python\n",
        grade=_mbpp_instructed_grade,
        metrics=("pass@1",),
        stops=(),
        chat=True,
    ),
    "mbpp_plain": replace(  # for texts that name the function, as those of `export` do
        _mbpp,
        question=lambda fields: str(fields["text"]),
        answer=None,
        shots=0,
        metrics=("processed", "raw"),
        stops=(),
    ),
    "ifeval": Task(
        IFEVAL,
        question=lambda fields: str(fields["prompt"]),
        grade=_ifeval_grade,
        metrics=("prompt_strict", "prompt_loose", "instruction_strict", "instruction_loose"),
        max_tokens=1280,
        chat=True,
        check=ifeval.check_lines,
    ),
    **{f"parallelbench_{name}": _parallel(kind) for name, kind in parallelbench.KINDS.items()},
}
