"""Shells in tasks. The portal requests a shell, the shard of the machine grants it, and the machine's Borglet opens
it.

    shell_ask ─── row, shell.opened ──► asked
    shell_grant ─── once, at the shard ──► granted ─── signed, to the machine
    shell_connected ─── once, when the machine connects ──► open ─── shell_seen checks the rights every few seconds
    shell_close ─── shell.closed ──► closed

Write access to Redis is not enough to open a shell. The shard signs the content of the database row, the Borglet
accepts only this signature, and each step is done at most once.
"""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Sequence

import msgspec
from django.db import transaction
from django.utils import timezone

from borglet.messages import Phase, ShellClaims, ShellGrant, TaskKey
from quota.vocabulary.errors import Conflict, Forbidden, Rejected
from quota.vocabulary.permissions import Action, CapabilityKind, Principal, may, system
from scheduling.access.tenant_permission import require_tenant
from scheduling.core.vocabulary import events
from scheduling.core.vocabulary.states import TaskState
from scheduling.identity import authority
from scheduling.journal import journal
from scheduling.models import Job, ShellSession, Task

PER_USER, PER_TASK = 10, 5
IDLE_S, LONGEST_S = 1800.0, 12 * 3600.0
GRANT_S = 60.0
# A session ends if its portal process sends nothing for this time. It sends a request every few seconds.
LOST_S = 60.0
MAX_COMMAND_BYTES = 16 * 1024
MAX_SIDE = 1000


def shell_ask(
    *,
    principal: Principal,
    job: Job,
    task: Task,
    command: Sequence[str] = (),
    rows: int = 24,
    cols: int = 80,
    plain: bool = False,
    peer: str = "",
) -> ShellSession:
    """Store a request for a shell in a task, and append an event to the journal. `peer`: the client's address.

    Raises `Rejected` if an argument is wrong, and `Conflict` if the task is not up or there are too many shells. Locks
    the cell's row, so that no other shell is requested at the same time.
    """
    require_shell(principal, job)
    problems = {}
    for field, value in (("rows", rows), ("cols", cols)):
        if not 1 <= value <= MAX_SIDE:
            problems[field] = f"{value} is out of range; give 1 to {MAX_SIDE}"
    if sum(len(word.encode("utf-8", "surrogateescape")) + 1 for word in command) > MAX_COMMAND_BYTES:
        problems["command"] = f"the command is too long; give at most {MAX_COMMAND_BYTES} bytes"
    if any("\x00" in word for word in command) or (command and not command[0]):
        problems["command"] = "it has no program, or a NUL character; give a program and its arguments without NUL"
    if problems:
        detail = "; ".join(f"{name}: {what}" for name, what in problems.items())
        raise Rejected("invalid", detail, fields=problems)
    now = timezone.now()
    with journal.write(job.cell_id, principal) as entry:
        held = Task.objects.select_related("machine").get(pk=task.pk)
        if held.state != TaskState.RUNNING or held.machine is None or held.phase != Phase.UP:
            standing = held.phase or held.state
            raise Conflict(
                "not-running",
                f"task {held.index} of job {job.name} is {standing}; open a shell when it is running",
                fields={"index": standing},
            )
        _check_number(job, held, principal)
        made = ShellSession.objects.create(
            cell_id=job.cell_id,
            job=job,
            task_index=held.index,
            incarnation=held.incarnation,
            machine=held.machine,
            actor=principal.name,
            peer=peer[:64],
            request_id=principal.request_id,
            command=list(command),
            rows=rows,
            cols=cols,
            plain=plain,
            asked_at=now,
            seen_at=now,
        )
        entry.append(
            events.ShellOpened(
                job_id=job.id,
                index=held.index,
                machine_id=held.machine.id,
                incarnation=held.incarnation,
                session=made.id.hex,
                peer=made.peer,
                command=tuple(word[:200] for word in command[:50]),
            )
        )
    return made


def require_shell(principal: Principal, job: Job) -> None:
    """Raise `Forbidden` if the caller may not open shells in the job's tasks, or `NotFound` if the caller may not see
    the job's tenant. Shells need the right to change the job and the capability `shell`.
    """
    require_tenant(principal, Action.JOB_WRITE, job.tenant.name, job.cell.name)
    if not may_open_shells(principal, job):
        raise Forbidden(
            "shell.open",
            f"{principal.name} may not open shells for tenant {job.tenant.name}. Shells need the capability"
            f" {CapabilityKind.SHELL}. Request it on the tenant's page Capabilities.",
        )


def may_open_shells(principal: Principal, job: Job) -> bool:
    """Return whether the caller may open shells in the tasks of a job."""
    tenant, cell = job.tenant.name, job.cell.name
    return principal.has(CapabilityKind.SHELL, cell) and may(principal, Action.JOB_WRITE, tenant=tenant, cell=cell)


def _check_number(job: Job, task: Task, principal: Principal) -> None:
    """Raise `Conflict` if the caller has too many shells in the cell, or the task has too many shells."""
    open_ones = ShellSession.objects.exclude(state=ShellSession.CLOSED).filter(cell_id=job.cell_id)
    mine = open_ones.filter(actor=principal.name).count()
    if mine >= PER_USER:
        raise Conflict(
            "too-many-shells",
            f"{principal.name} has {mine} open shells in cell {job.cell.name}, and at most {PER_USER} are allowed;"
            " close one of them",
            fields={"user": f"at most {PER_USER}"},
        )
    here = open_ones.filter(job=job, task_index=task.index).count()
    if here >= PER_TASK:
        raise Conflict(
            "too-many-shells",
            f"task {task.index} of job {job.name} has {here} open shells, and at most {PER_TASK} are allowed;"
            " close one of them",
            fields={"index": f"at most {PER_TASK}"},
        )


