"""A kept alloc has left its machine, but its folder is still there, so that its logs can be saved (§4). A log saver is
a task inside the alloc whose job has `saves_for_s`, a number of seconds. The folder stays until all log savers have
ended with status 0, or until the longest `saves_for_s` has passed.

    an alloc with log savers leaves its machine ─► allocs_keep ──► KeptAlloc
    all its log savers have ended with status 0 ─► savers_done ──┐
    master, each second: `saves_for_s` passed ───► release_late ─┼─► released ─► the Borglet removes the folder ─► gone
    an SRE needs its capacity ───────────────────► kept_release ─┘

Until the release, `scheduling.link` runs each log saver on the machine again until it ends with status 0. The capacity
that the log savers and the folder need (`KeptAlloc.hold`) is subtracted from the capacity of the machine.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from itertools import groupby, zip_longest
from typing import Any

from django.db import connection
from django.utils import timezone

from quota.vocabulary.errors import Conflict
from quota.vocabulary.permissions import Action, Principal, require, system
from quota.vocabulary.resources import ACCELERATORS, DISK, PORTS
from scheduling.core.vocabulary import events
from scheduling.journal import journal
from scheduling.journal.journal import JournalEntry
from scheduling.journal.row_events import machine_set_event
from scheduling.journal.sql import execute
from scheduling.models import KeptAlloc, Machine

SAVED, TOO_LATE, DROPPED = "saved", "too-late", "dropped"


def allocs_keep(entry: JournalEntry, inner_ids: Sequence[int]) -> None:
    """Keep the folder of each alloc that contains a log saver (a task that saves the logs of the alloc). `inner_ids`:
    the ids of running tasks inside allocs. Call this function before the tasks are removed from their allocs.
    """
    if not inner_ids:
        return
    made = []
    for _, group in groupby(_lived_in(inner_ids), key=lambda row: row["alloc_id"]):
        tasks = list(group)
        savers = [task for task in tasks if task["saves_for_s"] > 0]
        if savers:
            made.append(_kept(entry, tasks, savers))
    if not made:
        return
    KeptAlloc.objects.bulk_create(made)
    for kept in made:
        entry.append(
            events.AllocKept(
                machine_id=kept.machine_id,
                job_id=kept.job_id,
                index=kept.index,
                incarnation=kept.incarnation,
                until=kept.until.timestamp(),
                hold=tuple(kept.hold),
                savers=tuple([(saver["job_id"], saver["index"]) for saver in kept.savers]),
            )
        )
    _announce(entry, {kept.machine_id for kept in made})


def _lived_in(inner_ids: Sequence[int]) -> list[dict[str, Any]]:
    """Return one dictionary per inner task (a task inside an alloc), in the order of the allocs. It has columns of the
    task and of its alloc, and `saves_for_s` from the task's spec.
    """
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT a.id AS alloc_id, a.machine_id, a.job_id AS alloc_job, a.index AS alloc_index,"
            " a.incarnation AS alloc_incarnation, a.limit AS alloc_limit, aj.uid AS alloc_uid,"
            " c.name || '/' || o.name || '/' || aj.name || '/' || a.index AS alloc_name,"
            " i.job_id, i.index, i.incarnation, i.spec_version, i.limit, ij.uid, o.name AS tenant, ij.name,"
            " coalesce((s.spec->>'saves_for_s')::float8, 0) AS saves_for_s"
            " FROM scheduling_task AS i JOIN scheduling_task AS a ON a.id = i.alloc_id"
            " JOIN scheduling_job AS ij ON ij.id = i.job_id JOIN scheduling_job AS aj ON aj.id = a.job_id"
            " JOIN scheduling_cell AS c ON c.id = aj.cell_id JOIN quota_tenant AS o ON o.id = aj.tenant_id"
            " JOIN scheduling_jobspec AS s ON s.job_id = i.job_id AND s.version = i.spec_version"
            " WHERE i.id = ANY(%s) ORDER BY a.id, i.id",
            [list(inner_ids)],
        )
        names = [column.name for column in cursor.description or ()]
        return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]


def _kept(entry: JournalEntry, tasks: Sequence[dict[str, Any]], savers: Sequence[dict[str, Any]]) -> KeptAlloc:
    alloc = tasks[0]
    # A limit is shorter if it is older than a resource of the cell.
    hold = [sum(amounts) for amounts in zip_longest(*[saver["limit"] for saver in savers], fillvalue=0)]
    hold[DISK], hold[PORTS], hold[ACCELERATORS] = alloc["alloc_limit"][DISK], 0, 0
    return KeptAlloc(
        machine_id=alloc["machine_id"],
        job_id=alloc["alloc_job"],
        index=alloc["alloc_index"],
        incarnation=alloc["alloc_incarnation"],
        key=f"{alloc['alloc_uid'].hex}/{alloc['alloc_index']}/{alloc['alloc_incarnation']}",
        name=alloc["alloc_name"],
        limit=alloc["alloc_limit"],
        hold=hold,
        savers=[
            {
                "job_id": saver["job_id"],
                "index": saver["index"],
                "version": saver["spec_version"],
                "tenant": saver["tenant"],
                "job": saver["name"],
                "done": False,
            }
            for saver in savers
        ],
        waits=[f"{task['uid'].hex}/{task['index']}/{task['incarnation']}" for task in tasks],
        since=entry.time,
        until=entry.time + dt.timedelta(seconds=max(saver["saves_for_s"] for saver in savers)),
    )


def savers_done(entry: JournalEntry, done: Sequence[tuple[int, int]]) -> None:
    """Store that log savers (tasks that save the logs of a kept alloc) have ended with status 0. A kept alloc is
    released when all its savers have ended with status 0.

    `done`: a pair (id of the kept alloc, position of the saver in `savers`) per saver.
    """
    positions: dict[int, set[int]] = {}
    for identity, position in done:
        positions.setdefault(identity, set()).add(position)
    rows = list(KeptAlloc.objects.select_for_update().filter(pk__in=positions, released=False).order_by("id"))
    for kept in rows:
        for position in positions[kept.id]:
            kept.savers[position]["done"] = True
    KeptAlloc.objects.bulk_update(rows, ["savers"])
    _release(entry, [kept for kept in rows if all(saver["done"] for saver in kept.savers)], SAVED)


def release_late(cell_id: int) -> int:
    """Release the kept allocs whose time limit (`until`) has passed, so that Borglets remove their folders. Return how
    many were released.
    """
    late = KeptAlloc.objects.filter(machine__cell_id=cell_id, released=False, until__lt=timezone.now())
    if not late.exists():
        return 0
    with journal.write(cell_id, system("master")) as entry:
        rows = list(late.select_for_update(of=("self",)).order_by("id"))
        _release(entry, rows, TOO_LATE)
    return len(rows)


def kept_release(*, principal: Principal, kept: KeptAlloc, reason: str = "") -> None:
    """Release a kept alloc (it has ended, but its folder is still on the machine), because an SRE needs the capacity
    that it uses. Its files are removed even if they are not saved yet. Raises `Conflict` if the alloc was already
    released.
    """
    require(principal, Action.MACHINE_ADMIN, cell=kept.machine.cell.name)
    with journal.write(kept.machine.cell_id, principal) as entry:
        row = KeptAlloc.objects.select_for_update().filter(pk=kept.pk, released=False).first()
        if row is None:
            detail = f"alloc {kept.name} is no longer kept on machine {kept.machine.hostname}; reload the page"
            raise Conflict("already-released", detail, fields={"alloc": detail})
        _release(entry, [row], DROPPED, reason)


def _release(entry: JournalEntry, rows: Sequence[KeptAlloc], how: str, reason: str = "") -> None:
    if not rows:
        return
    KeptAlloc.objects.filter(pk__in=[kept.pk for kept in rows]).update(released=True)
    entry.extend(
        events.AllocReleased(
            machine_id=kept.machine_id,
            job_id=kept.job_id,
            index=kept.index,
            incarnation=kept.incarnation,
            how=how,
            reason=reason,
        )
        for kept in rows
    )
    _announce(entry, {kept.machine_id for kept in rows})


def gone(entry: JournalEntry, ids: Sequence[int]) -> None:
    """Delete the rows of released kept allocs whose folders the Borglets have removed. `ids`: the ids of these rows."""
    if not ids:
        return
    rows = list(KeptAlloc.objects.select_for_update().filter(pk__in=ids, released=True).order_by("id"))
    KeptAlloc.objects.filter(pk__in=[row.pk for row in rows]).delete()
    entry.extend(
        events.AllocGone(machine_id=row.machine_id, job_id=row.job_id, index=row.index, incarnation=row.incarnation)
        for row in rows
    )


def forget_machine(machine_id: int) -> None:
    """Delete the rows of the kept allocs of a machine that leaves the cell."""
    KeptAlloc.objects.filter(machine_id=machine_id).delete()


def _announce(entry: JournalEntry, machine_ids: set[int]) -> None:
    """Compute again how much capacity the kept allocs use on each of the machines, and store it. Kept allocs have
    ended, but their files stay on the machine until the logs are saved. Append an event with the remaining capacity of
    each machine.
    """
    execute(
        "UPDATE scheduling_machine AS m SET kept = coalesce((SELECT array_agg(h.held ORDER BY h.n) FROM ("
        "SELECT r.n, sum(r.amount)::bigint AS held FROM scheduling_keptalloc AS k,"
        " unnest(k.hold) WITH ORDINALITY AS r(amount, n)"
        " WHERE k.machine_id = m.id AND NOT k.released GROUP BY r.n) AS h), '{}') WHERE m.id = ANY(%s)",
        [sorted(machine_ids)],
    )
    for machine in Machine.objects.filter(pk__in=machine_ids).order_by("id"):
        entry.append(machine_set_event(machine))
