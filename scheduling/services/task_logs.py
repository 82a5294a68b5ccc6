"""What a task printed, read from its machine through the link."""

from __future__ import annotations

from borglet.messages import LogChunk, TaskKey
from quota.errors import Conflict, Refused
from quota.permissions import Action, Principal
from scheduling.link import logs
from scheduling.models import Event, Job, Machine, Task
from scheduling.services.tenancy import require_tenant

STREAMS = ("stdout", "stderr")
MAX_LOG_BYTES = logs.MAX_BYTES


def task_log(
    *, principal: Principal, job: Job, task: Task, stream: str, offset: int, limit_bytes: int
) -> LogChunk:
    """At most `limit_bytes` from `offset` (negative: from the end) of a task that runs, or of its last run.

    Raises `Refused` for no stream, `Conflict` when it never ran, `LogUnavailable` when its machine does not answer.
    """
    require_tenant(principal, Action.JOB_VIEW, job.tenant.name, job.cell.name)
    if stream not in STREAMS:
        raise Refused(
            "invalid", f"stream: {stream[:50]!r}; one of {', '.join(STREAMS)}", fields={"stream": "unknown"}
        )
    machine = task.machine or _last_machine(job, task)
    if machine is None:
        raise Conflict(
            "no-log",
            f"task {task.index} of job {job.name} has not run yet; see why with /why/?index={task.index}",
        )
    chunk = logs.fetch(
        machine,
        TaskKey(job.uid.hex, task.index, task.incarnation),
        stream=stream,
        offset=offset,
        limit_bytes=limit_bytes,
    )
    if chunk.error:
        raise Conflict("log-unavailable", chunk.error)
    return chunk


def _last_machine(job: Job, task: Task) -> Machine | None:
    """Where the task ran last, as the journal tells."""
    placed = Event.objects.filter(
        cell_id=job.cell_id, job_id=job.id, task_index=task.index, kind="task.placed"
    )
    machine_id = placed.order_by("-revision", "-seq").values_list("machine_id", flat=True).first()
    return Machine.objects.filter(pk=machine_id).first()
