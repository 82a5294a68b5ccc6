"""Drops partitions of a table without blocking its readers and writers.

    attached ─► DETACH … CONCURRENTLY ─► a table of its own ─► DROP

Both steps can be repeated after a crash: a partition whose detachment was interrupted is finalized, and a detached one
is dropped.

An interrupted deletion or recording of a cell leaves partitions of a cell that does not exist. `drop_orphans` drops
them, except those that are reserved.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from scheduling.journal.sql import execute, query

_TABLE = "scheduling_event"
# The lock that `scheduling_event_partition_make` also takes.
_KEY = "hashtext('scheduling_event_partition'), %s::integer"


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


@contextmanager
def reserved(cell_id: int) -> Iterator[None]:
    """Protect the partitions of a cell from `drop_orphans` during the `with` block. The caller must not be in a
    transaction, and creates partitions in the block before it creates the cell.
    """
    query(f"SELECT pg_advisory_lock({_KEY})", [cell_id])
    try:
        yield
    finally:
        query(f"SELECT pg_advisory_unlock({_KEY})", [cell_id])


def drop_orphans() -> list[str]:
    """Drop the partitions of the journal whose cells do not exist, unless they are reserved. Return their names. The
    caller must not be in a transaction.
    """
    orphans = query(
        "SELECT name, cell_id FROM scheduling_event_partition AS p"
        " WHERE NOT EXISTS (SELECT FROM scheduling_cell AS c WHERE c.id = p.cell_id) ORDER BY name"
    )
    # The cell is looked up again after the lock: the process that had reserved the partitions may have created it.
    dropped = [name for name, cell_id in orphans if _is_free(cell_id) and not _exists(cell_id)]
    for name in dropped:
        detach(_TABLE, name)
    if dropped:
        drop_detached(_TABLE)
    return dropped


def _is_free(cell_id: int) -> bool:
    return bool(query(f"SELECT pg_try_advisory_xact_lock({_KEY})", [cell_id])[0][0])


def _exists(cell_id: int) -> bool:
    return bool(query("SELECT 1 FROM scheduling_cell WHERE id = %s", [cell_id]))
