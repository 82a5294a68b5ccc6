"""Every change of a task's state, set-based, under an open journal entry (Figure 2; the table is `core.states`).

All functions here are for callers that hold the cell's row lock through `journal.write`. Each applies what
still holds – the task is in the state, and is the incarnation, that the caller believes – appends the events,
keeps departures and the jobs' counters, ends jobs whose tasks are all dead and gives their quota back. What
no longer holds is left out of the answer: the caller looks again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
from django.db import connection

from borglet.messages import Phase
from quota.services import admission
from scheduling.core import events
from scheduling.core.requirement import Requirement, split_task_id, task_id
from scheduling.core.states import JobState, TaskState
from scheduling.journal import Cause, Entry
from scheduling.models import Cell

# The mark of tasks that a smaller job let go: a larger one brings them back.
SHRUNK = "the job shrank"
PENDING, RUNNING, DEAD = TaskState.PENDING.value, TaskState.RUNNING.value, TaskState.DEAD.value
# A restored database has forgotten incarnations that Borglets still run: those of a new history begin beyond them,
# or a Borglet would take a task placed anew for one that it has (DESIGN §2.4).
INCARNATIONS_A_HISTORY = 1_000_000


@dataclass(frozen=True, slots=True)
class Placement:
    """pending -> running. `victims` (task ids) must be evicted under the same entry, before this."""

    task_id: int
    machine_id: int
    ports: tuple[int, ...] = ()
    score: dict[str, float] = field(default_factory=dict)
    victims: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Eviction:
    """running -> pending. `cause`: a value of `core.states.EvictionCause`.

    `gone`: its processes have already ended there. `avoid`: don't pair the two again for a while.
    `preemptor`: task id of whoever takes its place. `notice_s` shortens the notice the task asked for.
    """

    task_id: int
    incarnation: int
    cause: str
    detail: str = ""
    gone: bool = False
    avoid: bool = False
    preemptor: int | None = None
    notice_s: float | None = None
    exit: dict[str, Any] | None = None
    caused_by: Cause | None = None


@dataclass(frozen=True, slots=True)
class Ending:
    """pending or running -> dead. `how`: finished, failed or killed. `cause` is told to the Borglet."""

    task_id: int
    how: str
    incarnation: int | None = None  # None: whichever it is
    cause: str = "kill"
    detail: str = ""
    gone: bool = False
    notice_s: float | None = None
    exit: dict[str, Any] | None = None
    caused_by: Cause | None = None


@dataclass(frozen=True, slots=True)
class Observation:
    """What a Borglet says of a running incarnation. `up`: phase up, and healthy where a check is declared."""

    task_id: int
    incarnation: int
    phase: str
    health: str
    up: bool
    restarts: int = 0
    exit: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Was:
    """A task as it was before the change."""

    task_id: int
    job_id: int
    index: int
    state: str
    machine_id: int | None
    incarnation: int
    ports: tuple[int, ...]
    up: bool


_WAS = "t.id, t.job_id, t.index, t.state, t.machine_id, t.incarnation, t.ports, t.up"


def tasks_place(entry: Entry, placements: Sequence[Placement]) -> list[Placement]:
    """Give pending tasks their machines. Returns those applied."""
    by_id = {placement.task_id: placement for placement in placements}
    with connection.cursor() as cursor:
        cursor.execute(
            "UPDATE scheduling_task AS t SET state = 'running', machine_id = p.machine_id,"
            " incarnation = greatest(t.incarnation, (SELECT (history_ordinal - 1) * %s FROM scheduling_cell"
            " WHERE id = %s)) + 1, ports = p.ports::integer[], phase = %s, health = '',"
            " restarts = 0, exit = NULL, detail = '', reservation = t.limit, since = %s"
            " FROM unnest(%s::bigint[], %s::bigint[], %s::text[]) AS p(id, machine_id, ports)"
            " WHERE t.id = p.id AND t.state = 'pending'"
            " RETURNING t.id, t.incarnation, t.spec_version",
            [
                INCARNATIONS_A_HISTORY,
                entry.cell_id,
                Phase.ASSIGNED.value,
                entry.time,
                list(by_id),
                [p.machine_id for p in by_id.values()],
                [_array(p.ports) for p in by_id.values()],
            ],
        )
        placed = {row[0]: row[1:] for row in cursor.fetchall()}
    counts = _Counts()
    applied = []
    for identity, placement in by_id.items():
        if identity not in placed:
            continue
        job_id, index = split_task_id(identity)
        incarnation, version = placed[identity]
        entry.append(
            events.TaskPlaced(
                job_id=job_id,
                index=index,
                machine_id=placement.machine_id,
                incarnation=incarnation,
                ports=placement.ports,
                spec_version=version,
                score=placement.score,
                victims=tuple(split_task_id(victim) for victim in placement.victims),
            )
        )
        counts.move(job_id, PENDING, RUNNING)
        applied.append(placement)
    counts.store(entry)
    return applied


def tasks_evict(entry: Entry, evictions: Sequence[Eviction]) -> list[Was]:
    """Send running tasks back to the queue. Returns what the evicted ones were."""
    by_id = {eviction.task_id: eviction for eviction in evictions}
    with connection.cursor() as cursor:
        cursor.execute(
            f"WITH was AS (SELECT {_WAS}, a.detail AS new_detail, a.exit AS new_exit"
            " FROM scheduling_task AS t"
            " JOIN unnest(%s::bigint[], %s::integer[], %s::text[], %s::text[])"
            " AS a(id, incarnation, detail, exit) ON a.id = t.id AND a.incarnation = t.incarnation"
            " WHERE t.state = 'running' ORDER BY t.id FOR UPDATE OF t)"
            " UPDATE scheduling_task AS t SET state = 'pending', machine_id = NULL, phase = '', health = '',"
            " up = false, ports = '{}', reservation = t.limit, evictions = t.evictions + 1,"
            " detail = was.new_detail, exit = coalesce(was.new_exit::jsonb, t.exit), since = %s"
            f" FROM was WHERE t.id = was.id RETURNING {_WAS.replace('t.', 'was.')}",
            [
                list(by_id),
                [e.incarnation for e in by_id.values()],
                [e.detail[:500] for e in by_id.values()],
                [_json(e.exit) for e in by_id.values()],
                entry.time,
            ],
        )
        evicted = _was(cursor.fetchall())
    counts = _Counts()
    for was in evicted:
        eviction = by_id[was.task_id]
        entry.append(
            events.TaskEvicted(
                job_id=was.job_id,
                index=was.index,
                machine_id=was.machine_id or 0,
                incarnation=was.incarnation,
                cause=eviction.cause,
                detail=eviction.detail,
                gone=eviction.gone,
                avoid=eviction.avoid,
                preemptor=split_task_id(eviction.preemptor) if eviction.preemptor is not None else None,
                exit=eviction.exit,
            ),
            caused_by=eviction.caused_by,
        )
        counts.move(was.job_id, RUNNING, PENDING, was_up=was.up)
    _depart(
        entry,
        [(was, e.cause, e.notice_s, e.preemptor) for was in evicted if not (e := by_id[was.task_id]).gone],
    )
    _avoid(entry, [was for was in evicted if by_id[was.task_id].avoid])
    counts.store(entry)
    return evicted


def tasks_end(entry: Entry, endings: Sequence[Ending]) -> list[Was]:
    """Let tasks die, pending or running. Jobs left without a live task end too."""
    by_id = {ending.task_id: ending for ending in endings}
    with connection.cursor() as cursor:
        cursor.execute(
            f"WITH was AS (SELECT {_WAS}, a.how AS new_how, a.detail AS new_detail, a.exit AS new_exit"
            " FROM scheduling_task AS t"
            " JOIN unnest(%s::bigint[], %s::integer[], %s::text[], %s::text[], %s::text[])"
            " AS a(id, incarnation, how, detail, exit)"
            " ON a.id = t.id AND coalesce(a.incarnation, t.incarnation) = t.incarnation"
            " WHERE t.state <> 'dead' ORDER BY t.id FOR UPDATE OF t)"
            " UPDATE scheduling_task AS t SET state = 'dead', machine_id = NULL, phase = '', health = '',"
            " up = false, ports = '{}', outcome = was.new_how, detail = was.new_detail,"
            " exit = coalesce(was.new_exit::jsonb, t.exit), since = %s"
            f" FROM was WHERE t.id = was.id RETURNING {_WAS.replace('t.', 'was.')}",
            [
                list(by_id),
                [e.incarnation for e in by_id.values()],
                [e.how for e in by_id.values()],
                [e.detail[:500] for e in by_id.values()],
                [_json(e.exit) for e in by_id.values()],
                entry.time,
            ],
        )
        ended = _was(cursor.fetchall())
    counts = _Counts()
    for was in ended:
        ending = by_id[was.task_id]
        entry.append(
            events.TaskEnded(
                job_id=was.job_id,
                index=was.index,
                machine_id=was.machine_id or 0,
                incarnation=was.incarnation,
                how=ending.how,
                detail=ending.detail,
                gone=ending.gone or was.machine_id is None,
                exit=ending.exit,
            ),
            caused_by=ending.caused_by,
        )
        counts.move(was.job_id, was.state, DEAD, was_up=was.up)
    _depart(
        entry,
        [
            (was, e.cause, e.notice_s, None)
            for was in ended
            if not (e := by_id[was.task_id]).gone and was.machine_id is not None
        ],
    )
    counts.store(entry)
    return ended


def tasks_revive(entry: Entry, task_ids: Sequence[int], *, spec_version: int) -> list[int]:
    """dead -> pending, following `spec_version`. Returns the ids revived."""
    with connection.cursor() as cursor:
        cursor.execute(
            "UPDATE scheduling_task SET state = 'pending', outcome = '', detail = '', spec_version = %s, since = %s"
            " WHERE id = ANY(%s) AND state = 'dead' RETURNING id",
            [spec_version, entry.time, list(task_ids)],
        )
        revived = sorted(row[0] for row in cursor.fetchall())
    counts = _Counts()
    for identity in revived:
        job_id, index = split_task_id(identity)
        entry.append(events.TaskRevived(job_id=job_id, index=index, spec_version=spec_version))
        counts.move(job_id, DEAD, PENDING)
    counts.store(entry)
    return revived


def tasks_follow(entry: Entry, changes: Sequence[tuple[int, int, Requirement]]) -> list[int]:
    """Let tasks follow another version of their spec, in the state they are in: (task id, version, requirement).

    A running task stays where it is: the caller has checked that the change is in place and that its new
    limit fits; to restart one, evict it with cause `update` first. Returns the ids changed.
    """
    by_id = {identity: (version, requirement) for identity, version, requirement in changes}
    with connection.cursor() as cursor:
        cursor.execute(
            'UPDATE scheduling_task AS t SET spec_version = c.version, "limit" = c.vector::bigint[],'
            " reservation = CASE WHEN t.limit = c.vector::bigint[] THEN t.reservation ELSE c.vector::bigint[] END"
            " FROM unnest(%s::bigint[], %s::integer[], %s::text[]) AS c(id, version, vector)"
            " WHERE t.id = c.id RETURNING t.id",
            [
                list(by_id),
                [version for version, _ in by_id.values()],
                [_array(requirement.limit) for _, requirement in by_id.values()],
            ],
        )
        changed = sorted(row[0] for row in cursor.fetchall())
    for identity in changed:
        job_id, index = split_task_id(identity)
        version, requirement = by_id[identity]
        entry.append(
            events.TaskUpdated(job_id=job_id, index=index, spec_version=version, requirement=requirement)
        )
    return changed


def tasks_observe(entry: Entry, observations: Sequence[Observation]) -> list[int]:
    """Note what Borglets say of running incarnations. Returns the ids that changed."""
    by_id = {observation.task_id: observation for observation in observations}
    with connection.cursor() as cursor:
        cursor.execute(
            f"WITH was AS (SELECT {_WAS}, a.phase AS new_phase, a.health AS new_health, a.up AS new_up,"
            " a.restarts AS new_restarts, a.exit AS new_exit FROM scheduling_task AS t"
            " JOIN unnest(%s::bigint[], %s::integer[], %s::text[], %s::text[], %s::boolean[], %s::integer[],"
            " %s::text[]) AS a(id, incarnation, phase, health, up, restarts, exit)"
            " ON a.id = t.id AND a.incarnation = t.incarnation"
            " WHERE t.state = 'running' ORDER BY t.id FOR UPDATE OF t)"
            " UPDATE scheduling_task AS t SET phase = was.new_phase, health = was.new_health, up = was.new_up,"
            " restarts = was.new_restarts, exit = coalesce(was.new_exit::jsonb, t.exit),"
            " since = CASE WHEN t.up = was.new_up THEN t.since ELSE %s END"
            f" FROM was WHERE t.id = was.id RETURNING {_WAS.replace('t.', 'was.')}",
            [
                list(by_id),
                [o.incarnation for o in by_id.values()],
                [o.phase for o in by_id.values()],
                [o.health for o in by_id.values()],
                [o.up for o in by_id.values()],
                [o.restarts for o in by_id.values()],
                [_json(o.exit) for o in by_id.values()],
                entry.time,
            ],
        )
        observed = _was(cursor.fetchall())
    counts = _Counts()
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
            )
        )
        counts.up(was.job_id, int(seen.up) - int(was.up))
    counts.store(entry)
    return [was.task_id for was in observed]


def tasks_gone(
    entry: Entry, departed: Iterable[tuple[int, int, dict[str, Any] | None]]
) -> list[tuple[int, int]]:
    """Departed incarnations whose processes have ended: (task id, incarnation, exit). Their ports are free."""
    exits = {(identity, incarnation): exit_ for identity, incarnation, exit_ in departed}
    with connection.cursor() as cursor:
        cursor.execute(
            "DELETE FROM scheduling_departure AS d USING unnest(%s::bigint[], %s::integer[]) AS g(id, incarnation)"
            " WHERE d.task_id = g.id AND d.incarnation = g.incarnation"
            " RETURNING d.task_id, d.incarnation, d.machine_id",
            [[identity for identity, _ in exits], [incarnation for _, incarnation in exits]],
        )
        rows = sorted(cursor.fetchall())
        cursor.execute(
            "UPDATE scheduling_task AS t SET exit = g.exit::jsonb"
            " FROM unnest(%s::bigint[], %s::integer[], %s::text[]) AS g(id, incarnation, exit)"
            " WHERE t.id = g.id AND t.incarnation = g.incarnation AND t.state <> 'running' AND g.exit IS NOT NULL",
            [
                [identity for identity, _ in exits],
                [incarnation for _, incarnation in exits],
                [_json(exit_) for exit_ in exits.values()],
            ],
        )
    for identity, incarnation, machine_id in rows:
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
    return [(identity, incarnation) for identity, incarnation, _ in rows]


@dataclass(frozen=True, slots=True)
class NewTasks:
    """Rows to be made for one job: `groups` as in the event that announces them."""

    job_id: int
    groups: tuple[events.Group, ...]
    spec_version: int


def tasks_create(entry: Entry, many: Sequence[NewTasks]) -> int:
    """Make pending tasks, by COPY. The caller appends `JobSubmitted` or `TasksAdded`. Returns their number."""
    counts = _Counts()
    made = 0
    with (
        connection.cursor() as cursor,
        cursor.copy(
            'COPY scheduling_task (id, cell_id, job_id, index, state, incarnation, spec_version, "limit",'
            " reservation, ports, phase, health, up, restarts, evictions, outcome, detail, since) FROM STDIN"
        ) as copy,
    ):
        for new in many:
            for group in new.groups:
                limit = list(group.requirement.limit)
                for index in group.indexes():
                    copy.write_row(
                        (
                            task_id(new.job_id, index), entry.cell_id, new.job_id, index, PENDING, 0,
                            new.spec_version, limit, limit, [], "", "", False, 0, 0, "", "", entry.time,
                        )
                    )  # fmt: skip
                counts.add(new.job_id, group.size)
                made += group.size
    counts.store(entry)
    return made


class _Counts:
    """Changes of jobs' counters, summed, written with one statement."""

    _STATES = (PENDING, RUNNING, DEAD)

    def __init__(self) -> None:
        self._jobs: dict[int, list[int]] = {}  # job id -> [total, pending, running, dead, up]

    def move(self, job_id: int, source: str, target: str, *, was_up: bool = False) -> None:
        row = self._row(job_id)
        row[1 + self._STATES.index(source)] -= 1
        row[1 + self._STATES.index(target)] += 1
        row[4] -= int(was_up)

    def add(self, job_id: int, number: int) -> None:
        row = self._row(job_id)
        row[0] += number
        row[1] += number

    def up(self, job_id: int, change: int) -> None:
        if change:
            self._row(job_id)[4] += change

    def store(self, entry: Entry) -> None:
        if not self._jobs:
            return
        ids = sorted(self._jobs)
        columns = [[self._jobs[job][i] for job in ids] for i in range(5)]
        with connection.cursor() as cursor:
            cursor.execute(
                "UPDATE scheduling_job AS j SET tasks_total = j.tasks_total + c.total,"
                " tasks_pending = j.tasks_pending + c.pending, tasks_running = j.tasks_running + c.running,"
                " tasks_dead = j.tasks_dead + c.dead, tasks_up = j.tasks_up + c.up,"
                " state = CASE WHEN j.state = 'pending' AND j.tasks_running + c.running > 0 THEN 'running'"
                " ELSE j.state END"
                " FROM unnest(%s::bigint[], %s::bigint[], %s::bigint[], %s::bigint[], %s::bigint[], %s::bigint[])"
                " AS c(id, total, pending, running, dead, up) WHERE j.id = c.id"
                " RETURNING j.id, j.state, j.tasks_total = j.tasks_dead",
                [ids, *columns],
            )
            over = [job for job, state, all_dead in cursor.fetchall() if all_dead and state != JobState.DEAD]
        jobs_end_if_over(entry, over)

    def _row(self, job_id: int) -> list[int]:
        return self._jobs.setdefault(job_id, [0, 0, 0, 0, 0])


