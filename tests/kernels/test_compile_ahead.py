"""Kernels that Triton compiles are counted; it needs no GPU to compile for one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from ..support.processes import environment
from ..support.scale import LONG

PROGRAM = """
from importlib import import_module
import triton, triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from asynclane.kernels.common.compile_ahead import CompiledKernels


@triton.jit
def add(x, size, block: tl.constexpr):
    at = tl.arange(0, block)
    tl.store(x + at, tl.load(x + at, mask=at < size) + 1, mask=at < size)


calls = []
import_module("triton.knobs").compilation.listener = lambda **details: calls.append(details["cache_hit"])
counted = CompiledKernels()
counted.watch()
for block in (16, 32, 16):
    source = ASTSource(add, {"x": "*fp32", "size": "i32", "block": "constexpr"}, {(2,): block})
    triton.compile(source, target=GPUTarget("cuda", 90, 32))
print(counted.count, calls)
"""


@LONG
def test_kernels_count_unless_they_are_found_in_a_cache(tmp_path: Path) -> None:
    pytest.importorskip("triton")
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    variables = environment(TRITON_CACHE_DIR=str(tmp_path / "cache"), TRITON_INTERPRET="0")
    command = [sys.executable, "-P", str(program)]
    done = subprocess.run(command, env=variables, capture_output=True, text=True, check=False, timeout=120)
    assert done.stdout == "2 [False, False, True]\n", done.stderr
