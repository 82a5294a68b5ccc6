"""Reports of Borglets about running incarnations, written in an open journal entry."""

from __future__ import annotations

from collections.abc import Sequence

from scheduling.core.vocabulary import events
from scheduling.core.vocabulary.states import Observation
from scheduling.journal.copy_rows import column
from scheduling.journal.journal import JournalEntry
from scheduling.journal.sql import query
from scheduling.tasks.changes import WAS, as_json, read_was
from scheduling.tasks.counters import CounterChanges


def tasks_observe(entry: JournalEntry, observations: Sequence[Observation]) -> list[int]:
    """Store reports of Borglets about running incarnations. Return the ids of the tasks that changed."""
    by_id = {observation.task_id: observation for observation in observations}
    rows = query(
        f"WITH was AS (SELECT {WAS}, a.phase AS new_phase, a.health AS new_health, a.up AS new_up,"
        " a.restarts AS new_restarts, a.exit AS new_exit, a.address AS new_address FROM scheduling_task AS t"
        " JOIN unnest(%s::bigint[], %s::integer[], %s::text[], %s::text[], %s::boolean[], %s::integer[],"
        " %s::text[], %s::text[]) AS a(id, incarnation, phase, health, up, restarts, exit, address)"
        " ON a.id = t.id AND a.incarnation = t.incarnation"
        " WHERE t.state = 'running' ORDER BY t.id FOR UPDATE OF t)"
        " UPDATE scheduling_task AS t SET phase = was.new_phase, health = was.new_health, up = was.new_up,"
        " restarts = was.new_restarts, exit = coalesce(was.new_exit::jsonb, t.exit),"
        " address = was.new_address,"
        " since = CASE WHEN t.up = was.new_up THEN t.since ELSE %s END"
        f" FROM was WHERE t.id = was.id RETURNING {WAS.replace('t.', 'was.')}",
        [
            column(by_id),
            column([o.incarnation for o in by_id.values()]),
            [o.phase for o in by_id.values()],
            [o.health for o in by_id.values()],
            [o.up for o in by_id.values()],
            column([o.restarts for o in by_id.values()]),
            [as_json(o.exit) for o in by_id.values()],
            [o.address for o in by_id.values()],
            entry.time,
        ],
    )
    observed = read_was(rows)
    counts = CounterChanges()
    for was in observed:
        seen = by_id[was.task_id]
        entry.append(
            events.TaskReported(
                job_id=was.job_id,
                index=was.index,
                machine_id=was.machine_id or 0,
                incarnation=was.incarnation,
                phase=seen.phase,
                health=seen.health,
                up=seen.up,
                restarts=seen.restarts,
                exit=seen.exit,
                address=seen.address,
            )
        )
        counts.up(was.job_id, int(seen.up) - int(was.up))
    counts.store(entry)
    return [was.task_id for was in observed]
