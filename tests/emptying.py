"""A pytest plugin, loaded by `tests.engines`: after a test that commits, delete what it left and nothing else.

Django truncates every table and makes content types and permissions again: 110 to 250 ms of CPU for a test that left
a dozen rows, against 10 ms here. As there, anyone who still writes is waited for, so that nothing of one test comes
into the next.
"""

from __future__ import annotations

from typing import Any

import pytest

# What `migrate` fills, from code: the same for every test.
_LASTING = {"django_content_type", "auth_permission", "django_migrations"}
_MANY = 5_000  # rows; what is left of so many would be read over by the tests that follow


@pytest.hookimpl(trylast=True)
def pytest_configure() -> None:
    from django.test import TransactionTestCase

    TransactionTestCase._fixture_teardown = _teardown  # type: ignore[method-assign]


def _teardown(case: Any) -> None:
    from django.db import connections

    for alias in case._databases_names(include_mirrors=False):
        _empty(connections[alias])


def _empty(connection: Any) -> None:
    from django.db import transaction

    names = connection.introspection.django_table_names(only_existing=True, include_views=False)
    tables = sorted(set(names) - _LASTING)
    with transaction.atomic(using=connection.alias), connection.cursor() as cursor:
        # Writers end first; who reads doesn't matter.
        cursor.execute(f"LOCK TABLE {', '.join(map(_quoted, tables))} IN SHARE ROW EXCLUSIVE MODE")
        cursor.execute(
            " UNION ALL ".join(f"SELECT '{name}' WHERE EXISTS (SELECT FROM {_quoted(name)})" for name in tables)
        )
        left = [row[0] for row in cursor.fetchall()]
        # The journals of cells that are gone; dropping them is cheaper than deleting their rows.
        if "scheduling_cell" in left:
            left = [name for name in left if name != "scheduling_event"]
            cursor.execute("SELECT name FROM scheduling_event_partition")
            if partitions := [row[0] for row in cursor.fetchall()]:
                cursor.execute(f"DROP TABLE {', '.join(map(_quoted, partitions))}")
        # All goes, so foreign keys need no order, and what must never change may go too.
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
