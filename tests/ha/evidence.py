"""Read the evidence for the checker from PostgreSQL and from the tasks' signs of life. Needs Django."""

from __future__ import annotations

import json
import math
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from tests.ha.checker import Evidence, Holding, JobRow, JournalRow, Lookup, PassRow, Placement, Run, TaskRow
from tests.ha.history import Request

# The events with which a task gets a machine or leaves it.
_MOVES = ("task.placed", "task.evicted", "task.ended", "job.ended")


def gather(
    cell_name: str,
    requests: Sequence[Request],
    alive: Path,
    *,
    masters: Mapping[str, Sequence[Path]],
    lookups: Sequence[Lookup] = (),
    cuts: Sequence[tuple[float, float]] = (),
    clock_error_s: float = 0.0,
) -> Evidence:
    """Return the evidence about a cell that has come to rest. `masters`: the logs of the masters on each host."""
    from django.db import connection

    from quota.billing.ledger_check import ledger_check
    from quota.models import Order
    from scheduling.master.invariants import validate
    from scheduling.master.snapshot import load_state
    from scheduling.models import Cell

    cell = Cell.objects.get(name=cell_name)
    reported = [*validate(cell.id, load=load_state), *ledger_check()]
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT revision, seq, kind, job_id, coalesce(task_index, -1), data->>'name', (data->>'incarnation')::int,"
            " data->>'holder', data->>'scheduler', machine_id, data->'ports'"
            " FROM scheduling_event WHERE cell_id = %s ORDER BY revision, seq",
            [cell.id],
        )
        journal = [
            JournalRow(
                revision,
                seq,
                kind,
                job=name if kind == "job.submitted" else "",
                task=(job_id, index) if kind in _MOVES else None,
                incarnation=incarnation if kind == "task.placed" else None,
                host=holder.partition(":")[0] if kind == "cell.lease" else "",
                scheduler=scheduler if kind == "cell.lease" else "",
                machine=machine if kind == "task.placed" else 0,
                ports=json.loads(ports) if kind == "task.placed" and ports else (),
            )
            for revision, seq, kind, job_id, index, name, incarnation, holder, scheduler, machine, ports in cursor
        ]
        cursor.execute("SELECT job_id, index, state, incarnation FROM scheduling_task WHERE cell_id = %s", [cell.id])
        tasks = defaultdict(list)
        for job_id, index, state, incarnation in cursor:
            tasks[job_id].append(TaskRow(index, state, incarnation))
    jobs = {
        name: JobRow(str(uid), state, version, tuple(tasks[key]))
        for key, name, uid, state, version in cell.jobs.order_by("id").values_list(
            "id", "name", "uid", "state", "spec_version"
        )
    }
    cell.refresh_from_db()
    return Evidence(
        at=time.time(),
        revision=cell.revision,
        requests=requests,
        journal=journal,
        passes=[one for host, logs in masters.items() for log in logs for one in read_passes(host, log)],
        jobs=jobs,
        orders=dict(Order.objects.values_list("id", "key")),
        holdings=list(_holdings(cell_name)),
        runs=list(read_runs(alive)),
        placements=list(_placements(cell.id)),
        lookups=lookups,
        cuts=cuts,
        reported=reported,
        clock_error_s=clock_error_s,
    )


def read_passes(host: str, log: Path) -> Iterator[PassRow]:
    """Yield the passes that placed tasks, from the log of a master."""
    for line in log.read_text().splitlines():
        if '"event": "pass"' in line and (found := json.loads(line))["placed"]:
            yield PassRow(host, found["revision"], found["scheduler"])


def read_runs(alive: Path) -> Iterator[Run]:
    """Yield the runs that have left signs of life in the folder `alive`."""
    for first in alive.glob("*.first"):
        sign = first.with_suffix("")
        if sign.exists():
            job, index, incarnation = sign.name.rsplit(".", 2)
            yield Run(job, int(index), int(incarnation), first.stat().st_mtime, sign.stat().st_mtime)


def _placements(cell_id: int) -> Iterator[Placement]:
    from django.db import connection

    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT e.job_id, j.name, e.task_index, host(m.address), e.kind, EXTRACT(epoch FROM e.time)::float"
            " FROM scheduling_event AS e JOIN scheduling_job AS j ON j.id = e.job_id"
            " LEFT JOIN scheduling_machine AS m ON m.id = e.machine_id WHERE e.cell_id = %s"
            " AND e.kind IN ('task.placed', 'task.evicted', 'task.ended', 'job.ended')"
            " ORDER BY e.revision, e.seq",
            [cell_id],
        )
        yield from placements(cursor.fetchall())


def placements(rows: Iterable[tuple[int, str, int, str, str, float]]) -> Iterator[Placement]:
    """Yield the placements of tasks: each ends when the task ends, leaves the machine or is placed again.

    `rows`: the events of the journal in their order, as (id of the job, its name, index of the task, address of the
    machine, kind, time). Events `task.gone` are left out. They are about an earlier incarnation, and may come after the
    next one was placed.
    """
    live: dict[tuple[int, int], tuple[str, str, float]] = {}
    for job_id, job, index, address, kind, at in rows:
        ended = [key for key in live if key[0] == job_id] if kind == "job.ended" else [(job_id, index)]
        if kind == "task.gone":
            continue
        for key in ended:
            if key in live:
                name, there, since = live.pop(key)
                yield Placement(name, key[1], there, since, at)
        if kind == "task.placed":
            live[job_id, index] = (job, address, at)
    for (_, index), (name, there, since) in live.items():
        yield Placement(name, index, there, since, math.inf)


def _holdings(cell: str) -> Iterator[Holding]:
    """Yield what is sold per band at each time from now on, and what each tenant uses."""
    from django.utils import timezone

    from quota.models import PriorityBand, Quota, QuotaUse
    from quota.pricing.capacity_for_sale import is_sold, sale_capacity

    now = timezone.now()
    for band in PriorityBand.objects.all():
        if is_sold(band):
            sale = sale_capacity(cell, band, now)
            yield from (Holding(f"sold with {band.name} from {at}", sold, sale.limit) for at, sold in sale.sold)
            yield from (Holding(f"sold at {band.name} from {at}", sold, sale.own_limit) for at, sold in sale.own_sold)
    for use in QuotaUse.objects.filter(cell=cell).select_related("tenant", "band"):
        grants = Quota.objects.filter(tenant=use.tenant, cell=cell, band=use.band)
        granted = [
            grant.amounts for grant in grants if grant.ends_at is None or (grant.grace_until or grant.ends_at) > now
        ]
        total = [sum(amounts) for amounts in zip(*granted, strict=True)] or [0] * len(use.used)
        yield Holding(f"used by {use.tenant.name} at {use.band.name}", use.used, total)
