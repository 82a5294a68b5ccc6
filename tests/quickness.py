"""What must be quick, on machines that are busy with other things too."""

from __future__ import annotations

from collections.abc import Callable


def one_takes_less(limit_s: float, attempt: Callable[[int], float], *, tries: int = 3) -> None:
    """One of a few attempts takes less: each gets its number and returns its seconds. Where nobody else is at work
    there is but one."""
    took: list[float] = []
    while not took or took[-1] >= limit_s:
        assert len(took) < tries, f"{took} s, wanted less than {limit_s:g} s"
        took.append(attempt(len(took)))
