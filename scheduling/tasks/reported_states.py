"""Store what Borglets report about running incarnations."""

from __future__ import annotations

from collections.abc import Sequence

from scheduling.core.vocabulary import events
from scheduling.core.vocabulary.states import Observation
from scheduling.journal.copy_rows import column
from scheduling.journal.journal import JournalEntry
from scheduling.tasks.change_sql import as_json, change_tasks
from scheduling.tasks.counters import CounterChanges


def tasks_observe(entry: JournalEntry, observations: Sequence[Observation]) -> list[int]:
    """Store the phase, health, restarts, exit and address that Borglets reported for running incarnations. Return the
    ids of the tasks whose values changed.
    """
    by_id = {observation.task_id: observation for observation in observations}
    observed = change_tasks(
        "%s::text[], %s::text[], %s::boolean[], %s::integer[], %s::text[], %s::text[]",
        "new_phase, new_health, new_up, new_restarts, new_exit, new_address",
        "phase = was.new_phase, health = was.new_health, up = was.new_up, restarts = was.new_restarts,"
        " exit = coalesce(was.new_exit::jsonb, t.exit), address = was.new_address,"
        # A task with a known end keeps its time while it is being stopped (`CellState`).
        " since = CASE WHEN t.up = was.new_up OR was.new_phase = 'stopping' AND EXISTS (SELECT FROM scheduling_job AS j"
        " WHERE j.id = t.job_id AND j.ends_within_s IS NOT NULL) THEN t.since ELSE %s END",
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
                skipped=seen.skipped,
            )
        )
        counts.up(was.job_id, int(seen.up) - int(was.up))
    counts.store(entry)
    return [was.task_id for was in observed]
