"""Tasks leave machines that are down or draining, at the cell's rate (§4): a partition looks like many dead machines.

    master, each second ─► tasks_leave ─┬─ down: evicted, machine-failure
                                        └─ draining: evicted, machine-shutdown, within each job's max_down

Each eviction is caused by the event that changed the machine.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from django.db import connection

from quota.permissions import system
from scheduling import journal, spec
from scheduling.config import CellSettings
from scheduling.core.states import EvictionCause
from scheduling.journal import Cause
from scheduling.models import JobSpec, Machine, Task
from scheduling.services import transitions
from scheduling.services.machines import DOWN, DRAINING
from scheduling.services.transitions import Eviction


def tasks_leave(cell_id: int, settings: CellSettings, *, seconds: float) -> int:
    """Evict tasks from down and draining machines: what `seconds` of the cell's rates allow. Returns the number."""
    down = max(1, int(settings.evictions_per_s * seconds)) if settings.evictions_per_s else 0
    drain = max(1, int(settings.drain_per_s * seconds)) if settings.drain_per_s else 0
    return tasks_evict_from(cell_id, limit=down) + tasks_drain(cell_id, limit=drain)


def tasks_evict_from(cell_id: int, limit: int) -> int:
    """Evict at most `limit` tasks from machines that are down, highest priority first."""
    leaving = list(_on_machines(cell_id, DOWN)[: min(limit, journal.CHUNK)])
    return _evict(cell_id, leaving, EvictionCause.MACHINE_FAILURE)


def tasks_drain(cell_id: int, limit: int) -> int:
    """Evict at most `limit` tasks from draining machines, of each job no more than its `max_down` allows.

    Tasks that are not up leave freely: they take nothing from their job.
    """
    candidates = list(_on_machines(cell_id, DRAINING)[: journal.CHUNK])
    if not candidates:
        return 0
    budget = _disruption_budgets({task.job_id for task in candidates})
    leaving = []
    for task in candidates:
        if task.up:
            if budget[task.job_id] <= 0:
                continue
            budget[task.job_id] -= 1
        leaving.append(task)
    return _evict(cell_id, leaving[:limit], EvictionCause.MACHINE_SHUTDOWN)


def _on_machines(cell_id: int, state: str):
    return (
        Task.objects.filter(machine__cell_id=cell_id, machine__state=state, state=transitions.RUNNING)
        .select_related("machine", "job")
        .only(
            "id", "incarnation", "up", "job_id", "machine__hostname", "machine__reason", "job__priority"
        )
        .order_by("-job__priority", "id")
    )  # fmt: skip


def _disruption_budgets(job_ids: set[int]) -> dict[int, int]:
    """How many more tasks of each job may be down. Tasks never placed yet are no disruption."""
    disrupted: dict[int, int] = defaultdict(int)
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT job_id, count(*) FROM scheduling_task WHERE job_id = ANY(%s)"
            " AND state <> 'dead' AND NOT up AND incarnation > 0 GROUP BY job_id",
            [sorted(job_ids)],
        )
        disrupted.update(cursor.fetchall())
    newest = (
        JobSpec.objects.filter(job_id__in=job_ids)
        .order_by("job_id", "-version")
        .distinct("job_id")
        .select_related("job__cell")
    )
    allowed = {
        row.job_id: spec.load(row.spec, extra=row.job.cell.extra_resources).max_down() for row in newest
    }
    return {job: allowed.get(job, 1) - disrupted[job] for job in job_ids}


def _evict(cell_id: int, leaving: Sequence[Task], cause: EvictionCause) -> int:
    if not leaving:
        return 0
    with journal.write(cell_id, system("machines")) as entry:
        because = _latest_states({task.machine_id for task in leaving})
        evicted = transitions.tasks_evict(
            entry,
            [
                Eviction(
                    task.id,
                    task.incarnation,
                    cause.value,
                    detail=_told_of_leaving(task.machine, cause),
                    caused_by=because.get(task.machine_id),
                )
                for task in leaving
            ],
        )
    return len(evicted)


def _told_of_leaving(machine: Machine, cause: EvictionCause) -> str:
    what = "is down" if cause is EvictionCause.MACHINE_FAILURE else "is being drained"
    return f"machine {machine.hostname} {what}" + (f": {machine.reason}" if machine.reason else "")


def _latest_states(machine_ids: Iterable[int]) -> dict[int, Cause]:
    """The event that put each machine into its state."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT m.id, e.revision, e.seq FROM unnest(%s::bigint[]) AS m(id) CROSS JOIN LATERAL ("
            " SELECT revision, seq FROM scheduling_event WHERE machine_id = m.id AND kind = 'machine.state'"
            " ORDER BY revision DESC, seq DESC LIMIT 1) AS e",
            [sorted(machine_ids)],
        )
        return {machine: Cause(revision, seq) for machine, revision, seq in cursor.fetchall()}
