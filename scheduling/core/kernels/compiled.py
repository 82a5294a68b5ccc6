"""Compilation of kernels, and the cache of their machine code.

Numba's cache detects changes of a kernel's own file, not of files with functions that it calls. So each version of
the sources has its own cache, and no kernel is ever stale.
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
_SOURCES = (*sorted(_HERE.glob("*.py")), _HERE.parent / "vocabulary" / "layout.py")


def _version() -> str:
    digest = hashlib.sha256()
    for source in _SOURCES:
        digest.update(source.read_bytes())
    return digest.hexdigest()[:16]


CACHE = Path(os.environ.get("NUMBA_CACHE_DIR") or _HERE / "__pycache__") / f"kernels-{_version()}"
numba.config.CACHE_DIR = str(CACHE)  # type: ignore[attr-defined]


def constant(value: int) -> int:
    """Return a constant of the kernels' integer type. Numba would compile a function again for each literal
    argument.
    """
    return cast(int, np.int64(value))


# Without references to count, what makes no arrays compiles faster.
_OPTIONS: dict[str, Any] = {"cache": True, "error_model": "numpy", "_nrt": False}


def compiled(function: F) -> F:
    """Compile a function that works on given arrays and creates none."""
    return cast(F, numba.njit(**_OPTIONS)(function))


def inlined(function: F) -> F:
    """Compile a function, and copy its code into its callers. Use this for functions that are called for each machine:
    a call would pass whole tables of arrays, and so take longer than the work of the function.
    """
    return cast(F, numba.njit(forceinline=True, **_OPTIONS)(function))


def allocating(function: F) -> F:
    """Compile a function that creates arrays."""
    return cast(F, numba.njit(cache=True, error_model="numpy")(function))
