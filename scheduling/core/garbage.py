"""Pauses Python's garbage collector of cycles, for code that creates many objects."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collection_paused() -> Iterator[None]:
    """Pause Python's garbage collector of cycles inside a `with` block. Without the pause, it would examine all new
    objects repeatedly and free none of them.
    """
    collected = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collected:
            gc.enable()
