"""Finds the smallest changes with which a pending task would fit. For each change, it counts the machines on which the
task would then fit (§2.6).

A single change is suggested only if it is sufficient by itself. `tests/properties/test_why.py` applies each suggested
change and counts the machines again with a simple program.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from scheduling.core.cell.attributes import holds
from scheduling.core.cell.pools import PoolRule
from scheduling.core.explaining.judgement import BOUNDS, Judgement
from scheduling.core.vocabulary.reasons import WHOLE_CORES, ChangeKind, SuggestedChange
from scheduling.core.vocabulary.requirement import Constraint, Relation

Positions = NDArray[np.intp]
# What `SuggestedChange.to` says where a constraint is given up: any value of the attribute would do.
ANY = "any value"
# An attribute with more values than this among the machines in question is a name: no value of it is a hint.
MOST_VALUES = 64
_ORDERED = {
    Relation.LESS: Relation.AT_MOST,
    Relation.AT_MOST: Relation.AT_MOST,
    Relation.GREATER: Relation.AT_LEAST,
    Relation.AT_LEAST: Relation.AT_LEAST,
}


def smallest_changes(judgement: Judgement) -> tuple[SuggestedChange, ...]:
    """Return each single change with which a task of the class fits. If no single change is sufficient, return one
    combination of changes with which a task fits, or nothing if there is no such combination.
    """
    judged = judgement.judged
    found: list[SuggestedChange] = []
    for obstacle in np.flatnonzero(judged.alone).tolist():
        most, machines = int(judged.alone_largest[obstacle]), int(judged.alone_at_largest[obstacle])
        if obstacle < len(judgement.demands):
            if not isinstance(judgement.demands[obstacle], PoolRule):  # no change of the job removes it
                where = np.flatnonzero(judged.only == obstacle)
                found += _constraint(judgement, judgement.demands[obstacle], where)
        elif obstacle < judgement.bound(0):
            if most > 0:
                found.append(SuggestedChange(judgement.names[obstacle - judgement.resource(0)], most, machines))
        elif obstacle == judgement.bound(4):
            if 0 < most < judgement.cores:
                found.append(SuggestedChange(WHOLE_CORES, most, machines))
        else:
            where = np.flatnonzero(judged.only == obstacle)
            found.append(_bound(judgement, obstacle - judgement.bound(0), where))
    if not found and (combined := _combined(judgement)) is not None:
        found.append(combined)
    return tuple(found)


def room_after(judgement: Judgement, change: SuggestedChange) -> int:
    """Return how many tasks of the class fit on all machines together after the change. This is a lower bound."""
    demands, limit, bounds = (list(judgement.demands), list(judgement.requirement.limit), list(judgement.bounds))
    cores = judgement.cores
    for part in change.parts or (change,):
        if part.constraint is not None:
            demands.remove(part.constraint)
            demands += [part.instead] if part.instead is not None else []
        elif part.kind is ChangeKind.RAISE:
            bounds[[code.value for code in BOUNDS].index(part.subject)] = int(part.to)
        elif part.subject == WHOLE_CORES:
            cores = int(part.to)
        else:
            limit[judgement.names.index(part.subject)] = int(part.to)
    suits = judgement.open.copy()
    for constraint in demands:
        suits &= judgement.state.machines.attributes.mask(constraint)[judgement.order]
    asked = np.flatnonzero(np.array(limit) > 0)
    room = np.maximum(0, judgement.left[asked] // np.array(limit)[asked][:, None]).min(axis=0, initial=2**31)
    room = np.where(suits & (~judgement.judged.few | (cores < judgement.cores)), room, 0)
    if cores > 0:
        room = np.minimum(room, judgement.judged.cores // cores)
    there = judgement.judged.there
    if bounds[0]:
        room = np.minimum(room, np.maximum(0, bounds[0] - there[:, 0]))
    for kind, domain in ((1, judgement.rack), (2, judgement.power)):
        if bounds[kind] and len(room):
            # What a domain may take goes to its machines in turn.
            by = np.argsort(domain, kind="stable")
            ends = np.cumsum(room[by])
            begins = np.flatnonzero(np.append(True, domain[by][1:] != domain[by][:-1]))
            lengths = np.diff(np.append(begins, len(by)))
            before = ends - room[by] - np.repeat((ends - room[by])[begins], lengths)
            most = np.maximum(0, bounds[kind] - there[by, kind])
            room[by] = np.where(domain[by] < 0, room[by], np.clip(most - before, 0, room[by]))  # unknown: no bound
    return int(room.sum())


def _constraint(judgement: Judgement, constraint: Constraint, where: Positions) -> list[SuggestedChange]:
    found = [SuggestedChange(constraint.attribute, ANY, len(where), kind=ChangeKind.DROP, constraint=constraint)]
    attributes = judgement.state.machines.attributes
    if constraint.relation is not Relation.EQUAL and constraint.relation not in _ORDERED:
        return found
    values = attributes.values_on(constraint.attribute, judgement.order[where])
    if len(values) > MOST_VALUES:
        return found
    options = []
    for value in sorted(values):
        relation = _ORDERED.get(constraint.relation, Relation.EQUAL)
        instead = Constraint(constraint.attribute, relation, value)
        machines = sum(number for other, number in values.items() if holds(instead, other))
        options.append((machines, instead))
    if options:
        # Of an ordered relation the nearest value, which the fewest machines satisfy; else the commonest.
        best = min if constraint.relation in _ORDERED else max
        machines, instead = best(options, key=lambda option: option[0])
        found.append(
            SuggestedChange(
                constraint.attribute, instead.value, machines, ChangeKind.RELAX, constraint=constraint, instead=instead
            )
        )
    return found


def _bound(judgement: Judgement, kind: int, where: Positions) -> SuggestedChange:
    there = judgement.judged.there[where, kind]
    least = int(there.min())
    return SuggestedChange(BOUNDS[kind].value, least + 1, int(np.count_nonzero(there == least)), kind=ChangeKind.RAISE)


def _combined(judgement: Judgement) -> SuggestedChange | None:
    """Find the machine on which the least is missing for the task. Return all changes that the task needs to fit there,
    combined into one change. Return None if on every machine at least one requested resource has nothing free.
    """
    order, limit = judgement.order, np.array(judgement.requirement.limit)
    left = judgement.left.T
    asked = limit > 0
    possible = judgement.open & ~judgement.judged.few & ((left > 0) | ~asked).all(axis=1)
    for constraint in judgement.demands:
        if isinstance(constraint, PoolRule):
            possible &= judgement.state.machines.attributes.mask(constraint)[order]
    i = judgement.closest(possible)
    if i is None:
        return None
    given_up = judgement.failing(i)
    fits = judgement.open & ~judgement.judged.few
    parts = [SuggestedChange(one.attribute, ANY, 0, ChangeKind.DROP, constraint=one) for one in given_up]
    for constraint in judgement.demands:
        if constraint not in given_up:
            fits &= judgement.state.machines.attributes.mask(constraint)[order]
    lowered = np.where(asked, np.minimum(limit, left[i]), 0)
    fits &= (left >= lowered)[:, asked].all(axis=1)
    parts += [SuggestedChange(judgement.names[r], int(lowered[r]), 0) for r in np.flatnonzero(lowered < limit).tolist()]
    for kind, most in enumerate(judgement.bounds):
        there = judgement.judged.there[:, kind]
        if most and judgement.bound_reached(i, kind):
            most = int(there[i]) + 1
            parts.append(SuggestedChange(BOUNDS[kind].value, most, 0, kind=ChangeKind.RAISE))
        if most:
            fits &= there < most
    if not parts:
        return None
    machines = int(np.count_nonzero(fits))
    return SuggestedChange("", "", machines, kind=ChangeKind.COMBINED, parts=tuple(parts))
