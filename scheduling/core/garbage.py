"""A pause of Python's cycle collector, for code that creates many objects without cycles."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collection_paused() -> Iterator[None]:
    """Pause Python's cycle collector inside the `with` block. Otherwise it would examine all new objects repeatedly
    and free none.
    """
    collected = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collected:
            gc.enable()
