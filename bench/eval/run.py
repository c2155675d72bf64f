"""Runs an evaluation: reads the problems, gets and grades the answers, and prints the figures of each decoder."""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tqdm import tqdm

from ...clients import StatusError
from ...server.engine.wiring import check_preset, default_line, open_checkpoint, with_drafter
from ...server.errors import ApiError
from ...server.settings import Settings
from ..load.output import missing_output
from .backends import Backend, InProcess, Options, Server
from .data import Fields, Line
from .decoders import Choice, joined
from .equivalence import Equivalence, available
from .programs import cut
from .report import Tally, draw, tabulated, tally
from .results import Record, Results
from .tasks import TASKS, Prompt, SameFormula, Task, find, shots_of

COUNTS = (
    "tokens/forward: an answer's tokens up to its first end token; by scripts: as the papers' scripts count, those of"
    " its text up to the first stop string, read by the tokenizer again. Forwards count up to the end of the answer."
)

PROMPTS = ("prompt", "messages")  # the parameters that have the text of a line
TOO_LONG = "context_length_exceeded"  # the code of an error that names the answer's length, too


@dataclass(frozen=True, slots=True)
class Plan:
    """The problems, and how each is posed and answered. `limit` is the number of the first that are answered."""

    name: str
    task: Task
    lines: Sequence[Line]
    shots: Sequence[Fields]
    limit: int | None
    options: Options
    batch: int

    def prompt(self, line: Line) -> Prompt:
        return self.task.prompt(line.fields, self.shots)

    def hash(self, line: Line) -> str:
        return _hash(self.prompt(line).messages)

    @property
    def chosen(self) -> Sequence[Line]:
        return self.lines[: self.limit]

    def facts(self) -> dict[str, Any]:
        """The facts that answers and grades depend on, beside the model and the prompts."""
        options = self.options
        return {
            "task": self.name,
            "prompt": "chat template" if options.chat else "raw",
            "shots": len(self.shots),
            "shots_sha256": _hash([*self.shots]) if self.shots else None,
            "stops": [*options.stops],
            "max_tokens": options.max_tokens,
            "temperature": options.temperature,
            "equivalence": ("sympy" if available() else "text") if self.name == "minerva_math" else None,
        }


def _hash(value: object) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def evaluate(flags: argparse.Namespace, settings: Settings | None, api_key: str | None) -> int:
    """Run `asynclane eval`. `settings` are those of a model that is loaded here; None: the server at `flags.url`
    answers. Raises `ValueError`, `OSError`, and the errors of engine and client, with one line that says what is
    wrong."""
    if flags.task is None:
        if flags.data is not None:
            raise ValueError(f"--data is a file of which task? give one before it: {', '.join(TASKS)}")
        print("\n".join(f"{name}: {task.form}" for name, task in TASKS.items()))
        return 0
    task = find(flags.task)
    if flags.data is None:
        raise ValueError(f"{flags.task} needs --data FILE, which has a JSON object a line, with {task.form}")
    out = flags.out or Path(f"eval-{flags.task}.jsonl")
    if fault := missing_output(flags.plot, out):
        raise ValueError(fault)
    lines = task.read(flags.data)
    shots = shots_of(flags.task, task, flags.shots, flags.shots_file)
    backend = _backend(flags, settings, api_key)
    chat = with_template(flags.chat, flags.task, task, backend)
    options = Options(chat, flags.max_tokens or task.max_tokens, task.stops_of(chat), flags.temperature)
    plan = Plan(flags.task, task, lines, shots, flags.limit, options, flags.batch)
    decoders = _decoders(flags.decoders, settings.preset if settings else None, backend.default)
    choices = [backend.choice(text, options.max_tokens) for text in decoders]
    with backend:
        tallies, run = asyncio.run(_measure_all(plan, backend, choices, out))
    print(tabulated(tallies))
    print(f"\n{_described(plan, run, flags.data)}\n{COUNTS}\nwritten to {out}")
    if flags.plot:
        draw(tallies, f"{plan.name}, {run['model']}: {len(plan.chosen)} problems", flags.plot)
    return 0


def _backend(flags: argparse.Namespace, settings: Settings | None, api_key: str | None) -> Backend:
    if settings is None:
        return Server(flags.url, api_key, flags.model)
    checkpoint = open_checkpoint(settings.model, settings.download, block_size=settings.block_size)
    checkpoint = with_drafter(checkpoint, settings)
    if settings.prefix_sharing is None:  # prompts begin alike, and computed positions are to be those of each alone
        settings = replace(settings, prefix_sharing=False)
    check_preset(settings.preset, checkpoint.config.architecture)
    default = joined(default_line(settings, checkpoint.pattern))
    # A preset would change the parameters of each request that names its decoder: here it is only the default.
    return InProcess(replace(settings, decoder=None, preset=None), checkpoint, default)


