"""Configuration that all tests share. This module does not import Django, because unit tests run without it.

Hypothesis draws the same examples in each run, and without a time limit per example. So the result of a run depends on
the code alone, not on chance or on the load of the machine. `HYPOTHESIS_PROFILE=search` draws new examples in each run.
"""

from __future__ import annotations

import gc
import os

import pytest
from hypothesis import HealthCheck, settings

from tests.examples import examples
from tests.rewriting import rewrite_once

gc.disable()  # until all modules are imported, whose objects are never garbage

settings.register_profile(
    "steady", max_examples=examples(100), deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("search", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "steady"))


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    rewrite_once(config)
    if config.getoption("numprocesses", None):
        gc.enable()  # this process collects no tests


def pytest_collection_finish() -> None:
    """Let the garbage collector ignore modules and tests from now on. This saves 5 % of the CPU time."""
    gc.collect()
    gc.freeze()
    gc.enable()
