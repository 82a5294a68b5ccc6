"""Decides of which conditions of jobs the tenants are notified now. Pure.

    present conditions + known rows ─► new rows, rows whose tenant is notified now, rows that are over

A condition of a job is known from the first time that it is found until it is over. Its tenant is notified once, when
the condition has lasted for its patience.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from quota.vocabulary.bands import FREE_PRIORITY, Band, band_of
from scheduling.core.vocabulary.job_health import Condition

# For how long a condition lasts before the tenant is notified. A task counts as pending for too long only after the
# limit of its priority, and a deadline as at risk only when it is near, so these two need no further patience.
PATIENCE_S: Mapping[Condition, float] = {
    Condition.FAILING: 120.0,
    Condition.CRASH_LOOPING: 600.0,
    Condition.PENDING: 0.0,
    Condition.DEADLINE_AT_RISK: 0.0,
    Condition.RECOMMENDATION: 6 * 3600.0,
    Condition.SCALING_LIMITED: 0.0,
}
# Conditions that are over when the job is healthy. The tenant is notified of that.
_OF_HEALTH = (Condition.FAILING, Condition.CRASH_LOOPING)
# How long a task may be pending, in the bands of prod jobs and in other bands.
PENDING_PROD_S = 900.0
PENDING_OTHERS_S = 3600.0


class ConditionKey(NamedTuple):
    """A condition of one job."""

    job_id: int
    condition: Condition


class KnownCondition(NamedTuple):
    """A condition that was found before. `told`: whether the tenant was notified."""

    since: dt.datetime
    told: bool = False


@dataclass(frozen=True, slots=True)
class PresentConditions:
    """What was found out about jobs now. `since`: the conditions that jobs have, and since when.

    `unsettled`: conditions of which the tenant is not notified again yet, because they may come back at once. For
    example, a job that was failing and is now degraded. `healthy`: the ids of healthy jobs.
    """

    since: Mapping[ConditionKey, dt.datetime]
    unsettled: frozenset[ConditionKey] = frozenset()
    healthy: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Decision:
    """The changes of the rows, each list in the order of job ids. `due`: the tenants are notified of these conditions.
    `over`: these conditions are known no longer. `recovered`: those of them whose job is healthy again, of which the
    tenants are notified too.
    """

    new: list[ConditionKey] = field(default_factory=list)
    due: list[ConditionKey] = field(default_factory=list)
    over: list[ConditionKey] = field(default_factory=list)
    recovered: list[ConditionKey] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.new or self.due or self.over)


def decide(known: Mapping[ConditionKey, KnownCondition], present: PresentConditions, *, now: dt.datetime) -> Decision:
    """Return which conditions are new, which are over, and of which the tenants are notified now.

    The tenant of a job that is failing is not notified that tasks of the job keep crashing, because this is known.
    """
    decision = Decision(new=sorted(present.since.keys() - known.keys()))
    rows = {key: KnownCondition(since) for key, since in present.since.items()} | dict(known)
    for key, row in sorted(rows.items()):
        if key in present.since:
            implied = key.condition is Condition.CRASH_LOOPING and ConditionKey(key.job_id, Condition.FAILING) in rows
            lasted_s = (now - row.since).total_seconds()
            if not row.told and not implied and lasted_s >= PATIENCE_S[key.condition]:
                decision.due.append(key)
        elif not row.told or key not in present.unsettled:
            decision.over.append(key)
            if row.told and key.condition in _OF_HEALTH and key.job_id in present.healthy:
                decision.recovered.append(key)
    return decision


def longest_pending_s(priority: int, bands: Sequence[Band]) -> float | None:
    """Return for how many seconds a task of this priority may be pending before its tenant is notified. None if the
    tenant is never notified, because the priority is free and promises nothing (§2.5).
    """
    if priority == FREE_PRIORITY:
        return None
    try:
        return PENDING_PROD_S if band_of(priority, bands).prod else PENDING_OTHERS_S
    except LookupError:  # an SRE has changed the bands since the job was submitted
        return PENDING_OTHERS_S
