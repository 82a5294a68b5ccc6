"""The eviction of tasks from machines that are down or draining, at a limited rate (§4).

    master, each second ─► tasks_leave ─┬─ machine down:     evict its tasks, as fast as the limit `lost` allows
                                        └─ machine draining: evict its tasks, within the budget of each job

The rate is limited, because a network partition looks like many dead machines. The journal event of each eviction has
a cause: the event with which the machine became down or draining.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence

from django.db import transaction
from django.db.models import Q, QuerySet
from django.db.models.functions import Now

from quota.vocabulary.permissions import system
from scheduling.allocs.alloc_sets import KIND
from scheduling.brakes import stored_brakes
from scheduling.core.vocabulary.states import EvictionCause
from scheduling.core.vocabulary.task_events import Cause, Eviction
from scheduling.journal import journal
from scheduling.journal.sql import query
from scheduling.machines.leaving_tasks import leaves
from scheduling.machines.machines import DOWN, DRAINING
from scheduling.models import Drain, Task
from scheduling.policy.cell_settings import CellSettings
from scheduling.tasks import counters, transitions
from scheduling.tasks.disruption_budgets import Budgets, inside_allocs


def tasks_leave(cell_id: int, settings: CellSettings, *, seconds: float, late: int = 0) -> int:
    """Evict tasks from machines that are down or draining. Return the number of evicted tasks.

    The brake `lost` limits how many tasks are evicted from machines that are down. The cell's drain rate times
    `seconds` limits how many tasks are evicted from draining machines. `late`: the number of machines whose report is
    overdue and that are not down yet.
    """
    allowance = stored_brakes.lost_allowance(cell_id, settings, late=late)
    drain = max(1, int(settings.drain_per_s * seconds)) if settings.drain_per_s else 0
    with transaction.atomic():
        lost = tasks_evict_from(cell_id, limit=allowance)
        stored_brakes.lost_spend(cell_id, settings, lost)
    return lost + tasks_drain(cell_id, limit=drain, patience_s=settings.drain_patience_s)


def tasks_evict_from(cell_id: int, limit: int) -> int:
    """Evict at most `limit` tasks from machines that are down. Tasks with the highest priority are evicted first."""
    if limit <= 0:
        return 0
    leaving = list(_on_machines(cell_id, DOWN)[: min(limit, journal.CHUNK)])
    return _evict(cell_id, leaving, EvictionCause.MACHINE_FAILURE)


def tasks_drain(cell_id: int, limit: int, *, patience_s: float) -> int:
    """Evict at most `limit` tasks from draining machines, within the disruption budget of each job.

    A job may have `disruption_budget` tasks down in the whole cell. If it has no such budget, it may have `max_down`
    tasks down. If it has `max_disruptions`, at most this number may be evicted within its window, whatever the cause.
    Tasks that are not up are evicted at once and use no budget. A task that has been down for more than
    `patience_s` seconds uses no budget, so it cannot block a drain for ever. If the drain names the tasks that leave
    (`Drain.only`), the others stay. An alloc is evicted together with the tasks inside it, when the budgets of their
    jobs allow this (§2.4). After the deadline of a drain with `break_budgets`, no budget applies.
    """
    breaking = Drain.objects.filter(machine__cell_id=cell_id, break_budgets=True, deadline__lte=Now()).order_by()
    return evict_within_budgets(
        cell_id,
        lambda: _on_machines(cell_id, DRAINING).filter(leaves()),
        EvictionCause.MACHINE_SHUTDOWN,
        breaking=breaking.values_list("machine_id", flat=True),
        limit=limit,
        patience_s=patience_s,
    )


def evict_within_budgets(
    cell_id: int,
    find: Callable[[], QuerySet[Task]],
    cause: EvictionCause,
    *,
    breaking: Iterable[int] = (),
    limit: int,
    patience_s: float,
) -> int:
    """Evict at most `limit` tasks within the disruption budgets of their jobs, and return their number. `find`: returns
    the tasks that have to leave; it is called again under the cell's lock. `breaking`: the ids of machines on which no
    budget applies.
    """
    here = find()
    jobs = jobs_concerned(here)
    if not jobs:
        return 0
    overdue = set(breaking)
    budgets = Budgets(jobs, patience_s)
    # Tasks of jobs without budget left are not read, so that they do not take the places of other tasks in the chunk.
    may = Q(up=False) | Q(job_id__in=budgets.open()) | Q(machine_id__in=overdue)
    leaving = _allowed(list(here.filter(may)[: journal.CHUNK]), budgets, overdue)[:limit]

    def still() -> list[Task]:
        # Meanwhile, tasks may have come up, and failures and other processes may have used up budgets. Under the cell's
        # lock, nothing of this changes.
        again = find().filter(pk__in=[task.id for task in leaving])
        return _allowed(list(again), Budgets(jobs_concerned(again), patience_s), overdue)

    return _evict(cell_id, leaving, cause, still)


def _allowed(tasks: Sequence[Task], budgets: Budgets, overdue: Collection[int]) -> list[Task]:
    """Return the tasks that may be evicted now, and count them against the budgets. `overdue`: the machines on which no
    budget applies.
    """
    inside = inside_allocs(tasks)
    leaving = []
    for task in tasks:
        with_it = inside.get(task.id, {})
        if task.machine_id in overdue:
            budgets.spend(task, with_it)
        elif not budgets.take(task, with_it):
            continue
        leaving.append(task)
    return leaving


def jobs_concerned(here: QuerySet[Task]) -> set[int]:
    """Return the ids of the jobs whose tasks are in `here`. For an alloc in `here`, this includes the jobs of the tasks
    inside it.
    """
    jobs = set(here.order_by().values_list("job_id", flat=True).distinct())
    if not jobs:
        return jobs
    allocs = here.filter(job__kind=KIND).order_by()
    inner = Task.objects.filter(alloc__in=allocs.values("id")).order_by()
    return jobs | set(inner.values_list("job_id", flat=True).distinct())


def _on_machines(cell_id: int, state: str) -> QuerySet[Task]:
    """Return the running tasks on machines in the state `state`, highest priority first. Allocs are included. Tasks
    inside allocs are left out.
    """
    return readable(Task.objects.filter(machine__cell_id=cell_id, machine__state=state, state=counters.RUNNING))


def readable(tasks: QuerySet[Task]) -> QuerySet[Task]:
    """Return the tasks without those inside allocs, with the columns that their eviction needs, highest priority
    first.
    """
    return (
        tasks.filter(alloc__isnull=True)
        .select_related("machine", "job")
        .only("id", "incarnation", "up", "job_id", "machine__hostname", "machine__reason", "job__priority", "job__kind")
        .order_by("-job__priority", "id")
    )


def _evict(
    cell_id: int, leaving: Sequence[Task], cause: EvictionCause, still: Callable[[], Sequence[Task]] | None = None
) -> int:
    """Evict tasks, and return their number. `still`: returns those of them that may leave, under the cell's lock."""
    if not leaving:
        return 0
    with journal.write(cell_id, system("machines")) as entry:
        leaving = leaving if still is None else still()
        # A pool is not a state of a machine.
        on = set() if cause is EvictionCause.DEDICATED_POOL else {task.machine_id for task in leaving}
        because = _latest_states(cell_id, on)  # type: ignore[arg-type]
        evicted = transitions.tasks_evict(
            entry,
            [
                Eviction(
                    task.id,
                    task.incarnation,
                    cause.value,
                    detail=_format_eviction(task, cause),
                    caused_by=because.get(task.machine_id),  # type: ignore[arg-type]
                )
                for task in leaving
            ],
        )
    return len(evicted)


