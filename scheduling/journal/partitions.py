"""Drops partitions of a table without blocking its readers and writers.

    attached ─► DETACH … CONCURRENTLY ─► a table of its own ─► DROP

Both steps can be repeated after a crash: a partition whose detachment was interrupted is finalized, and a detached one
is dropped.
"""

from __future__ import annotations

from scheduling.journal.sql import execute, query


def detach(table: str, partition: str) -> None:
    """Detach a partition. The caller must not be in a transaction. Waits for the transactions that use the table."""
    rows = query(
        "SELECT inhdetachpending FROM pg_inherits WHERE inhparent = %s::regclass AND inhrelid = to_regclass(%s)",
        [table, partition],
    )
    if rows:
        execute(f"ALTER TABLE {table} DETACH PARTITION {partition} {'FINALIZE' if rows[0][0] else 'CONCURRENTLY'}")


def drop_detached(table: str) -> list[str]:
    """Drop the tables that were partitions of `table` and are detached now. Return their names."""
    rows = query(
        "SELECT relname FROM pg_class AS c WHERE relname ~ %s AND relkind = 'r' AND relnamespace = ("
        " SELECT relnamespace FROM pg_class WHERE oid = %s::regclass)"
        " AND NOT EXISTS (SELECT FROM pg_inherits WHERE inhrelid = c.oid) ORDER BY relname",
        [f"^{table}(_[0-9]+)+$", table],
    )
    for (name,) in rows:
        execute(f"DROP TABLE IF EXISTS {name}")
    return [name for (name,) in rows]
