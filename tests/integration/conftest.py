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


# What most scenarios begin with. Models are imported inside: Django may not be set up yet when this file is read.


@pytest.fixture
def cell():
    """After each scenario the rows equal the journal replayed, and whatever else must be true is."""
    from scheduling.validate import validate
    from tests.integration import rows

    cell = rows.a_cell()
    yield cell
    assert validate(cell.id) == []


@pytest.fixture
def machine(cell):
    from tests.integration import rows

    return rows.a_machine(cell)


@pytest.fixture
def tenant(cell):
    from tests.integration import rows

    tenant = rows.a_tenant("ubar")
    for band in ("production", "batch"):
        rows.grant(tenant, cell, band)
    return tenant


@pytest.fixture
def ann(tenant):
    """Who may submit and change the tenant's jobs."""
    from quota.permissions import Role
    from tests.integration import world

    return world.principal("ann", tenant=tenant, role=Role.OPERATOR)
