"""Integration tests run with `-p tests.engines --ds=portal.settings.test`: PostgreSQL and Redis are real."""

from __future__ import annotations

import os

import pytest

from tests.s3_server import s3_endpoint as s3_endpoint


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
    from scheduling.master.validate import validate
    from tests.integration import rows

    cell = rows.a_cell()
    yield cell
    assert validate(cell.id) == []


@pytest.fixture(scope="session")
def shared_portal(django_db_setup, tmp_path_factory):
    """Address of the web process that all tests share whose portal has no settings of its own."""
    from tests.integration import portal_server

    settings = {"DJANGO_SETTINGS_MODULE": os.environ["DJANGO_SETTINGS_MODULE"]}
    with portal_server.running(tmp_path_factory.mktemp("portal") / "log", **settings) as url:
        yield url


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
    """A user who may submit and change the tenant's jobs."""
    from quota.vocabulary.permissions import Role
    from tests.integration import world

    return world.principal("ann", tenant=tenant, role=Role.OPERATOR)
