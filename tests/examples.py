"""The number of examples with which Hypothesis tries a property."""

from __future__ import annotations

import os

SEARCH = os.environ.get("HYPOTHESIS_PROFILE") == "search"


def examples(most: int) -> int:
    """Return how many examples Hypothesis draws for a property.

    That is `most` in `make soak`, which draws new examples, and a fifth of it in `make test`, which repeats the same.
    """
    return most if SEARCH else max(most // 5, 1)
