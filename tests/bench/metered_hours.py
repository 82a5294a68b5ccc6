"""`metered_hours`: the storage of metered hours in PostgreSQL and in the archive, and the time of costs over both.

The bench fills one cell with 395 days of hours of two tenants: one has `BENCH_JOBS` jobs at any time (default: 28, so
about 20,000 rows per month), and the other twice as many. All are charged and on closed invoices.

Cases, with the CPU time of this process and of its process of PostgreSQL:
* `archive`: hours per second of the archiver;
* `bytes-per-hour`: bytes per row in the files. `before`: bytes in PostgreSQL before they were archived;
* `costs`: ms for the costs of the smaller tenant in 365 days, by job. `before`: when all hours were in PostgreSQL;
* `label`: the same by label, `planning`: what the page *Planning* reads for 365 days, `job`: the price of one job.
"""

from __future__ import annotations

import datetime as dt
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tests.bench.databases import databases

_DAYS = 395
_HOURS = """
INSERT INTO quota_meteredhour (tenant_id, cell, band_id, job_uid, job, labels, hour, "limit", reserved, used, price,
    posting_id)
SELECT %(tenant)s, 'bench', %(band)s, md5(%(tenant)s || '-' || n || '-' || day), 'nightly-' || n,
    jsonb_build_object('team', 'team-' || n %% 7, 'app', 'app-' || n), day + h * interval '1 hour',
    ARRAY[l * 3600000, l * 3600 * 1073741824::numeric, l * 3600 * 1073741824::numeric, 0, 0, 0],
    ARRAY[r * 3600000, r * 3600 * 1073741824::numeric, r * 3600 * 1073741824::numeric, 0, 0, 0],
    ARRAY[round((u * random())::numeric * 3600000), round((u * random())::numeric * 3600 * 1073741824),
        round((u * random())::numeric * 3600 * 1073741824), 0, 0, 0],
    (u * 1000 * random())::bigint + 1, %(posting)s
FROM generate_series(%(begin)s::timestamptz, %(end)s::timestamptz, '1 day') AS day, generate_series(0, 23) AS h,
    generate_series(1, %(jobs)s) AS n,
    LATERAL (SELECT 1 + n %% 5 AS l, round((1 + n %% 5) * (0.4 + h / 100.0), 3) AS r,
        (1 + n %% 5) * 0.4 AS u) AS x"""


def measure() -> Iterator[dict[str, Any]]:
    jobs = int(os.environ.get("BENCH_JOBS", "28"))
    with databases():
        import django
        from django.core.management import call_command

        django.setup()
        call_command("migrate", verbosity=0)
        yield from _measure(jobs)


def _measure(jobs: int) -> Iterator[dict[str, Any]]:
    from django.db.models import Sum
    from django.utils import timezone

    from quota.admission.band_changes import bands_ensure
    from quota.billing.costs import costs, job_usage_price
    from quota.billing.planning import hours_of
    from quota.models import Invoice, MeteredHour, Posting, PriorityBand, metered_months
    from quota.vocabulary.permissions import Principal, Scope, system
    from scheduling.cells.cells import cell_create
    from scheduling.history.archive.archiver import Archiver
    from scheduling.history.archive.store import store
    from scheduling.journal.sql import execute
    from scheduling.models import ArchiveFile
    from tests.integration import money_rows as market

    bands_ensure(principal=system("bench"))
    cell_create(principal=system("bench"), name="bench")
    now = timezone.now()
    begin = now.replace(hour=0, minute=0, second=0, microsecond=0) - _DAYS * dt.timedelta(days=1)
    band = PriorityBand.objects.get(name="production")
    tenants = [market.funded(name, amount=10**12) for name in ("ads", "other")]
    market.charged(tenants[0], 10**10 + 3, cell="bench", amounts=(100_000, 2**37, 0, 0, 0, 0), begin=begin, days=_DAYS)
    for days in range(0, _DAYS, 28):
        metered_months.ensure(begin + days * dt.timedelta(days=1))
    for number, tenant in enumerate(tenants, start=1):
        posting = Posting.objects.filter(tenant=tenant).latest("id")  # any posting of a closed month
        ends = {"begins_at": begin, "ends_at": now + dt.timedelta(days=1), "issued_at": now}
        money = {"charged": 0, "refunded": 0, "total": 0, "lines": [], "time_zone": "UTC"}
        Invoice.objects.create(number=f"B-{number}", tenant=tenant, month=begin.date(), **ends, **money)
        given = {"tenant": tenant.pk, "band": band.pk, "posting": posting.pk, "jobs": jobs * number}
        execute(_HOURS, given | {"begin": begin, "end": now - dt.timedelta(days=1)})
    execute("VACUUM ANALYZE")
    rows, before = MeteredHour.objects.count(), _bytes()
    uid = MeteredHour.objects.filter(tenant=tenants[0]).earliest("hour").job_uid
    sre = Principal(name="sre", sre=True, scopes=frozenset({Scope.READ}))
    year, step = {"since": now - dt.timedelta(days=365), "until": now}, dt.timedelta(days=1)

    def planning() -> Any:
        with hours_of(sre, tenants[0], **year) as hours:
            return hours.places(), hours.planned("bench", band, step=step)

    calls: dict[str, Callable[[], Any]] = {
        "costs": lambda: costs(tenants[:1], **year),
        "label": lambda: costs(tenants[:1], **year, by="label", label="team"),
        "planning": planning,
        "job": lambda: job_usage_price(tenant=tenants[0].pk, cell="bench", job_uid=uid, since=begin),
    }
    expected = {case: _timed(call) for case, call in calls.items()}
    _, *cpu = _timed(lambda: Archiver(store()).run(now=now), times=1)
    execute("VACUUM ANALYZE")
    files = ArchiveFile.objects.filter(table="metered_hours")
    moved, size = files.aggregate(rows=Sum("rows"), size=Sum("bytes")).values()
    assert moved + MeteredHour.objects.count() == rows
    yield {"case": "archive", "value": round(moved / sum(cpu)), "unit": "hours/s", "better": "higher", "hours": moved}
    yield {
        "case": "bytes-per-hour",
        "value": round(size / moved, 1),
        "unit": "B",
        "better": "lower",
        "before": round(before / rows),
        "files": files.count(),
    }
    for case, call in calls.items():
        found, own, postgres = _timed(call)
        assert found == expected[case][0], case
        yield {
            "case": case,
            "value": round(1000 * (own + postgres)),
            "unit": "ms",
            "better": "lower",
            "before": round(1000 * sum(expected[case][1:])),
            "postgres": round(1000 * postgres),
        }


def _timed(call: Callable[[], Any], *, times: int = 2) -> tuple[Any, float, float]:
    """Return the last result of a call, and its CPU seconds in this process and in its process of PostgreSQL."""
    for _ in range(times):
        began, began_there = time.process_time(), _cpu_of_postgres()
        found = call()
        took = time.process_time() - began, _cpu_of_postgres() - began_there
    return found, *took


def _cpu_of_postgres() -> float:
    from scheduling.journal.sql import query

    ((pid,),) = query("SELECT pg_backend_pid()")
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")


def _bytes() -> int:
    from scheduling.journal.sql import query

    ((size,),) = query("SELECT sum(pg_total_relation_size(relid)) FROM pg_partition_tree('quota_meteredhour')")
    return int(size)
