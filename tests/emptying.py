"""A pytest plugin that empties the database after each test that commits. `tests.engines` loads it.

It deletes only the rows that the test left. Django's own way is to truncate every table and to create content types and
permissions again, which takes 110 to 250 ms of CPU where this takes 10 ms. Like Django's way, it waits until open
transactions that write have ended, so that no row of one test appears in the next.

The connection stays open for the next test, because each process of PostgreSQL reads the catalogue of all tables again.
What the test has set on the connection is discarded.
"""

from __future__ import annotations

from typing import Any

import pytest

# `migrate` fills these tables from code. They are the same for every test.
_LASTING = {"django_content_type", "auth_permission", "django_migrations"}
_MANY = 5_000  # rows; dead rows of this number would slow down the scans of later tests


@pytest.hookimpl(trylast=True)
def pytest_configure() -> None:
    from django.db.backends.postgresql.creation import DatabaseCreation
    from django.test import TransactionTestCase

    # PostgreSQL ends with the run. Until then, threads may keep connections to the database.
    DatabaseCreation._destroy_test_db = lambda *_: None  # type: ignore[method-assign]
    TransactionTestCase._fixture_teardown = _teardown  # type: ignore[method-assign]
    TransactionTestCase._should_reload_connections = lambda case: False  # type: ignore[method-assign]


def _teardown(case: Any) -> None:
    from django.db import connections

    for alias in case._databases_names(include_mirrors=False):
        _empty(connections[alias])
        _discard(connections[alias])


def _discard(connection: Any) -> None:
    """Make a connection as new: without settings, locks and listened channels of the test. If that fails, close it."""
    from django.db import Error

    try:
        connection.set_autocommit(True)
        with connection.cursor() as cursor:
            cursor.execute("DISCARD ALL")
        connection.init_connection_state()
    except Error:
        connection.close()


def _empty(connection: Any) -> None:
    from django.db import transaction

    names = connection.introspection.django_table_names(only_existing=True, include_views=False)
    tables = sorted(set(names) - _LASTING)
    with transaction.atomic(using=connection.alias), connection.cursor() as cursor:
        # The lock waits for transactions that write. Readers do not matter.
        cursor.execute(f"LOCK TABLE {', '.join(map(_quoted, tables))} IN SHARE ROW EXCLUSIVE MODE")
        cursor.execute(
            " UNION ALL ".join(f"SELECT '{name}' WHERE EXISTS (SELECT FROM {_quoted(name)})" for name in tables)
        )
        left = [row[0] for row in cursor.fetchall()]
        # These are journals of deleted cells. Dropping the tables is cheaper than deleting their rows.
        if "scheduling_cell" in left:
            left = [name for name in left if name != "scheduling_event"]
            cursor.execute("SELECT name FROM scheduling_event_partition")
            if partitions := [row[0] for row in cursor.fetchall()]:
                cursor.execute(f"DROP TABLE {', '.join(map(_quoted, partitions))}")
        # Otherwise an archiver of a later test would find months without rows, and drop them.
        cursor.execute(
            "SELECT inhrelid::regclass::text FROM pg_inherits WHERE inhparent = 'quota_meteredhour'::regclass"
        )
        if months := [row[0] for row in cursor.fetchall()]:
            left = [name for name in left if name != "quota_meteredhour"]
            cursor.execute(f"DROP TABLE {', '.join(months)}")
        # All rows are deleted, so foreign keys need no order. Triggers that forbid changes are off, too.
        cursor.execute("SET LOCAL session_replication_role = replica")
        many = []
        for name in left:
            cursor.execute(f"DELETE FROM {_quoted(name)}")
            if cursor.rowcount > _MANY:
                many.append(name)
    with connection.cursor() as cursor:
        for name in many:
            cursor.execute(f"VACUUM {_quoted(name)}")


def _quoted(name: str) -> str:
    return f'"{name}"'
