"""Advances the switches of services (§8.1). The master of a cell does this once per second.

    rows with a switch in progress ─► health of the new tracks ─► `switch_rules` ─► lock the cell, read again, and act

The state of a switch is in its row, which changes under the lock of the cell together with an event. So each step
happens once, also if a master is killed or two masters work at the same time. After a pause of the masters, the next
step is one step, and not several. A turn makes at most `_STEPS` changes in one transaction, and one batch of stops.
"""

from __future__ import annotations

import structlog
from msgspec.structs import replace

from quota.vocabulary.errors import Rejected
from quota.vocabulary.permissions import system
from scheduling.brakes import confirmation
from scheduling.core.vocabulary.states import JobState
from scheduling.jobs.rollouts.failing_tasks import FIGURES, failing_since
from scheduling.journal import journal
from scheduling.journal.journal import JournalEntry
from scheduling.journal.sql import query
from scheduling.models import Job, ServiceWeighting
from scheduling.services.stops import service_stop
from scheduling.services.switch_rules import Move, Switch, SwitchState, TrackHealth, next_move, stepped
from scheduling.services.weights import store, switch_of

log = structlog.get_logger(__name__)
ME = system("switches")
_STEPS = 50
_MOST_REASON = 300
_GONE = TrackHealth(0, 0)

# The tasks of the new track of each switch. Tasks are read only if the counters show that some are not up. Tasks that
# have failed for good should be up too.
_HEALTH = f"""
SELECT w.id, coalesce(sum(j.wanted + f.lost), 0), coalesce(sum(j.tasks_up), 0), coalesce(sum(f.number), 0), min(f.first)
FROM scheduling_serviceweighting AS w JOIN LATERAL (
  SELECT id, name, tasks_up, tasks_total, least(tasks_total - tasks_dead, nullif(max_running, 0)) AS wanted
  FROM scheduling_job
  WHERE cell_id = w.cell_id AND tenant_id = w.tenant_id AND state <> 'dead' AND kind = 'job'
    AND labels @> jsonb_build_object('service', w.service)
    AND coalesce(nullif(labels->>'track', ''), name) = w.switch->>'to'
) AS j ON true LEFT JOIN LATERAL (
  SELECT count(*) FILTER (WHERE failing) AS number, min(j.name || '/' || index) FILTER (WHERE failing) AS first,
    count(*) FILTER (WHERE state = 'dead') AS lost
  FROM (
    SELECT t.index, t.state, {failing_since("to_timestamp((w.switch->>'began')::float)")} AS failing
    FROM scheduling_task AS t WHERE j.tasks_up < j.tasks_total AND t.job_id = j.id AND NOT t.up
      AND (t.state <> 'dead' OR t.outcome = 'failed')
  ) AS t
) AS f ON true
WHERE w.id = ANY(%(rows)s) GROUP BY w.id
"""


def switches_turn(cell_id: int) -> None:
    """Do what is due for the switches of a cell. Makes one query without a switch in progress, and three for any number
    of switches that only wait.
    """
    rows = list(ServiceWeighting.objects.filter(cell_id=cell_id, due_at__isnull=False).order_by("due_at", "id"))
    if not rows:
        return
    found = _health([row.pk for row in rows])
    ((now,),) = query("SELECT extract(epoch FROM clock_timestamp())::float", [])
    due: list[int] = []
    stopping: tuple[ServiceWeighting, Switch] | None = None
    for row in rows:
        if (switch := switch_of(row)) is None:
            continue
        if switch.state is SwitchState.STOPPING:
            stopping = stopping or (row, switch)
        elif next_move(switch, row.weights, found.get(row.pk, _GONE), now)[0] is not Move.WAIT:
            due.append(row.pk)
    if due:
        _act(cell_id, due[:_STEPS])
    if stopping is not None:
        _stop_old(*stopping)


def _health(rows: list[int]) -> dict[int, TrackHealth]:
    return {
        row: TrackHealth(int(wanted), int(up), int(failing), first or "")
        for row, wanted, up, failing, first in query(_HEALTH, {**FIGURES, "rows": rows})
    }


def _act(cell_id: int, ids: list[int]) -> None:
    """Do what these switches need now, in one transaction under the lock of their cell."""
    with journal.write(cell_id, ME) as entry:
        rows = ServiceWeighting.objects.select_related("tenant").filter(pk__in=ids, due_at__isnull=False)
        health = _health(ids)
        for row in rows.order_by("id"):
            switch = switch_of(row)
            if switch is not None and switch.state is SwitchState.SWITCHING:
                _move(entry, row, switch, health.get(row.pk, _GONE))


def _move(entry: JournalEntry, row: ServiceWeighting, switch: Switch, health: TrackHealth) -> None:
    now, tenant = entry.time.timestamp(), row.tenant.name
    move, reason = next_move(switch, row.weights, health, now)
    match move:
        case Move.STEP:
            moved = replace(switch, due=now + switch.every_s)
            store(entry, row, tenant, stepped(switch, row.weights), "moved", switch=moved)
        case Move.FINISH if switch.stop_old:
            store(entry, row, tenant, row.weights, "stopping", switch=replace(switch, state=SwitchState.STOPPING))
        case Move.FINISH:
            store(entry, row, tenant, row.weights, "done", switch=replace(switch, state=SwitchState.DONE, ended=now))
        case Move.RETURN:
            ended = replace(switch, state=SwitchState.RETURNED, ended=now, reason=reason[:_MOST_REASON])
            store(entry, row, tenant, switch.before, "returned", switch=ended)


def _stop_old(row: ServiceWeighting, switch: Switch) -> None:
    """Stop some jobs of the old tracks, and end the switch when none of them is live. If they cannot be stopped, they
    stay, and the switch says why.
    """
    if not ServiceWeighting.objects.filter(pk=row.pk, due_at__isnull=False, revision=row.revision).exists():
        return  # a person has ended the switch meanwhile
    cell, tenant = row.cell, row.tenant.name
    live = Job.objects.filter(pk__in=switch.old_jobs).exclude(state=JobState.DEAD.value)
    # A job may have left the service or joined the new track since the switch began.
    old = list(live.filter(labels__service=row.service).exclude(labels__track=switch.to).order_by("tasks_total", "id"))
    problems: list[str] = []
    if old:
        names: list[str] = []
        tasks = 0
        for job in old:
            if names and tasks + job.tasks_total > journal.CHUNK:
                break
            names.append(job.name)
            tasks += job.tasks_total
        reason = f"service {row.service} was switched to track {switch.to}"
        try:
            running = sum(job.tasks_running for job in old)
            confirmation.require(cell, running, switch.confirmed, what=f"stop the old tracks of service {row.service}")
            done = service_stop(
                principal=ME, cell=cell, tenant=tenant, name=row.service, jobs=names, reason=reason, confirm=running
            )
            problems = [f"job {one.job} was not stopped: {one.problem.detail}" for one in done.problems if one.problem]
        except Rejected as problem:
            problems = [f"the old tracks were not stopped: {problem.detail}"]
        if not problems and len(names) < len(old):
            return  # the next turn stops more
        if problems:
            log.warning(
                "the switch of a service could not stop the jobs of its old tracks",
                service=row.service,
                problem="; ".join(problems),
            )
    with journal.write(row.cell_id, ME) as entry:
        again = ServiceWeighting.objects.filter(pk=row.pk).first()
        if again is not None and switch_of(again) == switch:
            text = "; ".join(problems)[:_MOST_REASON]
            ended = replace(switch, state=SwitchState.DONE, ended=entry.time.timestamp(), reason=text)
            store(entry, again, tenant, again.weights, "done", switch=ended)
