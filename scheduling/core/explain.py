"""Why a class is pending, and what would help (§2.6): values from the end of the pass; sentences at the edge."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from quota.resources import NAMES, PORTS, describe
from scheduling.core.classes import Sorting
from scheduling.core.kernels.filters import MACHINE_FULL, POWER_FULL, RACK_FULL
from scheduling.core.kernels.verdicts import rule_out
from scheduling.core.layout import Counts, Ints32, Levels, Machines, Verdicts
from scheduling.core.reasons import Change, ReasonCode, RuledOut, Why
from scheduling.core.requirement import Constraint, Relation, Requirement
from scheduling.core.state import CellState

_SPREAD = {
    MACHINE_FULL: ReasonCode.MAX_PER_MACHINE,
    RACK_FULL: ReasonCode.MAX_PER_RACK,
    POWER_FULL: ReasonCode.MAX_PER_POWER_DOMAIN,
}
# What `Change.to` says where a constraint is in the way: any value of the attribute would do.
ANY = "any value"


def explain(
    state: CellState, sorting: Sorting, machines: Machines, levels: Levels, counts: Counts, answer: Ints32
) -> tuple[Why, ...]:
    """One `Why` for each group that the pass left pending, in the order of the queue."""
    left_out = np.flatnonzero(answer == -1)
    if len(left_out) == 0:
        return ()
    tasks: dict[int, dict[int, int]] = {}
    ahead: dict[int, int] = {}
    for before, place in enumerate(left_out.tolist()):
        group = int(sorting.of_task[place])
        job = sorting.jobs[sorting.job[place]].id
        waiting = tasks.setdefault(group, {})
        waiting[job] = waiting.get(job, 0) + 1
        ahead.setdefault(group, before)
    result = []
    for group, waiting in tasks.items():
        requirement = sorting.requirements[group]
        verdicts = _verdicts(state, sorting, machines, levels, counts, group, requirement)
        result.append(
            Why(
                tasks=tuple(sorted(waiting.items())),
                machines=len(state.machines),
                ruled_out=_ruled_out(state, requirement, verdicts),
                changes=_changes(state, requirement, verdicts),
                never=int(verdicts.fits[1]) == 0,
                ahead=ahead[group],
            )
        )
    return tuple(result)


def _verdicts(
    state: CellState, sorting: Sorting, machines: Machines, levels: Levels, counts: Counts, group: int,
    requirement: Requirement
) -> Verdicts:  # fmt: skip
    demands = _demands(requirement)
    slots = len(state.machines.id)
    failed: NDArray[np.int32] = np.full(slots, -1, dtype=np.int32)
    failures: NDArray[np.int32] = np.zeros(slots, dtype=np.int32)
    for number, constraint in reversed(list(enumerate(demands))):
        fails = ~state.machines.attributes.mask(constraint)
        failed[fails] = number
        failures += fails
    axis = state.axis
    verdicts = Verdicts(
        constraint=np.zeros(len(demands), dtype=np.int64),
        state=np.zeros(1, dtype=np.int64),
        resource=np.zeros(axis, dtype=np.int64),
        largest=np.zeros(axis, dtype=np.int64),
        spread=np.zeros(4, dtype=np.int64),
        crashed=np.zeros(1, dtype=np.int64),
        only=np.zeros((len(demands) + axis + 4, 2), dtype=np.int64),
        fits=np.zeros(2, dtype=np.int64),
    )
    rule_out(machines, levels, sorting.groups, group, counts, failed, failures, verdicts)
    return verdicts


def _demands(requirement: Requirement) -> list[Constraint]:
    return [constraint for constraint in requirement.constraints if constraint.hard]


def _ruled_out(state: CellState, requirement: Requirement, verdicts: Verdicts) -> tuple[RuledOut, ...]:
    if len(state.machines) == 0:
        return (RuledOut(ReasonCode.NO_MACHINES, "", 0),)
    names = (*NAMES, *state.extra_resources)
    found = [
        RuledOut(ReasonCode.CONSTRAINT, _spelled(constraint), int(verdicts.constraint[number]))
        for number, constraint in enumerate(_demands(requirement))
    ]
    found.append(RuledOut(ReasonCode.MACHINE_STATE, "", int(verdicts.state[0])))
    found += [
        RuledOut(
            ReasonCode.PORTS if r == PORTS else ReasonCode.RESOURCE,
            names[r],
            int(verdicts.resource[r]),
            wanted=requirement.limit[r],
            largest=int(verdicts.largest[r]),
        )
        for r in range(state.axis)
    ]
    bounds = (requirement.max_per_machine, requirement.max_per_rack, requirement.max_per_power_domain)
    found += [
        RuledOut(reason, "", int(verdicts.spread[answer]), wanted=bound)
        for (answer, reason), bound in zip(_SPREAD.items(), bounds, strict=True)
    ]
    found.append(RuledOut(ReasonCode.CRASHED_PAIR, "", int(verdicts.crashed[0])))
    return tuple(one for one in found if one.machines)


def _changes(state: CellState, requirement: Requirement, verdicts: Verdicts) -> tuple[Change, ...]:
    """Each alone would do: a constraint dropped, a resource lowered to the most one machine has, a bound raised."""
    names = (*NAMES, *state.extra_resources)
    demands = _demands(requirement)
    found = []
    for row, (value, machines) in enumerate(verdicts.only.tolist()):
        if machines == 0:
            continue
        if row < len(demands):
            found.append(Change(demands[row].attribute, ANY, machines))
        elif (r := row - len(demands)) < state.axis:
            if value > 0:
                found.append(Change(names[r], value, machines))
        else:
            found.append(Change(_SPREAD[r - state.axis].value, -value, machines))
    return tuple(found)


def _spelled(constraint: Constraint) -> str:
    if constraint.relation in (Relation.PRESENT, Relation.ABSENT):
        return f"{constraint.attribute} {constraint.relation.value}"
    return f"{constraint.attribute} {constraint.relation.value} {constraint.value}"


# --- sentences ------------------------------------------------------------------------------------------

_REASONS = {
    ReasonCode.NO_MACHINES: "the cell has no machine",
    ReasonCode.CONSTRAINT: "{n} without {subject}",
    ReasonCode.MACHINE_STATE: "{n} not up",
    ReasonCode.RESOURCE: "{n} with less than {wanted} of {subject} free (largest {largest})",
    ReasonCode.PORTS: "{n} with less than {wanted} free (largest {largest})",
    ReasonCode.MAX_PER_MACHINE: "{n} with {bound} of its tasks already, as many as a machine may hold",
    ReasonCode.MAX_PER_RACK: "{n} in racks with {bound} of its tasks already, as many as a rack may hold",
    ReasonCode.MAX_PER_POWER_DOMAIN: (
        "{n} in power domains with {bound} of its tasks already, as many as one may hold"
    ),
    ReasonCode.CRASHED_PAIR: "{n} where it crashed a short while ago",
}


def sentence(why: Why, *, name: str = "", job_id: int | None = None, extra: Sequence[str] = ()) -> str:
    """A verdict for people: what was wanted, what was found, what to do.

    `name`: of the job; `job_id`: count this job's tasks alone; `extra`: the cell's own resources.
    """
    waiting = sum(number for job, number in why.tasks if job_id is None or job == job_id)
    who = f"{waiting} task{'' if waiting == 1 else 's'}{f' of job {name}' if name else ''} can't be placed"
    if not why.ruled_out:
        return f"{who} in this pass; the next one tries again."
    if why.machines == 0:
        return (
            f"{who}: the cell has no machine. Let one join, with a token from `borgctl machine join-token`."
        )
    told = "; ".join(_told(one, extra) for one in why.ruled_out)
    text = f"{who} on any of {_machines(why.machines)}: {told}."
    if why.never:
        text += " No machine of the cell could hold one even if it were empty."
    if why.changes:
        text += f" It would fit with {', or with '.join(_cure(change, extra) for change in why.changes)}."
    elif why.never:
        text += " Ask for less, or for larger machines."
    else:
        text += " It waits for room that tasks of its own or a higher priority hold."
    return text


def _told(one: RuledOut, extra: Sequence[str]) -> str:
    return _REASONS[one.code].format(
        n=_machines(one.machines),
        subject=one.subject,
        bound=one.wanted,
        wanted=_quantity(one.subject, one.wanted, extra),
        largest=_quantity(one.subject, one.largest, extra),
    )


def _cure(change: Change, extra: Sequence[str]) -> str:
    where = f"(on {_machines(change.machines)})"
    if isinstance(change.to, str):
        return f"{change.to} of {change.subject} {where}"
    if change.subject in (*NAMES, *extra):
        return f"at most {_quantity(change.subject, change.to, extra)} of {change.subject} {where}"
    return f"{change.subject} raised to {change.to} {where}"


def _quantity(subject: str, value: int, extra: Sequence[str]) -> str:
    names = (*NAMES, *extra)
    return describe(names.index(subject), value, extra=extra) if subject in names else str(value)


def _machines(number: int) -> str:
    return f"{number} machine{'' if number == 1 else 's'}"
