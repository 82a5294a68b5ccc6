"""Tasks that run on machines of a pool that is dedicated to other tenants."""

from __future__ import annotations

from collections.abc import Iterable

from django.db.models import Q

from scheduling.core.vocabulary.requirement import POOL
from scheduling.models import Cell, Pool, Task
from scheduling.tasks import counters


def members(names: Iterable[str], prefix: str = "") -> Q:
    """Return the condition that a machine belongs to one of the pools. `prefix`: the path to the machine, such as
    `machine__`.
    """
    # The index contains only machines that have a pool.
    return Q(**{f"{prefix}attributes__has_key": POOL, f"{prefix}attributes__{POOL}__in": list(names)})


def foreign(pools: Iterable[Pool]) -> Q:
    """Return the condition that a task runs on a machine of one of the pools, and belongs to another tenant than those
    of the pool. Pools that are not dedicated do not count.
    """
    condition = Q(pk__in=())
    for pool in pools:
        if pool.dedicated:
            here = members([pool.name], "machine__")
            condition |= here & ~Q(job__tenant__name__in=pool.tenants)
    return condition & Q(state=counters.RUNNING)


def pools_to_clear(cell_id: int) -> list[Pool]:
    """Return the dedicated pools of a cell that tasks of other tenants leave."""
    return list(Pool.objects.filter(cell_id=cell_id, dedicated=True, others=Pool.LEAVE).order_by("name"))


def tasks_leaving(cell: Cell, among: Q) -> int:
    """Return how many of the tasks for which `among` holds have to leave the pools of a cell, tasks inside allocs
    included.
    """
    pools = pools_to_clear(cell.pk)
    return Task.objects.filter(among, foreign(pools), cell=cell).count() if pools else 0
