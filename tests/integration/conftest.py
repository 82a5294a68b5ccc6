"""Integration tests run with `-p tests.engines --ds=portal.settings.test`: PostgreSQL and Redis are real."""

from __future__ import annotations

import os

import pytest


def pytest_configure(config: pytest.Config) -> None:
    if "BORG_DATABASE_URL" not in os.environ:
        raise pytest.UsageError(
            "Integration tests need PostgreSQL and Redis: run them with "
            "`python -m pytest -p tests.engines --ds=portal.settings.test tests/integration`, or run `make test`."
        )
