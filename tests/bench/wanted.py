"""The environment variable `BENCH_CASES=a,b` selects the cases of a benchmark whose names begin with `a` or `b`."""

from __future__ import annotations

import os
from collections.abc import Sequence


def wanted(cases: Sequence[str]) -> list[str]:
    """Return the cases that `BENCH_CASES` selects; all cases if it is not set."""
    beginnings = tuple(os.environ.get("BENCH_CASES", "").split(","))
    return [case for case in cases if case.startswith(beginnings)]
