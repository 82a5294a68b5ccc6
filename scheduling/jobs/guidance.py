"""Guidance for planned jobs: how many machines could hold its tasks, now and empty, and better shapes (§2.6).

The figures are for planning a submission. They are read from the database, because the scheduler's state is in
another process.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

from quota.admission import admission
from quota.vocabulary.resources import NAMES, PORTS, as_mapping
from scheduling.core.cell.attributes import Attributes
from scheduling.core.cell.tasks import padded
from scheduling.core.explaining.conforming import conforming, platforms_of
from scheduling.core.vocabulary.layout import Bools, Ints
from scheduling.core.vocabulary.policy import Policy
from scheduling.core.vocabulary.reasons import Conforming
from scheduling.core.vocabulary.requirement import Requirement
from scheduling.journal.sql import query
from scheduling.models import Cell, Machine
from scheduling.models.machines import REMOVED
from scheduling.policy import cell_settings
from scheduling.spec.job_spec import JobSpecification

# Of a job whose tasks differ, only the first kinds are described.
KINDS = 3


@dataclass(frozen=True, slots=True)
class Guidance:
    """`tasks` of the job ask for the same; `shapes`: how that fits the cell's machines."""

    tasks: int
    shapes: Conforming


def guidance(cell: Cell, job_spec: JobSpecification) -> list[Guidance]:
    """Three queries. Empty for tasks that live in allocs, and in a cell without machines.

    `now` and `room` count what is free without preempting anybody.
    """
    if job_spec.alloc_set:
        return []
    machines = list(
        Machine.objects.filter(cell=cell)
        .exclude(state=REMOVED)
        .order_by("id")
        .values_list(
            "id",
            "capacity",
            "attributes",
            "hostname",
            "platform",
            "rack",
            "power_domain",
            "port_low",
            "port_high",
            "state",
        )
    )
    if not machines:
        return []
    axis = len(NAMES) + len(cell.extra_resources)
    capacity: Ints = np.array([padded(row[1], axis) for row in machines], dtype=np.int64)
    capacity[:, PORTS] = [row[8] - row[7] + 1 for row in machines]
    up: Bools = np.array([row[9] == "up" for row in machines])
    attributes = Attributes()
    attributes.grow(len(machines))
    for slot, (_, _, own, *implied) in enumerate(machines):
        facts = zip(("hostname", "platform", "rack", "power_domain"), implied[:4], strict=True)
        attributes.set(slot, {**{name: value for name, value in facts if value}, **own})  # type: ignore[misc]
    settings = cell_settings.load(cell.settings)
    policy = Policy(bands=tuple(admission.bands()), batch_in_prod_by_reservation=settings.batch_in_prod_by_reservation)
    left = _left(
        cell,
        policy,
        [row[0] for row in machines],
        capacity,
        by_limit=policy.by_limit(job_spec.priority, job_spec.latency_sensitive),
    )
    kinds = platforms_of(capacity)
    found = []
    for group in job_spec.groups()[:KINDS]:
        wanted = group.requirement
        able = _satisfied(attributes, wanted, len(machines))
        fits = _fits(wanted, left)
        fits[~(able & up)] = 0
        number = np.bincount(kinds.of[able], minlength=len(kinds.capacity)).astype(np.int64)
        shapes = conforming(
            padded(wanted.limit, axis), kinds.capacity, number, now=int(np.count_nonzero(fits)), room=int(fits.sum())
        )
        found.append(Guidance(group.size, shapes))
    return found


def shapes_document(shapes: Conforming, *, extra: Sequence[str] = ()) -> dict[str, Any]:
    """Resources by name. `extra`: the cell's own."""
    result: dict[str, Any] = msgspec.to_builtins(shapes)
    result["wanted"] = as_mapping(shapes.wanted, extra=extra)
    for shape in ("asked", "one_more", "fuller"):
        if result[shape] is not None:
            result[shape]["limit"] = as_mapping(result[shape]["limit"], extra=extra)
    return result


def _satisfied(attributes: Attributes, wanted: Requirement, number: int) -> Bools:
    result: Bools = np.ones(number, dtype=np.bool_)
    for constraint in wanted.constraints:
        if constraint.hard:
            result &= attributes.mask(constraint)
    return result


def _fits(wanted: Requirement, left: Ints) -> Ints:
    """Return [N]: how many tasks fit on each machine, at most as many as the job allows per machine."""
    asked = [(r, value) for r, value in enumerate(wanted.limit) if value]
    most = wanted.max_per_machine or 2**31
    if not asked:
        return np.full(len(left), most, dtype=np.int64)
    columns = [np.maximum(0, left[:, r]) // value for r, value in asked]
    result: Ints = np.minimum(np.min(columns, axis=0), most)
    return result


def _left(cell: Cell, policy: Policy, ids: list[int], capacity: Ints, *, by_limit: bool) -> Ints:
    """[N, R]: what running tasks leave, to work placed by limits or by reservations (§5.5)."""
    axis = capacity.shape[1]
    held = [f"sum(t.reservation[{r + 1}])" for r in range(axis)]
    promised = [f"sum(t.limit[{r + 1}]) FILTER (WHERE p.prod)" for r in range(axis)]
    sums = ", ".join(f"coalesce({one}, 0)::bigint" for one in (*held, *promised))
    prod = [band for band in policy.bands if band.prod]
    reserved, limits = np.zeros_like(capacity), np.zeros_like(capacity)
    at = {machine: i for i, machine in enumerate(ids)}
    rows = query(
        f"SELECT t.machine_id, {sums} FROM scheduling_job AS j"
        " CROSS JOIN LATERAL (SELECT (j.latency_sensitive OR NOT %s) AND EXISTS (SELECT FROM"
        " unnest(%s::integer[], %s::integer[]) AS b(low, high) WHERE j.priority BETWEEN b.low AND b.high)"
        " AS prod) AS p JOIN scheduling_task AS t ON t.job_id = j.id"
        " WHERE j.cell_id = %s AND j.state <> 'dead' AND t.state = 'running' AND t.alloc_id IS NULL"
        " GROUP BY t.machine_id",
        [policy.batch_in_prod_by_reservation, [band.low for band in prod], [band.high for band in prod], cell.id],
    )
    for machine, *amounts in rows:
        if machine in at:  # it joined after the machines were read
            reserved[at[machine]], limits[at[machine]] = amounts[:axis], amounts[axis:]
    left: Ints = capacity - reserved
    return np.minimum(left, capacity - limits) if by_limit else left
