"""Why a class of tasks is pending: what ruled machines out, and what would help (§2.6)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from quota.resources import NAMES, PORTS, describe
from scheduling.core.feasibility import Bools, EquivalenceClass, Ledger
from scheduling.core.reasons import Change, ReasonCode, RuledOut, Why
from scheduling.core.state import CellState, Ints


def explain(
    state: CellState,
    ledger: Ledger,
    wanted: EquivalenceClass,
    tasks: tuple[tuple[int, int], ...],
    *,
    ahead: int,
    job_id: int,
) -> Why:
    """Count machines out, reason by reason in the order of the pass: a machine falls to the first that holds.

    `job_id` matters where the class depends on where its job's other tasks are, else it is 0.
    """
    known = state.slot_ids > 0
    total = int(known.sum())
    if total == 0:
        return Why(tasks=tasks, machines=0, ruled_out=(RuledOut(ReasonCode.NO_MACHINES, "", 0),), ahead=ahead)
    ruled_out: list[RuledOut] = []
    alive = known & state.up
    _note(ruled_out, ReasonCode.MACHINE_STATE, "not up", known, alive)
    for constraint in wanted.requirement.constraints:
        if constraint.hard:
            kept = alive & state.attributes.satisfied(constraint)
            subject = f"{constraint.attribute} {constraint.relation} {constraint.value}".strip()
            _note(ruled_out, ReasonCode.CONSTRAINT, subject, alive, kept)
            alive = kept
    satisfying = alive
    need = ledger.need(wanted.requirement)
    evictable = ledger.left_if_preempted(wanted)
    left = ledger.left(wanted.by_limit) if evictable is None else evictable
    names = (*NAMES, *state.extra_resources)
    for resource, amount in enumerate(need):
        if amount > 0:
            kept = alive & (left[:, resource] >= amount)
            code = ReasonCode.PORTS if resource == PORTS else ReasonCode.RESOURCE
            largest = int(left[satisfying, resource].max()) if satisfying.any() else 0
            _note(ruled_out, code, names[resource], alive, kept, int(amount), max(0, largest))
            alive = kept
    alive = _spread(state, ledger, wanted, job_id, ruled_out, alive)
    _note(ruled_out, ReasonCode.CRASHED_PAIR, "crashed there lately", alive, alive & False)
    capacity_fits = satisfying & (need <= state.capacity).all(axis=1)
    return Why(
        tasks=tasks,
        machines=total,
        ruled_out=tuple(ruled_out),
        changes=_changes(names, need, left, satisfying),
        never=not bool(capacity_fits.any()),
        ahead=ahead,
    )


def _note(
    ruled_out: list[RuledOut],
    code: ReasonCode,
    subject: str,
    before: Bools,
    after: Bools,
    wanted: int = 0,
    largest: int = 0,
) -> None:
    fell = int(before.sum()) - int(after.sum())
    if fell:
        ruled_out.append(RuledOut(code, subject, fell, wanted, largest))


def _spread(
    state: CellState,
    ledger: Ledger,
    wanted: EquivalenceClass,
    job_id: int,
    ruled_out: list[RuledOut],
    alive: Bools,
) -> Bools:
    if not wanted.per_job or job_id not in state.jobs:
        return alive
    machine, rack, domain = ledger.overlay(state.jobs[job_id]).counts
    requirement = wanted.requirement
    for most, there, code in (
        (requirement.max_per_machine, machine, ReasonCode.MAX_PER_MACHINE),
        (requirement.max_per_rack, rack[state.rack], ReasonCode.MAX_PER_RACK),
        (requirement.max_per_power_domain, domain[state.domain], ReasonCode.MAX_PER_POWER_DOMAIN),
    ):
        if most:
            kept = alive & (there < most)
            _note(ruled_out, code, f"at most {most}", alive, kept)
            alive = kept
    return alive


def _changes(names: Sequence[str], need: Ints, left: Ints, satisfying: Bools) -> tuple[Change, ...]:
    """For each resource: the most it may be, all else as it is, on how many machines."""
    changes = []
    for resource in np.flatnonzero(need > 0).tolist():
        others = np.delete(np.arange(len(need)), resource)
        fitting = satisfying & (need[others] <= left[:, others]).all(axis=1)
        if fitting.any():
            most = int(left[fitting, resource].max())
            if 0 < most < need[resource]:
                number = int((left[fitting, resource] >= most).sum())
                changes.append(Change(names[resource], most, number))
    return tuple(changes)


def sentence(why: Why, *, extra: Sequence[str] = ()) -> str:
    """A verdict for people: what was wanted, what was found, what to do."""
    number = sum(count for _, count in why.tasks)
    who = f"{number} task{'s' if number != 1 else ''} can't be placed"
    if why.machines == 0:
        return f"{who}: the cell has no machines. Let one join with `borgctl machine join-token`."
    found = "; ".join(_ruled_out(one, extra) for one in why.ruled_out)
    cures = " or ".join(_cure(change, extra) for change in why.changes)
    text = f"{who} on any of {why.machines} machine{'s' if why.machines != 1 else ''}: {found}."
    if why.never:
        text += " No machine of the cell could hold one even if it were empty."
    if cures:
        text += f" It would fit with {cures}."
    return text


def _ruled_out(one: RuledOut, extra: Sequence[str]) -> str:
    number = f"{one.machines} machine{'s' if one.machines != 1 else ''}"
    match one.code:
        case ReasonCode.RESOURCE | ReasonCode.PORTS:
            index = (*NAMES, *extra).index(one.subject)
            name = one.subject.replace("_", " ")
            return (
                f"{number} with less than {describe(index, one.wanted, extra=extra)} of {name} free "
                f"(largest {describe(index, one.largest, extra=extra)})"
            )
        case ReasonCode.CONSTRAINT:
            return f"{number} without {one.subject}"
        case ReasonCode.MACHINE_STATE:
            return f"{number} not up"
        case ReasonCode.CRASHED_PAIR:
            return f"{number} where it crashed lately"
        case _:
            return f"{number} with {one.subject} of the job there already ({one.code})"


def _cure(change: Change, extra: Sequence[str]) -> str:
    index = (*NAMES, *extra).index(change.subject)
    amount = describe(index, int(change.to), extra=extra)
    where = f"{change.machines} machine{'s' if change.machines != 1 else ''}"
    return f"{change.subject.replace('_', ' ')} of at most {amount} (on {where})"
