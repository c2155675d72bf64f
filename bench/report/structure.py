"""Counts the structure of a checkout: import circles, lines, docstrings, and the files of one streamed chat.

Usage: python -m asynclane.bench.report.structure [--root DIRECTORY] [--chat] [--json FILE]
"Core" is the Python code outside tests, bench and training. With --chat, the program serves one streamed chat with the
embedded model and lists every file of the project that has a function which runs for it.
"""

from __future__ import annotations

import ast
import asyncio
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from pathlib import Path, PurePosixPath
from types import FrameType

from ..load.output import check_outputs, finish, program

NOT_CORE = ("tests", "bench", "training")
OPENINGS = ("What", "Whether", "Of")  # of docstrings that do not say what the thing is
BODY = {"model": "tiny-llada", "stream": True, "messages": [{"role": "user", "content": "Hello!"}]}

Graph = dict[PurePosixPath, set[PurePosixPath]]


def sources(root: Path) -> dict[PurePosixPath, str]:
    """Return the text of each Python file that git tracks, by its path in the checkout."""
    done = subprocess.run(["git", "ls-files", "*.py"], cwd=root, capture_output=True, text=True, check=True)
    found = (PurePosixPath(name) for name in done.stdout.splitlines() if (root / name).is_file())
    return {path: (root / path).read_text(encoding="utf-8") for path in found}


def import_graph(files: Mapping[PurePosixPath, str]) -> Graph:
    """Return, for each file, the others that it imports, also inside functions and for type checkers."""
    modules = {path.parent.parts if path.name == "__init__.py" else path.with_suffix("").parts: path for path in files}
    graph: Graph = {}
    for path, text in files.items():
        named = (modules.get(module) for module in _imported(path, text, modules))
        graph[path] = {module for module in named if module is not None and module != path}
    return graph


def _imported(
    path: PurePosixPath, text: str, modules: Mapping[tuple[str, ...], PurePosixPath]
) -> Iterator[tuple[str, ...]]:
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            parts = (tuple(alias.name.split(".")) for alias in node.names)
            yield from (names[1:] for names in parts if names[0] == "asynclane")
        elif isinstance(node, ast.ImportFrom):
            module = tuple(node.module.split(".")) if node.module else ()
            if node.level:
                base = path.parent.parts[: len(path.parent.parts) - node.level + 1] + module
            elif module[:1] == ("asynclane",):
                base = module[1:]
            else:
                continue
            for alias in node.names:  # a module of a package, or a name in a module
                yield (*base, alias.name) if (*base, alias.name) in modules else base


def circles(graph: Graph) -> list[list[PurePosixPath]]:
    """Return import circles that have no file in common, each from a file back to that file."""
    remaining, found = dict(graph), []
    while True:
        try:
            TopologicalSorter(remaining).prepare()
        except CycleError as error:
            found.append(list(error.args[1]))
            remaining = {path: imported for path, imported in remaining.items() if path not in found[-1]}
        else:
            return found


def poor_docstrings(files: Mapping[PurePosixPath, str]) -> list[str]:
    """Return the places of docstrings that begin with one of `OPENINGS`."""
    found = []
    for path, text in files.items():
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                first, *_ = (ast.get_docstring(node) or "").split() or [""]
                if first in OPENINGS:
                    found.append(f"{path}:{getattr(node, 'lineno', 1)}")
    return found


def counts(files: Mapping[PurePosixPath, str]) -> dict[str, object]:
    core = {path: text for path, text in files.items() if path.parts[0] not in NOT_CORE}
    scheduler = {path: text for path, text in core.items() if path.parts[0] == "scheduler"}
    return {
        "import_circles": [[str(path) for path in circle] for circle in circles(import_graph(core))],
        "core_lines": _lines(core),
        "scheduler_lines_without_decoding": _lines({p: t for p, t in scheduler.items() if p.parts[1] != "decoding"}),
        "test_lines": _lines({path: text for path, text in files.items() if path.parts[0] == "tests"}),
        "poor_docstrings": poor_docstrings(core),
    }


def _lines(files: Mapping[PurePosixPath, str]) -> int:
    return sum(len(text.splitlines()) for text in files.values())


# --- The files of one streamed chat ---------------------------------------------------------------------------


def chat_files() -> list[str]:
    """Serve a streamed chat twice in this process, and return the files that take part in the second."""
    import httpx

    from ...server.app import build_service  # here, because it brings torch
    from ...server.settings import Settings

    names: set[str] = set()

    def note(frame: FrameType, event: str, _argument: object) -> None:
        if event == "call":
            names.add(frame.f_code.co_filename)

    async def chat() -> None:
        app = build_service(Settings(model="tiny-llada")).app
        transport = httpx.ASGITransport(app)
        async with (
            app.router.lifespan_context(app),
            httpx.AsyncClient(transport=transport, base_url="http://server") as client,
        ):
            for recorded in (False, True):  # the first compiles, loads and fills caches
                if recorded:
                    names.clear()
                    sys.setprofile(note)
                try:
                    (await client.post("/v1/chat/completions", json=BODY)).raise_for_status()
                finally:
                    sys.setprofile(None)

    threading.setprofile(note)  # the device runs in a thread that starts before the first chat
    try:
        asyncio.run(chat())
    finally:
        threading.setprofile(None)
    own = {name.rpartition("/asynclane/")[2] for name in names if "/asynclane/" in name}
    return sorted(name for name in own if not name.startswith("bench/"))


def main(argv: Sequence[str] | None = None) -> int:
    parser = program("report.structure", __doc__)
    parser.add_argument("--root", type=Path, default=Path(), metavar="DIRECTORY", help="a checkout (default: here)")
    parser.add_argument("--chat", action="store_true", help="also list the files of one streamed chat")
    options = parser.parse_args(argv)
    check_outputs(parser, None, options.json)
    try:
        figures = counts(sources(options.root))
    except (OSError, subprocess.CalledProcessError) as error:
        parser.error(f"{options.root} is no checkout: {error}")
    if options.chat:
        figures["chat_files"] = chat_files()
    for name, value in figures.items():
        print(f"{name}: {len(value) if isinstance(value, list) else value}")
        if isinstance(value, list):
            print(*(f"  {' -> '.join(entry) if isinstance(entry, list) else entry}" for entry in value), sep="\n")
    finish({"benchmark": "structure", **figures}, options.json)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
