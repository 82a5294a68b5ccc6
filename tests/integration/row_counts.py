"""How many rows each table has, for tests in which nothing may change."""

from __future__ import annotations

from django.apps import apps
from django.db import connection


def row_counts() -> dict[str, int]:
    """Return the number of rows of each table, by name of the table."""
    tables = {
        model._meta.db_table
        for app in ("quota", "scheduling", "auth")
        for model in apps.get_app_config(app).get_models()
        if model._meta.managed
    }
    counts = " UNION ALL ".join(f"SELECT '{table}', count(*) FROM \"{table}\"" for table in sorted(tables))
    with connection.cursor() as cursor:
        cursor.execute(counts)
        return dict(cursor.fetchall())