def _format_eviction(task: Task, cause: EvictionCause) -> str:
    machine = task.machine
    assert machine is not None
    if cause is EvictionCause.DEDICATED_POOL:
        pool = task.pool  # type: ignore[attr-defined]
        return f"machine {machine.hostname} is in the pool {pool}, which is dedicated to other tenants"
    what = "is down" if cause is EvictionCause.MACHINE_FAILURE else "is being drained"
    return f"machine {machine.hostname} {what}" + (f": {machine.reason}" if machine.reason else "")


def _latest_states(cell_id: int, machine_ids: Iterable[int]) -> dict[int, Cause]:
    """Return, by machine id, the journal event with which each machine last changed its state. Later events name it as
    their cause. Machines whose last change is only in the archive are left out.
    """
    rows = query(
        "SELECT m.id, e.revision, e.seq FROM unnest(%s::bigint[]) AS m(id) CROSS JOIN LATERAL ("
        " SELECT revision, seq FROM scheduling_event"
        " WHERE cell_id = %s AND machine_id = m.id AND kind = 'machine.state'"
        " ORDER BY revision DESC, seq DESC LIMIT 1) AS e",
        [sorted(machine_ids), cell_id],
    )
    return {machine: Cause(revision, seq) for machine, revision, seq in rows}
