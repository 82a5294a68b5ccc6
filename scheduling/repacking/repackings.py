"""Requests about re-packings: ask for a plan, start it, stop it, and return its machines.

repacking_plan ─► planning ── master ─► planned ── repacking_start ─► running ── master ─► done
                                          │                              │
                                 a newer plan ─► replaced                └─ repacking_stop ─► stopped
"""

from __future__ import annotations

import datetime as dt
import math

from django.db.models import Sum

from quota.vocabulary.errors import Conflict, NotFound, Rejected, invalid
from quota.vocabulary.permissions import Action, Principal, require
from scheduling.brakes import confirmation
from scheduling.brakes.stored_brakes import tasks_running
from scheduling.core.vocabulary import events
from scheduling.journal import journal
from scheduling.journal.journal import JournalEntry
from scheduling.machines.cordons import machines_cordon, machines_uncordon
from scheduling.machines.machines import UP
from scheduling.models import Cell, Job, Machine, Repacking, RepackingStep

# A plan can be started for this long.
VALID_S = 3_600.0
# By default, this share of the running tasks may move, but at least this many.
MOVES_SHARE, LEAST_MOVES = 0.02, 10
# By default, this share of the tasks of a job may move. Its disruption budget may always move.
JOB_SHARE = 0.1
# By default, tasks of monitoring stay.
MOST_PRIORITY = 359
AT_ONCE = 10
MOST_AT_ONCE = 1_000
MOST_MOVES = 10_000
# A start changes all its machines in one transaction.
MOST_MACHINES = 5_000
# So many ended re-packings of a cell are kept, besides those that still keep machines free.
KEPT = 50


def repacking_plan(
    *,
    principal: Principal,
    cell: Cell,
    reason: str,
    machines: int | None = None,
    share: float | None = None,
    job: Job | None = None,
    most_moves: int | None = None,
    job_share: float = JOB_SHARE,
    most_priority: int = MOST_PRIORITY,
    at_once: int = AT_ONCE,
) -> Repacking:
    """Ask the master for a plan. It replaces a plan that was not started.

    The goal is exactly one of these: `machines`, the number of machines without a task after the moves; `share`, the
    same as a share of the machines that are up; `job`, of which a pending task should fit. `most_moves`: how many tasks
    may move, 2 % of the running tasks by default. `job_share`: which share of the tasks of each job may move.
    `most_priority`: tasks of a higher priority stay. `at_once`: how many tasks may be moving at the same time.

    Raises `Rejected` if a value is wrong, and `Conflict` while another re-packing runs. Locks the cell's row.
    """
    require(principal, Action.MACHINE_ADMIN, cell=cell.name)
    if sum(one is not None for one in (machines, share, job)) != 1:
        what = "give exactly one of machines, share and job"
        raise Rejected("invalid", what, fields=dict.fromkeys(("machines", "share", "job"), what))
    up = Machine.objects.filter(cell=cell, state=UP).count()
    number = _machines_wanted(up, machines, share) if job is None else 0
    for name, value, low, high in (
        ("most_moves", most_moves, 0, MOST_MOVES),
        ("job_share", job_share, 0.0, 1.0),
        ("most_priority", most_priority, 0, 2**31 - 1),
        ("at_once", at_once, 1, MOST_AT_ONCE),
    ):
        if value is not None and not low <= value <= high:
            raise invalid(name, f"{name} is {value:g}; give a number from {low:g} to {high:g}")
    if most_moves is None:
        most_moves = max(LEAST_MOVES, int(MOVES_SHARE * tasks_running(cell.id)))
    if job is not None and job.gang:
        raise invalid("job", f"{job.name} is a gang, whose tasks start together; a re-packing makes room for one task")
    with journal.write(cell.id, principal) as entry:
        open_one = Repacking.objects.select_for_update().filter(cell=cell, state__in=Repacking.OPEN).first()
        if open_one is not None:
            if open_one.state == Repacking.RUNNING:
                detail = (
                    f"re-packing {open_one.pk} of cell {cell.name} is running; wait until it is done, or stop it with"
                    f" `borgctl repack stop {open_one.pk}`"
                )
                raise Conflict("repacking-runs", detail, figures={"repacking": open_one.pk})
            _end(entry, open_one, Repacking.REPLACED, f"{principal.name} asked for another plan")
        row = Repacking.objects.create(
            cell=cell,
            goal=Repacking.MACHINES if job is None else Repacking.JOB,
            number=number,
            job_id=None if job is None else job.id,
            job_name="" if job is None else f"{job.tenant.name}/{job.name}",
            most_moves=most_moves,
            job_share=job_share,
            most_priority=most_priority,
            at_once=at_once,
            reason=reason[:300],
            asked_by=principal.name,
            created_at=entry.time,
        )
        entry.append(events.RepackingSet(repacking=row.pk, state=row.state, detail=row.reason))
        old = Repacking.objects.filter(cell=cell, ended_at__isnull=False, drains__isnull=True).order_by("-id")
        Repacking.objects.filter(pk__in=list(old.values_list("pk", flat=True)[KEPT:])).delete()
    return row


