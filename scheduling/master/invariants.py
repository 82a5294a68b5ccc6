"""Checks of the invariants of a cell. Tests run them after every scenario, and SREs can run them on a live cell.

`manage.py validate CELL` prints the broken invariants. It changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from django.db import connection, transaction

from quota.vocabulary.resources import ACCELERATORS, DEVICE, NAMES, PORTS
from scheduling.core.cell.state import CellState
from scheduling.core.garbage import collection_paused
from scheduling.journal import journal
from scheduling.journal.sql import execute, query
from scheduling.master import ended_jobs
from scheduling.master.snapshot import load_state
from scheduling.models import Cell
from scheduling.policy import cell_settings
from scheduling.policy.cpu_factors import ONE, factor_of, normalised, parse_cpu_factors
from scheduling.services.weight_checks import weight_problems

Loader = Callable[[int], CellState | None]
# An index on the state serves this list, and does not serve `<> 'dead'`.
_LIVE = "('pending', 'running')"
_SNAPSHOT = "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY"


def validate(
    cell_id: int,
    *,
    load: Callable[[int], CellState] | None = None,
    replay: Loader | None = None,
    after: int = 0,
    parallel: bool = False,
) -> list[str]:
    """Return one sentence for each broken invariant of a cell. Reads one consistent snapshot of the database.

    `load` returns the state that the rows describe, and `replay` the state that the journal gives, or None if its
    beginning is missing. The defaults read all rows as events, and the whole journal; checkpoints
    (`scheduling.history.checkpoints`) are faster. `after`: leave out jobs that ended at or before this revision.
    With 0, all jobs are compared. `parallel`: PostgreSQL checks the rows meanwhile, in a second connection. This is
    faster for large cells.
    """
    with transaction.atomic(), collection_paused(), ThreadPoolExecutor(1) as thread:
        execute(_SNAPSHOT)
        if parallel:
            ((snapshot,),) = query("SELECT pg_export_snapshot()")
            rows_checked = thread.submit(_row_problems_in, snapshot, cell_id, after=after)
        state = (load or load_state)(cell_id)
        problems = state.validate()
        differences = _journal(state, (replay or replay_journal)(cell_id))
        problems += rows_checked.result() if parallel else row_problems(cell_id, after=after)
    return problems + differences


def _row_problems_in(snapshot: str, cell_id: int, *, after: int) -> list[str]:
    """Return `row_problems` of a snapshot that another transaction has exported. Runs in a thread of its own, and
    closes the connection of this thread.
    """
    try:
        with transaction.atomic():
            execute(_SNAPSHOT)
            execute("SET TRANSACTION SNAPSHOT %s", [snapshot])
            return row_problems(cell_id, after=after)
    finally:
        connection.close()


def row_problems(cell_id: int, *, after: int) -> list[str]:
    """Return one sentence for each broken invariant that PostgreSQL finds in the rows of a cell. `after`: as in
    `validate`.
    """
    return [
        *_counters(cell_id, after=after),
        *_quota(cell_id),
        *_ports(cell_id),
        *_allocs(cell_id),
        *_devices(cell_id),
        *_normalised_cpu(cell_id),
        *weight_problems(cell_id),
        *ended_jobs.differences(cell_id, after=after),
    ]


def _normalised_cpu(cell_id: int) -> list[str]:
    """Return an error for each machine whose CPU is not that of its Borglet times the factor of its platform. Machines
    of study cells have the normalised CPU of their checkpoint.
    """
    cell = Cell.objects.get(pk=cell_id)
    if cell.study_of is not None:
        return []
    factors = parse_cpu_factors(cell_settings.load(cell.settings).cpu_factors)
    rows = query(
        "SELECT hostname, platform, cpu_factor, machine_cpu, capacity[1] FROM scheduling_machine"
        " WHERE cell_id = %s AND state <> 'removed' AND (cpu_factor <> 1000 OR platform = ANY(%s)) ORDER BY id",
        [cell_id, list(factors)],
    )
    problems = []
    for hostname, platform, factor, own, cpu in rows:
        wanted = factor_of(factors, platform)
        if factor != wanted:
            problems.append(
                f"machine {hostname} has the CPU factor {factor / ONE:g}, but the factor of its platform is"
                f" {wanted / ONE:g}; save the cell setting cpu_factors again, with its present value"
            )
        elif own is not None and cpu != max(1, normalised(own, factor)):
            right = max(1, normalised(own, factor))
            problems.append(
                f"machine {hostname} has {cpu} normalised milli-cores, but its {own} milli-cores times the factor"
                f" {factor / ONE:g} are {right}; save the cell setting cpu_factors again, with its present value"
            )
    return problems


def _journal(state: CellState, replayed: CellState | None) -> list[str]:
    """Compare two states of a cell: `state` was loaded from database rows, and `replayed` is the result of the
    journal's events. Return one text per difference. Return an empty list if `replayed` is None.
    """
    if replayed is None:
        return []
    if replayed.revision != state.revision:
        return [f"rows are at revision {state.revision}, the journal ends at {replayed.revision}"]
    return [f"journal and rows differ: {difference}" for difference in state.diff(replayed)]


def replay_journal(cell_id: int) -> CellState | None:
    """Return the state that all events of the journal give together, or None if the beginning of the journal is
    missing.
    """
    records = journal.tail(cell_id, after=0)
    if not records:
        return None
    cell = Cell.objects.get(pk=cell_id)
    state = CellState(tuple(cell.extra_resources))
    expected = 1
    while records:
        if expected == 1 and records[0].revision != 1:
            return None
        expected = 0
        state.apply_all((record.event, record.revision, record.time.timestamp()) for record in records)
        records = journal.tail(cell_id, after=state.revision)
    return state


def _counters(cell_id: int, *, after: int) -> list[str]:
    """Return an error for each job whose counters differ from the rows of its tasks, and for each job whose state does
    not fit its tasks. Jobs that ended at or before the revision `after` are left out.
    """
    chosen = "j.cell_id = %(cell)s"
    if after:
        chosen += (
            f" AND j.id IN (SELECT id FROM scheduling_job WHERE cell_id = %(cell)s AND state IN {_LIVE}"
            f" UNION {ended_jobs.ENDED})"
        )
    values = {"cell": cell_id, "after": after}
    rows = query(
        "WITH c AS (SELECT t.job_id, count(*) AS total, count(*) FILTER (WHERE t.state = 'pending') AS pending,"
        " count(*) FILTER (WHERE t.state = 'running') AS running, count(*) FILTER (WHERE t.state = 'dead') AS dead,"
        " count(*) FILTER (WHERE t.up) AS up FROM scheduling_task AS t JOIN scheduling_job AS j ON j.id = t.job_id"
        f" WHERE {chosen} GROUP BY 1)"
        f" SELECT {ended_jobs.NAMED}, j.tasks_total, j.tasks_pending, j.tasks_running, j.tasks_dead, j.tasks_up,"
        " coalesce(total, 0), coalesce(pending, 0), coalesce(running, 0), coalesce(dead, 0), coalesce(up, 0)"
        f" FROM scheduling_job AS j LEFT JOIN c ON c.job_id = j.id WHERE {chosen}"
        " AND (j.tasks_total, j.tasks_pending, j.tasks_running, j.tasks_dead, j.tasks_up) IS DISTINCT FROM"
        " (coalesce(total, 0), coalesce(pending, 0), coalesce(running, 0), coalesce(dead, 0), coalesce(up, 0))"
        " ORDER BY j.id",
        values,
    )
    wrong = [
        f"job {name} counts {tuple(row[:5])} (total, pending, running, dead, up); its rows are {tuple(row[5:])}"
        for name, *row in rows
    ]
    rows = query(
        f"SELECT {ended_jobs.NAMED} FROM scheduling_job AS j WHERE {chosen} AND CASE WHEN state = 'dead'"
        " THEN tasks_total <> tasks_dead OR tasks_total = 0"
        # a large job is made in parts; the first may be over before the next is made
        " ELSE tasks_total = tasks_dead AND tasks_total > 0"
        " AND NOT EXISTS (SELECT FROM scheduling_update AS u JOIN scheduling_jobspec AS s"
        " ON s.job_id = u.job_id AND s.version = u.to_version"
        " WHERE u.job_id = j.id AND u.state = 'open' AND (s.spec->>'tasks')::int > j.tasks_total) END ORDER BY id",
        values,
    )
    wrong += [f"job {name} is dead with live tasks, or alive without" for (name,) in rows]
    rows = query(
        f"SELECT {ended_jobs.NAMED} FROM scheduling_update AS u JOIN scheduling_job AS j ON j.id = u.job_id"
        " WHERE j.cell_id = %(cell)s AND u.state = 'open' AND j.state = 'dead' ORDER BY j.id",
        values,
    )
    wrong += [f"job {name} is dead, but has an open update" for (name,) in rows]
    rows = query(
        f"SELECT {ended_jobs.NAMED} FROM scheduling_job AS j JOIN scheduling_cell AS c ON c.id = j.cell_id"
        " WHERE j.cell_id = %(cell)s AND c.study_of IS NULL AND j.waiting"
        " AND j.ended_at IS NULL AND NOT EXISTS (SELECT FROM scheduling_jobdependency AS d"
        " WHERE d.job_id = j.id AND d.open) ORDER BY j.id",
        values,
    )
    wrong += [f"job {name} waits for other jobs, but has no open dependency" for (name,) in rows]
    return wrong


def _quota(cell_id: int) -> list[str]:
    """Return an error for each tenant, band and resource whose stored quota use differs from the sum over the live
    jobs. Jobs with priority zero need no quota and are not counted.
    """
    rows = query(
        "WITH asked AS (SELECT j.tenant_id, b.id AS band_id, r.position, sum(r.amount) AS amount"
        " FROM scheduling_job AS j JOIN quota_priorityband AS b ON j.priority BETWEEN b.low AND b.high,"
        " unnest(j.requested) WITH ORDINALITY AS r(amount, position)"
        f" WHERE j.cell_id = %(cell)s AND j.state IN {_LIVE} AND j.priority > 0 AND r.position <= 6"
        " GROUP BY 1, 2, 3),"
        " used AS (SELECT u.tenant_id, u.band_id, r.position, r.amount FROM quota_quotause AS u"
        " JOIN scheduling_cell AS c ON c.name = u.cell AND c.id = %(cell)s,"
        " unnest(u.used) WITH ORDINALITY AS r(amount, position))"
        " SELECT tenant_id, band_id, position, coalesce(asked.amount, 0), coalesce(used.amount, 0)"
        " FROM asked FULL JOIN used USING (tenant_id, band_id, position)"
        " WHERE coalesce(asked.amount, 0) <> coalesce(used.amount, 0) ORDER BY 1, 2, 3",
        {"cell": cell_id},
    )
    return [
        f"tenant {tenant} at band {band}: live jobs ask for {asked} of resource {position - 1}, {used} is charged"
        for tenant, band, position, asked, used in rows
    ]


def _ports(cell_id: int) -> list[str]:
    """Return an error for each port of a machine that two tasks use. Tasks that are still stopping count too.

    Running tasks have a machine (a constraint). A statement that says so uses the index of tasks on machines, and does
    not read ended tasks.
    """
    rows = query(
        "SELECT machine_id, port, array_agg(id) FROM ("
        " SELECT machine_id, unnest(ports) AS port, id FROM scheduling_task"
        " WHERE cell_id = %s AND state = 'running' AND machine_id IS NOT NULL"
        " UNION ALL SELECT d.machine_id, unnest(d.ports), d.task_id FROM scheduling_departure AS d"
        " JOIN scheduling_task AS t ON t.id = d.task_id WHERE t.cell_id = %s) AS held"
        " GROUP BY 1, 2 HAVING count(*) > 1",
        [cell_id, cell_id],
    )
    return [f"port {port} of machine {machine} is held by tasks {sorted(tasks)}" for machine, port, tasks in rows]


def _allocs(cell_id: int) -> list[str]:
    """Return an error for each task that is not on the same machine as its alloc or is in an alloc of another set, for
    each alloc whose tasks need more than it has, and for each job whose alloc set is not live (§2.4).
    """
    rows = query(
        "SELECT j.name, t.index, CASE"
        " WHEN j.alloc_set_id IS NULL THEN 'is in an alloc, and its job in no alloc set'"
        " WHEN a.id IS NULL THEN 'runs outside the allocs of its set'"
        " WHEN a.job_id <> j.alloc_set_id THEN 'is in an alloc of another set'"
        " ELSE 'is not where its alloc is' END"
        " FROM scheduling_task AS t JOIN scheduling_job AS j ON j.id = t.job_id"
        " LEFT JOIN scheduling_task AS a ON a.id = t.alloc_id"
        " WHERE t.cell_id = %s AND t.state = 'running' AND t.machine_id IS NOT NULL"
        " AND (t.alloc_id IS NOT NULL OR j.alloc_set_id IS NOT NULL)"
        " AND (a.job_id, a.machine_id) IS DISTINCT FROM (j.alloc_set_id, t.machine_id) ORDER BY t.id",
        [cell_id],
    )
    wrong = [f"task {index} of job {name} {what}" for name, index, what in rows]
    rows = query(
        "SELECT j.name, a.index, r.i, r.amount, coalesce(a.limit[r.i], 0) FROM"
        ' (SELECT t.alloc_id, s.i, sum(t."limit"[s.i]) AS amount FROM scheduling_task AS t'
        " CROSS JOIN LATERAL generate_subscripts(t.limit, 1) AS s(i)"
        " WHERE t.cell_id = %s AND t.alloc_id IS NOT NULL GROUP BY 1, 2) AS r"
        " JOIN scheduling_task AS a ON a.id = r.alloc_id JOIN scheduling_job AS j ON j.id = a.job_id"
        " WHERE r.i <> %s AND r.amount > coalesce(a.limit[r.i], 0) ORDER BY a.id, r.i",
        [cell_id, PORTS + 1],
    )
    wrong += [
        f"alloc {name}/{index} has {room} of resource {_resource(i)}, the tasks inside have limits of {amount}"
        for name, index, i, amount, room in rows
    ]
    rows = query(
        "SELECT j.name, o.name FROM scheduling_job AS j JOIN scheduling_job AS o ON o.id = j.alloc_set_id"
        f" WHERE j.cell_id = %s AND j.state IN {_LIVE} AND (o.state = 'dead' OR o.kind <> 'alloc-set') ORDER BY j.id",
        [cell_id],
    )
    wrong += [f"job {name} lives in {outer}, which is not a live alloc set" for name, outer in rows]
    return wrong


def _devices(cell_id: int) -> list[str]:
    """Return an error for each accelerator that is allocated beyond its capacity or does not exist. Also return one
    for each task that has another number of accelerators than its limit needs, or accelerators that its alloc does not
    have.

    Tasks inside an alloc share the accelerators of the alloc.
    """
    rows = query(
        "SELECT m.hostname, h.alloc_id, h.device, h.amount FROM (SELECT t.machine_id, t.alloc_id, d.device,"
        " sum(least(t.limit[%(place)s], %(device)s)) AS amount FROM scheduling_task AS t,"
        " unnest(t.devices) AS d(device) WHERE t.cell_id = %(cell)s AND t.state = 'running'"
        " AND t.machine_id IS NOT NULL GROUP BY 1, 2, 3) AS h"
        " JOIN scheduling_machine AS m ON m.id = h.machine_id"
        " WHERE h.amount > %(device)s OR (h.device + 1) * %(device)s > m.capacity[%(place)s]"
        " ORDER BY m.id, h.alloc_id, h.device",
        {"place": ACCELERATORS + 1, "device": DEVICE, "cell": cell_id},
    )
    wrong = [
        f"{amount} thousandths of accelerator {device} of machine {hostname} are allocated"
        + (" in one alloc" if alloc else "")
        + f": more than {DEVICE}, or the machine has no such accelerator"
        for hostname, alloc, device, amount in rows
    ]
    rows = query(
        "SELECT j.name, t.index, t.limit[%(place)s], t.devices::text FROM scheduling_task AS t"
        " JOIN scheduling_job AS j ON j.id = t.job_id WHERE t.cell_id = %(cell)s AND t.state = 'running'"
        " AND t.machine_id IS NOT NULL"
        " AND (t.limit[%(place)s] > 0 OR cardinality(t.devices) > 0)"  # so the subquery below runs for few tasks
        " AND (cardinality(t.devices) <> ceil(t.limit[%(place)s] / %(device)s::numeric) OR NOT t.devices"
        " <@ coalesce((SELECT a.devices FROM scheduling_task AS a WHERE a.id = t.alloc_id), t.devices))"
        " ORDER BY t.id",
        {"place": ACCELERATORS + 1, "device": DEVICE, "cell": cell_id},
    )
    wrong += [
        f"task {index} of job {name} asks for {asked} thousandths of accelerators and has devices {devices}"
        for name, index, asked, devices in rows
    ]
    return wrong


def _resource(position: int) -> str:
    """Return the name of the resource at `position` (from 1) in an SQL array of amounts."""
    return NAMES[position - 1] if position <= len(NAMES) else str(position - 1)