def shell_grant(session: uuid.UUID, *, machine_id: int) -> ShellGrant:
    """Return the signed message with which the Borglet opens the shell. Raises `Conflict` on a second call, if the
    request is too old, or if the task has left the machine.
    """
    now = timezone.now()
    with transaction.atomic():
        row = (
            ShellSession.objects.select_for_update(of=("self",))
            .select_related("machine")
            .filter(pk=session, machine_id=machine_id)
            .first()
        )
        if row is None or row.state != ShellSession.ASKED:
            raise Conflict("no-such-shell", "no requested shell has this number; request a new shell")
        if now - row.asked_at > dt.timedelta(seconds=GRANT_S):
            raise Conflict(
                "no-such-shell", f"the request for this shell is older than {GRANT_S:g} s; request a new shell"
            )
        if not _still_there(row):
            raise Conflict("not-running", "the task has just left its machine; request a new shell")
        row.state = ShellSession.GRANTED
        row.save(update_fields=["state"])
    claims = ShellClaims(
        session=row.id.hex,
        machine=row.machine.hostname,
        key=TaskKey(row.job.uid.hex, row.task_index, row.incarnation),
        user=row.actor,
        issued_at=now.timestamp(),
        expires_at=now.timestamp() + GRANT_S,
        idle_s=IDLE_S,
        longest_s=LONGEST_S,
        command=list(row.command),
        rows=row.rows,
        cols=row.cols,
        plain=row.plain,
    )
    content = msgspec.json.encode(claims)
    return ShellGrant(content, authority.sign_shell(content))


def shell_connected(session: uuid.UUID, *, machine_id: int) -> bool:
    """Mark a session as open, because its machine has connected. Return False if its state is not granted, or if it
    belongs to another machine.
    """
    waiting = ShellSession.objects.filter(pk=session, machine_id=machine_id, state=ShellSession.GRANTED)
    return bool(waiting.update(state=ShellSession.OPEN))


def shell_seen(session: uuid.UUID, *, principal: Principal, typed: int, printed: int) -> str:
    """Record that the client is still connected. Return the reason why the shell must end now, or "" if it may
    continue.

    `typed`, `printed`: how many bytes of input and output there were so far.
    """
    row = ShellSession.objects.select_related("job__tenant", "job__cell").filter(pk=session).first()
    if row is None or row.state == ShellSession.CLOSED:
        return "the session was closed"
    if not may_open_shells(principal, row.job):
        return "the right to open shells was withdrawn"
    if not _still_there(row):
        return "the task ended or left its machine"
    ShellSession.objects.filter(pk=session).update(seen_at=timezone.now(), bytes_typed=typed, bytes_printed=printed)
    return ""


def shell_close(
    session: uuid.UUID, *, principal: Principal, how: str, typed: int | None = None, printed: int | None = None
) -> bool:
    """Close a session and append its event to the journal. Return False if the session is already closed.

    `how`: how the session ended. `typed`, `printed`: the bytes of input and output; None: keep the numbers that were
    recorded last. Locks the cell's row, then the row of the session.
    """
    row = ShellSession.objects.filter(pk=session).first()
    if row is None or row.state == ShellSession.CLOSED:
        return False
    with journal.write(row.cell_id, principal) as entry:
        row = ShellSession.objects.select_for_update().get(pk=session)
        if row.state == ShellSession.CLOSED:
            return False
        now = timezone.now()
        row.state, row.closed_at, row.how = ShellSession.CLOSED, now, how[:300]
        row.bytes_typed = row.bytes_typed if typed is None else typed
        row.bytes_printed = row.bytes_printed if printed is None else printed
        row.save(update_fields=["state", "closed_at", "how", "bytes_typed", "bytes_printed"])
        entry.append(
            events.ShellClosed(
                job_id=row.job_id,
                index=row.task_index,
                machine_id=row.machine_id,
                incarnation=row.incarnation,
                session=row.id.hex,
                how=row.how,
                seconds=round((now - row.asked_at).total_seconds(), 1),
                bytes_typed=row.bytes_typed,
                bytes_printed=row.bytes_printed,
            )
        )
    return True


def shells_sweep() -> int:
    """Close shell sessions that a dead portal process has left open. Return the number of closed sessions."""
    silent = timezone.now() - dt.timedelta(seconds=LOST_S)
    lost = ShellSession.objects.exclude(state=ShellSession.CLOSED).filter(seen_at__lt=silent)
    closed = 0
    for session in list(lost.values_list("id", flat=True)[:1000]):
        closed += shell_close(session, principal=system("shells"), how="the portal process of this shell has ended")
    return closed


def _still_there(row: ShellSession) -> bool:
    return Task.objects.filter(
        job_id=row.job_id,
        index=row.task_index,
        incarnation=row.incarnation,
        machine_id=row.machine_id,
        state=TaskState.RUNNING,
    ).exists()