def repacking_start(*, principal: Principal, cell: Cell, number: int, confirm: int | None = None) -> Repacking:
    """Start the re-packing `number`, whose plan is ready. From now on, no new task starts on its machines.

    `confirm`: the number of tasks that move; required if it is above the share `confirm_share` of the cell's tasks.
    Raises `Conflict` if the re-packing has another state, has nothing to do, or is older than an hour. Locks: the
    cell's row, then the rows of the machines.
    """
    require(principal, Action.MACHINE_ADMIN, cell=cell.name)
    with journal.write(cell.id, principal) as entry:
        row = _locked(cell, number)
        if row.state != Repacking.PLANNED:
            raise Conflict("not-planned", f"re-packing {row.pk} is {row.state}; ask for a new plan and start that one")
        steps = list(row.steps.filter(state=RepackingStep.WAITING).order_by("position"))
        if not steps:
            raise Conflict("nothing-to-do", f"the plan of re-packing {row.pk} moves no task; {row.detail}")
        assert row.planned_at is not None
        if entry.time - row.planned_at > dt.timedelta(seconds=VALID_S):
            detail = f"the plan of re-packing {row.pk} is older than {VALID_S / 60:.0f} minutes; ask for a new plan"
            raise Conflict("plan-expired", detail)
        spare = row.steps.filter(state=RepackingStep.SPARE).aggregate(moves=Sum("moves"))["moves"] or 0
        confirmation.require(cell, row.moves + spare, confirm, what=f"move tasks away from {len(steps)} machines")
        row.state, row.started_by, row.started_at = Repacking.RUNNING, principal.name, entry.time
        row.save()
        reason = f"re-packing {row.pk}: {row.reason}"
        there = machines_cordon(entry, [step.machine_id for step in steps], row, reason)
        for step in steps:
            if step.machine_id not in there:
                step.state, step.ended_at = RepackingStep.SKIPPED, entry.time
                step.detail = "the machine is no longer up, or was drained since the plan"
        RepackingStep.objects.bulk_update(steps, ["state", "ended_at", "detail"], batch_size=500)
        spares_use(entry, row, len(steps) - len(there))
        entry.append(events.RepackingSet(repacking=row.pk, state=row.state, tasks=row.moves))
    return row


def repacking_stop(*, principal: Principal, cell: Cell, number: int, reason: str = "") -> Repacking:
    """Stop the re-packing `number`, or discard its plan. Its machines that are not free yet receive tasks again. Free
    machines stay free until `repacking_release`. Raises `Conflict` if it has ended. Locks: the cell's row, then the
    rows of the machines.
    """
    require(principal, Action.MACHINE_ADMIN, cell=cell.name)
    with journal.write(cell.id, principal) as entry:
        row = _locked(cell, number)
        if row.state not in Repacking.OPEN:
            raise Conflict("repacking-ended", f"re-packing {row.pk} is {row.state}; there is nothing to stop")
        stop(entry, row, f"stopped by {principal.name}" + (f": {reason}" if reason else ""))
    return row


