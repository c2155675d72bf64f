"""Measures a whole server over HTTP: streamed completions from several client processes, at fixed tokens a forward.

Usage: python -m asynclane.bench.serving --shape sdar-8b --levels 1,64,128 --mixed 64 --json FILE [-- SERVER FLAGS]
It starts `asynclane serve` on random weights of a published shape, which it writes first, or on the model of --model.
Whatever stands after `--` goes to the server; with `--load-format dummy` it makes the weights itself. --url measures a
server that runs already. The network's proposals do not matter: a quota commits so many tokens in each forward, and no
end token ends an answer. Tokens a second of the device bound are those that the server would give if the device never
waited for the host, by the server's own metrics.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import shlex
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..load.flags import COUNTS
from ..load.output import above_zero, check_outputs, finish, json_line, positive, program, table
from .load import LANES, QUOTAS, Load
from .picture import draw
from .server import ASYNCLANE, Server, connect, machine, random_weights, started
from .streams import Job
from .tally import BUSY_CLIENT, beside, figures

MIXED_PROMPT, MIXED_ANSWER = (16, 1600), (32, 400)
LONG_ANSWER, LONG_PAUSE_S = (32, 32), 2.0  # of a long prompt beside others, and until the next one
PER_CLIENT = 4  # cores for each client process: the server has the others
MOST_CLIENTS = 8
DEFAULT_SEQS = 64  # of `asynclane serve --max-num-seqs`
LAST_ANSWERS_S = 600.0
WRITTEN = ("--json", "--plot", "--weights")

COLUMNS: tuple[tuple[str, Callable[[dict[str, Any]], str]], ...] = (
    ("load", lambda f: f"{f['load']}, {f['streams']}"),
    ("tokens/s", lambda f: _show(f["tokens_per_s"], 0)),
    ("tokens/forward", lambda f: _show(f["tokens_per_forward"], 2)),
    ("forward ms", lambda f: _show(f["forward_ms"], 2)),
    ("device ms", lambda f: _show(f["device_forward_ms"], 2)),
    ("bound", lambda f: _show(f["bound_tokens_per_s"], 0)),
    ("share", lambda f: _show(f["share_of_bound"], 2)),
    ("busy", lambda f: _show(f["device_busy"], 2)),
    ("first text ms", lambda f: _spread(f["first_text_ms"], "p50", "p99")),
    ("gap ms p50/p99/p99.9/max", lambda f: _spread(f["gap_ms"], "p50", "p99", "p99.9", "max")),
    ("failed", lambda f: str(sum(f["failures"].values()))),
    ("captures", lambda f: "/".join("-" if n is None else str(n) for n in f["graph_captures"])),
    ("client cpu", lambda f: f"{f['client_cpu_share']:.2f}"),
    ("server cpu", lambda f: "+".join(f"{share:.2f}" for share in f["server_cpu_shares"]) or "-"),
)


class ClientProcess:
    """A process of `streams`, from its start to its last line."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._in, self._out, self._process = process.stdin, process.stdout, process

    @classmethod
    async def start(cls, job: Job) -> ClientProcess:
        command = [sys.executable, "-P", "-m", "asynclane.bench.serving.streams"]
        pipe = asyncio.subprocess.PIPE
        client = cls(await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe, limit=2**30))
        client._in.write(job.to_line())
        await client.wait_for("ready")
        return client

    def send(self, word: str) -> None:
        self._in.write(word.encode() + b"\n")

    async def wait_for(self, word: str) -> None:
        line = (await self._out.readline()).decode().strip()
        if line != word:
            raise ValueError(f"a client process ended early, with {line or 'nothing'!r} for {word!r}")

    async def result(self) -> dict[str, Any]:
        while (line := await self._out.readline()).startswith(b"round"):
            pass
        found: dict[str, Any] = json.loads(line)
        await self._process.wait()
        return found

    def kill(self) -> None:
        if self._process.returncode is None:
            self._process.kill()


async def measure(server: Server, load: Load, options: argparse.Namespace) -> dict[str, Any]:
    """Put a load on a server until its measurement is complete, and return its figures.

    Answers of equal length come in rounds. The measurement begins when every stream has had --warm-up answers, and ends
    with the first round after --seconds and --rounds. Mixed answers are measured from the first request on.
    """
    count = min(options.clients, load.streams)
    jobs = [
        Job(server.host, server.port, load, tuple(range(n, load.streams, count)), options.timeout) for n in range(count)
    ]
    long = long_prompts(load, options.beside)
    if long is not None:
        jobs.append(Job(server.host, server.port, long, (0,), options.timeout, LONG_PAUSE_S))
    clients = await asyncio.gather(*map(ClientProcess.start, jobs))
    try:
        before = await asyncio.to_thread(server.scrape)
        for client in clients:
            client.send("go")
        if load.name == "mixed":
            await asyncio.sleep(options.mixed_seconds)
        else:
            for number in range(1, options.warm_up + 1):
                await _all_had(clients[:count], number)
            before = await asyncio.to_thread(server.scrape)
            while number < options.warm_up + options.rounds or time.monotonic() < before.at_s + options.seconds:
                number += 1
                await _all_had(clients[:count], number)
        after = await asyncio.to_thread(server.scrape)
        for client in clients:
            client.send("stop")
        async with asyncio.timeout(LAST_ANSWERS_S):
            results = await asyncio.gather(*(client.result() for client in clients))
    finally:
        for client in clients:
            client.kill()
    answers, long_answers = (
        [answer for each in part for answer in each["answers"]] for part in (results[:count], results[count:])
    )
    cpu_share = max(result["cpu_share"] for result in results)
    found = {**figures(load, answers, before, after), "clients": count, "client_cpu_share": round(cpu_share, 3)}
    if long is not None:
        faults = Counter(found["failures"])
        faults.update(f"{fault}, of a long prompt" for a in long_answers if (fault := a["failure"]) is not None)
        found |= {"failures": dict(faults), "beside": beside(answers, long_answers, before.at_s, after.at_s)}
    return found


