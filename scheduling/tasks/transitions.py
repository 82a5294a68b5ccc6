"""State changes of tasks, for many tasks at once, in an open journal entry (Figure 2; `core.vocabulary.states`).

The caller must have locked the cell's row with `journal.write`. Each function changes only the tasks that still have
the state and incarnation that the caller expects, and returns the changed tasks. It also appends the events, stores
departures, updates the counters of the jobs, ends jobs whose tasks are all dead, and releases the quota of these jobs.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter

from borglet.messages import Phase
from scheduling.allocs import alloc_sets
from scheduling.allocs.inner_tasks import evictions_with_allocs
from scheduling.core.vocabulary import events
from scheduling.core.vocabulary.plan import Assignment
from scheduling.core.vocabulary.requirement import Requirement, split_task_id, task_id
from scheduling.core.vocabulary.task_events import Ending, Eviction, ended_event, evicted_event, placed_event
from scheduling.journal.copy_rows import column
from scheduling.journal.journal import JournalEntry
from scheduling.journal.sql import execute, query, rows_by_key
from scheduling.tasks.change_sql import TaskBefore, as_json, change_tasks
from scheduling.tasks.counters import DEAD, PENDING, RUNNING, CounterChanges
from scheduling.tasks.departures import depart
from scheduling.tasks.disruption_rates import disruptions_count

# A restored database lacks incarnations that Borglets still run. Numbers in a new history start above them, because a
# Borglet would otherwise confuse a newly placed task with one that it runs.
INCARNATIONS_A_HISTORY = 1_000_000
# So few tasks are found by their ids without being asked to.
_FEW = 50


def tasks_place(entry: JournalEntry, assignments: Sequence[Assignment]) -> list[Assignment]:
    """Place pending tasks on their machines. Return the assignments that were applied.

    An assignment into an alloc is applied only if the alloc still runs on the machine. The caller must evict the
    preempted tasks before this call, in the same journal entry.
    """
    allocs = alloc_sets.still_there((a.alloc, a.machine_id) for a in assignments if a.alloc)
    possible = [a for a in assignments if not a.alloc or (a.alloc, a.machine_id) in allocs]
    by_id = dict(sorted([(task_id(a.job_id, a.index), a) for a in possible], key=itemgetter(0)))
    if len(by_id) > _FEW:
        rows_by_key()
    rows = query(
        "UPDATE scheduling_task AS t SET state = 'running', machine_id = p.machine_id,"
        " incarnation = greatest(t.incarnation, (SELECT (history_ordinal - 1) * %s FROM scheduling_cell"
        " WHERE id = %s)) + 1, ports = p.ports::integer[], alloc_id = nullif(p.alloc, 0),"
        " devices = p.devices::smallint[], phase = %s, health = '',"
        " address = '', restarts = 0, exit = NULL, detail = '', reservation = t.limit, since = %s"
        " FROM unnest(%s::bigint[], %s::bigint[], string_to_array(%s, ';'), %s::bigint[],"
        " string_to_array(%s, ';')) AS p(id, machine_id, ports, alloc, devices)"
        # PostgreSQL does not use the index of pending tasks for this form of the condition. It would read them all.
        " WHERE t.id = p.id AND CASE t.state WHEN 'pending' THEN true ELSE false END"
        " RETURNING t.id, t.incarnation, t.spec_version",
        [
            INCARNATIONS_A_HISTORY,
            entry.cell_id,
            Phase.ASSIGNED.value,
            entry.time,
            column(by_id),
            column([a.machine_id for a in by_id.values()]),
            ";".join([column(a.ports) for a in by_id.values()]),
            column([a.alloc for a in by_id.values()]),
            ";".join([column(a.devices) for a in by_id.values()]),
        ],
    )
    placed = {identity: (incarnation, version) for identity, incarnation, version in rows}
    counts = CounterChanges()
    applied = []
    for assignment in possible:
        found = placed.get(task_id(assignment.job_id, assignment.index))
        if found is None:
            continue
        incarnation, version = found
        entry.append(placed_event(assignment, incarnation=incarnation, spec_version=version))
        counts.move(assignment.job_id, PENDING, RUNNING)
        applied.append(assignment)
    counts.store(entry)
    return applied


def tasks_evict(entry: JournalEntry, evictions: Sequence[Eviction]) -> list[TaskBefore]:
    """Make running tasks pending again. If an alloc is evicted, the tasks inside it are evicted before it (§2.4).

    Return the old values of all evicted tasks, including the tasks inside allocs.
    """
    came = _evict(entry, evictions_with_allocs(entry, [(e.task_id, e.incarnation, e) for e in evictions]))
    return sorted([*came, *_evict(entry, evictions)], key=lambda was: was.task_id)


def _evict(entry: JournalEntry, evictions: Sequence[Eviction]) -> list[TaskBefore]:
    if not evictions:
        return []
    by_id = {eviction.task_id: eviction for eviction in evictions}
    evicted = change_tasks(
        "%s::text[], %s::text[]",
        "new_detail, new_exit",
        "state = 'pending', machine_id = NULL, phase = '', health = '', address = '', up = false, ports = '{}',"
        " alloc_id = NULL, devices = '{}', reservation = t.limit, evictions = t.evictions + 1,"
        " detail = was.new_detail, exit = coalesce(was.new_exit::jsonb, t.exit), since = %s",
        [
            column(by_id),
            column([e.incarnation for e in by_id.values()]),
            [e.detail[:500] for e in by_id.values()],
            [as_json(e.exit) for e in by_id.values()],
            entry.time,
        ],
    )
    counts = CounterChanges()
    for was in evicted:
        eviction = by_id[was.task_id]
        entry.append(
            evicted_event(eviction, machine_id=was.machine_id or 0, incarnation=was.incarnation),
            caused_by=eviction.caused_by,
        )
        counts.move(was.job_id, RUNNING, PENDING, was_up=was.up)
    depart(entry, [(was, e.cause, e.preemptor, e.notice_s) for was in evicted if not (e := by_id[was.task_id]).gone])
    _avoid(entry, [was for was in evicted if by_id[was.task_id].avoid])
    counts.store(entry)
    # A machine that is short of memory reports that the task is stopping before it reports the end of the task.
    served = [was for was in evicted if was.up or (by_id[was.task_id].gone and was.phase == Phase.STOPPING.value)]
    disruptions_count(entry, [was.job_id for was in served if by_id[was.task_id].disrupts])
    return evicted


def tasks_end(entry: JournalEntry, endings: Sequence[Ending]) -> list[TaskBefore]:
    """End pending or running tasks, and jobs whose tasks are then all dead. Return the old values of the ended tasks.

    If an alloc ends, the tasks inside it become pending again before it ends (§2.4).
    """
    _evict(entry, evictions_with_allocs(entry, [(e.task_id, e.incarnation, e) for e in endings]))
    by_id = {ending.task_id: ending for ending in endings}
    ended = change_tasks(
        "%s::text[], %s::text[], %s::text[]",
        "new_how, new_detail, new_exit",
        "state = 'dead', machine_id = NULL, phase = '', health = '', address = '', up = false, ports = '{}',"
        " alloc_id = NULL, devices = '{}', outcome = was.new_how, detail = was.new_detail,"
        " exit = coalesce(was.new_exit::jsonb, t.exit), since = %s",
        [
            column(by_id),
            column([e.incarnation for e in by_id.values()]),
            [e.how for e in by_id.values()],
            [e.detail[:500] for e in by_id.values()],
            [as_json(e.exit) for e in by_id.values()],
            entry.time,
        ],
        condition="t.state <> 'dead' AND coalesce(a.number, t.incarnation) = t.incarnation",
    )
    counts = CounterChanges()
    for was in ended:
        ending = by_id[was.task_id]
        entry.append(
            ended_event(ending, machine_id=was.machine_id, incarnation=was.incarnation), caused_by=ending.caused_by
        )
        counts.move(was.job_id, was.state, DEAD, was_up=was.up)
    on_machines = [was for was in ended if was.machine_id is not None and not by_id[was.task_id].gone]
    depart(entry, [(was, by_id[was.task_id].cause, None, None) for was in on_machines])
    counts.store(entry)
    return ended


def tasks_revive(entry: JournalEntry, task_ids: Sequence[int], *, spec_version: int) -> list[int]:
    """Make dead tasks pending again, with version `spec_version` of the spec. Return the ids of these tasks."""
    rows = query(
        "UPDATE scheduling_task SET state = 'pending', outcome = '', detail = '', spec_version = %s, since = %s"
        " WHERE id = ANY(%s) AND state = 'dead' RETURNING id",
        [spec_version, entry.time, list(task_ids)],
    )
    revived = sorted(row[0] for row in rows)
    counts = CounterChanges()
    for identity in revived:
        job_id, index = split_task_id(identity)
        entry.append(events.TaskRevived(job_id=job_id, index=index, spec_version=spec_version))
        counts.move(job_id, DEAD, PENDING)
    counts.store(entry)
    return revived


def tasks_follow(entry: JournalEntry, changes: Sequence[tuple[int, int, Requirement]]) -> list[int]:
    """Set another version of the spec for tasks, without changing their state. Return the ids of the changed tasks.

    `changes`: (task id, version, requirement). The caller must have checked that running tasks need no restart for
    this version. It must evict tasks that need a restart, with the cause `update`, before this call.
    """
    by_id = {identity: (version, requirement) for identity, version, requirement in changes}
    rows = query(
        'UPDATE scheduling_task AS t SET spec_version = c.version, "limit" = c.vector::bigint[],'
        # A limit is shorter if it is older than a resource of the cell. Missing elements are zero.
        " reservation = CASE WHEN t.limit = (c.vector::bigint[])[:cardinality(t.limit)]"
        " AND 0 = ALL((c.vector::bigint[])[cardinality(t.limit) + 1:]) THEN t.reservation"
        " ELSE c.vector::bigint[] END,"
        # The end of a process of the old version says nothing about the new one.
        " exit = CASE WHEN t.state = 'pending' AND t.spec_version <> c.version THEN NULL ELSE t.exit END"
        " FROM unnest(%s::bigint[], %s::integer[], string_to_array(%s, ';')) AS c(id, version, vector)"
        " WHERE t.id = c.id RETURNING t.id",
        [
            column(by_id),
            column([version for version, _ in by_id.values()]),
            ";".join([column(requirement.limit) for _, requirement in by_id.values()]),
        ],
    )
    changed = sorted(row[0] for row in rows)
    for identity in changed:
        job_id, index = split_task_id(identity)
        version, requirement = by_id[identity]
        entry.append(events.TaskUpdated(job_id=job_id, index=index, spec_version=version, requirement=requirement))
    return changed


def _avoid(entry: JournalEntry, crashed: Sequence[TaskBefore]) -> None:
    if not crashed:
        return
    execute(
        "INSERT INTO scheduling_crashedpair (task_id, machine_id, at)"
        " SELECT c.id, c.machine_id, %s FROM unnest(%s::bigint[], %s::bigint[]) AS c(id, machine_id)"
        " ON CONFLICT (task_id, machine_id) DO UPDATE SET at = excluded.at",
        [entry.time, column([was.task_id for was in crashed]), column([was.machine_id for was in crashed])],
    )
