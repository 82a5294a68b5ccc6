"""Requests, reservations and usage of every job per hour. They are reported to quota after the hour (§2.5, §5.5).

    every 5 minutes: task rows ─► `look` ─► ReservedInHour
    every hour:  jobs, versions of specs ─┐
                 ReservedInHour ──────────┼─► `rows_of` ─► quota.billing.metering.meter, once an hour
                 windows of usage ────────┘

Accuracy:

* Limits are exact. They are the amounts charged to quota, from the submission to the end of a job. Each version of the
  spec counts for the time in which it was the newest. Jobs inside an alloc set have no limits here, because the set is
  charged.
* Reservations are sampled every five minutes. If a task starts or ends, up to one sample (300 s of its reservation) is
  counted too much or too little, with equal probability. A missing sample counts as the mean of the others. An hour
  without samples has no reservations. Tasks inside an alloc use the reservation of the alloc.
* Usage is measured by machines in windows of five minutes. A window counts in the hour in which it begins. A window is
  left out if it arrives more than `SETTLED` after the hour, because its machine was not connected. So usage may be too
  low but not too high. CPU, RAM, disk and disk bandwidth are measured. An accelerator belongs to one task, so its
  reservation counts as usage.
* If a job changes its band, its reservations and usage in the hour count for its last band.
* Limits and usage are exact integers of any size. Sums of samples are limited to 64 bits.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from django.db import transaction
from django.utils import timezone

from quota.admission.admission import bands
from quota.billing.metering import MeteredRow
from quota.vocabulary.bands import FREE_PRIORITY, Band, band_of
from quota.vocabulary.resources import ACCELERATORS, CPU, DISK, DISK_BANDWIDTH, RAM, SIZE, ZERO, Vector, add
from scheduling.journal.sql import execute, query
from scheduling.models import Cell, JobSpec, MeteringHour, ReservedInHour
from scheduling.spec import parser
from scheduling.usage.usage_windows import TABLE

HOUR = dt.timedelta(hours=1)
EVERY_S = 300.0
# Beat may run twice, and Celery may deliver twice: samples closer together than this count once.
APART = dt.timedelta(seconds=EVERY_S / 2)
# Time after the end of an hour in which its windows may arrive, also from machines that were cut off for a while.
SETTLED = dt.timedelta(minutes=15)
_KEPT = dt.timedelta(days=60)
_MOST = 2**63 - 1
_MICROS = 1_000_000
_HOUR_S = 3600


class HourSink(Protocol):
    """The interface of a function that stores the metered amounts of one hour. It is called in the transaction that
    marks the hour as reported.
    """

    def __call__(self, *, cell: str, hour: dt.datetime, rows: Sequence[MeteredRow]) -> object: ...


def look(cell: Cell, *, now: dt.datetime) -> bool:
    """Add the current reservations of running tasks to the sums of the present hour. Return False if nothing was
    added, because the last call was too recent or the hour was already reported.

    Makes two statements. Locks the row of the hour.
    """
    hour = _floor(now)
    with transaction.atomic():
        written = execute(
            "INSERT INTO scheduling_meteringhour AS h (cell_id, hour, looks, looked_at) VALUES (%s, %s, 1, %s)"
            " ON CONFLICT (cell_id, hour) DO UPDATE SET looks = h.looks + 1, looked_at = excluded.looked_at"
            " WHERE h.metered_at IS NULL AND (h.looked_at IS NULL OR h.looked_at <= excluded.looked_at - %s)",
            [cell.id, hour, now, APART],
        )
        if not written:
            return False
        execute(_LOOK, {"cell": cell.id, "hour": hour, "most": _MOST})
    return True


def meter_due(cell: Cell, *, now: dt.datetime, keep_hours: int, meter: HourSink) -> list[dt.datetime]:
    """Report the usage of every past hour that was not reported yet, oldest hour first. Return these hours.

    `meter`: a function that is called with the rows of each hour, in one transaction with the mark that the hour is
    reported. The first reported hour of a cell is the hour of its first sample. `keep_hours`: older hours are not
    reported.
    """
    done = []
    for hour in _due(cell, now=now, keep_hours=keep_hours):
        with transaction.atomic():
            MeteringHour.objects.bulk_create([MeteringHour(cell=cell, hour=hour)], ignore_conflicts=True)
            row = MeteringHour.objects.select_for_update().get(cell=cell, hour=hour)
            if row.metered_at is not None:
                continue
            meter(cell=cell.recorded_name, hour=hour, rows=rows_of(cell, hour, looks=row.looks))
            row.metered_at = timezone.now()
            row.save(update_fields=["metered_at"])
            ReservedInHour.objects.filter(cell=cell, hour=hour).delete()
        done.append(hour)
    return done


def lag_s(*, now: dt.datetime) -> dict[str, float]:
    """Return the seconds since the end of the last reported hour, or since the first sample or the creation of the
    cell if no hour was reported yet, for each operated cell. One query.
    """
    found = query(
        "SELECT c.name, extract(epoch FROM %s - coalesce(max(h.hour) FILTER (WHERE h.metered_at IS NOT NULL) + %s,"
        " min(h.hour), c.created_at)) FROM scheduling_cell AS c LEFT JOIN scheduling_meteringhour AS h"
        " ON h.cell_id = c.id WHERE c.deleted_at IS NULL AND c.study_of IS NULL GROUP BY c.id ORDER BY c.name",
        [now, HOUR],
    )
    return {name: max(0.0, float(seconds)) for name, seconds in found}


def forget_old(*, now: dt.datetime) -> None:
    """Delete the metering rows of hours that are more than 60 days old, even if they were not reported to quota."""
    MeteringHour.objects.filter(hour__lt=now - _KEPT).delete()
    ReservedInHour.objects.filter(hour__lt=now - _KEPT).delete()


def rows_of(cell: Cell, hour: dt.datetime, *, looks: int) -> list[MeteredRow]:
    """Return the metered amounts of `hour`: one row per job and band, sorted by job. Rows that contain only zeros are
    left out. `looks`: the number of samples in the hour.

    Makes four queries, and one more if a job was updated in the hour.
    """
    reserved = _reserved(cell, hour, looks)
    used = _used(cell, hour)
    known, extra = bands(), tuple(cell.extra_resources)
    jobs = _jobs(cell, hour, sorted(reserved.keys() | used.keys()))
    changed = _changed(hour, jobs)
    result = []
    for job in jobs:
        asked = _asked(job, changed.get(job.id, ()), extra, known)
        last = _account(job.priority, known)
        had = reserved.get(job.id, ZERO)
        vectors = {band: (limit, ZERO, ZERO) for band, limit in asked.items()}
        spent = list(used.get(job.id, ZERO))
        spent[ACCELERATORS] = had[ACCELERATORS]
        vectors[last] = (asked.get(last, ZERO), had, tuple(spent))
        for band, (limit, kept, taken) in vectors.items():
            if any(limit) or any(kept) or any(taken):
                result.append(MeteredRow(job.tenant_id, band, job.uid, job.name, job.labels, limit, kept, taken))
    return result


@dataclass(frozen=True, slots=True)
class _Job:
    id: int
    uid: str
    tenant_id: int
    name: str
    labels: Mapping[str, str]
    priority: int
    requested: Vector
    version: int
    begins_at: dt.datetime  # the part of the hour in which the job lived
    ends_at: dt.datetime


def _due(cell: Cell, *, now: dt.datetime, keep_hours: int) -> list[dt.datetime]:
    marks = MeteringHour.objects.filter(cell=cell)
    last = marks.filter(metered_at__isnull=False).order_by("-hour").values_list("hour", flat=True).first()
    first = marks.order_by("hour").values_list("hour", flat=True).first()
    if first is None:
        return []
    begin = max(first if last is None else last + HOUR, _floor(now) - keep_hours * HOUR)
    end = now if cell.deleted_at is None else min(now, _floor(cell.deleted_at) + HOUR + SETTLED)
    hours = []
    while begin + HOUR + SETTLED <= end:
        hours.append(begin)
        begin += HOUR
    return hours


def _floor(moment: dt.datetime) -> dt.datetime:
    return moment.replace(minute=0, second=0, microsecond=0)


_LOOK = (
    "INSERT INTO scheduling_reservedinhour AS r (cell_id, hour, job_id, reserved)"
    " SELECT %(cell)s, %(hour)s, job_id, ARRAY["
    + ", ".join(f"least(sum(reservation[{place}]), %(most)s)::bigint" for place in range(1, SIZE + 1))
    + "] FROM scheduling_task WHERE cell_id = %(cell)s AND machine_id IS NOT NULL AND alloc_id IS NULL GROUP BY job_id"
    " ON CONFLICT (cell_id, hour, job_id) DO UPDATE SET reserved = ARRAY["
    + ", ".join(
        f"least(r.reserved[{place}]::numeric + excluded.reserved[{place}], %(most)s)::bigint"
        for place in range(1, SIZE + 1)
    )
    + "]"
)


def _reserved(cell: Cell, hour: dt.datetime, looks: int) -> dict[int, Vector]:
    rows = ReservedInHour.objects.filter(cell=cell, hour=hour).values_list("job_id", "reserved")
    return {job: tuple(value * _HOUR_S // looks for value in vector) for job, vector in rows} if looks else {}


_SPAN = "extract(epoch FROM end_time - start_time)::float8"


def _used(cell: Cell, hour: dt.datetime) -> dict[int, Vector]:
    rows = query(
        f"SELECT collection_id, sum(average_usage_cpus * {_SPAN}) * 1000, sum(average_usage_memory * {_SPAN}),"
        f" sum(disk_bytes * {_SPAN}), sum((read_bytes_s + written_bytes_s) * {_SPAN}) FROM {TABLE}"
        " WHERE start_time >= %s AND start_time < %s AND cell_id = %s GROUP BY collection_id",
        [hour, hour + HOUR, cell.id],
    )
    result = {}
    for job, cpu, ram, disk, bandwidth in rows:
        vector = [0] * SIZE
        vector[CPU], vector[RAM] = round(cpu), round(ram)
        vector[DISK], vector[DISK_BANDWIDTH] = round(disk), round(bandwidth)
        result[job] = tuple(vector)
    return result


_COLUMNS = (
    "j.id, replace(j.uid::text, '-', ''), j.tenant_id, j.name, j.labels, j.priority, j.requested, j.spec_version,"
    " greatest(j.created_at, %(begin)s), least(coalesce(j.ended_at, %(end)s), %(end)s)"
)
# Three conditions, each with an index: live jobs, jobs that have ended since, and jobs with measurements.
_JOBS = (
    f"SELECT {_COLUMNS} FROM scheduling_job AS j WHERE j.cell_id = %(cell)s AND j.created_at < %(end)s"
    " AND (j.state IN ('pending', 'running') OR j.ended_at > %(begin)s OR j.id = ANY(%(ids)s)) ORDER BY j.id"
)


def _jobs(cell: Cell, hour: dt.datetime, measured: list[int]) -> list[_Job]:
    rows = query(_JOBS, {"cell": cell.id, "begin": hour, "end": hour + HOUR, "ids": measured})
    return [
        _Job(*first, json.loads(labels), priority, _fixed(requested), version, begin, max(begin, end))  # type: ignore[call-arg]
        for *first, labels, priority, requested, version, begin, end in rows
    ]


def _changed(hour: dt.datetime, jobs: Sequence[_Job]) -> dict[int, list[JobSpec]]:
    """Return all versions of the spec, oldest first, of each job that was updated after the hour began. The keys are
    job ids.
    """
    several = [job.id for job in jobs if job.version > 1]
    if not several:
        return {}
    newer = JobSpec.objects.filter(job__in=several, version__gt=1, created_at__gt=hour).values("job_id")
    found: dict[int, list[JobSpec]] = {}
    for row in JobSpec.objects.filter(job__in=newer.distinct()).order_by("job_id", "version"):
        found.setdefault(row.job_id, []).append(row)
    return found


def _asked(job: _Job, versions: Iterable[JobSpec], extra: tuple[str, ...], known: Sequence[Band]) -> dict[str, Vector]:
    """Return, by band, the sum of (limit × seconds) of a job in the metered hour. Each version of the spec counts for
    the seconds in which it was the newest.
    """
    rows = list(versions)
    if not rows:
        return {_account(job.priority, known): _over(job.requested, job.ends_at - job.begins_at)}
    result: dict[str, Vector] = {}
    for place, row in enumerate(rows):
        begin = max(job.begins_at, row.created_at) if place else job.begins_at
        end = min(job.ends_at, rows[place + 1].created_at) if place + 1 < len(rows) else job.ends_at
        if end <= begin:
            continue
        read = parser.load(row.spec, extra=extra)
        band = _account(read.priority, known)
        result[band] = add(result.get(band, ZERO), _over(_fixed(read.charged()), end - begin))
    return result


def _over(vector: Vector, span: dt.timedelta) -> Vector:
    micros = span // dt.timedelta(microseconds=1)
    return tuple(value * micros // _MICROS for value in vector)


def _account(priority: int, known: Sequence[Band]) -> str:
    """Return the name of the band whose quota a job with this `priority` uses. Return "" for the free priority, which
    uses no quota, and for a priority that is in no band.
    """
    if priority == FREE_PRIORITY:
        return ""
    try:
        return band_of(priority, known).name
    except LookupError:
        return ""


def _fixed(vector: Sequence[int]) -> Vector:
    return tuple(vector[:SIZE])
