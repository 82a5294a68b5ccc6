"""Helpers for tests of locks."""

from __future__ import annotations

import uuid
from typing import Any

from borglet.messages import TaskKey, TaskRun
from scheduling.core.vocabulary.requirement import task_id
from scheduling.core.vocabulary.task_events import Eviction
from scheduling.journal import journal
from scheduling.journal.sql import execute
from scheduling.locks.sessions import Connected, Seeker
from scheduling.models import Job, LockSession, Machine, Task
from scheduling.tasks import departures, transitions
from tests.integration import rows, world


def using(*locks: str, name: str = "web", **changes: Any) -> dict[str, Any]:
    """Return a job file whose tasks may use these locks."""
    return world.with_task(name, locks=list(locks), **changes)


def run_of(job: Job, index: int = 0, run: int = 1) -> TaskRun:
    """Return a run of a task, as its Borglet names it."""
    task = Task.objects.get(job=job, index=index)
    return TaskRun(TaskKey(job.uid.hex, index, task.incarnation), run)


def connected(machine: Machine) -> Connected:
    """Return a machine with its newest connection."""
    return Connected(machine.id, Machine.objects.values_list("session", flat=True).get(pk=machine.id))


def evict(job: Job, index: int = 0) -> None:
    """Let the master stop a task, as for a preemption. Its machine still has to end its processes."""
    task = Task.objects.get(job=job, index=index)
    with journal.write(job.cell_id, rows.ME) as entry:
        transitions.tasks_evict(entry, [Eviction(task.id, task.incarnation, "preemption")])


def gone(job: Job, index: int = 0, incarnation: int = 1) -> None:
    """Let the machine report that the processes of an evicted task have ended."""
    with journal.write(job.cell_id, rows.ME) as entry:
        departures.tasks_gone(entry, [(task_id(job.id, index), incarnation, None)])


def user(name: str, session: uuid.UUID | None = None, *, lease_s: float = 15.0) -> Seeker:
    return Seeker(name, lease_s, uid=session)


def let_leases_end(owner: str = "") -> None:
    """Let the leases of sessions end now: those of `owner`, or all."""
    named = {"owner": owner} if owner else {}
    ids = list(LockSession.objects.filter(**named).values_list("id", flat=True))
    execute(
        "UPDATE scheduling_locksession SET expires_at = clock_timestamp() - interval '1 ms' WHERE id = ANY(%s)", [ids]
    )