def jobs_end_if_over(entry: Entry, job_ids: Sequence[int]) -> None:
    """End those of the jobs whose tasks are all dead, unless an open update has tasks to add to them."""
    if not job_ids:
        return
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT j.id FROM scheduling_job AS j WHERE j.id = ANY(%s) AND j.state <> 'dead'"
            " AND j.tasks_total = j.tasks_dead AND NOT EXISTS (SELECT FROM scheduling_update AS u"
            " JOIN scheduling_jobspec AS s ON s.job_id = u.job_id AND s.version = u.to_version"
            " WHERE u.job_id = j.id AND u.state = 'open' AND (s.spec->>'tasks')::int > j.tasks_total)"
            " ORDER BY j.id",
            [list(job_ids)],
        )
        over = [job for (job,) in cursor.fetchall()]
    if over:
        jobs_end(entry, over)


def jobs_end(entry: Entry, job_ids: Sequence[int]) -> None:
    """Jobs whose tasks are all dead: the name is free, the quota goes back, open updates end."""
    with connection.cursor() as cursor:
        cursor.execute(
            "WITH worst AS (SELECT job_id, CASE WHEN bool_or(outcome = 'killed' AND detail <> %s) THEN 'killed'"
            " WHEN bool_or(outcome = 'failed') THEN 'failed' ELSE 'finished' END AS how"
            " FROM scheduling_task WHERE job_id = ANY(%s) GROUP BY job_id)"
            " UPDATE scheduling_job AS j SET state = 'dead', outcome = worst.how, ended_at = %s"
            " FROM worst, quota_tenant AS o WHERE j.id = worst.job_id AND o.id = j.tenant_id"
            " RETURNING j.id, worst.how, j.tenant_id, o.name, j.priority, j.requested",
            [SHRUNK, list(job_ids), entry.time],
        )
        ended = sorted(cursor.fetchall())
        cursor.execute(
            "UPDATE scheduling_update SET state = 'superseded', detail = 'the job ended', ended_at = %s"
            " WHERE job_id = ANY(%s) AND state = 'open' RETURNING id, job_id",
            [entry.time, list(job_ids)],
        )
        updates = sorted(cursor.fetchall())
        cursor.execute("DELETE FROM scheduling_pendingverdict WHERE job_id = ANY(%s)", [list(job_ids)])
    for update_id, job_id in updates:
        entry.append(
            events.UpdateEnded(job_id=job_id, update_id=update_id, how="superseded", detail="the job ended")
        )
    for job_id, how, *_ in ended:
        entry.append(events.JobEnded(job_id=job_id, how=how))
    admission.release(
        cell=Cell.objects.values_list("name", flat=True).get(pk=entry.cell_id),
        asks=[
            admission.Ask(tenant_id, tenant, priority, tuple(requested))
            for _, _, tenant_id, tenant, priority, requested in ended
        ],
    )