def repacking_release(*, principal: Principal, cell: Cell, number: int, reason: str = "") -> Repacking:
    """Return the free machines of the re-packing `number`, which has ended: new tasks may start there. Raises
    `Conflict` if it has not ended, or has no machine to return. Locks: the cell's row, then the rows of the machines.
    """
    require(principal, Action.MACHINE_ADMIN, cell=cell.name)
    with journal.write(cell.id, principal) as entry:
        row = _locked(cell, number)
        if row.state in Repacking.OPEN:
            detail = f"re-packing {row.pk} is {row.state}; stop it first with `borgctl repack stop {row.pk}`"
            raise Conflict("repacking-open", detail)
        held = list(row.drains.order_by().values_list("machine_id", flat=True))
        if not held:
            raise Conflict(
                "nothing-to-return",
                f"re-packing {row.pk} keeps no machine empty now, so there is no machine to return to the scheduler",
            )
        machines_uncordon(
            entry,
            row,
            held,
            f"re-packing {row.pk} no longer keeps this machine free" + (f": {reason}" if reason else ""),
        )
        entry.append(events.RepackingSet(repacking=row.pk, state=row.state, detail=f"{len(held)} machines returned"))
    return row


def spares_use(entry: JournalEntry, row: Repacking, number: int) -> None:
    """Let `number` spare machines take the place of machines whose step was skipped. Spare machines that are no longer
    up are skipped too. Locks the machines' rows.
    """
    while number > 0:
        spares = list(row.steps.filter(state=RepackingStep.SPARE).order_by("position")[:number])
        if not spares:
            return
        there = machines_cordon(entry, [step.machine_id for step in spares], row, f"re-packing {row.pk}: {row.reason}")
        for step in spares:
            step.state = RepackingStep.WAITING if step.machine_id in there else RepackingStep.SKIPPED
            step.detail = "" if step.machine_id in there else "the machine is no longer up, or is drained"
            step.ended_at = None if step.machine_id in there else entry.time
        RepackingStep.objects.bulk_update(spares, ["state", "detail", "ended_at"], batch_size=500)
        number -= len(there)


def stop(entry: JournalEntry, row: Repacking, detail: str) -> None:
    """End an open re-packing before it is done. Its machines that are not free yet receive tasks again."""
    steps = row.steps.filter(state__in=(RepackingStep.WAITING, RepackingStep.MOVING))
    free = row.steps.filter(state=RepackingStep.FREED).values("machine_id")
    others = row.drains.exclude(machine__in=free).order_by().values_list("machine_id", flat=True)
    machines_uncordon(entry, row, list(others), f"re-packing {row.pk} was stopped")
    if row.state == Repacking.RUNNING:
        steps.update(state=RepackingStep.SKIPPED, detail="the re-packing was stopped", ended_at=entry.time)
    _end(entry, row, Repacking.STOPPED, detail)


def _end(entry: JournalEntry, row: Repacking, state: str, detail: str) -> None:
    row.state, row.detail, row.ended_at = state, detail[:500], entry.time
    row.save(update_fields=["state", "detail", "ended_at"])
    entry.append(events.RepackingSet(repacking=row.pk, state=row.state, detail=row.detail))


def _locked(cell: Cell, number: int) -> Repacking:
    row = Repacking.objects.select_for_update().filter(cell=cell, pk=number).first()
    if row is None:
        raise NotFound("re-packing", str(number))
    return row


def _machines_wanted(up: int, machines: int | None, share: float | None) -> int:
    if share is not None:
        if not 0 < share <= 1:
            raise invalid("share", f"share is {share:g}; give a number above 0, up to 1, such as 0.03 for 3 %")
        number = max(1, math.ceil(share * up - 1e-9))
        if number > MOST_MACHINES:
            raise invalid("share", f"share {share:g} is {number} machines; give at most {MOST_MACHINES / up:g}")
        return number
    assert machines is not None
    if not 1 <= machines <= up:
        raise invalid("machines", f"machines is {machines}, and {up} machines are up; give a number from 1 to {up}")
    if machines > MOST_MACHINES:
        raise invalid(
            "machines",
            f"machines is {machines}; give at most {MOST_MACHINES}, and plan another re-packing later for more"
            " machines",
        )
    return machines
