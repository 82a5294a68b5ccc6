"""Advances the switches of services (§8.1). The master of a cell does this once per second.

    rows with a switch in progress ─► health of the new tracks ─► `switch_rules` ─► lock the cell, read again, and act

The state of a switch is in its row, which changes under the lock of the cell together with an event. So each step
happens once, also if a master is killed or two masters work at the same time. After a pause of the masters, the next
step is one step, and not several.
"""

from __future__ import annotations

import msgspec
import structlog
from msgspec.structs import replace

from quota.vocabulary.errors import Rejected
from quota.vocabulary.permissions import system
from scheduling.core.vocabulary.states import JobState
from scheduling.jobs.rollouts.failing_tasks import FIGURES, failing_since
from scheduling.journal import journal
from scheduling.journal.sql import query
from scheduling.models import Job, ServiceWeighting
from scheduling.services.stops import service_stop
from scheduling.services.switch_rules import Move, Switch, SwitchState, TrackHealth, next_move, stepped
from scheduling.services.weights import store

log = structlog.get_logger(__name__)
ME = system("switches")
_ANY_NUMBER = 2**31 - 1  # the request for the switch has confirmed the stop

# The tasks of the new track of each switch. Tasks are read only if the counters show that some are not up.
_HEALTH = f"""
SELECT w.id, coalesce(sum(j.wanted), 0), coalesce(sum(j.tasks_up), 0), coalesce(sum(f.number), 0), min(f.first)
FROM scheduling_serviceweighting AS w JOIN LATERAL (
  SELECT id, name, tasks_up, least(tasks_total - tasks_dead, nullif(max_running, 0)) AS wanted FROM scheduling_job
  WHERE cell_id = w.cell_id AND tenant_id = w.tenant_id AND state <> 'dead' AND kind = 'job'
    AND labels @> jsonb_build_object('service', w.service)
    AND coalesce(nullif(labels->>'track', ''), name) = w.switch->>'to'
) AS j ON true LEFT JOIN LATERAL (
  SELECT count(*) AS number, min(j.name || '/' || t.index) AS first FROM scheduling_task AS t
  WHERE j.tasks_up < j.wanted AND t.job_id = j.id
    AND {failing_since("to_timestamp((w.switch->>'began')::float)")}
) AS f ON true
WHERE w.id = ANY(%(rows)s) GROUP BY w.id
"""


def switches_turn(cell_id: int) -> None:
    """Do what is due for the switches of a cell. Makes one query without a switch in progress, and two for any number
    of switches that only wait.
    """
    rows = list(ServiceWeighting.objects.filter(cell_id=cell_id, due_at__isnull=False).order_by("id"))
    if not rows:
        return
    found = _health([row.pk for row in rows])
    ((now,),) = query("SELECT extract(epoch FROM clock_timestamp())::float", [])
    for row in rows:
        switch = msgspec.convert(row.switch, Switch)
        if switch.state is SwitchState.STOPPING:
            _stop_old(row, switch)
        elif next_move(switch, row.weights, found.get(row.pk, _GONE), now)[0] is not Move.WAIT:
            _act(cell_id, row.pk)


_GONE = TrackHealth(0, 0)


def _health(rows: list[int]) -> dict[int, TrackHealth]:
    return {
        row: TrackHealth(int(wanted), int(up), int(failing), first or "")
        for row, wanted, up, failing, first in query(_HEALTH, {**FIGURES, "rows": rows})
    }


def _act(cell_id: int, row_id: int) -> None:
    """Do what a switch needs now, under the lock of its cell."""
    with journal.write(cell_id, ME) as entry:
        row = ServiceWeighting.objects.select_related("tenant").get(pk=row_id)
        if row.due_at is None:
            return
        switch, now = msgspec.convert(row.switch, Switch), entry.time.timestamp()
        if switch.state is not SwitchState.SWITCHING:
            return
        move, reason = next_move(switch, row.weights, _health([row_id]).get(row_id, _GONE), now)
        tenant = row.tenant.name
        match move:
            case Move.STEP:
                moved = replace(switch, due=now + switch.every_s)
                store(entry, row, tenant, stepped(switch, row.weights), "moved", switch=moved)
            case Move.FINISH if switch.stop_old:
                store(entry, row, tenant, row.weights, "stopping", switch=replace(switch, state=SwitchState.STOPPING))
            case Move.FINISH:
                ended = replace(switch, state=SwitchState.DONE, ended=now)
                store(entry, row, tenant, row.weights, "done", switch=ended)
            case Move.RETURN:
                ended = replace(switch, state=SwitchState.RETURNED, ended=now, reason=reason)
                store(entry, row, tenant, switch.before, "returned", switch=ended)


def _stop_old(row: ServiceWeighting, switch: Switch) -> None:
    """Stop the jobs of the other tracks, and end the switch. A job that cannot be stopped stays, and the switch says
    why.
    """
    if not ServiceWeighting.objects.filter(pk=row.pk, due_at__isnull=False, revision=row.revision).exists():
        return  # a person has ended the switch meanwhile
    cell, tenant = row.cell, row.tenant.name
    live = Job.objects.filter(pk__in=switch.old_jobs).exclude(state=JobState.DEAD.value)
    # A job may have left the service or joined the new track since the switch began.
    old = live.filter(labels__service=row.service).exclude(labels__track=switch.to)
    names = sorted(old.values_list("name", flat=True))
    problems: list[str] = []
    if names:
        reason = f"service {row.service} was switched to track {switch.to}"
        try:
            done = service_stop(
                principal=ME, cell=cell, tenant=tenant, name=row.service, jobs=names, reason=reason, confirm=_ANY_NUMBER
            )
            problems = [f"job {one.job} was not stopped: {one.problem.detail}" for one in done.problems if one.problem]
        except Rejected as problem:
            problems = [f"the other tracks were not stopped: {problem.detail}"]
        if problems:
            log.warning("a switch could not stop the other tracks", service=row.service, problem="; ".join(problems))
    with journal.write(row.cell_id, ME) as entry:
        again = ServiceWeighting.objects.get(pk=row.pk)
        present = msgspec.convert(again.switch, Switch) if again.switch else None
        if present == switch:
            ended = replace(
                switch, state=SwitchState.DONE, ended=entry.time.timestamp(), reason="; ".join(problems)[:300]
            )
            store(entry, again, tenant, again.weights, "done", switch=ended)
