"""Departures: incarnations that have to stop on their machine. A departure is stored until all its processes have
ended.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from scheduling.core.vocabulary import events
from scheduling.core.vocabulary.requirement import split_task_id
from scheduling.journal.copy_rows import column
from scheduling.journal.journal import JournalEntry
from scheduling.journal.sql import execute, query
from scheduling.tasks.change_sql import TaskBefore, as_json
from scheduling.tasks.counters import notices_given


def depart(entry: JournalEntry, left: Sequence[tuple[TaskBefore, str, int | None, float | None]]) -> None:
    """Store that incarnations have to stop on their machines. `left`: for each (task, cause, id of the task that
    preempted it or None, longest time until SIGKILL in seconds or None for the notice period of the job file).
    """
    if not left:
        return
    execute(
        "INSERT INTO scheduling_departure"
        " (task_id, incarnation, machine_id, cause, ports, preemptor, notice_s, since)"
        " SELECT d.id, d.incarnation, d.machine_id, d.cause, d.ports::integer[], d.preemptor, d.notice_s, %s"
        " FROM unnest(%s::bigint[], %s::integer[], %s::bigint[], %s::text[], string_to_array(%s, ';'), %s::bigint[],"
        " %s::float8[]) AS d(id, incarnation, machine_id, cause, ports, preemptor, notice_s)",
        [
            entry.time,
            column([was.task_id for was, *_ in left]),
            column([was.incarnation for was, *_ in left]),
            column([was.machine_id for was, *_ in left]),
            [cause for _, cause, *_ in left],
            ";".join([column(was.ports) for was, *_ in left]),
            column([preemptor for *_, preemptor, _ in left]),
            column([notice_s for *_, notice_s in left]),
        ],
    )


def tasks_gone(
    entry: JournalEntry, departed: Iterable[tuple[int, int, dict[str, Any] | None]]
) -> list[tuple[int, int]]:
    """Delete the departures of incarnations whose processes have ended, so that their ports become free. Return (task
    id, incarnation) of each deleted departure.

    `departed`: (task id, incarnation, how the processes ended).
    """
    exits = {(identity, incarnation): exit_ for identity, incarnation, exit_ in departed}
    keys = [column([identity for identity, _ in exits]), column([incarnation for _, incarnation in exits])]
    found = query(
        "DELETE FROM scheduling_departure AS d USING unnest(%s::bigint[], %s::integer[]) AS g(id, incarnation)"
        " WHERE d.task_id = g.id AND d.incarnation = g.incarnation"
        " RETURNING d.task_id, d.incarnation, d.machine_id, d.cause",
        keys,
    )
    execute(
        "UPDATE scheduling_task AS t SET exit = g.exit::jsonb"
        " FROM unnest(%s::bigint[], %s::integer[], %s::text[]) AS g(id, incarnation, exit)"
        " WHERE t.id = g.id AND t.incarnation = g.incarnation AND t.state <> 'running' AND g.exit IS NOT NULL",
        [*keys, [as_json(exit_) for exit_ in exits.values()]],
    )
    notices_given(entry, [(row[3], _notice(exits[(row[0], row[1])])) for row in found])
    for identity, incarnation, machine_id, _ in sorted(found):
        job_id, index = split_task_id(identity)
        entry.append(
            events.TaskGone(
                job_id=job_id,
                index=index,
                machine_id=machine_id,
                incarnation=incarnation,
                exit=exits[(identity, incarnation)],
            )
        )
    return [(identity, incarnation) for identity, incarnation, *_ in sorted(found)]


def _notice(exit_: dict[str, Any] | None) -> str:
    """Return how much of its notice period between SIGTERM and SIGKILL a task received: full, short, none or unknown.
    `exit_`: how the task ended, as its Borglet reported.
    """
    if exit_ is None or exit_.get("cause") == "machine-restarted":
        return "none"
    return str(exit_.get("notice") or "unknown")