def _decoders(given: Sequence[str] | None, preset: str | None, default: str) -> Sequence[str]:
    """The decoders to measure, those of `--decoder` or the default. Raises `ValueError`."""
    if not given:
        return [default]
    if preset:
        raise ValueError(f"--preset {preset} is a decoder with its parameters: leave out --decoder")
    if len({*given}) < len(given):
        raise ValueError("--decoder is given twice with the same value")
    return given


def with_template(wanted: bool | None, name: str, task: Task, backend: Backend) -> bool:
    """Return whether prompts go through the chat template. Raises `ValueError` if they need one that is not there."""
    if wanted is None and not task.chat:
        return backend.has_template is not False
    if wanted is not False and backend.has_template is False:
        who = "--chat-template" if wanted else name
        raise ValueError(f"{who} needs a chat template, and {backend.name} has none: give --raw, or another model")
    return wanted is not False


def _described(plan: Plan, run: Mapping[str, Any], data: Path) -> str:
    """The conditions on which figures depend."""
    stops = ", ".join(map(repr, plan.options.stops)) or "none"
    turns = f"{len(plan.shots)} shots in the same turn" if plan.shots else "no shots"
    return (
        f"{plan.name}: {len(plan.chosen)} of {len(plan.lines)} problems of {data}, {run['model']}, "
        f"prompt: {run['prompt']}, {turns}, stop strings: {stops}, canvas of {plan.options.max_tokens} tokens, "
        f"temperature {plan.options.temperature:g}"
        + (f", answers compared by {run['equivalence']}" if run["equivalence"] else "")
    )


async def _measure_all(
    plan: Plan, backend: Backend, choices: Sequence[Choice], out: Path
) -> tuple[list[Tally], dict[str, Any]]:
    with Equivalence() as equivalence:
        same: SameFormula = equivalence.same if available() else lambda one, other: False
        async with backend.connected():
            run = {**plan.facts(), **backend.facts, "decoders": [choice.label for choice in choices]}
            with Results(out, run) as results:
                _check_prompts(plan, results, out)
                earlier = len(results.answers)
                tallies = [await _measure(plan, backend, choice, results, same) for choice in choices]
                if len(results.answers) > earlier:
                    results.finish([one.figures() for one in tallies])
    return tallies, run


def _check_prompts(plan: Plan, results: Results, out: Path) -> None:
    """Raises `ValueError` if earlier answers are to other prompts."""
    hashes = {line.key: plan.hash(line) for line in plan.lines}
    for record in results.answers.values():
        if hashes.get(record["answer"]) != record["prompt_sha256"]:
            raise ValueError(
                f"{out} has an answer to a problem that --data has not, {record['answer']}: give another --out"
            )


async def _measure(plan: Plan, backend: Backend, choice: Choice, results: Results, same: SameFormula) -> Tally:
    """Answer what is not answered yet, as many problems at once as the plan says."""
    missing = [line for line in plan.chosen if (choice.label, line.key) not in results.answers]
    places = asyncio.Semaphore(plan.batch)
    started = time.perf_counter()
    done = len(plan.chosen) - len(missing)
    with tqdm(total=len(plan.chosen), initial=done, unit="answer", desc=choice.label, disable=None) as bar:

        async def one(line: Line) -> Record:
            async with places:
                record = await _answer(plan, backend, choice, line)
            text = record["text"]
            grade = await asyncio.to_thread(plan.task.grade, line.fields, text, same)
            points = {name: grade.points[name] for name in plan.task.metrics}
            record |= {"extracted": grade.extracted, "points": points}
            results.add(record)
            bar.update()
            return record

        try:
            async with asyncio.TaskGroup() as group:
                fresh = [group.create_task(one(line)) for line in missing]
        except BaseExceptionGroup as failed:
            raise failed.exceptions[0] from None
    wall_s = time.perf_counter() - started
    records = [results.answers[choice.label, line.key] for line in plan.chosen]
    return tally(choice.label, records, sum(task.result()["tokens"] for task in fresh), wall_s)


def _refused(error: ApiError | StatusError, choice: Choice, line: Line) -> str:
    """The decoder, if a parameter is refused. The line, if it is the prompt, as one that is too long."""
    of_prompt = error.param is None or error.param.partition(".")[0] in PROMPTS or error.code == TOO_LONG
    return line.place if of_prompt else f"decoder {choice.label!r}"


async def _answer(plan: Plan, backend: Backend, choice: Choice, line: Line) -> Record:
    started = time.perf_counter()
    try:
        reply = await backend.answer(plan.prompt(line), choice, plan.options)
    except (ApiError, StatusError) as error:
        raise ValueError(f"{_refused(error, choice, line)}: {error}") from None
    seconds = time.perf_counter() - started
    return {
        "answer": line.key,
        "decoder": choice.label,
        "prompt_sha256": plan.hash(line),
        "text": reply.text,
        "finish": reply.finish,
        "tokens": reply.tokens,
        "script_tokens": await backend.count(cut(reply.text, plan.options.stops)),
        "forwards": reply.forwards,
        "computed": reply.computed,
        "seconds": round(seconds, 4),
    }
