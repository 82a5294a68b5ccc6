"""Fixtures of the integration tests, which need real PostgreSQL and Redis (`-p tests.engines`)."""

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


@pytest.fixture(autouse=True)
def no_kept_maps():
    """Let the process forget the maps of cells. A test whose rows were rolled back may have read them."""
    from scheduling.cell_map.kept_maps import maps

    maps.forget()


@pytest.fixture(autouse=True)
def no_remembered_partitions():
    """Let the process forget the hours whose partitions of usage it has made. An archiver of another test, which runs
    in this process too, may have dropped them.
    """
    from scheduling.usage import usage_windows

    usage_windows._known.clear()


# What most scenarios begin with. Models are imported inside: Django may not be set up yet when this file is read.


@pytest.fixture
def cell():
    """Yield a new cell. After the test, check that its rows are consistent and equal the replayed journal."""
    from scheduling.master.invariants import validate
    from tests.integration import rows

    cell = rows.a_cell()
    yield cell
    assert validate(cell.id) == []


@pytest.fixture(scope="session")
def shared_portal(django_db_setup, tmp_path_factory):
    """Yield the URL of a web process that all tests share which need no settings of their own for it."""
    from tests.integration import portal_server

    settings = {"DJANGO_SETTINGS_MODULE": os.environ["DJANGO_SETTINGS_MODULE"]}
    with portal_server.running(tmp_path_factory.mktemp("portal") / "log", **settings) as url:
        yield url


@pytest.fixture(scope="module")
def kept_world(django_db_setup, django_db_blocker):
    """Yield the rows of `portal_world` for all tests of a module in which no test commits. Each test rolls back its own
    changes.
    """
    from django.db import transaction

    from tests.integration import portal_world

    with django_db_blocker.unblock(), transaction.atomic():
        yield portal_world.make()
        transaction.set_rollback(True)


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
    """Return user `ann` as a principal. As operator of the tenant, she may submit and change its jobs."""
    from quota.vocabulary.permissions import Role
    from tests.integration import world

    return world.principal("ann", tenant=tenant, role=Role.OPERATOR)
