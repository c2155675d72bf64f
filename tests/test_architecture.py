"""The arrows between packages: `server -> scheduler <- models -> kernels`, and clients alone."""

from __future__ import annotations

import ast
import functools
import graphlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("server", "scheduler", "kernels", "models", "clients", "bench", "deploy", "training")

ALLOWED: dict[str, set[str]] = {
    "scheduler": set(),
    "kernels": set(),
    "clients": set(),
    "models": {"scheduler", "kernels"},
    "server": {"scheduler"},
    "bench": {"server", "scheduler", "clients"},
    "deploy": {"server"},
    "training": {"bench", "models", "scheduler"},  # makes the embedded models
}
# The composition root wires models, and `inspect` reports on them. The command line starts the client for `chat`,
# the load generator for `bench`, the evaluation for `eval`, and the training of a learnt commit rule, which runs the
# engine, for `train-controller`.
# A benchmark of device steps runs them without a server.
EXCEPTIONS: dict[str, set[str]] = {
    "server/engine/wiring.py": {"models"},
    "server/cli/inspect.py": {"models"},
    "server/cli/parser.py": {"bench"},
    "server/cli/bench.py": {"clients", "bench"},
    "server/cli/chat.py": {"clients"},
    "server/cli/eval.py": {"clients", "bench"},
    "server/cli/train_controller.py": {"training"},
    "bench/kernels/attention_cases.py": {"kernels"},
    "bench/kernels/block_cases.py": {"kernels"},
    "bench/kernels/family_cases.py": {"kernels"},
    "bench/kernels/product_cases.py": {"kernels"},
    "bench/kernels/token_cases.py": {"kernels"},
    "bench/steps/checkpoint.py": {"models"},
    "bench/steps/host.py": {"kernels", "models"},
    "bench/steps/offline.py": {"models"},
    "bench/steps/ranks.py": {"kernels", "models"},
    "bench/steps/updates.py": {"models"},
    "bench/steps/shapes.py": {"kernels", "models"},
    "training/controllers/command.py": {"server"},
}

THIRD_PARTY: dict[str, set[str]] = {
    "scheduler": {"numpy"},
    "kernels": {"torch", "numpy", "triton"},
    "models": {"huggingface_hub", "numpy", "torch", "safetensors"},
    "clients": {"httpx", "pydantic"},
    "deploy": {"click", "fastapi", "ray", "starlette"},
}


@functools.cache
def import_statements(path: Path) -> list[ast.Import | ast.ImportFrom]:
    return [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Import | ast.ImportFrom)]


def imports(path: Path) -> Iterator[tuple[int, str]]:
    """(levels up, module) of every import in a file."""
    for node in import_statements(path):
        if isinstance(node, ast.Import):
            yield from ((0, alias.name) for alias in node.names)
        else:
            yield node.level, node.module or ""


def package_imports(path: Path) -> set[str]:
    """The project's other packages that a file imports."""
    depth = len(path.relative_to(ROOT).parts) - 1
    found = set()
    for level, module in imports(path):
        if level == depth + 1 or (level == 0 and module.startswith("asynclane.")):
            found.add(module.removeprefix("asynclane.").split(".")[0])
    return found - {path.relative_to(ROOT).parts[0]}


def files(package: str) -> list[Path]:
    return sorted((ROOT / package).rglob("*.py"))


@pytest.mark.parametrize("package", PACKAGES)
def test_a_package_imports_only_what_its_arrows_allow(package: str) -> None:
    for path in files(package):
        name = path.relative_to(ROOT).as_posix()
        extra = package_imports(path) - ALLOWED[package] - EXCEPTIONS.get(name, set())
        assert not extra, f"{name} imports {extra}"


def project_imports(path: Path) -> set[Path]:
    """The project's files that a file imports, for type checking too: the modules, or the packages of the names."""
    here, found = path.relative_to(ROOT).parts[:-1], set()
    for node in import_statements(path):
        if not isinstance(node, ast.ImportFrom):
            continue
        module = (node.module or "").split(".") if node.module else []
        if node.level:
            base = [*here[: len(here) + 1 - node.level], *module]
        elif module[0] == "asynclane":
            base = module[1:]
        else:
            continue
        folder = ROOT.joinpath(*base)
        for target in (folder.with_suffix(".py"), *(folder / f"{alias.name}.py" for alias in node.names)):
            found |= {target} if target.is_file() else set()
        if any(not (folder / f"{alias.name}.py").is_file() for alias in node.names):
            found.add(folder / "__init__.py")
    return {target for target in found if target.is_file()} - {path}


def test_no_import_goes_in_a_circle() -> None:
    graph = {path: project_imports(path) for package in (*PACKAGES, "training") for path in files(package)}
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        pytest.fail(" <- ".join(path.relative_to(ROOT).as_posix() for path in error.args[1]))


def test_decoding_imports_nothing_of_the_scheduler_but_the_contract() -> None:
    decoding, contract = ROOT / "scheduler" / "decoding", ROOT / "scheduler" / "contract.py"
    for path in sorted(decoding.rglob("*.py")):
        extra = {found for found in project_imports(path) if decoding not in found.parents} - {contract}
        assert not extra, f"{path.relative_to(ROOT)} imports {extra}"


@pytest.mark.parametrize("package", THIRD_PARTY)
def test_a_package_uses_only_its_libraries(package: str) -> None:
    for path in files(package):
        used = {module.split(".")[0] for level, module in imports(path) if not level}
        extra = used - set(sys.stdlib_module_names) - THIRD_PARTY[package] - {"asynclane"}
        assert not extra, f"{path.relative_to(ROOT)} imports {extra}"


@pytest.mark.parametrize(
    ("modules", "absent"),
    [
        ("asynclane.scheduler.scheduler", ["torch", "fastapi", "transformers"]),
        ("asynclane.server.frontend.process, asynclane.server.engine.engine", ["torch", "transformers"]),
        ("asynclane.server.structured.trial", ["torch", "fastapi", "transformers", "numpy"]),
        ("asynclane.server.cli.main", ["torch", "fastapi", "transformers", "matplotlib", "httpx"]),
        ("asynclane.bench.load.run", ["torch", "fastapi", "transformers", "matplotlib"]),
    ],
)
def test_importing_it_loads_no(modules: str, absent: list[str]) -> None:
    """Clients have a test of their own; a front end imports `server.app`."""
    code = f"import {modules}, sys; print([m for m in {absent} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_contract_stays_small_and_imports_nothing_of_the_project() -> None:
    path = ROOT / "scheduler" / "contract.py"
    assert len(path.read_text().splitlines()) <= 290
    assert not [module for level, module in imports(path) if level]


def test_the_server_uses_only_what_the_scheduler_exports() -> None:
    for path in files("server"):
        inner = [module for level, module in imports(path) if level and module.startswith("scheduler.")]
        assert not inner, f"{path.relative_to(ROOT)} imports {inner}"


def test_no_test_file_imports_another() -> None:
    for path in files("tests"):
        found = [module for _, module in imports(path) if module.rpartition(".")[2].startswith("test_")]
        assert not found, f"{path.relative_to(ROOT)} imports {found}"
