"""The number of examples that a property is tried with."""

from __future__ import annotations

import os

SEARCH = os.environ.get("HYPOTHESIS_PROFILE") == "search"


def examples(most: int) -> int:
    """Return `most` in `make soak`, which draws new examples, and a third of it in `make test`, which repeats them."""
    return most if SEARCH else max(most // 3, 1)
