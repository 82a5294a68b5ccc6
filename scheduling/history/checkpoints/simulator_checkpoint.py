"""A checkpoint of a cell at any moment, with the usage of its tasks before and the events afterwards, for the
simulator.

    state at a revision or time ─► the sections of every checkpoint
    usage of the hours before   ─► `usage`: mean and maximum per running task, while PostgreSQL has it (24 h)
    the journal afterwards      ─► `endings`: how tasks ended; `later`: submitted jobs, changes of machines

The file is made on demand, and is not one of the cell's stored checkpoints.
"""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, BinaryIO

import msgspec
from django.db import transaction

from quota.vocabulary.errors import invalid
from scheduling.core.vocabulary.requirement import INDEX_BITS
from scheduling.history.checkpoints import file
from scheduling.history.checkpoints.file import Header
from scheduling.history.checkpoints.rows import header_of
from scheduling.history.checkpoints.state_at_moment import state_at
from scheduling.history.checkpoints.tables import Tables, tables_of
from scheduling.journal.sql import execute, query
from scheduling.models import Cell

if TYPE_CHECKING:
    import pyarrow

USAGE_HOURS = 3
"""Usage of this many hours before the moment is read."""

_MOMENT = (
    "SELECT extract(epoch FROM time)::float8 FROM scheduling_event WHERE cell_id = %s AND revision <= %s"
    " ORDER BY revision DESC, seq DESC LIMIT 1"
)
_USAGE = """
SELECT (collection_id << %(bits)s) | instance_index,
    (1000 * avg(average_usage_cpus + throttled_cpus))::bigint, avg(average_usage_memory)::bigint,
    avg(disk_bytes)::bigint, (1000 * max(maximum_usage_cpus))::bigint, max(maximum_usage_memory), max(disk_bytes)
FROM scheduling_instance_usage
WHERE cell_id = %(cell)s AND start_time >= to_timestamp(%(at)s) - %(before)s AND start_time < to_timestamp(%(at)s)
GROUP BY 1 ORDER BY 1"""
# A task that is running when it ends has a machine.
_ENDINGS = """
SELECT (e.job_id << %(bits)s) | e.task_index, (e.data->>'incarnation')::int, extract(epoch FROM p.time)::float8,
    extract(epoch FROM e.time)::float8, e.data->>'how'
FROM scheduling_event AS e LEFT JOIN scheduling_event AS p ON p.cell_id = %(cell)s AND p.kind = 'task.placed'
    AND p.revision > %(after)s AND p.revision < e.revision AND p.job_id = e.job_id AND p.task_index = e.task_index
    AND p.data->'incarnation' = e.data->'incarnation'
WHERE e.cell_id = %(cell)s AND e.kind = 'task.ended' AND e.machine_id IS NOT NULL
    AND e.revision > %(after)s AND e.time <= to_timestamp(%(until)s)
ORDER BY e.revision, e.seq"""
_LATER = """
SELECT extract(epoch FROM time)::float8, data::text FROM scheduling_event
WHERE cell_id = %(cell)s AND kind IN ('job.submitted', 'machine.set', 'machine.state', 'machine.removed')
    AND revision > %(after)s AND time <= to_timestamp(%(until)s) ORDER BY revision, seq"""


def write_following(
    out: BinaryIO, cell: Cell, *, revision: int | None = None, time: dt.datetime | None = None, hours: float = 0.0
) -> Header:
    """Write a checkpoint of the cell at a revision, at a time, or at present, with the usage before and the events of
    the `hours` afterwards. Return its header. Raises `Rejected` if the state cannot be rebuilt, or if PostgreSQL no
    longer has the events afterwards.
    """
    with transaction.atomic():
        execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        state = state_at(cell, revision=revision, time=time)
        header = header_of(cell.id)
        floor = Cell.objects.values_list("journal_floor", flat=True).get(pk=cell.pk)
        if revision is not None and floor >= revision:
            detail = (
                f"revision {revision} of cell {cell.name} has no time in PostgreSQL, because events up to revision"
                f" {floor} are only in the archive; give a later revision, or a time"
            )
            raise invalid("revision", detail, "history-missing")
        if revision is not None or time is not None:
            found = query(_MOMENT, [cell.id, state.revision])
            taken_at = time.timestamp() if time else found[0][0] if found else cell.created_at.timestamp()
            header = msgspec.structs.replace(header, revision=state.revision, taken_at=taken_at)
        tables = tables_of(state)
        values = {"cell": cell.id, "bits": INDEX_BITS, "after": header.revision, "at": header.taken_at}
        tables["usage"] = _usage(query(_USAGE, {**values, "before": dt.timedelta(hours=USAGE_HOURS)}))
        if hours:
            tables |= _following(cell, header, {**values, "until": header.taken_at + 3600 * hours})
    return file.write(out, header, tables)


def _following(cell: Cell, header: Header, values: dict[str, object]) -> Tables:
    import pyarrow as pa

    floor = Cell.objects.values_list("journal_floor", flat=True).get(pk=cell.pk)
    if floor > header.revision:
        detail = (
            f"cannot replay cell {cell.name} from revision {header.revision}: a replay needs events in PostgreSQL, and"
            f" those up to revision {floor} are only in the archive; give revision {floor} or a later moment"
        )
        raise invalid("revision", detail, "history-missing")
    ends = list(zip(*query(_ENDINGS, values), strict=True)) or [()] * 5
    later = list(zip(*query(_LATER, values), strict=True)) or [()] * 2
    return {
        "endings": pa.table(
            {
                "task": pa.array(ends[0], pa.int64()),
                "incarnation": pa.array(ends[1], pa.int32()),
                "placed_at": pa.array(ends[2], pa.float64()),
                "at": pa.array(ends[3], pa.float64()),
                "how": pa.array(ends[4], pa.string()),
            }
        ),
        "later": pa.table({"at": pa.array(later[0], pa.float64()), "event": pa.array(later[1], pa.string())}),
    }


def _usage(rows: list[tuple[int, ...]]) -> pyarrow.Table:
    import pyarrow as pa

    names = ("task", "mean_cpu", "mean_ram", "mean_disk", "most_cpu", "most_ram", "most_disk")
    columns = list(zip(*rows, strict=True)) or [()] * len(names)
    return pa.table({name: pa.array(values, pa.int64()) for name, values in zip(names, columns, strict=True)})
