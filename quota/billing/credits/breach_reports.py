"""Stores broken promises that scheduling reports: one row per job, hour, kind, cause and terms of the promise.

A row is open until the month is credited. Reports of the same hour are added to the open row. The caller makes sure
that it reports each breach once, in the transaction in which it remembers that.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Iterable, Sequence
from typing import Any

from django.db import connection

from quota.billing.credits.breach_rows import BreachRow, Terms, merge
from quota.models import PriorityBand, PromiseBreach


def breaches_report(*, cell: str, rows: Iterable[BreachRow]) -> int:
    """Add breaches to the open rows of a cell. Return the number of changed rows. Makes four statements at most.

    Must run in a transaction. Locks the open rows of the same hours. `cell`: the recorded name of the cell.
    """
    merged: dict[tuple[Any, ...], BreachRow] = {}
    for row in rows:
        key = _key(row.hour, row.job_uid, row.band, row.kind, row.cause, row.terms)
        merged[key] = merge(merged[key], row) if key in merged else row
    if not merged:
        return 0
    bands = {band.name: band.pk for band in PriorityBand.objects.all()}
    names = {pk: name for name, pk in bands.items()}
    open_rows = {
        _key(found.hour, found.job_uid, names[found.band_id], found.kind, found.cause, found.terms): found
        for found in PromiseBreach.objects.select_for_update()
        .filter(
            cell=cell,
            settled_at=None,
            tenant__in={row.tenant_id for row in merged.values()},
            hour__in={row.hour for row in merged.values()},
            job_uid__in={row.job_uid for row in merged.values()},
        )
        .order_by("id")
    }
    written = []
    for key, row in merged.items():
        if row.band not in bands:  # an SRE has renamed the band since
            continue
        found = open_rows.get(key)
        total = row if found is None else merge(_read(found, row.band), row)
        written.append((None if found is None else found.pk, bands[row.band], total))
    _write(cell, written)
    return len(written)


def _write(cell: str, rows: Sequence[tuple[int | None, int, BreachRow]]) -> None:
    """Write rows as (id of the open row or None, id of the band, sums). Makes two statements for any number of rows."""
    PromiseBreach.objects.bulk_create(
        PromiseBreach(
            tenant_id=row.tenant_id,
            cell=cell,
            band_id=band_id,
            job_uid=row.job_uid,
            job=row.job,
            kind=row.kind,
            cause=row.cause,
            hour=row.hour,
            terms=dict(row.terms),
            tasks=row.tasks,
            task_seconds=row.task_seconds,
            evictions=row.evictions,
            affected=list(row.affected),
            evidence=list(row.evidence),
        )
        for pk, band_id, row in rows
        if pk is None
    )
    changed = [(pk, row) for pk, _, row in rows if pk is not None]
    if not changed:
        return
    with connection.cursor() as cursor:
        cursor.execute(
            "UPDATE quota_promisebreach AS b SET tasks = n.tasks, task_seconds = n.seconds, evictions = n.evictions,"
            " affected = n.affected::numeric[], evidence = n.evidence::jsonb"
            " FROM unnest(%s::bigint[], %s::bigint[], %s::float8[], %s::bigint[], %s::text[], %s::text[])"
            " AS n(id, tasks, seconds, evictions, affected, evidence) WHERE b.id = n.id",
            [
                [pk for pk, _ in changed],
                [row.tasks for _, row in changed],
                [row.task_seconds for _, row in changed],
                [row.evictions for _, row in changed],
                ["{" + ",".join(map(str, row.affected)) + "}" for _, row in changed],
                [json.dumps(list(row.evidence)) for _, row in changed],
            ],
        )


def _key(
    hour: dt.datetime, job_uid: str, band: str, kind: str, cause: str, terms: Terms
) -> tuple[dt.datetime, str, str, str, str, str]:
    return hour, job_uid, band, kind, cause, json.dumps(dict(terms), sort_keys=True)


def _read(found: PromiseBreach, band: str) -> BreachRow:
    return BreachRow(
        tenant_id=found.tenant_id,
        band=band,
        job_uid=found.job_uid,
        job=found.job,
        kind=found.kind,
        cause=found.cause,
        hour=found.hour,
        terms=found.terms,
        tasks=found.tasks,
        task_seconds=found.task_seconds,
        evictions=found.evictions,
        affected=tuple(map(int, found.affected)),
        evidence=found.evidence,
    )
