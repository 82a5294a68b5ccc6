"""Time bounds for tests on machines that other processes load too."""

from __future__ import annotations

import time
from collections.abc import Callable

_LOOP_S = 0.1


def one_takes_less(limit_s: float, attempt: Callable[[int], float], *, tries: int = 3) -> None:
    """Check that one of at most `tries` attempts takes less than `limit_s` seconds, and stop after that one.

    `attempt`: receives its number from 0 on and returns the seconds that it took.
    """
    took: list[float] = []
    while not took or took[-1] >= limit_s:
        assert len(took) < tries, f"{took} s, wanted less than {limit_s:g} s"
        took.append(attempt(len(took)))


def stretch() -> float:
    """Return how much other processes slow this one down, 1.0 or more.

    This is the elapsed time per CPU time of a busy loop.
    """
    began, used = time.monotonic(), time.process_time()
    while (worked := time.process_time() - used) < _LOOP_S:
        pass
    return max(1.0, (time.monotonic() - began) / worked)
