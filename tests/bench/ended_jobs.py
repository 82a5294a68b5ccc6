"""`ended_jobs`: the storage that an ended job needs in PostgreSQL and in the archive, and the time to find it there.

The bench fills one cell with `BENCH_JOBS` jobs (default: 100,000) of two tasks, which ended over fifty days. Ten jobs
share each name.

Cases:
* `archive`: jobs per second of the archiver's CPU time;
* `bytes-per-job`: bytes per job in the index of the archive in PostgreSQL. `before`: bytes in PostgreSQL before the
  jobs were archived. `file`: bytes in the files;
* `recall`: ms until an archived job is back in PostgreSQL;
* `list`: ms for a page of 100 archived jobs;
* `without-index`: ms to find one name in all files, as if there were no index.

    BENCH_JOBS=500000
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from typing import Any

from tests.bench.databases import databases

_JOBS = """
INSERT INTO scheduling_job (id, uid, cell_id, tenant_id, name, kind, labels, priority, band, latency_sensitive,
    port_names, state, outcome, spec_version, requested, tasks_total, tasks_pending, tasks_running, tasks_up,
    tasks_dead, submitted_by, created_at, ended_at)
SELECT n, gen_random_uuid(), %(cell)s, %(tenant)s, 'nightly-' || n / 10, 'job', '{"team": "ads"}', 100, 'batch', false,
    '{}', 'dead', 'finished', 1, '{1000,1073741824,1073741824,0,0,0}', 2, 0, 0, 0, 2, 'user:ann',
    now() - interval '91 days' + n * interval '50 days' / %(jobs)s,
    now() - interval '90 days' + n * interval '50 days' / %(jobs)s FROM generate_series(1, %(jobs)s) AS n"""
_SPECS = """
INSERT INTO scheduling_jobspec (job_id, version, spec, digest, actor, created_at)
SELECT id, 1, jsonb_build_object('name', name, 'tenant', 'ads', 'cell', 'bench', 'priority', 100, 'tasks', 2, 'task',
    jsonb_build_object('command', jsonb_build_array('/usr/bin/report', '--day', created_at::date), 'env',
    jsonb_build_object('MODE', 'fast'), 'limit', jsonb_build_object('cpu', '500m', 'ram', '512Mi', 'disk', '512Mi'),
    'ports', '[]'::jsonb, 'packages', '[]'::jsonb, 'constraints', '[]'::jsonb, 'health', NULL)),
    md5(id::text) || md5(name), 'user:ann', created_at FROM scheduling_job"""
_TASKS = """
INSERT INTO scheduling_task (id, cell_id, job_id, index, state, incarnation, spec_version, "limit", reservation, ports,
    phase, health, up, restarts, evictions, outcome, exit, detail, since)
SELECT j.id * 1048576 + n, cell_id, j.id, n, 'dead', 1, 1, '{500,536870912,536870912,0,0,0}',
    '{500,536870912,536870912,0,0,0}', '{}', '', '', false, 0, 0, 'finished',
    '{"cause": "exited", "status": 0, "at": 1700000000.0}', '', ended_at
FROM scheduling_job AS j, generate_series(0, 1) AS n"""
_TABLES = ("scheduling_job", "scheduling_jobspec", "scheduling_task")


def measure() -> Iterator[dict[str, Any]]:
    number = int(os.environ.get("BENCH_JOBS", "100000"))
    with databases():
        import django
        from django.core.management import call_command

        django.setup()
        call_command("migrate", verbosity=0)
        yield from _measure(number)


def _measure(number: int) -> Iterator[dict[str, Any]]:
    from django.db.models import Sum
    from django.utils import timezone
    from pyarrow import compute as pc
    from pyarrow import parquet as pq

    from quota.models import Tenant
    from quota.vocabulary.permissions import Principal, Scope, system
    from scheduling.access.selectors import only_archived
    from scheduling.cells.cells import cell_create
    from scheduling.history.archive.archiver import Archiver
    from scheduling.history.archive.recall import recall, with_archived
    from scheduling.history.archive.store import store
    from scheduling.journal.sql import execute
    from scheduling.models import ArchivedJob, ArchiveFile

    cell = cell_create(principal=system("bench"), name="bench")
    tenant = Tenant.objects.create(name="ads")
    values = {"cell": cell.pk, "tenant": tenant.pk, "jobs": number}
    for statement in (_JOBS, _SPECS, _TASKS):
        execute(statement.replace("%%", "%"), values if "%(" in statement else ())
    execute("VACUUM ANALYZE")
    before = _bytes(*_TABLES)
    began = time.process_time()
    done = Archiver(store()).run(now=timezone.now())
    cpu = time.process_time() - began
    assert done.jobs == number
    yield {"case": "archive", "value": round(number / cpu), "unit": "jobs/s", "better": "higher"}
    execute("VACUUM ANALYZE")
    files = ArchiveFile.objects.filter(table="ended_jobs")
    size = files.aggregate(size=Sum("bytes"))["size"]
    yield {
        "case": "bytes-per-job",
        "value": round(_bytes("scheduling_archivedjob") / number),
        "unit": "B",
        "better": "lower",
        "before": round(before / number),
        "file": round(size / number),
        "files": files.count(),
    }
    sre = Principal(name="sre", sre=True, scopes=frozenset({Scope.READ}))
    names = [f"nightly-{n}" for n in range(1, number // 10, max(number // 500, 1))]
    yield _timed("recall", [lambda name=name: recall(sre, cell, "ads", name) for name in names])  # type: ignore[misc]
    pages = range(0, number - 100, max(number // 20, 1))
    found = only_archived().order_by("id")
    yield _timed("list", [lambda n=n: with_archived(found.filter(id__gt=n)[:100]) for n in pages])  # type: ignore[misc]

    def search() -> None:
        for file in files.select_related("cell"):
            with store().local(file.key) as path:
                read = pq.read_table(path, columns=["collection_id", "kind", "data"], filters=[("kind", "=", "job")])
            pc.match_substring(read["data"], '"name": "nightly-77"').combine_chunks()

    yield _timed("without-index", [search])
    assert ArchivedJob.objects.count() == number


def _timed(case: str, calls: list[Callable[[], Any]]) -> dict[str, Any]:
    """Return the mean and the largest CPU time, in ms, of the calls in this process."""
    took = []
    for call in calls:
        began = time.process_time()
        call()
        took.append(1000 * (time.process_time() - began))
    mean = round(sum(took) / len(took), 1)
    return {"case": case, "value": mean, "unit": "ms", "better": "lower", "largest": round(max(took), 1)}


def _bytes(*tables: str) -> int:
    from scheduling.journal.sql import query

    given = [list(tables)]
    ((size,),) = query("SELECT sum(pg_total_relation_size(name::regclass)) FROM unnest(%s::text[]) AS name", given)
    return int(size)