def long_prompts(load: Load, tokens: int | None) -> Load | None:
    """Return the load of one stream of long prompts beside equal answers; None if there is none."""
    if tokens is None or load.name != "equal":
        return None
    return replace(load, name="long", streams=1, prompt_tokens=(tokens,) * 2, max_tokens=LONG_ANSWER, repeats=False)


async def _all_had(clients: Sequence[ClientProcess], number: int) -> None:
    """Wait until every stream has had so many answers."""
    await asyncio.gather(*(client.wait_for(f"round {number}") for client in clients))


def loads(options: argparse.Namespace, server: Server) -> list[Load]:
    """Return the loads in their order: mixed answers first, right after the server's start."""
    equal, mixed = QUOTAS.get(options.shape or server.model, (LANES, LANES))
    changed: dict[str, Any] = {name: getattr(options, name) for name in ("decoder", "block", "forwards", "cache")}
    changed = {name: value for name, value in changed.items() if value is not None}
    equal, mixed = replace(equal, **changed), replace(mixed, **changed)
    found = [Load("mixed", streams, MIXED_PROMPT, MIXED_ANSWER, mixed, server.model) for streams in options.mixed or ()]
    prompt, answer = (options.prompt_tokens,) * 2, (options.max_tokens,) * 2
    repeats = options.repeat_prompts
    found += [Load("equal", streams, prompt, answer, equal, server.model, repeats) for streams in options.levels or ()]
    for load in [*found, *filter(None, (long_prompts(load, options.beside) for load in found))]:
        load.quota.params(load.max_tokens[1])
        longest = load.prompt_tokens[1] + load.max_tokens[1]
        if longest > server.longest:
            raise ValueError(
                f"{load.name} requests have up to {longest} tokens, and {server.model} takes {server.longest}"
            )
    return found


@contextmanager
def served(options: argparse.Namespace, flags: Sequence[str]) -> Iterator[Server]:
    """Yield the server of the options. Raises `ValueError`."""
    if options.url is not None:
        yield connect(options.url)
        return
    with ExitStack() as stack:
        model = options.model
        if options.shape is not None:
            _say(f"writing a checkpoint of {options.shape} ...")
            written = not re.search("--load-format[ =]dummy", " ".join(flags))
            model = str(stack.enter_context(random_weights(options.shape, options.weights, written)))
        more = 0 if options.beside is None else 1  # a long prompt does not wait until another answer has ended
        most = max(DEFAULT_SEQS, *(level + more for level in options.levels or ()), *(options.mixed or ()))
        _say("starting the server ...")
        command = shlex.split(options.server) if options.server else ASYNCLANE
        name = ("--served-model-name", options.shape) if options.shape else ()
        server = stack.enter_context(started(["--model", model, *name, "--max-num-seqs", str(most), *flags], command))
        _say(f"ready after {server.start_s:.1f} s")
        yield server


@contextmanager
def ending_on_sigterm() -> Iterator[None]:
    """Let SIGTERM end what this program has started, as Ctrl-C does."""
    before = signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def main(argv: Sequence[str] | None = None) -> int:
    arguments = list(sys.argv[1:] if argv is None else argv)
    cut = arguments.index("--") if "--" in arguments else len(arguments)
    parser = build_parser()
    options, flags = parser.parse_args(arguments[:cut]), arguments[cut + 1 :]
    if options.levels is None and options.mixed is None:
        options.levels = (1, 16, 64)
    if options.beside and options.levels is None:
        parser.error("--beside is for --levels: give these, too")
    check_outputs(parser, options.plot, options.json)
    results: list[dict[str, Any]] = []
    head: dict[str, Any] = {
        "benchmark": "serving",
        "shape": options.shape,
        "arguments": repeatable(arguments),
        **machine(),
    }
    fault = None
    try:
        with ending_on_sigterm(), served(options, flags) as server:
            head |= {"model": server.model, "server_start_s": server.start_s and round(server.start_s, 1)}
            for load in loads(options, server):
                _say(f"{load.name}, {load.streams} streams ...")
                begun = time.monotonic()
                results.append(asyncio.run(measure(server, load, options)) | {"quota": load.to_json()["quota"]})
                _say(f"  {results[-1]['tokens_per_s']:.0f} tokens/s, after {time.monotonic() - begun:.0f} s")
                if options.json:  # what is complete outlives a fault of a later load
                    options.json.write_text(json_line({**head, "loads": results}) + "\n", encoding="utf-8")
    except (ValueError, OSError, TimeoutError, ExceptionGroup) as error:
        if not results:
            parser.exit(2, f"{parser.prog}: {error}\n")
        fault = str(error) or type(error).__name__
    return report(options, head, results, fault)


