"""Queries of the map of a cell. Each one makes one statement for any number of machines and tasks."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

import numpy as np
from django.db import connection
from numpy.typing import NDArray

from quota.vocabulary.resources import CPU, RAM
from scheduling.journal import copy_rows
from scheduling.journal.sql import query
from scheduling.models.machines import REMOVED

# The sums over the tasks of one tenant on one machine. CPU is in millicores, RAM in bytes. `priority`: the highest one.
# Tasks inside an alloc use the capacity of their alloc, so `limit` and `reservation` count the alloc only.
SUMS = np.dtype(
    [
        (name, "<i8")
        for name in (
            "machine_id",
            "tenant_id",
            "tasks",
            "limit_cpu",
            "limit_ram",
            "reservation_cpu",
            "reservation_ram",
            "priority",
        )
    ]
)
_SUM = "sum(CASE WHEN t.alloc_id IS NULL THEN t.{column}[{place}] ELSE 0 END)::bigint"
_SUMS = (
    "SELECT t.machine_id, j.tenant_id, count(*), "
    + ", ".join(
        _SUM.format(column=column, place=place + 1) for column in ('"limit"', "reservation") for place in (CPU, RAM)
    )
    + ", max(j.priority)::bigint FROM scheduling_task AS t JOIN scheduling_job AS j ON j.id = t.job_id"
    " WHERE t.machine_id IS NOT NULL AND {which} GROUP BY 1, 2"
)
# PostgreSQL's binary format of COPY: a header, then for each row the number of its columns and the length and the value
# of each column, then an end mark.
_HEADER_BYTES, _END_BYTES = 19, 2
_PARTS = (("_bytes", ">i4"), ("", ">i8"))
_COPIED = np.dtype([("columns", ">i2"), *((name + part, kind) for name in SUMS.names or () for part, kind in _PARTS)])


class MachineFacts(NamedTuple):
    """What the map shows of a machine itself. `cpu` in millicores, `ram` in bytes."""

    hostname: str
    state: str
    rack: str
    power_domain: str
    platform: str
    cpu: int
    ram: int


def machine_facts(cell_id: int, machine_ids: Collection[int] | None = None) -> dict[int, MachineFacts]:
    """Return the facts of machines by their ids, in the order of the ids. Removed machines are left out.

    `machine_ids`: the machines to read; None: all machines of the cell.
    """
    which, values = ("", []) if machine_ids is None else (" AND id = ANY(%s)", [list(machine_ids)])
    found = query(
        f"SELECT id, hostname, state, rack, power_domain, platform, capacity[{CPU + 1}], capacity[{RAM + 1}]"
        f" FROM scheduling_machine WHERE cell_id = %s AND state <> %s{which} ORDER BY id",
        [cell_id, REMOVED, *values],
    )
    return {identity: MachineFacts(*facts) for identity, *facts in found}


def task_sums(cell_id: int, machine_ids: Collection[int] | None = None) -> NDArray[np.void]:
    """Return the sums over running tasks as rows of `SUMS`, one per machine and tenant, in any order.

    `machine_ids`: the machines to read; None: all machines of the cell. Binary rows cost a fifth of Python objects: a
    cell of 10,000 machines has 100,000 pairs of a machine and a tenant.
    """
    # The values are numbers. A statement with parameters would be rejected where Django logs all statements.
    which = f"t.cell_id = {cell_id:d}"
    if machine_ids is not None:
        which = f"t.machine_id = ANY('{copy_rows.column(machine_ids)}'::bigint[])"
    statement = f"COPY ({_SUMS.format(which=which)}) TO STDOUT (FORMAT binary)"
    with connection.cursor() as cursor, cursor.copy(statement) as copy:
        content = b"".join(copy)
    copied = np.frombuffer(content[_HEADER_BYTES:-_END_BYTES], _COPIED)
    rows = np.empty(len(copied), SUMS)
    for name in SUMS.names or ():
        rows[name] = copied[name]
    return rows


def job_tasks(job_id: int, machine_ids: Collection[int] | None = None) -> dict[int, int]:
    """Return how many tasks of a job run on each machine, by machine id. Machines without such a task are left out.

    `machine_ids`: the machines to read; None: all machines.
    """
    which, values = ("IS NOT NULL", []) if machine_ids is None else ("= ANY(%s)", [list(machine_ids)])
    return dict(
        query(
            f"SELECT machine_id, count(*) FROM scheduling_task WHERE job_id = %s AND machine_id {which} GROUP BY 1",
            [job_id, *values],
        )
    )
