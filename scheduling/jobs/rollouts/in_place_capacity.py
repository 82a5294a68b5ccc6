"""Decide whether running tasks can change to a new version of their spec in place, which means on their machine and
without a restart (§2.3).

a task on a machine grows         ─► compare with the free capacity of the machine: its capacity minus the limits of
                                     prod tasks and minus the reservations of the other tasks (§5.5)
a task in an alloc grows          ─► compare with the free capacity of the alloc (§2.4)
an alloc shrinks                  ─► compare with the tasks inside it
a job moves to production         ─► compare the sum of the limits of all prod tasks, including the tasks of this
                                     job, with the capacity of the machine
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import zip_longest
from typing import Any

from scheduling.allocs.alloc_sets import KIND
from scheduling.jobs.fit_guidance import policy_of
from scheduling.journal.sql import query
from scheduling.models import Machine, Task, Update
from scheduling.spec import job_spec
from scheduling.spec.alloc_fit import fits

# The sum of the limits of the tasks in each alloc, per resource.
_INSIDE = (
    'SELECT i.alloc_id, r.i, sum(i."limit"[r.i])::bigint FROM scheduling_task AS i'
    " CROSS JOIN LATERAL generate_subscripts(i.limit, 1) AS r(i)"
    " WHERE i.alloc_id = ANY(%s) GROUP BY 1, 2 ORDER BY 1, 2"
)
# Per machine and resource: the limits of tasks placed by limit plus the reservations of the others, and then the limits
# of the tasks placed by limit only. Tasks in an alloc take nothing.
_TAKEN = (
    'SELECT t.machine_id, r.i, sum(CASE WHEN p.by_limit THEN greatest(t."limit"[r.i], t.reservation[r.i])'
    " ELSE t.reservation[r.i] END)::bigint,"
    ' sum(CASE WHEN p.by_limit THEN t."limit"[r.i] ELSE 0 END)::bigint'
    " FROM scheduling_task AS t JOIN scheduling_job AS j ON j.id = t.job_id"
    " LEFT JOIN quota_priorityband AS b ON b.name = j.band"
    " CROSS JOIN LATERAL (SELECT coalesce(b.prod, false) AND (j.latency_sensitive OR NOT %s) AS by_limit) AS p"
    " CROSS JOIN LATERAL generate_subscripts(t.limit, 1) AS r(i)"
    " WHERE t.machine_id = ANY(%s) AND t.alloc_id IS NULL GROUP BY 1, 2 ORDER BY 1, 2"
)


class InPlaceCapacity:
    """Checks whether tasks can change in place to the spec `target`. `rows`: the tasks to change. `specs`: their
    present specs, by version.
    """

    def __init__(
        self,
        update: Update,
        target: job_spec.JobSpecification,
        specs: Mapping[int, job_spec.JobSpecification],
        rows: Sequence[Mapping[str, Any]],
    ) -> None:
        self._target, self._specs = target, specs
        policy = policy_of(update.job.cell)
        now = policy.by_limit(target.priority, target.latency_sensitive)
        self._raised = {
            version
            for version, before in specs.items()
            if now and not policy.by_limit(before.priority, before.latency_sensitive)
        }
        there = [row for row in rows if row["machine_id"] is not None]
        growing = [row for row in there if any(change > 0 for change in self._growth(row))]
        inner = {row["alloc_id"] for row in growing if row["alloc_id"] is not None}
        bare = {row["machine_id"] for row in growing if row["alloc_id"] is None}
        raised = {row["machine_id"] for row in there if row["alloc_id"] is None and row["spec_version"] in self._raised}
        allocs = {row["id"] for row in there} if update.job.kind == KIND else inner
        self._inside = _inside(allocs, len(target.base.limit))
        self._in_alloc = self._left_in(inner)
        self._on, self._by_limit = _left_on(
            bare | raised, len(target.base.limit), by_reservation=policy.batch_in_prod_by_reservation
        )

    def in_place(self, row: Mapping[str, Any]) -> bool:
        """Return whether a task can get its new limits on its present machine. If it can, subtract the increase from
        the free capacity that is left for other tasks. `row`: the task's columns in the database.
        """
        growth = self._growth(row)
        if self._asks_for_cores(row):
            return False
        if row["alloc_id"] is not None:
            return _take(self._in_alloc, row["alloc_id"], growth)
        if row["id"] in self._inside and not fits(self._inside[row["id"]], self._target.task(row["index"]).limit):
            return False
        if row["spec_version"] in self._raised:
            # The task's limit counts since the job's priority changed. If the task moves away, it frees its limit.
            left = self._by_limit[row["machine_id"]]
            if min(left) < 0:
                self._by_limit[row["machine_id"]] = _minus(left, [-own for own in row["limit"]], len(left))
                return False
        return _take(self._on, row["machine_id"], growth)

    def _asks_for_cores(self, row: Mapping[str, Any]) -> bool:
        """Return whether the new spec requests more whole cores for a task than the task has. Such a task must be
        placed again.
        """
        before, index = self._specs.get(row["spec_version"]), row["index"]
        has = before.requirement(index).whole_cores if before is not None and index < before.tasks else 0
        return row["machine_id"] is not None and self._target.requirement(index).whole_cores > has

    def _growth(self, row: Mapping[str, Any]) -> list[int]:
        limit = self._target.task(row["index"]).limit
        return _minus(limit, row["limit"], len(limit))

    def _left_in(self, allocs: set[int]) -> dict[int, list[int]]:
        rows = Task.objects.filter(pk__in=allocs).order_by().values_list("id", "limit") if allocs else []
        axis = len(self._target.base.limit)
        return {alloc: _minus(limit, self._inside.get(alloc, ()), axis) for alloc, limit in rows}


def _take(places: dict[int, list[int]], place: int, growth: Sequence[int]) -> bool:
    if all(change <= 0 for change in growth):
        return True
    left = places[place]
    if any(change > 0 and change > have for change, have in zip(growth, left, strict=True)):
        return False
    places[place] = [have - max(0, change) for have, change in zip(left, growth, strict=True)]
    return True


def _inside(allocs: set[int], axis: int) -> dict[int, list[int]]:
    """Return the sum of the limits of the tasks inside each alloc, by alloc id. Empty allocs are left out."""
    if not allocs:
        return {}
    rows = query(_INSIDE, [sorted(allocs)])
    return {alloc: _minus(sums, (), axis) for alloc, sums in _by_place(rows).items()}


def _left_on(
    machines: set[int], axis: int, *, by_reservation: bool
) -> tuple[dict[int, list[int]], dict[int, list[int]]]:
    """Return two dictionaries by machine id. The first contains the machine's free capacity. The second contains its
    capacity minus the limits of those tasks that are placed by their limits, not by their reservations. `axis`: the
    number of resources. `by_reservation`: whether batch tasks in prod bands are placed by reservation.
    """
    if not machines:
        return {}, {}
    rows = query(_TAKEN, [by_reservation, sorted(machines)])
    taken = _by_place((machine, i, amount) for machine, i, amount, _ in rows)
    by_limit = _by_place((machine, i, amount) for machine, i, _, amount in rows)
    capacity = dict(Machine.objects.filter(pk__in=machines).values_list("id", "capacity"))

    def left(used: Mapping[int, list[int]]) -> dict[int, list[int]]:
        return {machine: _minus(capacity[machine], used.get(machine, ()), axis) for machine in machines}

    return left(taken), left(by_limit)


def _by_place(rows: Iterable[tuple[int, int, int]]) -> dict[int, list[int]]:
    """Return the amounts of all resources per place. `rows`: (place, index of the resource, amount), sorted. A place
    is the id of a machine or alloc.
    """
    found: dict[int, list[int]] = defaultdict(list)
    for place, _, amount in rows:
        found[place].append(amount)
    return found


def _minus(vector: Sequence[int], taken: Sequence[int], axis: int) -> list[int]:
    """Return `vector` - `taken` with `axis` elements. Both arguments may be shorter; missing elements count as 0."""
    return [have - used for have, used, _ in zip_longest(vector, taken, range(axis), fillvalue=0)]
