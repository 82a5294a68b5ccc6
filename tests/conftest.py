"""What all tests share. Nothing here imports Django: the unit tests run without it.

Hypothesis draws the same examples each time, and however long one takes: a change is judged by what it changed, not by
what was drawn, nor by how busy the machine was. `HYPOTHESIS_PROFILE=search` draws others at each run, for anyone who
looks for more.
"""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

from tests.examples import examples

settings.register_profile(
    "steady", max_examples=examples(100), deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("search", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "steady"))
