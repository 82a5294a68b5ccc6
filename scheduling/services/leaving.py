"""Tasks leave machines that are down or draining, at the cell's rate (§4): a partition looks like many dead machines.

    master, each second ─► tasks_leave ─┬─ down: evicted, machine-failure
                                        └─ draining: evicted, machine-shutdown, within each job's budget

Each eviction is caused by the event that changed the machine.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from django.db import connection
from django.db.models import Count, F, Q, QuerySet

from quota.permissions import system
from scheduling import journal, spec
from scheduling.config import CellSettings
from scheduling.core.states import EvictionCause
from scheduling.journal import Cause
from scheduling.models import JobSpec, Machine, Task
from scheduling.services import transitions
from scheduling.services.allocs import KIND
from scheduling.services.machines import DOWN, DRAINING
from scheduling.services.transitions import Eviction


def tasks_leave(cell_id: int, settings: CellSettings, *, seconds: float) -> int:
    """Evict tasks from down and draining machines: what `seconds` of the cell's rates allow. Returns the number."""
    down = max(1, int(settings.evictions_per_s * seconds)) if settings.evictions_per_s else 0
    drain = max(1, int(settings.drain_per_s * seconds)) if settings.drain_per_s else 0
    return tasks_evict_from(cell_id, limit=down) + tasks_drain(
        cell_id, limit=drain, patience_s=settings.drain_patience_s
    )


def tasks_evict_from(cell_id: int, limit: int) -> int:
    """Evict at most `limit` tasks from machines that are down, highest priority first."""
    leaving = list(_on_machines(cell_id, DOWN)[: min(limit, journal.CHUNK)])
    return _evict(cell_id, leaving, EvictionCause.MACHINE_FAILURE)


def tasks_drain(cell_id: int, limit: int, *, patience_s: float) -> int:
    """Evict at most `limit` tasks from draining machines, of each job no more than may be down at once.

    A job may have `disruption_budget` tasks down, or `max_down` where it names no budget. Tasks that are not up
    leave freely: they take nothing from their job. One that has been down for longer than `patience_s` seconds
    counts as down no more: a sibling that never comes up again must not hold up a drain for ever. An alloc leaves
    with all that lives in it, when the budgets of the jobs inside allow it too (§2.4).
    """
    here = _on_machines(cell_id, DRAINING)
    jobs = set(here.order_by().values_list("job_id", flat=True).distinct())
    if not jobs:
        return 0
    allocs = here.filter(job__kind=KIND).order_by()
    jobs |= set(
        Task.objects.filter(alloc__in=allocs.values("id"))
        .order_by()
        .values_list("job_id", flat=True)
        .distinct()
    )
    budgets = _Budgets(jobs, patience_s)
    # Those whose job has nothing left to give are not asked for: they must not keep the others out of the chunk.
    candidates = list(here.filter(Q(up=False) | Q(job_id__in=budgets.open()))[: journal.CHUNK])
    inside = _inside(candidates)
    leaving = [task for task in candidates if budgets.take(task, inside.get(task.id, {}))]
    return _evict(cell_id, leaving[:limit], EvictionCause.MACHINE_SHUTDOWN)


def _on_machines(cell_id: int, state: str) -> QuerySet[Task]:
    """Who runs on the bare machines: what lives in an alloc leaves with it."""
    return (
        Task.objects.filter(
            machine__cell_id=cell_id, machine__state=state, state=transitions.RUNNING, alloc__isnull=True
        )
        .select_related("machine", "job")
        .only(
            "id", "incarnation", "up", "job_id", "machine__hostname", "machine__reason", "job__priority",
            "job__kind",
        )
        .order_by("-job__priority", "id")
    )  # fmt: skip


def _inside(candidates: Iterable[Task]) -> dict[int, dict[int, int]]:
    """Tasks that are up inside each alloc, by job."""
    allocs = [task.id for task in candidates if task.job.kind == KIND]
    found: dict[int, dict[int, int]] = defaultdict(dict)
    if allocs:
        rows = Task.objects.filter(alloc__in=allocs, up=True).order_by().values_list("alloc_id", "job_id")
        for alloc, job, number in rows.annotate(number=Count("id")):
            found[alloc][job] = number
    return found


class _Budgets:
    """How many more tasks of each job may be down. Tasks never placed yet are no disruption."""

    def __init__(self, job_ids: set[int], patience_s: float) -> None:
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT job_id, count(*) FROM scheduling_task WHERE job_id = ANY(%s) AND state <> 'dead'"
                " AND NOT up AND incarnation > 0 AND since > now() - make_interval(secs => %s) GROUP BY job_id",
                [sorted(job_ids), patience_s],
            )
            down = dict(cursor.fetchall())
        rows = (
            JobSpec.objects.filter(job_id__in=job_ids, version=F("job__spec_version"))
            .select_related("job__cell")
            .order_by()
        )
        self._left: dict[int, int] = defaultdict(int)
        self._untouched: set[int] = set()
        for row in rows:
            job_spec = spec.load(row.spec, extra=row.job.cell.extra_resources)
            self._left[row.job_id] = job_spec.may_be_down() - down.get(row.job_id, 0)
            if not down.get(row.job_id):
                self._untouched.add(row.job_id)

    def open(self) -> list[int]:
        """Jobs of which another task may leave."""
        return [job for job, left in self._left.items() if left > 0]

    def take(self, task: Task, inside: dict[int, int]) -> bool:
        """Whether a task may leave now, and `inside` with it: tasks that are up by job. Takes what it costs."""
        costs = dict(inside)
        if task.up:
            costs[task.job_id] = costs.get(task.job_id, 0) + 1
        # An alloc can't leave in part: more than the whole budget may leave where nobody is down yet.
        if any(self._left[job] < number and job not in self._untouched for job, number in costs.items()):
            return False
        for job, number in costs.items():
            self._left[job] -= number
            self._untouched.discard(job)
        return True


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
