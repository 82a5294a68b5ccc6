"""Compilation of kernels, and the cache of their machine code.

Numba's cache detects a change in the file of a kernel, but not in the files of the functions that the kernel calls. So
each version of all source files has its own cache directory, and outdated machine code is never used.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

import numba
import numpy as np

F = TypeVar("F", bound=Callable[..., Any])

_HERE = Path(__file__).parent
_SOURCES = (*sorted(_HERE.glob("*.py")), _HERE.parent / "vocabulary" / "kernel_arrays.py")


def _version() -> str:
    digest = hashlib.sha256()
    for source in _SOURCES:
        digest.update(source.read_bytes())
    return digest.hexdigest()[:16]


CACHE = Path(os.environ.get("NUMBA_CACHE_DIR") or _HERE / "__pycache__") / f"kernels-{_version()}"
numba.config.CACHE_DIR = str(CACHE)  # type: ignore[attr-defined]


def constant(value: int) -> int:
    """Return `value` as an int64, the integer type of the kernels. Use this for numbers that a kernel passes to another
    kernel: Numba would compile the called kernel again for each literal number.
    """
    return cast(int, np.int64(value))


# Without references to count, what makes no arrays compiles faster.
_OPTIONS: dict[str, Any] = {"cache": True, "error_model": "numpy", "_nrt": False}


def compiled(function: F) -> F:
    """Compile a function that creates no arrays. It uses only the arrays that its callers pass."""
    return cast(F, numba.njit(**_OPTIONS)(function))


def inlined(function: F) -> F:
    """Compile a function, and copy its code into its callers. Use this for short functions that are called for each
    machine: the call itself would take longer than the work of the function.
    """
    return cast(F, numba.njit(forceinline=True, **_OPTIONS)(function))


def allocating(function: F) -> F:
    """Compile a function that may create arrays."""
    return cast(F, numba.njit(cache=True, error_model="numpy")(function))
