"""What must be quick, on machines that are busy with other things too."""

from __future__ import annotations

import time
from collections.abc import Callable

_LOOP_S = 0.1


def one_takes_less(limit_s: float, attempt: Callable[[int], float], *, tries: int = 3) -> None:
    """One of a few attempts takes less: each gets its number and returns its seconds. Where nobody else is at work
    there is but one."""
    took: list[float] = []
    while not took or took[-1] >= limit_s:
        assert len(took) < tries, f"{took} s, wanted less than {limit_s:g} s"
        took.append(attempt(len(took)))


def stretch() -> float:
    """How many times longer than alone work takes here now, 1 or more: seconds for each that a busy loop is given."""
    began, used = time.monotonic(), time.process_time()
    while (worked := time.process_time() - used) < _LOOP_S:
        pass
    return max(1.0, (time.monotonic() - began) / worked)
