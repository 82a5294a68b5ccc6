"""Reports broken promises of cells to quota, which credits them on the invoice.

    each minute: pending prod tasks + their verdicts ─► time beyond the promise ─┐
                 new events task.evicted ─► number in 30 days ─► beyond it ──────┴─► `breaches_report`

One transaction contains the reports, the notices to tenants and the progress (`PromiseReader`). So a report that is
interrupted, repeated or made by two processes counts each second and each eviction once.
"""

from __future__ import annotations

import datetime as dt
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple
from uuid import UUID

import msgspec
from django.db import transaction

from quota.billing.credits.breach_rows import MOST_NAMED, BreachRow
from quota.models import QuotaExpiry
from quota.models.credits import EVICTIONS, PENDING
from quota.vocabulary.resources import ZERO, Vector, add
from scheduling.core.vocabulary.reasons import Why
from scheduling.journal import journal
from scheduling.journal.sql import execute, query
from scheduling.models import Cell, PendingVerdict, PromisedEviction, PromiseReader
from scheduling.policy import cell_settings
from scheduling.promises.breach_notices import breaches_notify, first_breaches
from scheduling.promises.promise_rules import (
    CELL_CAUSES,
    DAYS,
    LONGEST_LOOK_S,
    Promise,
    by_hour,
    counted_tasks,
    lacks_capacity,
    over,
    promise_of,
)
from scheduling.tasks import held_tasks, pending_verdicts

_AT_ONCE = 20_000
_WINDOW = dt.timedelta(days=DAYS)
# A band is prod. Jobs inside an alloc set are not charged, so their alloc set counts instead.
_CHARGED = "JOIN quota_priorityband AS b ON j.priority BETWEEN b.low AND b.high AND b.prod WHERE j.alloc_set_id IS NULL"
_PENDING = f"""
SELECT j.id, j.uid, j.tenant_id, j.name, b.name, t.index, {held_tasks.SINCE} AS since, t."limit",
  j.max_running, j.tasks_running
FROM scheduling_task AS t JOIN scheduling_job AS j ON j.id = t.job_id {_CHARGED}
  AND t.cell_id = %(cell)s AND t.state = 'pending' AND j.state <> 'dead' AND {held_tasks.MAY_START}
  AND {held_tasks.SINCE} < %(before)s
ORDER BY j.id, t.index"""
# An organisation that preempts its own task, also that of another team, answers for that itself.
_NEW_EVICTIONS = f"""
INSERT INTO scheduling_promisedeviction (cell_id, revision, seq, job_uid, index, at, cause)
SELECT e.cell_id, e.revision, e.seq, j.uid, e.task_index, e.time, e.data->>'cause'
FROM scheduling_event AS e JOIN scheduling_job AS j ON j.id = e.job_id
  JOIN quota_tenant AS own ON own.id = j.tenant_id
  LEFT JOIN scheduling_job AS p ON p.id = (e.data->'preemptor'->>0)::bigint
  LEFT JOIN quota_tenant AS other ON other.id = p.tenant_id {_CHARGED}
  AND e.cell_id = %(cell)s AND e.revision > %(after)s AND e.revision <= %(until)s AND e.kind = 'task.evicted'
  AND e.data->>'cause' = ANY(%(causes)s)
  AND coalesce(other.parent_id, other.id) IS DISTINCT FROM coalesce(own.parent_id, own.id)
ON CONFLICT (cell_id, revision, seq) DO NOTHING"""
_EXCESS = f"""
SELECT j.id, j.uid, j.tenant_id, j.name, b.name, e.index, e.at, t."limit", e.cause, e.revision, e.seq, n.number
FROM scheduling_promisedeviction AS e JOIN scheduling_job AS j ON j.uid = e.job_uid
  JOIN scheduling_task AS t ON t.job_id = j.id AND t.index = e.index
  CROSS JOIN LATERAL (SELECT count(*) AS number FROM scheduling_promisedeviction AS o WHERE o.job_uid = e.job_uid
    AND o.index = e.index AND o.at > e.at - %(window)s AND (o.at, o.revision, o.seq) <= (e.at, e.revision, e.seq)) AS n
  {_CHARGED} AND e.cell_id = %(cell)s AND e.revision > %(after)s AND e.revision <= %(until)s
  AND n.number > %(promised)s
ORDER BY e.revision, e.seq"""

Report = Callable[..., int]


class _Task(NamedTuple):
    """A task of a job that is charged in a prod band. `number`: its index. `since`: when it became pending, or was
    evicted.
    """

    job_id: int
    job_uid: UUID
    tenant_id: int
    job: str
    band: str
    number: int
    since: dt.datetime
    limit: Sequence[int]

    @property
    def owner(self) -> dict[str, Any]:
        """Return the fields of a `BreachRow` that name the job."""
        return {"tenant_id": self.tenant_id, "band": self.band, "job_uid": self.job_uid.hex, "job": self.job}


