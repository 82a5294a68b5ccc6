"""Create the rows of new tasks, with one statement for many jobs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from scheduling.core.vocabulary.requirement import INDEX_BITS, Group
from scheduling.journal.copy_rows import column
from scheduling.journal.journal import JournalEntry
from scheduling.journal.sql import execute
from scheduling.tasks.counters import CounterChanges


@dataclass(frozen=True, slots=True)
class NewTasks:
    """The tasks to create for one job. `groups`: each requirement, with the ranges of the tasks that have it."""

    job_id: int
    groups: tuple[Group, ...]
    spec_version: int


def tasks_create(entry: JournalEntry, many: Sequence[NewTasks], *, counted: bool = False) -> int:
    """Create pending tasks with one statement. Return the number of created tasks. The caller must append the journal
    event.

    `counted`: True if the counters in the jobs' rows already include these tasks.
    """
    spans = [
        (new.job_id, new.spec_version, column(group.requirement.limit), first, last)
        for new in many
        for group in new.groups
        for first, last in group.ranges
    ]
    made = execute(
        "WITH span AS MATERIALIZED (SELECT job_id, version, vector::bigint[] AS vector, first, last"
        " FROM unnest(%s::bigint[], %s::integer[], string_to_array(%s, ';'), %s::integer[], %s::integer[])"
        " AS s(job_id, version, vector, first, last))"
        " INSERT INTO scheduling_task (id, cell_id, job_id, index, state, incarnation, spec_version,"
        ' "limit", reservation, ports, phase, health, up, restarts, evictions, outcome, detail, since)'
        " SELECT (s.job_id << %s) | i, %s, s.job_id, i, 'pending', 0, s.version, s.vector, s.vector, '{}',"
        " '', '', false, 0, 0, '', '', %s FROM span AS s, generate_series(s.first, s.last) AS i",
        [
            column([job_id for job_id, *_ in spans]),
            column([version for _, version, *_ in spans]),
            ";".join([vector for _, _, vector, *_ in spans]),
            column([first for *_, first, _ in spans]),
            column([last for *_, last in spans]),
            INDEX_BITS,
            entry.cell_id,
            entry.time,
        ],
    )
    if not counted:
        counts = CounterChanges()
        for new in many:
            counts.add(new.job_id, sum(group.size for group in new.groups))
        counts.store(entry)
    return int(made)