def report(options: argparse.Namespace, head: dict[str, Any], results: list[dict[str, Any]], fault: str | None) -> int:
    """Print the figures and write the files. Return 1 if a load was not measured, or a request failed."""
    print(table([name for name, _ in COLUMNS], [[show(found) for _, show in COLUMNS] for found in results]))
    for found in results:
        for kind, count in found["failures"].items():
            print(f"Failed in {found['load']}, {found['streams']}: {count} x {kind}")
        if "beside" in found and found["beside"] is None:
            print(f"No gaps beside prompts of {options.beside} tokens, {found['streams']} streams: give more --seconds")
        elif long := found.get("beside"):
            print(
                f"Beside {long['prompts']} prompts of {long['prompt_tokens']} tokens, {found['streams']} streams: gaps "
                f"p99 {long['gap_ms']['p99']:.1f} ms, quiet p50 {long['quiet_gap_ms']['p50']:.1f}, "
                f"ratio {long['p99_over_quiet_p50']}; its first text after {long['first_text_ms']['p50']:.0f} ms"
            )
        if found["client_cpu_share"] > BUSY_CLIENT:
            print(f"A client of {found['load']}, {found['streams']} was busy: use more --clients")
    if fault is not None:
        print(f"Not all loads were measured: {fault}")
    whole = {**head, "loads": results, "fault": fault}
    finish(whole, options.json)
    if options.plot:
        draw([whole], options.plot)
    return int(fault is not None or any(found["failures"] for found in results))


def repeatable(arguments: Sequence[str]) -> str:
    """Return the arguments without the files that are written."""
    kept, skip = [], False
    for argument in arguments:
        if not skip and argument not in WRITTEN:
            kept.append(argument)
        skip = argument in WRITTEN and not skip
    return shlex.join(kept[:-1] if kept[-1:] == ["--"] else kept)


def build_parser() -> argparse.ArgumentParser:
    parser = program("serving", __doc__)
    target = parser.add_mutually_exclusive_group()
    target.add_argument("--shape", help="of random weights: llada-8b, sdar-8b, llada2-mini or another of steps.shapes")
    target.add_argument("--model", default="tiny-llada", help="as in serving (default: %(default)s)")
    target.add_argument("--url", help="of a server that runs: http://HOST:PORT")
    parser.add_argument("--weights", type=Path, metavar="DIR", help="keep the weights of --shape there, or use them")
    parser.add_argument(
        "--server", metavar="COMMAND", help="starts the server, in place of this checkout's `asynclane serve`"
    )
    parser.add_argument("--levels", type=COUNTS, metavar="N,N", help="streams at once (default: 1,16,64)")
    parser.add_argument("--mixed", type=COUNTS, metavar="N,N", help="streams at once of mixed lengths, measured first")
    parser.add_argument("--warm-up", type=positive, default=2, help="answers of each stream (default: %(default)s)")
    parser.add_argument("--rounds", type=positive, default=2, help="answers of each stream (default: %(default)s)")
    parser.add_argument("--seconds", type=above_zero, default=6.0, help="at least (default: %(default)g)")
    parser.add_argument("--mixed-seconds", type=above_zero, default=30.0, help="default: %(default)g")
    parser.add_argument("--prompt-tokens", type=positive, default=200, help="default: %(default)s")
    parser.add_argument("--max-tokens", type=positive, default=256, help="default: %(default)s")
    parser.add_argument(
        "--beside",
        type=positive,
        metavar="TOKENS",
        help="one more stream beside those of --levels has prompts of so many tokens; prints the gaps that they cause",
    )
    parser.add_argument(
        "--repeat-prompts",
        action="store_true",
        help="each stream of --levels repeats its prompt, which a block-causal model then has in its prefix cache",
    )
    parser.add_argument("--decoder", help="default: by --shape")
    parser.add_argument("--block", type=positive, help="tokens of a block (default: by --shape)")
    parser.add_argument("--forwards", type=positive, help="forwards of a block (default: by --shape)")
    parser.add_argument("--cache", help="of requests; needs as many --forwards as --block (default: the decoder's)")
    clients = max(1, min(MOST_CLIENTS, (os.cpu_count() or 1) // PER_CLIENT))
    parser.add_argument("--clients", type=positive, default=clients, help="processes (default here: %(default)s)")
    parser.add_argument("--timeout", type=above_zero, default=120.0, help="of an answer (default: %(default)g s)")
    parser.add_argument("--plot", type=Path, metavar="PNG", help="draw rates and gaps; needs the extra bench")
    return parser


def _show(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def _spread(values: dict[str, float] | None, *names: str) -> str:
    return "-" if values is None else "/".join(f"{values[name]:.0f}" for name in names)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
