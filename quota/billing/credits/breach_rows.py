"""The reports of scheduling about broken promises, and their sums (pure)."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from quota.vocabulary.resources import Vector, add

# The number of tasks that the evidence of one hour and cause names.
MOST_NAMED = 50
Terms = Mapping[str, float]


class BreachRow(NamedTuple):
    """A breach of the promise of a cell in one hour (`PromiseBreach`). `affected`: unit·seconds by resource.

    `terms` of pending tasks: `start_s`, the seconds within which a task starts by the promise, and `share_milli`, the
    credited share of the price in thousandths. `terms` of evictions: `evictions`, the promised number per task in
    `days` days, and `hours`, the hours of the task's price that are credited per further eviction.

    `evidence`: for pending tasks `{"task", "from", "until"}`, for evictions `{"task", "at", "event", "number"}`. Times
    are ISO 8601 in UTC.
    """

    tenant_id: int
    band: str
    job_uid: str
    job: str
    kind: str
    cause: str
    hour: dt.datetime
    terms: Terms
    tasks: int
    task_seconds: float
    evictions: int
    affected: Vector
    evidence: Sequence[dict[str, Any]]


def merge(one: BreachRow, other: BreachRow) -> BreachRow:
    """Return the sum of two breaches of the same hour (pure). The evidence of a task without a gap becomes one
    entry.
    """
    evidence = [dict(entry) for entry in one.evidence]
    last = {entry["task"]: entry for entry in evidence}
    for entry in other.evidence:
        before = last.get(entry["task"])
        if before is not None and "until" in entry and before.get("until") == entry["from"]:
            before["until"] = entry["until"]
        elif len(evidence) < MOST_NAMED:
            last[entry["task"]] = dict(entry)
            evidence.append(last[entry["task"]])
    return one._replace(
        tasks=max(one.tasks, other.tasks) if one.task_seconds or other.task_seconds else one.tasks + other.tasks,
        task_seconds=one.task_seconds + other.task_seconds,
        evictions=one.evictions + other.evictions,
        affected=add(one.affected, other.affected),
        evidence=evidence,
    )