def breaches_watch(cell: Cell, *, now: dt.datetime, report: Report, at_once: int = _AT_ONCE) -> int:
    """Report what has broken the promise of a cell since the last call. Return the number of changed rows of quota.

    Does nothing for a cell that promises nothing. The first call for a promise only remembers the time and the newest
    event, so nothing that happened before the promise counts. `report`: `breaches_report` of quota. Locks the row of
    `PromiseReader`. Returns 0 if another process has locked it.
    """
    promise = promise_of(cell_settings.load(cell.settings))
    if not promise.evictions:
        PromisedEviction.objects.filter(cell=cell).delete()
    if not promise:
        PromiseReader.objects.filter(cell=cell).delete()
        return 0
    PromiseReader.objects.get_or_create(cell=cell, defaults={"revision": journal.newest(cell.id)})
    changed, more = 0, True
    while more:
        with transaction.atomic():
            own = PromiseReader.objects.select_for_update(skip_locked=True).filter(cell=cell).first()
            if own is None:
                break
            newest = journal.newest(cell.id)
            # After a restore, the newest revision may be lower than the last one that was read.
            until = min(newest, own.revision + at_once) if promise.evictions else newest
            over_quota = _over_quota(cell)
            found = [*_pending(cell, promise, own.looked_at, now), *_evicted(cell, promise, own.revision, until)]
            within = [row for row in found if (row.tenant_id, row.band) not in over_quota]
            first = first_breaches(cell, within)
            changed += report(cell=cell.recorded_name, rows=within)
            breaches_notify(first)
            own.revision, more = until, until < newest
            own.looked_at = max(now, own.looked_at or now) if promise.start_s else None
            own.save()
    PromisedEviction.objects.filter(cell=cell, at__lt=now - _WINDOW - dt.timedelta(days=1)).delete()
    return changed


def _over_quota(cell: Cell) -> set[tuple[int, str]]:
    """Return the tenants and bands whose jobs need more than their quota, because quota has ended."""
    return set(QuotaExpiry.objects.filter(cell=cell.recorded_name).values_list("tenant_id", "band__name"))


def _pending(cell: Cell, promise: Promise, looked_at: dt.datetime | None, now: dt.datetime) -> Iterator[BreachRow]:
    """Yield the time since the last look in which tasks were pending beyond the promise. Makes two queries."""
    if not promise.start_s or looked_at is None or looked_at >= now:
        return
    begin = max(looked_at, now - dt.timedelta(seconds=LONGEST_LOOK_S))
    allowed = dt.timedelta(seconds=promise.start_s)
    by_job: dict[int, list[_Task]] = defaultdict(list)
    limits: dict[int, tuple[int, int]] = {}
    for *row, max_running, running in query(_PENDING, {"cell": cell.id, "before": now - allowed}):
        by_job[row[0]].append(_Task(*row))
        limits[row[0]] = max_running, running
    verdicts = dict(PendingVerdict.objects.filter(job__in=list(by_job)).values_list("job_id", "whys"))
    for job_id, tasks in by_job.items():
        whys = _read(verdicts.get(job_id, []))
        if cause := lacks_capacity(whys):
            max_running, running = limits[job_id]
            number = counted_tasks(whys, job_id, max_running=max_running, running=running)
            yield from _late(tasks[:number], cause, promise, begin, now)


def _read(whys: object) -> list[Why]:
    try:
        return pending_verdicts.read(whys)
    except msgspec.ValidationError:  # the verdict of another release: the next pass replaces it
        return []


def _late(
    tasks: Sequence[_Task], cause: str, promise: Promise, begin: dt.datetime, now: dt.datetime
) -> Iterator[BreachRow]:
    """Yield one row per hour for the pending tasks of one job, all of which are pending now."""
    allowed = dt.timedelta(seconds=promise.start_s)
    hours: dict[dt.datetime, list[tuple[_Task, dt.datetime, dt.datetime]]] = defaultdict(list)
    for task in tasks:
        for hour, since, until in by_hour(max(begin, task.since + allowed), now):
            hours[hour].append((task, since, until))
    for hour, parts in sorted(hours.items(), key=lambda item: item[0]):
        yield BreachRow(
            **tasks[0].owner,
            kind=PENDING,
            cause=cause,
            hour=hour,
            terms=promise.pending_terms,
            tasks=len(parts),
            task_seconds=sum((until - since).total_seconds() for _, since, until in parts),
            evictions=0,
            affected=_sum(over(task.limit, until - since) for task, since, until in parts),
            evidence=[
                {"task": task.number, "from": _text(since), "until": _text(until)}
                for task, since, until in parts[:MOST_NAMED]
            ],
        )


def _evicted(cell: Cell, promise: Promise, after: int, until: int) -> Iterator[BreachRow]:
    """Store the new evictions, and yield one row for each that is beyond the promise. Makes two statements."""
    if not promise.evictions or until <= after:
        return
    given = {"cell": cell.id, "after": after, "until": until}
    execute(_NEW_EVICTIONS, {**given, "causes": list(CELL_CAUSES)})
    price_of = dt.timedelta(hours=promise.eviction_hours)
    for *task, cause, revision, seq, number in query(
        _EXCESS, {**given, "window": _WINDOW, "promised": promise.evictions}
    ):
        one = _Task(*task)
        yield BreachRow(
            **one.owner,
            kind=EVICTIONS,
            cause=cause,
            hour=one.since.astimezone(dt.UTC).replace(minute=0, second=0, microsecond=0),
            terms=promise.eviction_terms,
            tasks=1,
            task_seconds=0.0,
            evictions=1,
            affected=over(one.limit, price_of),
            evidence=[{"task": one.number, "at": _text(one.since), "event": f"{revision}.{seq}", "number": number}],
        )


def _sum(vectors: Iterable[Vector]) -> Vector:
    total = ZERO
    for vector in vectors:
        total = add(total, vector)
    return total


def _text(moment: dt.datetime) -> str:
    return moment.astimezone(dt.UTC).isoformat(timespec="milliseconds")
