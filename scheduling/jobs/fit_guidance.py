"""Guidance for planned jobs (§2.6): how many of a job's tasks fit on the cell's machines now, how many would fit if the
machines were empty, and with which limits more tasks would fit.

The numbers come from the summary of the cell's machines that the master of the cell publishes in Redis.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

from quota.admission import admission
from quota.vocabulary.bands import Band
from quota.vocabulary.resources import as_mapping
from scheduling.core.cell.attributes import Attributes
from scheduling.core.cell.pools import rules_for, with_rules
from scheduling.core.explaining.suggested_limits import conforming, platforms_of
from scheduling.core.vocabulary.kernel_arrays import Bools, Ints
from scheduling.core.vocabulary.policy import Policy
from scheduling.core.vocabulary.reasons import Conforming
from scheduling.core.vocabulary.requirement import Requirement, padded
from scheduling.models import Cell
from scheduling.policy import cell_settings
from scheduling.spec.job_spec import JobSpecification
from scheduling.usage import cell_view

# If the tasks of a job differ, only the first kinds are described.
KINDS = 3


@dataclass(frozen=True, slots=True)
class Guidance:
    """Advice about the limits of some equal tasks of a job. `tasks`: the number of these tasks, but at most
    the number that the job may run at once. `shapes`: how many of them fit on the machines of the cell, and other
    limits that use the machines better.
    """

    tasks: int
    shapes: Conforming


def guidance(
    cell: Cell, job_spec: JobSpecification, bands: Sequence[Band] | None = None, *, tenant: str | None = None
) -> list[Guidance]:
    """Return how many tasks of the spec fit in the cell now, with one result per kind of equal tasks, for the first
    few kinds. Makes one query, or none if the caller gives the priority bands. `tenant`: whose machine pools count;
    None: the tenant in the spec.

    The numbers come from the summary that the cell's master publishes. They do not assume any preemption. The list is
    empty for tasks inside allocs, for a cell without machines, and if no summary is available.
    """
    view = None if job_spec.alloc_set else cell_view.read(cell.id, revision=cell.revision)
    if view is None or not len(view.up):
        return []
    left = view.capacity - view.reserved
    if policy_of(cell, bands).by_limit(job_spec.priority, job_spec.latency_sensitive):
        left = np.minimum(left, view.capacity - view.prod_limit)
    kinds = platforms_of(view.capacity)
    found = []
    rules = rules_for(view.pools, job_spec.tenant if tenant is None else tenant)
    for group in job_spec.groups()[:KINDS]:
        wanted = with_rules(group.requirement, rules)
        able = _satisfied(view.attributes, wanted, len(view.up))
        fits = _fits(wanted, left)
        fits[~(able & view.up)] = 0
        number = np.bincount(kinds.of[able], minlength=len(kinds.capacity)).astype(np.int64)
        limit = padded(wanted.limit, view.capacity.shape[1])
        shapes = conforming(limit, kinds.capacity, number, now=int(np.count_nonzero(fits)), room=int(fits.sum()))
        found.append(Guidance(min(group.size, job_spec.max_running or group.size), shapes))
    return found


def able_machines(cell: Cell, job_spec: JobSpecification) -> list[tuple[Requirement, int, Ints]]:
    """Return for each kind of equal tasks of the spec its requirement, the number of tasks that run at once, and the
    capacity [N, R] of the machines that are up and satisfy the constraints. The list is empty if this is not known: for
    tasks inside allocs, and if no summary of the machines is available.
    """
    view = None if job_spec.alloc_set else cell_view.read(cell.id, revision=cell.revision)
    if view is None or not len(view.up):
        return []
    found = []
    rules = rules_for(view.pools, job_spec.tenant)
    for group in job_spec.groups():
        able = _satisfied(view.attributes, with_rules(group.requirement, rules), len(view.up)) & view.up
        tasks = min(group.size, job_spec.max_running or group.size)
        found.append((group.requirement, tasks, view.capacity[able]))
    return found


def policy_of(cell: Cell, bands: Sequence[Band] | None = None) -> Policy:
    """Return a scheduling policy that has only the settings of the cell that decide whether a task is placed by its
    limit or by its reservation. `bands`: the priority bands, if the caller has read them.
    """
    settings = cell_settings.load(cell.settings)
    bands = admission.bands() if bands is None else bands
    return Policy(bands=tuple(bands), batch_in_prod_by_reservation=settings.batch_in_prod_by_reservation)


def shapes_document(shapes: Conforming, *, extra: Sequence[str] = ()) -> dict[str, Any]:
    """Return `shapes` (advice about limits) as a document for the REST API, with resources by name. `extra`: the
    names of the resources that the cell defines itself.
    """
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
    """Return an array [M]: how many tasks fit on each machine, but never more than the job's maximum per machine.
    `left`: the free capacity by machine and resource.
    """
    asked = [(r, value) for r, value in enumerate(wanted.limit) if value]
    most = wanted.max_per_machine or 2**31
    if not asked:
        return np.full(len(left), most, dtype=np.int64)
    columns = [np.maximum(0, left[:, r]) // value for r, value in asked]
    result: Ints = np.minimum(np.min(columns, axis=0), most)
    return result