def _depart(entry: Entry, left: Sequence[tuple[Was, str, float | None, int | None]]) -> None:
    if not left:
        return
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO scheduling_departure"
            " (task_id, incarnation, machine_id, cause, notice_s, ports, preemptor, since)"
            " SELECT d.id, d.incarnation, d.machine_id, d.cause, d.notice_s, d.ports::integer[], d.preemptor, %s"
            " FROM unnest(%s::bigint[], %s::integer[], %s::bigint[], %s::text[], %s::float8[], %s::text[],"
            " %s::bigint[]) AS d(id, incarnation, machine_id, cause, notice_s, ports, preemptor)",
            [
                entry.time,
                [was.task_id for was, *_ in left],
                [was.incarnation for was, *_ in left],
                [was.machine_id for was, *_ in left],
                [cause for _, cause, _, _ in left],
                [notice for _, _, notice, _ in left],
                [_array(was.ports) for was, *_ in left],
                [preemptor for *_, preemptor in left],
            ],
        )


def _avoid(entry: Entry, crashed: Sequence[Was]) -> None:
    if not crashed:
        return
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO scheduling_crashedpair (task_id, machine_id, at)"
            " SELECT c.id, c.machine_id, %s FROM unnest(%s::bigint[], %s::bigint[]) AS c(id, machine_id)"
            " ON CONFLICT (task_id, machine_id) DO UPDATE SET at = excluded.at",
            [entry.time, [was.task_id for was in crashed], [was.machine_id for was in crashed]],
        )


def _was(rows: Iterable[tuple]) -> list[Was]:
    return sorted(
        (Was(*row[:6], ports=tuple(row[6]), up=row[7]) for row in rows), key=lambda was: was.task_id
    )


def _array(values: Iterable[int]) -> str:
    return "{" + ",".join(map(str, values)) + "}"


def _json(value: dict[str, Any] | None) -> str | None:
    return None if value is None else msgspec.json.encode(value).decode()
