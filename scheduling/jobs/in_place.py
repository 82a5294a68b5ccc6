"""Decide whether running tasks can change to a new version of their spec in place (§2.3) or have to move.

growth of a task on a machine ─► what its machine has left: limits of prod tasks, reservations of all (§5.5)
growth of a task in an alloc  ─► what its alloc has left (§2.4)
an alloc that shrinks         ─► what lives inside it
a job raised into production  ─► whether the limits of all prod tasks fit the machine now that it counts
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from quota.admission import admission
from scheduling.allocs.alloc_sets import KIND
from scheduling.core.vocabulary.policy import Policy
from scheduling.journal.sql import query
from scheduling.models import Machine, Task, Update
from scheduling.policy import cell_settings
from scheduling.spec import job_spec
from scheduling.spec.alloc_fit import fits

# Limits of whatever lives in each alloc, by resource.
_INSIDE = (
    'SELECT i.alloc_id, r.i, sum(i."limit"[r.i])::bigint FROM scheduling_task AS i'
    " CROSS JOIN LATERAL generate_subscripts(i.limit, 1) AS r(i)"
    " WHERE i.alloc_id = ANY(%s) GROUP BY 1, 2 ORDER BY 1, 2"
)
# What tasks take from each machine: limits of those placed by limit, reservations of the others; and the limits
# of the former alone. Tasks in an alloc take nothing.
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
    """Capacity checks for the tasks in `rows` that should follow `target`; `specs` are their current versions."""

    def __init__(
        self,
        update: Update,
        target: job_spec.JobSpecification,
        specs: Mapping[int, job_spec.JobSpecification],
        rows: Sequence[Mapping[str, Any]],
    ) -> None:
        self._target, self._specs = target, specs
        settings = cell_settings.load(update.job.cell.settings)
        policy = Policy(
            bands=tuple(admission.bands()), batch_in_prod_by_reservation=settings.batch_in_prod_by_reservation
        )
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
        self._inside = _inside(
            {row["id"] for row in there} if update.job.kind == KIND else inner, len(target.base.limit)
        )
        self._in_alloc = self._left_in(inner)
        self._on, self._by_limit = _left_on(
            bare | raised, len(target.base.limit), by_reservation=settings.batch_in_prod_by_reservation
        )

    def in_place(self, row: Mapping[str, Any]) -> bool:
        """Take what a growing task needs from its machine, if it fits."""
        growth = self._growth(row)
        if self._asks_for_cores(row):
            return False
        if row["alloc_id"] is not None:
            return _take(self._in_alloc, row["alloc_id"], growth)
        if row["id"] in self._inside and not fits(self._inside[row["id"]], self._target.task(row["index"]).limit):
            return False
        if row["spec_version"] in self._raised:
            # Its limit counts since the job's priority changed; a task that moves away frees capacity for the next.
            left = self._by_limit[row["machine_id"]]
            if min(left) < 0:
                self._by_limit[row["machine_id"]] = [
                    have + own for have, own in zip(left, _padded(row["limit"], len(left)), strict=True)
                ]
                return False
        return _take(self._on, row["machine_id"], growth)

    def _asks_for_cores(self, row: Mapping[str, Any]) -> bool:
        """Return whether a task asks for more whole cores than it has. A pass then looks for a machine that has
        them.
        """
        before, index = self._specs.get(row["spec_version"]), row["index"]
        has = before.requirement(index).whole_cores if before is not None and index < before.tasks else 0
        return row["machine_id"] is not None and self._target.requirement(index).whole_cores > has

    def _growth(self, row: Mapping[str, Any]) -> list[int]:
        limit = self._target.task(row["index"]).limit
        return [new - before for new, before in zip(limit, _padded(row["limit"], len(limit)), strict=True)]

    def _left_in(self, allocs: set[int]) -> dict[int, list[int]]:
        rows = Task.objects.filter(pk__in=allocs).order_by().values_list("id", "limit") if allocs else []
        axis = len(self._target.base.limit)
        return {
            alloc: [
                have - taken
                for have, taken in zip(_padded(limit, axis), self._inside.get(alloc, [0] * axis), strict=True)
            ]
            for alloc, limit in rows
        }


def _take(places: dict[int, list[int]], place: int, growth: Sequence[int]) -> bool:
    if all(change <= 0 for change in growth):
        return True
    left = places[place]
    if any(change > 0 and change > have for change, have in zip(growth, left, strict=True)):
        return False
    places[place] = [have - max(0, change) for have, change in zip(left, growth, strict=True)]
    return True


def _inside(allocs: set[int], axis: int) -> dict[int, list[int]]:
    """Return the sum of the limits of the tasks inside each alloc, without empty allocs."""
    if not allocs:
        return {}
    rows = query(_INSIDE, [sorted(allocs)])
    return {alloc: _padded(sums, axis) for alloc, sums in _by_place(rows).items()}


def _left_on(
    machines: set[int], axis: int, *, by_reservation: bool
) -> tuple[dict[int, list[int]], dict[int, list[int]]]:
    """Capacity less what is taken, and capacity less the limits of tasks placed by limit, by machine."""
    if not machines:
        return {}, {}
    rows = query(_TAKEN, [by_reservation, sorted(machines)])
    taken = _by_place((machine, i, amount) for machine, i, amount, _ in rows)
    by_limit = _by_place((machine, i, amount) for machine, i, _, amount in rows)
    capacity = dict(Machine.objects.filter(pk__in=machines).values_list("id", "capacity"))

    def left(used: Mapping[int, list[int]]) -> dict[int, list[int]]:
        return {
            machine: [
                have - amount
                for have, amount in zip(
                    _padded(capacity[machine], axis), _padded(used.get(machine, ()), axis), strict=True
                )
            ]
            for machine in machines
        }

    return left(taken), left(by_limit)


def _by_place(rows: Iterable[tuple[int, int, int]]) -> dict[int, list[int]]:
    """(place, position, amount) in order, as a vector for each place."""
    found: dict[int, list[int]] = defaultdict(list)
    for place, _, amount in rows:
        found[place].append(amount)
    return found


def _padded(vector: Sequence[int], axis: int) -> list[int]:
    """Vectors from before the cell had further resources are shorter."""
    return [*vector, *[0] * (axis - len(vector))]
