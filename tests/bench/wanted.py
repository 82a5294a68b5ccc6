"""Which cases of a bench to run: `BENCH_CASES=a,b` leaves those that begin so."""

from __future__ import annotations

import os
from collections.abc import Sequence


def wanted(cases: Sequence[str]) -> list[str]:
    beginnings = tuple(os.environ.get("BENCH_CASES", "").split(","))
    return [case for case in cases if case.startswith(beginnings)]
