"""Compilation of kernels, and the cache of their machine code.

Numba's cache detects a change in the file of a kernel, but not in the files of the functions that the kernel calls. So
each version of all source files has its own cache directory, and outdated machine code is never used.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar, cast

import numba
import numpy as np

F = TypeVar("F", bound=Callable[..., Any])

_HERE = Path(__file__).parent
_SOURCES = (
    *sorted(_HERE.glob("*.py")),
    _HERE.parent / "booking" / "earliest_fit.py",
    _HERE.parent / "vocabulary" / "kernel_arrays.py",
)


def _version() -> str:
    digest = hashlib.sha256()
    for source in _SOURCES:
        digest.update(source.read_bytes())
    return digest.hexdigest()[:16]


def _writable(cache: Path) -> Path:
    """Return the folder of the cache. If this process cannot write there, return a copy of it below the user's home,
    because Numba uses only folders that it can write. Without a copy, each service would compile for minutes.
    """
    place = next(folder for folder in (cache, *cache.parents) if folder.exists())
    if os.access(place, os.W_OK):
        return cache
    copy = Path.home() / ".cache" / "borg" / cache.name
    if cache.exists() and not copy.exists():
        copy.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=copy.parent) as made:
            whole = shutil.copytree(cache, Path(made) / "copy")
            with suppress(OSError):  # another process was faster
                os.rename(whole, copy)
    return copy


CACHE = _writable(Path(os.environ.get("NUMBA_CACHE_DIR") or _HERE / "__pycache__") / f"kernels-{_version()}")
numba.config.CACHE_DIR = str(CACHE)  # type: ignore[attr-defined]


def constant(value: int) -> int:
    """Return `value` as an int64, the integer type of the kernels. Use this for numbers that a kernel passes to another
    kernel: Numba would compile the called kernel again for each literal number.
    """
    return cast(int, np.int64(value))


# Without references to count, what makes no arrays compiles faster. Nothing calls the kernels from C.
_ALL: dict[str, Any] = {"error_model": "numpy", "no_cfunc_wrapper": True}
_KERNEL: dict[str, Any] = {**_ALL, "cache": True, "_nrt": False}
_CALLED_BY_KERNELS: dict[str, Any] = {**_ALL, "no_cpython_wrapper": True, "_nrt": False}


def kernel(function: F) -> F:
    """Compile a function that Python code calls, and that creates no arrays. It uses only the arrays that its callers
    pass.
    """
    return cast(F, numba.njit(**_KERNEL)(function))


def compiled(function: F) -> F:
    """Compile a function that only kernels call, and that creates no arrays. The cache contains its code as a part of
    these kernels. Without code that converts values of Python, it compiles faster.
    """
    return cast(F, numba.njit(**_CALLED_BY_KERNELS)(function))


def inlined(function: F) -> F:
    """Compile a function that only kernels call, and copy its code into its callers. Use this for short functions that
    are called for each machine: the call itself would take longer than the work of the function.
    """
    return cast(F, numba.njit(forceinline=True, **_CALLED_BY_KERNELS)(function))


def allocating(function: F) -> F:
    """Compile a function that Python code calls, and that may create arrays."""
    return cast(F, numba.njit(cache=True, **_ALL)(function))
