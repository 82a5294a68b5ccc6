"""Reads machine pools. SREs of the cell see all of them, with what runs there. A tenant sees the pools that name it.

The number of queries is the same for any number of pools, machines and tasks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from django.db.models import Count, QuerySet

from quota.selectors import tenants_visible
from quota.vocabulary.errors import NotFound
from quota.vocabulary.permissions import Action, Principal, may, require
from scheduling.access import selectors
from scheduling.core.vocabulary.requirement import POOL
from scheduling.core.vocabulary.states import MachineStatus, PoolUse
from scheduling.journal.sql import query
from scheduling.models import Cell, Pool, Task
from scheduling.models.machines import REMOVED
from scheduling.policy import cell_settings
from scheduling.pools.foreign_tasks import foreign, members
from scheduling.tasks import counters
from scheduling.tasks.disruption_budgets import Budgets

_HERE = f"m.cell_id = %s AND m.attributes ? '{POOL}' AND m.attributes->>'{POOL}' = ANY(%s)"
_MACHINES = f"""
    SELECT m.attributes->>'{POOL}', m.state, count(*) FROM scheduling_machine AS m
    WHERE {_HERE} AND m.state <> '{REMOVED}' GROUP BY 1, 2"""
_TASKS = f"""
    SELECT m.attributes->>'{POOL}', n.name, count(*) FROM scheduling_machine AS m
    JOIN scheduling_task AS t ON t.machine_id = m.id AND t.state = 'running'
    JOIN scheduling_job AS j ON j.id = t.job_id JOIN quota_tenant AS n ON n.id = j.tenant_id
    WHERE {_HERE} GROUP BY 1, 2"""
# A preview names at most so many jobs.
MOST_JOBS = 200
# The name of jobs that the caller may not see.
HIDDEN = "another tenant's job"


@dataclass(frozen=True, slots=True)
class PoolState:
    """A pool, and what is in it. `machines`, `up`: how many machines it has, and how many of them are up. `tasks`: how
    many tasks run there. `foreign`: how many of them belong to tenants for which the pool is not; 0 if it is not
    dedicated. Both are None for callers who do not administer machines. `tenants`: those tenants of the pool that the
    caller may see.
    """

    pool: Pool
    tenants: tuple[str, ...]
    machines: int = 0
    up: int = 0
    tasks: int | None = None
    foreign: int | None = None


@dataclass(frozen=True, slots=True)
class ForeignJob:
    """A job of another tenant with tasks on machines of a dedicated pool. `tasks`: how many. `may`, `down`: how many of
    its tasks may be down at once, and are down now.
    """

    job: str
    tasks: int
    may: int
    down: int


@dataclass(frozen=True, slots=True)
class PoolPreview:
    """What a pool changes for running tasks. `foreign`: the jobs of other tenants on its machines, those with most
    tasks first, and `foreign_jobs` their number. `outside`: how many tasks of its tenants run elsewhere, if they must
    run in the pool; they stay there until they end.
    """

    foreign: tuple[ForeignJob, ...]
    foreign_jobs: int
    outside: int


def pools_of(principal: Principal, cell: Cell) -> QuerySet[Pool]:
    """Return the pools of a cell that the caller may see, by id."""
    rows = Pool.objects.filter(cell=cell).select_related("cell").order_by("id")
    if may(principal, Action.MACHINE_ADMIN, cell=cell.name):
        return rows
    return rows.filter(tenants__overlap=list(tenants_visible(principal).values_list("name", flat=True)))


def pool_named(principal: Principal, cell: Cell, name: str) -> Pool:
    """Return a pool. Raises `NotFound` if there is none, or the caller may not see it."""
    found = pools_of(principal, cell).filter(name=name).first()
    if found is None:
        raise NotFound("machine pool", name, known=[one.name for one in pools_of(principal, cell)[:10]])
    return found


def states_of(principal: Principal, cell: Cell, pools: Sequence[Pool]) -> list[PoolState]:
    """Return the pools of one cell with what is in them. Callers who do not administer machines see the numbers of
    machines only.
    """
    sre = may(principal, Action.MACHINE_ADMIN, cell=cell.name)
    own = set() if sre else set(tenants_visible(principal).values_list("name", flat=True))
    names = [one.name for one in pools]
    machines: Counter[str] = Counter()
    up: Counter[str] = Counter()
    for name, state, number in query(_MACHINES, [cell.pk, names]):
        machines[name] += number
        up[name] += number if state == MachineStatus.UP.value else 0
    tasks: Counter[str] = Counter()
    strange: Counter[str] = Counter()
    of_tenants = {one.name: set(one.tenants) for one in pools if one.dedicated}
    for name, tenant, number in query(_TASKS, [cell.pk, names]) if sre else ():
        tasks[name] += number
        strange[name] += number if name in of_tenants and tenant not in of_tenants[name] else 0
    return [
        PoolState(
            one,
            tuple(name for name in one.tenants if sre or name in own),
            machines[one.name],
            up[one.name],
            tasks[one.name] if sre else None,
            strange[one.name] if sre else None,
        )
        for one in pools
    ]


def preview_of(principal: Principal, pool: Pool) -> PoolPreview:
    """Return what a pool changes for running tasks. The names of jobs that the caller may not see are hidden. Raises
    `Forbidden` if the caller may not administer machines.
    """
    require(principal, Action.MACHINE_ADMIN, cell=pool.cell.name)
    found: dict[int, int] = {}
    if pool.dedicated:
        rows = Task.objects.filter(foreign([pool]), cell=pool.cell).order_by()
        found = dict(rows.values_list("job_id").annotate(number=Count("id")))
    first = sorted(found, key=lambda job: (-found[job], job))[:MOST_JOBS]
    patience_s = cell_settings.load(pool.cell.settings).drain_patience_s
    budgets = Budgets(set(first), patience_s).of if first else {}
    visible = selectors.jobs_of_tenants(principal, pool.cell).filter(pk__in=first).order_by()
    names = {pk: f"{tenant}/{name}" for pk, tenant, name in visible.values_list("id", "tenant__name", "name")}
    outside = 0
    if pool.use == PoolUse.MUST:
        own = Task.objects.filter(cell=pool.cell, job__tenant__name__in=pool.tenants, state=counters.RUNNING)
        outside = own.count() - own.filter(members([pool.name], "machine__")).count()
    return PoolPreview(
        tuple(
            ForeignJob(names.get(job, HIDDEN), found[job], budgets[job].may, budgets[job].down)
            for job in first
            if job in budgets
        ),
        len(found),
        outside,
    )
