"""The tasks inside allocs (inner tasks). They leave a machine together with their alloc (§2.4).

an alloc leaves ─► evictions_with_allocs ─► its inner tasks return to the queue first, in the same journal entry
"""

from __future__ import annotations

from collections.abc import Sequence

from scheduling.allocs.kept_allocs import allocs_keep
from scheduling.core.vocabulary.task_events import Ending, Eviction, InnerTask, evictions_inside
from scheduling.journal.journal import JournalEntry
from scheduling.journal.sql import query


def evictions_with_allocs(
    entry: JournalEntry, leaving: Sequence[tuple[int, int | None, Eviction | Ending]]
) -> list[Eviction]:
    """Return an eviction for each task inside the allocs in `leaving`. An alloc that contains a running log saver
    becomes a kept alloc: its folder stays on the machine (§4). `leaving`: (task id, incarnation or None for any, the
    eviction or end of the task) for each task and alloc that leaves its machine.
    """
    why = {identity: change for identity, _, change in leaving}
    inside = _inner_of([(identity, incarnation) for identity, incarnation, _ in leaving])
    allocs_keep(entry, [inner.task_id for inner in inside if not why[inner.alloc_id].gone])
    return evictions_inside(inside, why)


def _inner_of(leaving: Sequence[tuple[int, int | None]]) -> list[InnerTask]:
    """Return the tasks inside the given running allocs, in the order of their ids.

    `leaving`: each alloc as (task id, incarnation). An incarnation of None stands for any incarnation.
    """
    rows = query(
        "SELECT i.id, i.incarnation, a.id, j.name || '/' || a.index"
        " FROM unnest(%s::bigint[], %s::integer[]) AS l(id, incarnation)"
        " JOIN scheduling_task AS i ON i.alloc_id = l.id"
        " JOIN scheduling_task AS a ON a.id = l.id AND a.state = 'running'"
        " AND a.incarnation = coalesce(l.incarnation, a.incarnation)"
        " JOIN scheduling_job AS j ON j.id = a.job_id ORDER BY i.id",
        [[task for task, _ in leaving], [incarnation for _, incarnation in leaving]],
    )
    return [InnerTask(*row) for row in rows]
