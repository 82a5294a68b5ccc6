"""Tests of a process that frees the memory of the compiler (LLVM) once the kernels are loaded, and still compiles."""

from __future__ import annotations

import json
import subprocess
import sys

_PROGRAM = """
import json, re
from pathlib import Path

def llvm_mib():
    parts = re.split(r"\\n(?=[0-9a-f]+-)", Path("/proc/self/smaps").read_text())
    return sum(int(re.search(r"Rss: +([0-9]+)", part)[1]) for part in parts if "libllvmlite" in part) / 1024

from scheduling.core.warm import compile_kernels, release_compiler
compile_kernels()
loaded = llvm_mib()
release_compiler()
released = llvm_mib()
compile_kernels()
import numba
doubled = numba.njit(lambda x: 2 * x)(21)
print(json.dumps([loaded, released, doubled]))
"""


def test_the_code_of_the_compiler_leaves_memory_and_comes_back() -> None:
    done = subprocess.run([sys.executable, "-c", _PROGRAM], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    loaded, released, doubled = json.loads(done.stdout)
    assert released < loaded / 2, (loaded, released)
    assert doubled == 42
