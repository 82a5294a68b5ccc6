"""Read the log of a task from the machine on which the task runs or ran."""

from __future__ import annotations

from borglet.messages import LogChunk, TaskKey
from quota.vocabulary.errors import Conflict, invalid
from quota.vocabulary.permissions import Action, Principal
from scheduling.access.tenant_permission import require_tenant
from scheduling.machines import log_requests
from scheduling.models import Event, Job, Machine, Task

STREAMS = ("stdout", "stderr")
MAX_LOG_BYTES = log_requests.MAX_BYTES
MAX_LINES = 1000
MAX_SEARCH = 1000


def task_log(
    *,
    principal: Principal,
    job: Job,
    task: Task,
    stream: str,
    offset: int,
    limit_bytes: int,
    incarnation: int = 0,
    search: str = "",
    ignore_case: bool = False,
    since: float = 0.0,
    limit_lines: int = 1000,
) -> LogChunk:
    """Return part of a task's log from byte `offset` on. A negative `offset` counts from the end. If `search` is
    given, return only the lines that contain it.

    `incarnation`: the number of the incarnation whose log is read; 0: the newest. Raises `Rejected` if an argument is
    wrong, `Conflict` if the task has not run yet or is simulated, and `LogUnavailable` if its machine does not answer.
    """
    require_tenant(principal, Action.JOB_VIEW, job.tenant.name, job.cell.name)
    if stream not in STREAMS:
        raise invalid("stream", f"the stream {stream[:50]!r} is unknown; give one of {', '.join(STREAMS)}")
    if len(search) > MAX_SEARCH:
        raise invalid("search", f"the text to search for is too long; give at most {MAX_SEARCH} characters")
    if search and offset < 0:
        offset = 0
    if not 0 <= incarnation <= task.incarnation:
        raise invalid(
            "incarnation", f"there is no incarnation {incarnation}; give 1 to {task.incarnation}, or 0 for the newest"
        )
    number = incarnation or task.incarnation
    machine = task.machine if task.machine is not None and number == task.incarnation else None
    machine = machine or _machine_of(job, task, number)
    if machine is None:
        raise Conflict(
            "no-log", f"task {task.index} of job {job.name} has not run yet; /why/?index={task.index} shows the reason"
        )
    if machine.attributes.get("runtime") == "simulated":
        raise Conflict("log-simulated", f"task {task.index} is simulated, and simulated tasks write no log")
    chunk = log_requests.fetch(
        machine,
        TaskKey(job.uid.hex, task.index, number),
        stream=stream,
        offset=offset,
        limit_bytes=limit_bytes,
        search=search,
        ignore_case=ignore_case,
        since=since,
        limit_lines=limit_lines,
    )
    if chunk.error:
        raise Conflict("log-unavailable", chunk.error)
    return chunk


def _machine_of(job: Job, task: Task, incarnation: int) -> Machine | None:
    """Return the machine on which an incarnation of the task was placed, or None if the journal does not say."""
    placed = Event.objects.filter(
        cell_id=job.cell_id, job_id=job.id, task_index=task.index, kind="task.placed", data__incarnation=incarnation
    )
    machine_id = placed.order_by("-revision", "-seq").values_list("machine_id", flat=True).first()
    return Machine.objects.filter(pk=machine_id).first()  # type: ignore[misc]
