"""`asynclane bench`: rates and times of any OpenAI-compatible server as the load on it grows."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from importlib.util import find_spec
from statistics import fmean

import httpx

from ...clients.core import http_options
from ...server.text import counted
from .curves import draw_load
from .loops import Prober, Sample, connected, run_level
from .output import json_line, missing_output, table
from .plan import Plan, Target, read_plan
from .tally import Counters, Result, Spread, read_counters, sum_up

METRICS_S = 10.0
SHOWN_FAILURES = 5  # kinds that are shown with an example

COLUMNS: tuple[tuple[str, Callable[[Result], str]], ...] = (
    ("load", lambda r: str(r.level)),
    ("done", lambda r: str(r.completed)),
    ("failed", lambda r: str(r.failed)),
    ("tokens/s", lambda r: _show(r.tokens_per_s, 0)),
    ("requests/s", lambda r: _show(r.requests_per_s, 2)),
    ("goodput/s", lambda r: _show(r.goodput_per_s, 2)),
    ("first text ms", lambda r: _milliseconds(r.first_text, 0)),
    ("per token ms", lambda r: _milliseconds(r.per_token, 1)),
    ("end to end ms", lambda r: _milliseconds(r.end_to_end, 0)),
    ("tokens/forward", lambda r: _show(r.tokens_per_forward, 1)),
)


@dataclass(slots=True)
class Found:
    """The measurements so far: the model's name, all results, and an example of each kind of failure."""

    model: str = ""
    results: list[Result] = field(default_factory=list)
    failures: dict[str, str] = field(default_factory=dict)


def load_main(flags: argparse.Namespace, api_key: str | None) -> int:
    """Return 0, or 1 if any request failed. Raises `ValueError`, `OSError` or `ClientError` if it cannot measure."""
    plan = read_plan(flags, api_key)
    fault = missing_output(flags.plot, flags.json)
    if fault:
        raise ValueError(fault)
    found = Found()
    try:
        asyncio.run(_measure(plan, found))
    finally:  # after Ctrl-C, or a load without figures, the complete ones are reported
        if found.results:
            _report(plan, found, flags)
    return 1 if any(result.failed for result in found.results) else 0


def _report(plan: Plan, found: Found, flags: argparse.Namespace) -> None:
    results = found.results
    line = json_line(_figures(plan, found.model, results))
    with suppress(BrokenPipeError):  # without a reader, the files are still written and the exit code is kept
        print(table([name for name, _ in COLUMNS], [[show(result) for _, show in COLUMNS] for result in results]))
        print(f"Times are p50/p90/p99 from when a request was due; goodput ended within {plan.deadline_s:g} s.")
        for note in _notes(plan, found):
            print(note)
        print(line, flush=True)
    if flags.json:
        flags.json.write_text(line + "\n", encoding="utf-8")
    if flags.plot:
        answers = counted(sum(result.completed for result in results), "answer")
        draw_load(results, f"{found.model}: {answers}, {plan.source}", flags.plot)


async def _measure(plan: Plan, found: Found) -> None:
    async with connected(plan.target) as prober:
        found.model = prober.model
        await _warm_up(prober, plan)
        before = await _counters(plan.target)
        for number, level in enumerate(plan.levels, 1):
            count = plan.bounds.requests_at(level)
            _say(f"[{number}/{len(plan.levels)}] {level}: {counted(count, 'request') if count else 'requests'} ...")
            with _progress(str(level), count) as progress:
                samples = await run_level(prober, plan, level, progress)
            after = await _counters(plan.target)
            found.results.append(sum_up(level, samples, plan.deadline_s, after and before and after.since(before)))
            found.failures.update({s.failure.kind: s.failure.message for s in samples if s.failure is not None})
            before = after


async def _warm_up(prober: Prober, plan: Plan) -> None:
    """Send first requests, since the first steps of a process are slow. Raises `ValueError` if all fail."""
    failures = []
    for index in range(plan.warmup):
        sample: Sample = await prober.ask(plan.bodies[index % len(plan.bodies)], 0.0)
        if sample.failure is not None:
            failures.append(sample.failure.message)
            _say(f"A first request, which is not counted, failed: {failures[-1]}")
    if len(failures) == plan.warmup:
        raise ValueError(f"none of {plan.warmup} first requests was answered: nothing is measured")


async def _counters(target: Target) -> Counters | None:
    try:
        async with httpx.AsyncClient(**http_options(target.url, target.api_key, METRICS_S)) as http:
            response = await http.get("/metrics")
    except httpx.RequestError:
        return None
    return read_counters(response.text) if response.is_success else None


def _notes(plan: Plan, found: Found) -> Iterator[str]:
    results = found.results
    for level in plan.levels[len(results) :]:
        yield f"Not measured: {level}"
    if not all(result.counted for result in results):
        yield "No asynclane metrics there: tokens/forward is left out."
    if not any(result.costs for result in results):
        yield "Usage has no forwards and lanes: they are left out of the JSON line."
    if any(result.tokens is None for result in results):
        yield "Not every answer had usage: token rates of its load are left out."
    for result in results:
        for kind, count in result.failures.most_common():
            yield f"Failed at {result.level}: {count} x {kind}"
    for kind, message in list(found.failures.items())[:SHOWN_FAILURES]:
        yield f"The last of '{kind}' said: {message}"


def _figures(plan: Plan, model: str, results: Sequence[Result]) -> dict[str, object]:
    return {
        "benchmark": "load",
        "model": model,
        "endpoint": "chat" if plan.target.chat else "completions",
        "prompts": plan.source,
        "seed": plan.seed,
        "options": dict(plan.options),
        "stagger_s": plan.stagger_s,
        "deadline_s": plan.deadline_s,
        "loads": [_level_figures(result) for result in results],
        "not_measured": [str(level) for level in plan.levels[len(results) :]],
    }


def _level_figures(r: Result) -> dict[str, object]:
    load = {"concurrency": r.level.concurrency} if r.level.rate is None else {"rate_per_s": r.level.rate}
    return {
        **load,
        "completed": r.completed,
        "failed": r.failed,
        "failures": dict(r.failures),
        "wall_s": round(r.wall_s, 3),
        "answer_tokens": r.tokens,
        "tokens_per_s": _rounded(r.tokens_per_s),
        "requests_per_s": _rounded(r.requests_per_s),
        "goodput_per_s": _rounded(r.goodput_per_s),
        "first_text_s": _seconds(r.first_text),
        "per_output_token_s": _seconds(r.per_token),
        "end_to_end_s": _seconds(r.end_to_end),
        "tokens_per_forward": _rounded(r.tokens_per_forward),
        "computed_tokens_per_token": _rounded(r.computed_per_token),
        "forwards_per_answer": _rounded(fmean(cost.forwards for cost in r.costs)) if r.costs else None,
        "lanes_per_answer": _rounded(fmean(cost.lanes for cost in r.costs)) if r.costs else None,
    }


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)


def _seconds(times: Spread | None) -> dict[str, float] | None:
    return None if times is None else {name: round(value, 5) for name, value in times._asdict().items()}


def _show(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def _milliseconds(times: Spread | None, digits: int) -> str:
    return "-" if times is None else "/".join(f"{1000 * value:.{digits}f}" for value in times)


@contextmanager
def _progress(label: str, count: int | None) -> Iterator[Callable[[], None]]:
    """A bar on a terminal that can show one; rich comes with extra `bench`."""
    if not sys.stderr.isatty() or find_spec("rich") is None:
        yield lambda: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(label, total=count)
        yield lambda: bar.advance(task)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
