"""Why tasks are pending, kept per job for whoever asks: the last pass' answer (§2.6). Derived, not journalled."""

from __future__ import annotations

import msgspec
from django.db import connection, transaction

from scheduling.core.plan import Plan
from scheduling.core.reasons import Why


def store(cell_id: int, plan: Plan) -> None:
    """Replace the cell's verdicts by the plan's. Two statements, whatever the number of jobs.

    A class may hold tasks of thousands of jobs, of many tenants: each job hears of its own.
    """
    by_job: dict[int, list[Why]] = {}
    for why in plan.unplaced:
        for job_id, number in why.tasks:
            own = msgspec.structs.replace(why, tasks=((job_id, number),))
            by_job.setdefault(job_id, []).append(own)
    jobs = sorted(by_job)
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(
            "DELETE FROM scheduling_pendingverdict AS v USING scheduling_job AS j"
            " WHERE j.id = v.job_id AND j.cell_id = %s AND NOT v.job_id = ANY(%s)",
            [cell_id, jobs],
        )
        if jobs:
            cursor.execute(
                "INSERT INTO scheduling_pendingverdict (job_id, revision, at, whys)"
                " SELECT n.id, %s, clock_timestamp(), n.whys::jsonb"
                " FROM unnest(%s::bigint[], %s::text[]) AS n(id, whys) JOIN scheduling_job AS j ON j.id = n.id"
                " ON CONFLICT (job_id) DO UPDATE SET whys = excluded.whys, revision = excluded.revision,"
                " at = excluded.at WHERE scheduling_pendingverdict.whys <> excluded.whys",
                [plan.revision, jobs, [msgspec.json.encode(by_job[job]).decode() for job in jobs]],
            )


def read(whys: object) -> list[Why]:
    """The values behind `PendingVerdict.whys`."""
    return msgspec.convert(whys, list[Why])
